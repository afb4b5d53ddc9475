"""Products of warpgroups: on the emulator of CUDA against float64, with products that happen early
and late; what is wrong with kernels that wait for less; which targets have them; and what NVIDIA's
assembler makes of them."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache, partial

import numpy as np
import pytest

import tensorkiln as tk
from tensorkiln.base.errors import UnsupportedError, UserError
from tensorkiln.codegen.ptx.compile import ptx_of
from tensorkiln.codegen.ptx.emit import emit_ptx_ir
from tensorkiln.families.wgmma import gpu as wgmma
from tensorkiln.families.wgmma.gpu_row import WarpgroupTile, warpgroup_tile
from tensorkiln.ir.device_instructions import WARPGROUP_COLUMNS
from tensorkiln.ir.equal import first_difference
from tensorkiln.ir.expr import Expr, IntImm, Var, int_value
from tensorkiln.ir.launch import launch_of
from tensorkiln.ir.module import IRModule
from tensorkiln.ir.stmt import PrimFunc
from tensorkiln.ir.text.printer import print_module
from tensorkiln.kernels.case import c, rand
from tensorkiln.ops.evaluate import evaluate
from tensorkiln.schedule.intrin.warpgroup import swizzled, warpgroup_mma
from tensorkiln.script import from_source
from tensorkiln.target import Target
from tensorkiln.target.cuda_tools import assembled, instruction_counts
from tensorkiln.transform.tir.check_races import races_of
from tests.cuda.emulator.launch import Emulated, EmulatorFault
from tests.cuda.test_metrics import require_tool
from tests.cuda.test_tensor_cores import (
    LARGE,
    ORDERS,
    Product,
    conv,
    device_function,
    largest_error,
    launched,
    linear,
    scheduled,
    whole_range,
)
from tests.ir.evaluate import swizzled_places
from tests.schedule.battery import Battery, arguments, typed
from tests.schedule.gpu.runner import DeviceRunner
from tests.transform.device_programs import barriers, without_barrier
from tests.transform.graphs import graph

WGMMA = "gpu_wgmma"
HOPPER = Target({"kind": "cuda", "arch": "sm_90a", "matmul_copies": "threads"})
TYPES = ("float16", "bfloat16")
N, S = Var("N"), Var("S")


# ---- the instruction -----------------------------------------------------------------------------


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("size", [64, *WARPGROUP_COLUMNS])
def test_elements_are_where_addresses_say(size: int, transposed: bool) -> None:
    """The rule of rows and pieces is that of bits of addresses, by which the hardware goes."""
    places = swizzled_places(size, transposed)
    assert sorted(places.ravel()) == list(range(size * 64))
    for i in range(0, size, 7):
        for k in range(0, 64, 5):
            row, column = swizzled(IntImm(i), IntImm(k), transposed)
            assert _number(row) * 64 + _number(column) == places[i, k]


def _number(e: Expr) -> int:
    value = int_value(e)
    assert value is not None, e
    return value


# ---- the table of products -----------------------------------------------------------------------

PRODUCTS: dict[str, Product] = {
    "aligned": Product(linear, [(64, 64), (64, 64)], 64),
    "several rounds": Product(linear, [(128, 192), (192, 128)], 192),
    "odd": Product(linear, [(67, 51), (51, 71)], 51),
    "even": Product(linear, [(70, 66), (66, 90)], 66),
    "tiny terms": Product(linear, [(40, 3), (3, 36)], 3),
    "one term": Product(linear, [(64, 1), (1, 64)], 1),
    "symbolic rows": Product(linear, [(N, 40), (40, 72)], 40, [{"N": 1}, {"N": 130}]),
    "symbolic batch": Product(
        lambda g, x, y: g.matmul(x, y, transpose_b=True),
        [(2, S, 24), (2, S, 24)],
        24,
        [{"S": 1}, {"S": 70}],
    ),
    "symbolic terms": Product(
        lambda g, x, y: g.matmul(x, y), [(64, N), (N, 72)], 130, [{"N": 3}, {"N": 130}]
    ),
    "batch": Product(lambda g, x, y: g.matmul(x, y), [(3, 40, 16), (3, 16, 64)], 16),
    "transposed a": Product(
        lambda g, x, y: g.matmul(x, y, transpose_a=True), [(48, 72), (48, 40)], 48
    ),
    "transposed b": Product(
        lambda g, x, y: g.matmul(x, y, transpose_b=True), [(72, 48), (40, 48)], 48
    ),
    "both transposed": Product(
        lambda g, x, y: g.matmul(x, y, transpose_a=True, transpose_b=True),
        [(33, 66), (70, 33)],
        33,
    ),
    "bias and relu": Product(
        lambda g, x, w, bias: g.relu(g.linear(x, w, bias)), [(65, 40), (40, 64), (64,)], 40
    ),
    "residual": Product(
        lambda g, x, w, r: g.relu(g.add(g.linear(x, w), r)), [(65, 40), (40, 64), (65, 64)], 40
    ),
    "prologue": Product(lambda g, x, w: g.linear(g.relu(x), w), [(40, 64), (64, 40)], 64),
    "convolution": Product(conv(padding=(1, 1, 1, 1)), [(2, 8, 7, 9), (40, 8, 3, 3), (40,)], 72),
    "one by one": Product(conv(), [(1, 32, 8, 8), (64, 32, 1, 1)], 32),
}
# Those of every run.
OFTEN = [
    *(
        ("float16", n)
        for n in (
            *("several rounds", "odd", "tiny terms", "symbolic rows", "batch", "transposed a"),
            *("both transposed", "residual", "convolution"),
        )
    ),
    *(("bfloat16", n) for n in ("even", "transposed b")),
]
EACH = [(t, n) for t in TYPES for n in PRODUCTS]


@cache
def runner(dtype: str, names: tuple[str, ...], target: Target = HOPPER) -> DeviceRunner:
    """Some products of a type, scheduled and built."""
    b = Battery()
    for name in names:
        p = PRODUCTS[name]
        params = [typed(dtype, *s) for s in p.shapes]
        b.add(name.replace(" ", "_"), p.build, *params, sizes=p.sizes, make=whole_range)
    return DeviceRunner(b, target=target)


@pytest.mark.parametrize(("dtype", "name"), OFTEN)
def test_products(dtype: str, name: str) -> None:
    """In several orders of threads, early and late, of arrays aligned to 16 bytes or an element."""
    check(dtype, name, runner(dtype, tuple(n for t, n in OFTEN if t == dtype)))


@pytest.mark.fuzz
@pytest.mark.parametrize(("dtype", "name"), EACH)
def test_all_products(dtype: str, name: str) -> None:
    check(dtype, name, runner(dtype, tuple(PRODUCTS)))


def check(dtype: str, name: str, device_runner: DeviceRunner) -> None:
    """A product against float64; all orders give the same bits."""
    case = device_runner.battery.cases[name.replace(" ", "_")]
    assert {f.op_class for f in device_runner.mod.prim_funcs} == {WGMMA}
    kernels = device_runner.kernels
    for k, sizes in enumerate(case.sizes):
        inputs = arguments(case, sizes, k)
        (want,) = evaluate(case.function, inputs, sizes, dtype="float64")
        allowed = largest_error(case, PRODUCTS[name].terms, inputs, sizes)
        first = None
        for round_number, late in enumerate((False, True, True)):
            kernels.aligned, kernels.order, kernels.late = (
                round_number < 2,
                ORDERS[(k + round_number) % 3],
                late,
            )
            (output,) = launched(device_runner, case, inputs, sizes)
            error = np.abs(output.astype(np.float64) - want)
            assert (error <= allowed).all(), f"{(error - allowed).max()} too much"
            assert first is None or (output == first).all()
            first = output


TILES = [WarpgroupTile(64 * groups, n) for groups in (1, 2) for n in WARPGROUP_COLUMNS]


def test_the_largest_tile(monkeypatch: pytest.MonkeyPatch) -> None:
    check_tile(TILES[-1], monkeypatch)


@pytest.mark.fuzz
@pytest.mark.parametrize("tile", TILES, ids=lambda t: f"{t.rows}x{t.columns}")
def test_every_tile(tile: WarpgroupTile, monkeypatch: pytest.MonkeyPatch) -> None:
    check_tile(tile, monkeypatch)


def check_tile(tile: WarpgroupTile, monkeypatch: pytest.MonkeyPatch) -> None:
    """A product of more rows and columns than a tile has."""
    monkeypatch.setattr(wgmma, "warpgroup_tile", lambda *shape: tile)
    b = Battery()
    shapes = (tile.rows + 8, 72), (72, tile.columns + 16)
    b.add("one", linear, *(typed("float16", *s) for s in shapes), make=whole_range)
    device_runner = DeviceRunner(b, target=HOPPER)
    case, kernels = device_runner.battery.cases["one"], device_runner.kernels
    inputs = arguments(case, {}, 0)
    (want,) = evaluate(case.function, inputs, {}, dtype="float64")
    kernels.aligned, kernels.order, kernels.late = True, ORDERS[2], True
    (output,) = launched(device_runner, case, inputs, {})
    assert (np.abs(output - want) <= largest_error(case, 72, inputs, {})).all()


def test_tiles_leave_few_multiprocessors_idle() -> None:
    """Of 132: waves of 128 blocks are nearly full, and one of 144 would be followed by 12."""

    def chosen(*shape: int | None) -> tuple[int, int]:
        tile = warpgroup_tile(shape[0], shape[1], shape[2] or 1, HOPPER)
        assert tile is not None
        return tile.rows, tile.columns

    assert chosen(8192, 8192, 1) == (128, 256)
    assert chosen(64, 64, 1) == (64, 64)
    assert chosen(1024, 1024, 1) == (64, 128)
    assert chosen(2048, 2048, 1) == (128, 256)
    assert chosen(2048, 2304, 1) == (128, 192)
    assert chosen(4096, 768, 1) == (128, 192)
    assert chosen(4096, 3072, 1) == (128, 256)
    assert chosen(None, 4096, 1) == (128, 128)
    assert warpgroup_tile(32, 4096, 1, HOPPER) is None
    few = Target({**HOPPER.to_json(), "max_num_threads": 128})
    assert warpgroup_tile(8192, 8192, 1, few) == WarpgroupTile(64, 256)
    small_target = Target({**HOPPER.to_json(), "max_num_threads": 64})
    assert warpgroup_tile(8192, 8192, 1, small_target) is None


# ---- proofs, text --------------------------------------------------------------------------------

PROVED = [("float16", "aligned")]


@pytest.mark.parametrize(("dtype", "name"), PROVED)
def test_every_step_is_proved_and_no_thread_races(dtype: str, name: str) -> None:
    prove(dtype, name)


@pytest.mark.fuzz
@pytest.mark.parametrize(("dtype", "name"), EACH)
def test_all_are_proved(dtype: str, name: str) -> None:
    prove(dtype, name)


def prove(dtype: str, name: str) -> None:
    f = scheduled(dtype, PRODUCTS[name], HOPPER, check=True)
    assert f.op_class == WGMMA
    races = races_of(device_function(f, HOPPER))
    assert not races.faults, races.faults[0]
    assert not races.doubts, races.doubts
    if name == "aligned":  # where vectors are whole
        assert not [n for n in races.notes if n.kind == "bank conflict"], races.notes


def test_text_is_parsed_again() -> None:
    f = device_function(scheduled("float16", PRODUCTS["residual"], HOPPER), HOPPER)
    mod = IRModule((f,), "kernels")
    text = print_module(mod)
    again = from_source(text)
    assert first_difference(mod, again) is None, text
    assert print_module(again) == text


# ---- which targets have them ---------------------------------------------------------------------

OTHERS: tuple[dict[str, object], ...] = (
    {"arch": "sm_90"},
    {"arch": "sm_100a"},
    {"arch": "sm_90a", "also": ["sm_80"]},
    {"arch": "sm_90a", "matmul_kernel": "mma"},
)


def test_targets_with_and_without() -> None:
    for options in ({"arch": "sm_90a"}, {"arch": "sm_90a", "matmul_kernel": "wgmma"}):
        target = Target({"kind": "cuda", **options})
        assert target["matmul_kernel"] == "wgmma"
        for dtype in TYPES:
            assert scheduled(dtype, PRODUCTS["odd"], target).op_class == WGMMA
    for options in OTHERS:
        target = Target({"kind": "cuda", **options})
        assert target["matmul_kernel"] == "mma"
        assert scheduled("float16", PRODUCTS["odd"], target).op_class == "gpu_tensor_cores"
    for options in OTHERS[:3]:
        with pytest.raises(UserError, match=r"sm_\w+ has no warpgroups that multiply") as caught:
            Target({"kind": "cuda", **options, "matmul_kernel": "wgmma"})
        assert caught.value.code == "contradiction"


def test_other_products_are_those_of_warps() -> None:
    for shapes in ([(32, 64), (64, 64)], [(64, 64), (64, 32)]):
        kernel = scheduled("float16", Product(linear, shapes, 64), HOPPER)
        assert kernel.op_class == "gpu_tensor_cores"
    assert scheduled("integers", PRODUCTS["aligned"], HOPPER).op_class == "gpu_tensor_cores"
    assert scheduled("float32", PRODUCTS["aligned"], HOPPER).op_class == "gpu_contraction"


def test_instructions_that_an_architecture_lacks() -> None:
    f = device_function(scheduled("float16", PRODUCTS["aligned"], HOPPER), HOPPER)
    for options in OTHERS[:3]:
        with pytest.raises(UnsupportedError) as caught:
            emit_ptx_ir(f, Target({"kind": "cuda", **options}))
        assert re.search(
            r"does not have warpgroup_mma_m64n64k64\w*, which sm_90a alone has", str(caught.value)
        )
    assert "sm_90a for arch" in str(caught.value)


def test_matrices_begin_at_multiples_of_1024() -> None:
    f = device_function(scheduled("float16", PRODUCTS["aligned"], HOPPER), HOPPER)
    text = print_module(IRModule((f,), "kernels"))
    assert text.count("align=1024") == 2
    (misaligned_function,) = from_source(text.replace("align=1024", "align=512")).prim_funcs
    with pytest.raises(UnsupportedError, match="not known to be a multiple of 1024 bytes"):
        emit_ptx_ir(misaligned_function, HOPPER)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (r"// T\.Broadcast\(64, 4096\)", "// T.Broadcast(32, 4096)"),
        (r"T\.Ramp\(0, 1, 4096\) % ", "T.Ramp(0, 3, 4096) % "),
    ],
)
def test_elements_of_a_matrix_follow_one_after_the_other(old: str, new: str) -> None:
    f = device_function(scheduled("float16", PRODUCTS["aligned"], HOPPER), HOPPER)
    text = print_module(IRModule((f,), "kernels"))
    changed, count = re.subn(old, new, text, count=1)
    assert count, text
    (broken_function,) = from_source(changed).prim_funcs
    with pytest.raises(UnsupportedError, match="left that do not follow one after the other"):
        emit_ptx_ir(broken_function, HOPPER)


def test_all_threads_of_a_warpgroup_are_there() -> None:
    implementation = warpgroup_mma(64, "", "float16").implementation
    text = print_module(IRModule((implementation,), "kernels"))
    assert "thread_binding(128" in text
    lacks = 'for b in T.thread_binding(1, thread="blockIdx.x"):\n            for t'
    fewer = text.replace("for t", lacks).replace("binding(128", "binding(96")
    with pytest.raises(UserError):
        from_source(fewer)


# ---- NVIDIA's assembler --------------------------------------------------------------------------

ASSEMBLED = [("float16", "whole"), ("bfloat16", "convolution")]


@pytest.mark.parametrize(("dtype", "name"), ASSEMBLED)
def test_the_assembler_takes_them(dtype: str, name: str) -> None:
    assemble(dtype, name)


@pytest.mark.fuzz
@pytest.mark.parametrize(("dtype", "name"), [(t, n) for t in TYPES for n in LARGE])
def test_the_assembler_takes_all(dtype: str, name: str) -> None:
    assemble(dtype, name)


def assemble(dtype: str, name: str) -> None:
    """With nothing spilled and no advice, as that it would wait for each product; the products of a
    round are four of 16 terms."""
    require_tool("ptxas")
    f = device_function(scheduled(dtype, LARGE[name], HOPPER), HOPPER)
    ir = emit_ptx_ir(f, HOPPER)
    assembly = assembled(ptx_of({f.name: ir}, ["sm_90a"])["sm_90a"], "sm_90a")
    k = assembly.kernels[f.name]
    assert (k.spill_stores, k.spill_loads, k.stack, assembly.advice) == (0, 0, 0, ())
    require_tool("nvdisasm")
    bodies = ir.count("wgmma.fence")  # two where alignment matters
    count = instruction_counts(assembly.cubin)[f.name]["HGMMA"]  # rounds may be unrolled
    assert count >= 4 * bodies and count % 4 == 0


# ---- planted faults ------------------------------------------------------------------------------

SHAPES = ((64, 128), (128, 64), (64, 64))


@cache
def kernel() -> PrimFunc:
    """Of two rounds; one block of one warpgroup."""
    return device_function(scheduled("float16", Product(linear, SHAPES[:2], 128), HOPPER), HOPPER)


def launch(ir: str, late: bool, order: tuple[int, int] = ORDERS[0]) -> np.ndarray:
    f = kernel()
    kernels = Emulated([ir])
    kernels.aligned = True
    kernels.order(*order)
    kernels.products(late)
    rng = np.random.default_rng(3)
    x, w = (rng.integers(-2, 3, shape).astype(np.float16) for shape in SHAPES[:2])
    out = np.zeros(SHAPES[2], np.float16)
    (name,) = re.findall(r"define ptx_kernel void @(\w+)", ir)
    kernels.run(name, (1, 1, 1), launch_of(f).block, [x, w, out], launch_of(f).shared_bytes)
    np.testing.assert_array_equal(out.astype(np.float64), x.astype(np.float64) @ w)
    return out


Change = Callable[[str], str]


def left_out(*texts: str) -> Change:
    def change(ir: str) -> str:
        for text in texts:
            assert text in ir
            ir = ir.replace(text, "")
        return ir

    return change


def put(old: str, new: str) -> Change:
    def change(ir: str) -> str:
        assert re.search(old, ir)
        return re.sub(old, new, ir)

    return change


FENCE = r"wgmma.fence.sync.aligned;\0A"
COMMIT = r"wgmma.commit_group.sync.aligned;\0A"
WAIT = "wgmma.wait_group.sync.aligned 0;"
PROXY = 'call void asm sideeffect "fence.proxy.async.shared::cta;", "~{memory}"()'
# change -> kind of fault, and what is said of it
FAULTS: dict[str, tuple[Change, str, str]] = {
    "no fence": (left_out(FENCE), "product", r"multiplies with no wgmma\.fence"),
    "no commit": (left_out(COMMIT), "product", "uses the sums .* that it has not committed"),
    "no wait": (left_out(WAIT), "product", "uses the sums .* that it has not waited for"),
    "a wait for all but one": (
        put(re.escape(WAIT), "wgmma.wait_group.sync.aligned 1;"),
        "product",
        "uses the sums .* that it has not waited for",
    ),
    "no proxy fence": (left_out(PROXY), "proxy", r"which thread .* wrote, with no proxy fence"),
    "another layout": (
        put(r"or i64 (%\w+), 46\d+", rf"or i64 \1, {1 << 63 | 64 << 32 | 1 << 16}"),
        "operand",
        "rows of 128 bytes are permuted",
    ),
    "not at a multiple of 1024": (
        put(r"lshr i32 (%\w+), 4", r"add i32 \1, 8"),
        "alignment",
        "which is not a multiple of 1024",
    ),
    "behind shared memory": (
        put(r"add i64 (%\w+), 2\b", r"add i64 \1, 4096"),
        "shared memory out of bounds",
        r"multiplies byte \d+ of \d+ bytes",
    ),
}


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("order", ORDERS)
def test_the_kernel_is_right(late: bool, order: tuple[int, int]) -> None:
    launch(emit_ptx_ir(kernel(), HOPPER), late, order)


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("name", FAULTS)
def test_planted_faults(name: str, late: bool) -> None:
    change, kind, pattern = FAULTS[name]
    good = emit_ptx_ir(kernel(), HOPPER)
    with pytest.raises(EmulatorFault) as caught:
        launch(change(good), late)
    assert caught.value.kind == kind, str(caught.value)
    assert re.search(pattern, str(caught.value)), str(caught.value)
    assert re.search(r"thread \(\d+, 0, 0\)", str(caught.value))


@pytest.mark.parametrize("late", [False, True])
def test_every_barrier_is_missed(late: bool) -> None:
    f = kernel()
    count = barriers(f)
    assert count > 1
    for k in range(count):
        shortened_ir = emit_ptx_ir(replace(without_barrier(f, k), name=f"less_{k}"), HOPPER)
        with pytest.raises(EmulatorFault) as caught:
            launch(shortened_ir, late)
        assert caught.value.kind in ("race", "undefined shared memory"), str(caught.value)


IR = """
define ptx_kernel void @f(ptr align 4 %p0) #0 {{
entry:
  %base = addrspacecast ptr addrspace(3) @f$shared to ptr
  %tid = call i32 @llvm.nvvm.read.ptx.sreg.tid.x()
  %n = mul i32 %tid, 128
  %at = getelementptr i8, ptr %base, i32 %n
{body}
  ret void
}}
@f$shared = external addrspace(3) global [0 x i8], align 1024
declare i32 @llvm.nvvm.read.ptx.sreg.tid.x()
declare void @llvm.nvvm.barrier.cta.sync.aligned.all(i32)
declare void @llvm.nvvm.cp.async.ca.shared.global.4(ptr addrspace(3), ptr addrspace(1))
declare void @llvm.nvvm.cp.async.wait.all()
attributes #0 = {{ "nvvm.reqntid"="{threads},1,1" }}
"""
FILL = "\n".join(
    [
        *(
            f"  %a{k} = getelementptr i8, ptr %at, i32 {16 * k}\n"
            f"  store <4 x i32> zeroinitializer, ptr %a{k}, align 16"
            for k in range(8)
        ),
        f"  {PROXY}",
        "  call void @llvm.nvvm.barrier.cta.sync.aligned.all(i32 0)",
    ]
)


def product(steps: Sequence[str], names: str = "c", left_operand: str = "%left") -> str:
    """Inline assembly for 64 columns; `steps`: instructions, of which MMA is the product."""
    registers = ", ".join(f"${k}" for k in range(32))
    mma = "wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 "
    mma += f"{{{registers}}}, $32, $33, 1, 1, 1, 0, 0"
    text = r"\0A".join(f"{mma if s == 'MMA' else s};" for s in steps)
    bounds = ",".join([*(["=f"] * 32), "l", "l", *map(str, range(32)), "~{memory}"])
    args = ", ".join([f"i64 {left_operand}", "i64 %right", *(["float 0.0"] * 32)])
    result = "{" + ", ".join(["float"] * 32) + "}"
    return f'  %{names} = call {result} asm sideeffect "{text}", "{bounds}"({args})'


DESCRIPTORS = f"""
  %s = addrspacecast ptr %base to ptr addrspace(3)
  %i = ptrtoint ptr addrspace(3) %s to i32
  %m = and i32 %i, 262143
  %u = lshr i32 %m, 4
  %z = zext i32 %u to i64
  %left = or i64 %z, {1 << 62 | 64 << 32 | 1 << 16}
  %right = add i64 %left, 512
  %w = zext i32 %tid to i64
  %x = shl i64 %w, 6
  %own = add i64 %left, %x
"""
HEAD = FILL + DESCRIPTORS
WHOLE = ["wgmma.fence.sync.aligned", "MMA", "wgmma.commit_group.sync.aligned"]
DONE = ["wgmma.wait_group.sync.aligned 0"]
HALF = """
  %some = icmp ult i32 %tid, 96
  br i1 %some, label %yes, label %no
yes:
{yes}
  br label %no
no:
"""
WRITE = "  store <4 x i32> zeroinitializer, ptr %at, align 16"
COPY = """
  %from = addrspacecast ptr %p0 to ptr addrspace(1)
  %to = addrspacecast ptr %a1 to ptr addrspace(3)
  call void @llvm.nvvm.cp.async.ca.shared.global.4(ptr addrspace(3) %to, ptr addrspace(1) %from)
"""
AWAIT = "  call void @llvm.nvvm.cp.async.wait.all()"
BARRIER = "  call void @llvm.nvvm.barrier.cta.sync.aligned.all(i32 0)"


def copied(*steps: str) -> str:
    """A product of what is copied; `steps`: what threads do between the copy and the product."""
    return "\n".join([HEAD, COPY, *steps, product([*WHOLE, *DONE])])


# body, threads -> kind of fault and what is said; None: there is none
PLANTED: dict[str, tuple[str, int, tuple[str, str] | None]] = {
    "good": (HEAD + product([*WHOLE, *DONE]), 128, None),
    "two batches": (HEAD + product([*WHOLE, *WHOLE[1:], *DONE]), 128, None),
    "overwritten after the wait": (
        HEAD
        + product([*WHOLE, *DONE])
        + f"\n  call void @llvm.nvvm.barrier.cta.sync.aligned.all(i32 0)\n{WRITE}",
        128,
        None,
    ),
    "three warps of four": (
        HEAD + HALF.format(yes=product([*WHOLE, *DONE])),
        128,
        ("warp", "executes wgmma with the threads of its warpgroup, of which thread .* has ended"),
    ),
    "a block of three warps": (
        HEAD + product([*WHOLE, *DONE]),
        96,
        ("warp", "executes wgmma in a warpgroup of 96 threads"),
    ),
    "another matrix in each thread": (
        HEAD + product([*WHOLE, *DONE], left_operand="%own"),
        128,
        ("operand", "give other matrices of one product"),
    ),
    "nobody wrote it": (
        DESCRIPTORS + product([*WHOLE, *DONE]),
        128,
        ("undefined shared memory", "which nobody wrote"),
    ),
    "overwritten at once": (
        HEAD + product([*WHOLE, *DONE]) + "\n" + WRITE.replace("%at", "%a1"),
        128,
        ("race", "with no barrier between them"),
    ),
    "copied": (copied(AWAIT, f"  {PROXY}", BARRIER), 128, None),
    "copied, not waited for": (
        copied(f"  {PROXY}", BARRIER),
        128,
        ("copy", "has waited for its copy to it"),
    ),
    "copied, with no fence after the wait": (
        copied(f"  {PROXY}", AWAIT, BARRIER),
        128,
        ("proxy", "with no proxy fence"),
    ),
}


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("name", PLANTED)
def test_single_products(name: str, late: bool) -> None:
    body, threads, fault = PLANTED[name]
    kernels = Emulated([IR.format(body=body, threads=threads)])
    kernels.products(late)
    kernels.copies(late)
    for order in ORDERS:
        kernels.order(*order)
        run = partial(
            kernels.run, "f", (1, 1, 1), (threads, 1, 1), [np.zeros(4, np.float32)], 16384
        )
        if fault is None:
            run()
            continue
        with pytest.raises(EmulatorFault) as caught:
            run()
        assert caught.value.kind == fault[0], str(caught.value)
        assert re.search(fault[1], str(caught.value)), str(caught.value)


# ---- models --------------------------------------------------------------------------------------


def test_a_model() -> None:
    """Products are of warpgroups in a whole compile, and so in its PTX."""
    mod = graph(
        lambda g, x: g.relu(g.linear(x, c(rand(64, 72).data, "float16"))),
        x=typed("float16", N, 64),
    )
    exe = tk.compile(mod, HOPPER)
    text = exe.artifacts["cuda/cuda/kernels.sm_90a.ptx"].text()
    assert "wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16" in text
    assert WGMMA in {p.kernel_class for p in exe.placement()}
