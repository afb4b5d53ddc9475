"""Products of warpgroups whose factors a warp of its own copies, through a ring of parts of shared
memory and barriers there: right in all orders, early and late; proved; what is wrong with a ring is
found, by the emulator and, where they look for it, by proofs."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cache, partial

import numpy as np
import pytest

from tensorkiln.base.errors import InternalError, UnsupportedError, UserError
from tensorkiln.codegen.ptx.compile import ptx_of
from tensorkiln.codegen.ptx.emit import emit_ptx_ir
from tensorkiln.ir.attrs import Attrs
from tensorkiln.ir.equal import first_difference
from tensorkiln.ir.launch import launch_of
from tensorkiln.ir.module import IRModule
from tensorkiln.ir.rings import PARTS, ring_of
from tensorkiln.ir.stmt import For, PrimFunc, Stmt, Sync
from tensorkiln.ir.text.printer import print_module
from tensorkiln.ir.visit import map_stmt, walk_stmt
from tensorkiln.ops.evaluate import evaluate
from tensorkiln.schedule.primitives import Schedule
from tensorkiln.script import from_source
from tensorkiln.target import Target
from tensorkiln.target.cuda_tools import assembled, instruction_counts
from tensorkiln.transform.tir.check_races import races_of
from tensorkiln.transform.tir.insert_barriers import with_barriers
from tests.cuda.emulator.launch import Emulated, EmulatorFault
from tests.cuda.faults import Change, put, require_found, wrong_stage
from tests.cuda.test_metrics import require_tool
from tests.cuda.test_tensor_cores import (
    LARGE,
    ORDERS,
    Product,
    device_function,
    largest_error,
    launched,
    linear,
    scheduled,
)
from tests.cuda.test_wgmma import PRODUCTS, TYPES, runner
from tests.schedule.battery import arguments
from tests.schedule.gpu.runner import DeviceRunner
from tests.schedule.gpu.test_device_primitives import long_product

RING: dict[str, object] = {"kind": "cuda", "arch": "sm_90a", "matmul_copies": "warp"}
TARGET = Target(RING)
# Those whose factors can be copied, in one round or several, and those that need two bodies.
OFTEN = ["several rounds", "even", "symbolic rows", "symbolic terms", "transposed a", "residual"]


@pytest.mark.parametrize("name", OFTEN)
def test_products(name: str) -> None:
    check("float16", name, runner("float16", tuple(OFTEN), TARGET))


@pytest.mark.fuzz
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("name", PRODUCTS)
def test_all_products(dtype: str, name: str) -> None:
    check(dtype, name, runner(dtype, tuple(PRODUCTS), TARGET))


def check(dtype: str, name: str, device_runner: DeviceRunner) -> None:
    """Against float64, in all orders, early and late, aligned and not; always the same bits."""
    case, kernels = device_runner.battery.cases[name.replace(" ", "_")], device_runner.kernels
    for k, sizes in enumerate(case.sizes):
        inputs = arguments(case, sizes, k)
        (want,) = evaluate(case.function, inputs, sizes, dtype="float64")
        allowed = largest_error(case, PRODUCTS[name].terms, inputs, sizes)
        first = None
        for round_number in range(4):
            kernels.aligned, kernels.order, kernels.late = (
                round_number < 2,
                ORDERS[(k + round_number) % 3],
                round_number % 2 > 0,
            )
            (output,) = launched(device_runner, case, inputs, sizes)
            assert (np.abs(output.astype(np.float64) - want) <= allowed).all()
            assert first is None or (output == first).all()
            first = output


# ---- a kernel of several rounds ------------------------------------------------------------------

SHAPES = ((72, 456), (456, 72))  # eight rounds: each part is filled twice


@cache
def kernel(stages: int = 4) -> PrimFunc:
    target = Target({**RING, "matmul_stages": stages})
    return device_function(scheduled("float16", Product(linear, SHAPES, 456), target), target)


def text() -> str:
    return emit_ptx_ir(kernel(), TARGET)


def launch(f: PrimFunc, ir: str, late: bool, order: int = 0, aligned: bool = True) -> None:
    kernels = Emulated([ir])
    kernels.aligned = aligned
    kernels.order(*ORDERS[order])
    kernels.copies(late)
    kernels.products(late)
    rng = np.random.default_rng(3)
    x, w = (rng.integers(-2, 3, shape).astype(np.float16) for shape in SHAPES)
    out = np.zeros((SHAPES[0][0], SHAPES[1][1]), np.float16)
    grid = [int(e.value) for e in launch_of(f).grid]  # type: ignore[attr-defined]
    kernels.run(f.name, grid, launch_of(f).block, [x, w, out], launch_of(f).shared_bytes)
    np.testing.assert_array_equal(out.astype(np.float64), x.astype(np.float64) @ w)


def rings(f: PrimFunc) -> list[For]:
    return [s for s in walk_stmt(f.body) if isinstance(s, For) and ring_of(s) is not None]


@pytest.mark.in_turn()
@pytest.mark.parametrize("stages", [2, 3, 4])
def test_each_number_of_parts(stages: int) -> None:
    f = kernel(stages)
    (loop,) = rings(f)
    assert loop.attrs[PARTS] == stages
    assert launch_of(f).block == (160, 1, 1)  # a warpgroup, and a warp that copies
    assert not any(isinstance(s, Sync) for s in walk_stmt(loop))
    ir = emit_ptx_ir(f, TARGET)
    for late in (False, True):
        for aligned in (False, True):
            launch(f, ir, late, stages % 3, aligned)


def test_one_part_is_no_ring() -> None:
    f = kernel(1)
    assert not rings(f) and launch_of(f).block == (128, 1, 1)


def test_it_is_proved() -> None:
    f = kernel()
    races = races_of(f, notes=False)
    assert races.proved, (races.faults[:1], races.doubts[:1])
    assert with_barriers(f) is f


def test_every_step_is_proved() -> None:
    scheduled("float16", Product(linear, SHAPES, 456), TARGET, check=True)


def test_text_is_parsed_again() -> None:
    mod = IRModule((kernel(),), "kernels")
    again = from_source(print_module(mod))
    assert first_difference(mod, again) is None
    assert 'annotations={"parts": 4, "producers": 32}' in print_module(mod)


# ---- NVIDIA's assembler --------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["whole", pytest.param("convolution", marks=pytest.mark.fuzz)])
def test_the_assembler_takes_them(name: str) -> None:
    """With nothing spilled and no advice; a round has four products of 16 terms."""
    require_tool("ptxas")
    f = device_function(scheduled("float16", LARGE[name], TARGET), TARGET)
    ir = emit_ptx_ir(f, TARGET)
    ptx = ptx_of({f.name: ir}, ["sm_90a"])["sm_90a"]
    assembly = assembled(ptx, "sm_90a")
    k = assembly.kernels[f.name]
    assert (k.spills, k.stack, assembly.advice) == (0, 0, ())
    if name == "whole":
        assert "cp.async.mbarrier.arrive.noinc" in ptx and "mbarrier.try_wait.parity" in ptx
    require_tool("nvdisasm")
    assert instruction_counts(assembly.cubin)[f.name]["HGMMA"] == 4 * ir.count("wgmma.fence")


# ---- planted faults ------------------------------------------------------------------------------


def early(ir: str) -> str:
    """Parts are handed back before the product that reads them."""
    hand_back = re.compile(
        r"  call void @llvm\.nvvm\.bar\.warp\.sync\(i32 -1\)\n(?:.*\n)*?"
        r"  %\w+ = call i64 @llvm\.nvvm\.mbarrier\.arrive\.shared\((.*)\)\n"
    )
    match = hand_back.search(ir)
    assert match is not None
    arrival = re.search(r"  %\w+ = call i64 @llvm.nvvm.mbarrier.arrive.shared.*\n", match[0])
    assert arrival is not None
    shortened_ir = ir.replace(arrival[0], "")
    product = re.search(r"  %\w+ = call \{float.*wgmma\.fence.*\n", shortened_ir)
    assert product is not None
    tests = f"""\
  %lane.early = and i32 %tid.early, 31
  %is.early = icmp eq i32 %lane.early, 0
  br i1 %is.early, label %yes.early, label %no.early
yes.early:
{arrival[0].replace("  %", "  %early.")}  br label %no.early
no.early:
"""
    tests = "  %tid.early = call i32 @llvm.nvvm.read.ptx.sreg.tid.x()\n" + tests
    return shortened_ir.replace(product[0], tests + product[0], 1)


TRY = r"(%\w+) = call i1 @llvm\.nvvm\.mbarrier\.try\.wait[^\n]*\n"
ARRIVE = r"  (%\w+) = call i64 @llvm\.nvvm\.mbarrier\.arrive\.shared\((.*)\)\n"
NOINC = r"  call void @llvm\.nvvm\.cp\.async\.mbarrier\.arrive\.noinc\.shared\((.*)\)\n"
PROXY = (
    re.escape('  call void asm sideeffect "fence.proxy.async.shared::cta;", "~{memory}"()') + "\n"
)
_PLAIN = r"  %plain = call i64 @llvm.nvvm.mbarrier.arrive.shared(\1)" + "\n"
# Threads of a warp, some of which wait for ever.
STUCK = {"deadlock", "warp"}
READS = {"copy", "undefined shared memory", "race"}
FAULTS: dict[str, tuple[Change, set[str]]] = {
    "the other parity for who copies": (
        put(r"xor i32 (%\w+), 1\n", r"add i32 \1, 0\n"),
        {"deadlock"},
    ),
    "the same parity in each turn": (
        put(r"and i32 (%\w+), 1\n", r"and i32 \1, 0\n"),
        {*STUCK, *READS, "product"},
    ),
    "the other parity for who multiplies": (
        put(r"and i32 (%\w+), 1\n(?!.*xor)", r"xor i32 \1, 1\n"),
        {*STUCK, *READS},
    ),
    "no wait for copies": (put(TRY, r"\1 = icmp eq i32 0, 0" + "\n"), {*READS, "product"}),
    "parts are handed back too early": (early, {"product", "race"}),
    "nobody hands back": (
        put(
            r"  br i1 (%\w+), label (%\w+), label (%\w+)\n(\w+):\n" + ARRIVE,
            r"  br i1 \1, label \2, label \3" + "\n" + r"\4:" + "\n",
        ),
        {"deadlock"},
    ),
    "copies do not arrive": (put(NOINC, ""), {"deadlock"}),
    "who copies arrives, not the copies": (put(NOINC, _PLAIN, 1), {"copy"}),
    "no fence of proxies": (put(PROXY, ""), {"proxy"}),
    "no meeting of the warp": (
        put(r"  call void @llvm\.nvvm\.bar\.warp\.sync\(i32 -1\)\n", ""),
        {"race"},
    ),
    "one arrival too many is awaited": (put(r"i32 32\)\n", "i32 33)\n"), {"deadlock"}),
    "one arrival too few is awaited": (
        put(r"i32 32\)\n", "i32 31)\n"),
        {*READS, "product", "deadlock"},
    ),
}


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("name", FAULTS)
def test_planted_faults(name: str, late: bool) -> None:
    change, kinds = FAULTS[name]
    wrong = change(text())
    require_found(lambda order: launch(kernel(), wrong, late, order), kinds)


def test_barriers_are_made_before_they_are_used() -> None:
    ir = text()
    init_position = ir.rindex("@llvm.nvvm.mbarrier.init.shared(", 0, ir.index("declare"))
    call = "  call void @llvm.nvvm.barrier.cta.sync.aligned.all(i32 0)\n"
    call_position = ir.index(call, ir.index("@llvm.nvvm.mbarrier.init.shared("))
    shortened_ir = ir[:call_position] + ir[call_position + len(call) :]
    assert init_position < len(ir)
    with pytest.raises(EmulatorFault) as caught:
        launch(kernel(), shortened_ir, False, 1)
    assert caught.value.kind in ("race", "operand"), str(caught.value)


def with_parts(f: PrimFunc, parts: int) -> PrimFunc:
    def more(s: Stmt) -> Stmt:
        if isinstance(s, For) and PARTS in s.attrs:
            return replace(s, attrs=Attrs.of(**{**s.attrs, PARTS: parts}))
        return map_stmt(s, lambda e: e, more)

    return replace(f, body=more(f.body))


def test_proofs_find_too_many_parts() -> None:
    """Copies run ahead as far as there are parts: of one more than buffers have, the next
    overwrites what is read."""
    wrong = with_parts(kernel(3), 4)
    races = races_of(wrong, notes=False)
    assert races.faults and {r.kind for r in races.faults} <= {"race", "copy"}
    with pytest.raises(EmulatorFault):
        for order in range(3):
            launch(wrong, emit_ptx_ir(wrong, TARGET), True, order)


def test_proofs_find_a_wrong_part() -> None:
    for wrong in wrong_stage(kernel()):
        assert {r.kind for r in races_of(wrong, notes=False).faults} & {"race", "copy"}


# ---- where there are none ------------------------------------------------------------------------


def test_targets() -> None:
    assert Target("cuda")["matmul_copies"] is None
    for options in ({"arch": "sm_90"}, {"arch": "sm_90a", "also": ["sm_80"]}):
        with pytest.raises(UserError, match=r"has no warpgroups that multiply"):
            Target({**RING, **options})
    with pytest.raises(UserError, match="products by warps have no warp of their own"):
        Target({**RING, "matmul_kernel": "mma"})
    few = Target({**RING, "max_num_threads": 128})
    f = device_function(scheduled("float16", Product(linear, SHAPES, 456), few), few)
    assert launch_of(f).block == (128, 1, 1)


def test_architectures() -> None:
    f = kernel()
    for arch in ("sm_80", "sm_89"):
        with pytest.raises(UnsupportedError):
            emit_ptx_ir(f, Target({"kind": "cuda", "arch": arch}))


def test_attributes() -> None:
    source = print_module(IRModule((kernel(),), "kernels"))
    for wrong in ('"producers": 1}', '"producers": True}', '"producers": "two"}'):
        with pytest.raises((UserError, InternalError), match="a number of threads, 2 or more"):
            from_source(source.replace('"producers": 32}', wrong))


def test_one_ring_in_no_loop() -> None:
    f = kernel()
    (ring,) = rings(f)

    def twice(s: Stmt) -> Stmt:
        if s is ring:
            outer = replace(ring, var=replace(ring.var, name="again"), attrs=Attrs(), body=ring)
            return outer
        return map_stmt(s, lambda e: e, twice)

    with pytest.raises(UnsupportedError, match="inside of a loop, or beside another one"):
        emit_ptx_ir(replace(f, body=twice(f.body)), TARGET)


def test_producers_of_the_primitive() -> None:
    for wrong in (1, 31, True, "all"):
        s = Schedule(long_product)
        loop = s.loops()[0]
        with pytest.raises(UserError, match="a multiple of 32, or 0"):
            partial(s.pipeline, loop, 2, wrong)()
