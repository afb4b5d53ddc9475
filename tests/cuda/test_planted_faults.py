"""Every fault of faults.py in every class of kernels: the emulator finds it in one of the orders of
threads and names who did it, and so do proofs where they ask for such. What does not apply to a
class is listed by reason, and harms nothing."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from dataclasses import replace

import pytest

from tensorkiln.codegen.ptx.emit import emit_ptx_ir
from tensorkiln.ir.stmt import PrimFunc
from tensorkiln.transform.tir.check_races import races_of
from tests.cuda.classes import HALVES, NAMES, ONE_BLOCK, TARGET, Launched, launched
from tests.cuda.emulator.launch import BACKWARD, FORWARD, RANDOM, Emulated, EmulatorFault
from tests.cuda.faults import FAULTS, diverging_barrier

ORDERS = ((FORWARD, 0), (BACKWARD, 0), (RANDOM, 3))
# Of one block only, bounds and other blocks are not seen; `linear` has the same schedule. Kernels
# on tensor cores have two bodies, one of which no launch runs: test_tensor_cores.py and
# test_attention.py plant missing barriers.
CLASSES = [name for name in NAMES if name not in ONE_BLOCK and name not in HALVES]
# One of each kind of schedule, and those made by primitives; all of them under the marker fuzz.
SLICE = {
    *("flat", "sum_rows", "softmax", "layer_norm", "matmul", "depthwise", "attention_heads"),
    *("linear_symbolic", "product_three_stages", "transpose_shared"),
}
_SHARED = {
    *("sum_rows", "mean_planes", "max_symbolic", "softmax", "softmax_symbolic", "log_softmax"),
    *("layer_norm", "linear", "linear_symbolic", "linear_rows", "matmul", "matmul_symbolic"),
    *("conv2d", "conv2d_batch", "conv2d_grouped", "attention", "attention_heads"),
    *("product_one_stage", "product_three_stages", "transpose_shared", "transpose_swizzled"),
}
# Classes whose factors are copied ahead.
_AHEAD = {
    *("linear", "linear_symbolic", "linear_rows", "conv2d", "conv2d_batch"),
    "product_three_stages",
}
# What does not apply to a class, by reason.
INAPPLICABLE = {
    "it shares no memory": (
        {
            *("missing barrier", "shared row too far", "undefined"),
            *("wrong stage", "unawaited copies", "batch unawaited"),
        },
        {*CLASSES} - _SHARED,
    ),
    "its copies have one stage": (
        {"wrong stage", "unawaited copies", "batch unawaited"},
        _SHARED - _AHEAD,
    ),
    "its copies are all awaited": ({"batch unawaited"}, _AHEAD - {"product_three_stages"}),
    "one thread of a block stores": (
        {"race of threads"},
        {"sum_rows", "mean_planes", "max_symbolic"},
    ),
    "its constant shape is one block": (
        {"race of blocks"},
        {"flat_odd", "transpose", "concat", "linear_one_row"},
    ),
    "it has no condition": ({"dropped predicate"}, {"transpose_shared", "transpose_swizzled"}),
}
# Proofs do not show what is wrong, but say that they cannot prove the absence of a fault.
DOUBTED = {
    *(
        (n, "race of reads")
        for n in ("flat_symbolic", "sum_few_terms", "sum_rows", "softmax_short")
    ),
}


def reason(name: str, fault: str) -> str | None:
    """Why a fault does not apply to a class, if it does not."""
    found = [
        why for why, (faults, names) in INAPPLICABLE.items() if fault in faults and name in names
    ]
    assert len(found) < 2, (name, fault, found)
    return found[0] if found else None


def kernel(name: str) -> Launched:
    """The last launch of a class, with its grid as proofs see it."""
    return launched(name, folded=False)[-1]


@functools.cache
def planted(name: str) -> dict[str, list[PrimFunc]]:
    """The variants of a class by fault, each under a name of its own."""
    found = {}
    for number, (fault, how) in enumerate(FAULTS.items()):
        variants = enumerate(how.plant(kernel(name).func))
        found[fault] = [replace(f, name=f"fault_{number}_{k}") for k, f in variants]
    return found


def diverging(name: str) -> Iterator[tuple[str, str]]:
    """Names and LLVM IR of variants with a barrier that some threads miss."""
    mark = "the_kernel"
    ir = emit_ptx_ir(replace(kernel(name).func, name=mark), TARGET)
    for k, text in enumerate(diverging_barrier(ir, mark)):
        yield f"diverging_{k}", text.replace(mark, f"diverging_{k}")


def found_by(kernels: Emulated, x: Launched, variant: str) -> dict[str, str]:
    """What the emulator says of a variant in each order, by kind."""
    said = {}
    for order in ORDERS:
        kernels.order(*order)
        try:
            x.run(kernels, variant)
        except EmulatorFault as fault:
            said[fault.kind] = str(fault)
    return said


def check_named(said: str, variant: str) -> None:
    """A fault is told with kernel, block and threads, and where it was."""
    who = rf"kernel {variant}, block \(\d+, \d+, \d+\): thread \(\d+, \d+, \d+\)"
    assert re.search(who, said), said
    assert re.search(r"byte|barrier", said), said


def some(names: list[str], default: set[str]) -> list[object]:
    """Parameters of a test: all, those that are not of the default under the marker fuzz."""
    return [n if n in default else pytest.param(n, marks=pytest.mark.fuzz) for n in names]


@pytest.mark.parametrize("name", some(CLASSES, SLICE))
def test_the_emulator_finds_it(name: str) -> None:
    x, variants, apart = kernel(name), planted(name), dict(diverging(name))
    irs = [emit_ptx_ir(f, TARGET) for own in variants.values() for f in own]
    kernels = Emulated([emit_ptx_ir(x.func, TARGET), *irs, *apart.values()])
    kernels.aligned = True
    assert found_by(kernels, x, x.func.name) == {}
    for fault, own in variants.items():
        said = [found_by(kernels, x, f.name) for f in own]
        hits = [{*s} & {*FAULTS[fault].emulated} for s in said]
        if reason(name, fault):
            assert not any(said), (fault, said)
            continue
        assert any(hits) and (all(hits) or not FAULTS[fault].everywhere), (fault, said)
        for f, s, kinds in zip(own, said, hits, strict=True):
            for kind in kinds:
                check_named(s[kind], f.name)
    for variant in apart:  # who goes on meanwhile may also race with who waits
        kernels.aligned = True
        if not (found := found_by(kernels, x, variant)):
            kernels.aligned = False  # it is in the code for tensors that are not aligned
            found = found_by(kernels, x, variant)
        assert {*found} <= {"barrier", "race"} and found, (variant, found)
        for text in found.values():
            check_named(text, variant)
    assert "barrier" in found  # the last is one too many at the end: nobody is left to race with


@pytest.mark.parametrize("name", some(CLASSES, SLICE - {"attention_heads"}))
def test_proofs_find_it(name: str) -> None:
    """`check_races`, where it asks for the fault: in one place of each."""
    for fault, own in planted(name).items():
        proved = {*FAULTS[fault].proved}
        if not proved or reason(name, fault):
            continue
        said = [races_of(f, notes=False) for f in (own[:1] if FAULTS[fault].everywhere else own)]
        found = [r for races in said for r in races.faults if r.kind in proved]
        if (name, fault) in DOUBTED:
            assert not found and any(races.doubts for races in said), (fault, found)
            continue
        assert found, (fault, said)
        assert re.search(r"thread \(\d+, \d+, \d+\)", str(found[0])), str(found[0])


def test_every_pair_is_found_or_has_a_reason() -> None:
    """The table names faults and classes that there are, and each fault applies to some class."""
    for faults, names in INAPPLICABLE.values():
        assert faults <= {*FAULTS} and names <= {*CLASSES}
    for fault in FAULTS:
        assert any(reason(name, fault) is None for name in SLICE), fault
    assert {n for n, _ in DOUBTED} <= {*CLASSES} and {f for _, f in DOUBTED} <= {*FAULTS}
    assert {*CLASSES} >= SLICE
