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
    *("layer_norm_warps", "max_symbolic", "linear_symbolic", "product_three_stages"),
    "transpose_shared",
}
_SHARED = {
    *("max_symbolic", "softmax_symbolic", "log_softmax", "layer_norm_warps"),
    *("linear", "linear_symbolic", "linear_rows", "matmul", "matmul_symbolic"),
    *("conv2d", "conv2d_batch", "conv2d_grouped", "attention", "attention_heads"),
    *("product_one_stage", "product_three_stages", "transpose_shared"),
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
        {"max_symbolic"},
    ),
    "its constant shape is one block": (
        {"race of blocks"},
        {"flat_odd", "transpose", "concat", "linear_one_row"},
    ),
    "it has no condition": ({"dropped predicate"}, {"transpose_shared"}),
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
    reasons = [
        reason_text
        for reason_text, (faults, names) in INAPPLICABLE.items()
        if fault in faults and name in names
    ]
    assert len(reasons) < 2, (name, fault, reasons)
    return reasons[0] if reasons else None


def kernel(name: str) -> Launched:
    """The last launch of a class, with its grid as proofs see it."""
    return launched(name, folded=False)[-1]


@functools.cache
def planted(name: str) -> dict[str, list[PrimFunc]]:
    """The variants of a class by fault, each under a name of its own."""
    variants_by_fault = {}
    for number, (fault, planted_fault) in enumerate(FAULTS.items()):
        variants = enumerate(planted_fault.plant(kernel(name).func))
        variants_by_fault[fault] = [replace(f, name=f"fault_{number}_{k}") for k, f in variants]
    return variants_by_fault


def diverging(name: str) -> Iterator[tuple[str, str]]:
    """Names and LLVM IR of variants with a barrier that some threads miss."""
    mark = "the_kernel"
    ir = emit_ptx_ir(replace(kernel(name).func, name=mark), TARGET)
    for k, text in enumerate(diverging_barrier(ir, mark)):
        yield f"diverging_{k}", text.replace(mark, f"diverging_{k}")


def found_by(kernels: Emulated, x: Launched, variant: str) -> dict[str, str]:
    """What the emulator says of a variant in each order, by kind."""
    messages = {}
    for order in ORDERS:
        kernels.order(*order)
        try:
            x.run(kernels, variant)
        except EmulatorFault as fault:
            messages[fault.kind] = str(fault)
    return messages


def check_named(message: str, variant: str) -> None:
    """A fault is told with kernel, block and threads, and where it was."""
    who = rf"kernel {variant}, block \(\d+, \d+, \d+\): thread \(\d+, \d+, \d+\)"
    assert re.search(who, message), message
    assert re.search(r"byte|barrier", message), message


def some(names: list[str], default: set[str]) -> list[object]:
    """Parameters of a test: all, those that are not of the default under the marker fuzz."""
    return [n if n in default else pytest.param(n, marks=pytest.mark.fuzz) for n in names]


@pytest.mark.parametrize("name", some(CLASSES, SLICE))
def test_the_emulator_finds_it(name: str) -> None:
    x, variants, apart = kernel(name), planted(name), dict(diverging(name))
    irs = [
        emit_ptx_ir(f, TARGET) for variants_of_fault in variants.values() for f in variants_of_fault
    ]
    kernels = Emulated([emit_ptx_ir(x.func, TARGET), *irs, *apart.values()])
    kernels.aligned = True
    assert found_by(kernels, x, x.func.name) == {}
    for fault, variants_of_fault in variants.items():
        messages = [found_by(kernels, x, f.name) for f in variants_of_fault]
        hits = [{*s} & {*FAULTS[fault].emulated} for s in messages]
        if reason(name, fault):
            assert not any(messages), (fault, messages)
            continue
        assert any(hits) and (all(hits) or not FAULTS[fault].everywhere), (fault, messages)
        for f, s, kinds in zip(variants_of_fault, messages, hits, strict=True):
            for kind in kinds:
                check_named(s[kind], f.name)
    for variant in apart:  # who goes on meanwhile may also race with who waits
        kernels.aligned = True
        if not (faults := found_by(kernels, x, variant)):
            kernels.aligned = False  # it is in the code for tensors that are not aligned
            faults = found_by(kernels, x, variant)
        assert {*faults} <= {"barrier", "race"} and faults, (variant, faults)
        for text in faults.values():
            check_named(text, variant)
    assert "barrier" in faults  # the last is one too many at the end: nobody is left to race with


@pytest.mark.parametrize("name", some(CLASSES, SLICE - {"attention_heads"}))
def test_proofs_find_it(name: str) -> None:
    """`check_races`, where it asks for the fault: in one place of each."""
    for fault, variants_of_fault in planted(name).items():
        proved = {*FAULTS[fault].proved}
        if not proved or reason(name, fault):
            continue
        reports = [
            races_of(f, notes=False)
            for f in (variants_of_fault[:1] if FAULTS[fault].everywhere else variants_of_fault)
        ]
        proved_faults = [r for races in reports for r in races.faults if r.kind in proved]
        if (name, fault) in DOUBTED:
            assert not proved_faults and any(races.doubts for races in reports), (
                fault,
                proved_faults,
            )
            continue
        assert proved_faults, (fault, reports)
        assert re.search(r"thread \(\d+, \d+, \d+\)", str(proved_faults[0])), str(proved_faults[0])


def test_every_pair_is_found_or_has_a_reason() -> None:
    """The table names faults and classes that there are, and each fault applies to some class."""
    for faults, names in INAPPLICABLE.values():
        assert faults <= {*FAULTS} and names <= {*CLASSES}
    for fault in FAULTS:
        assert any(reason(name, fault) is None for name in SLICE), fault
    assert {n for n, _ in DOUBTED} <= {*CLASSES} and {f for _, f in DOUBTED} <= {*FAULTS}
    assert {*CLASSES} >= SLICE
