"""Products of warpgroups whose factors hardware copies, box by box (TMA), through a ring of parts
of shared memory: right in all orders, early and late, with the bits of the rung below; which
tensors it takes, and why not the others; what is wrong with copies of boxes is found by the
emulator; and the whole way through the look-alike of the driver. None of it has run on a GPU: it
rests on NVIDIA's documents, and on its assembler."""

from __future__ import annotations

import ctypes
import json
import math
import os
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import tensorkiln as tk
from tensorkiln.artifact.device_functions import device_functions_from
from tensorkiln.base.errors import UserError
from tensorkiln.codegen.ptx.boxes import TensorMapBox, boxes_of
from tensorkiln.codegen.ptx.compile import ptx_of
from tensorkiln.codegen.ptx.emit import emit_ptx_ir, tensor_maps_of
from tensorkiln.families.wgmma import gpu as wgmma
from tensorkiln.families.wgmma.gpu_row import WarpgroupTile
from tensorkiln.inspectors.signatures import print_signatures
from tensorkiln.ir.buffer import Buffer, Load
from tensorkiln.ir.device_instructions import WARPGROUP_COLUMNS
from tensorkiln.ir.expr import Binary, IntImm, Ramp, Var, binary
from tensorkiln.ir.launch import launch_of
from tensorkiln.ir.module import IRModule
from tensorkiln.ir.relax import tensor
from tensorkiln.ir.rings import ring_of
from tensorkiln.ir.stmt import For, If, PrimFunc, Stmt, Store
from tensorkiln.ir.text.printer import print_module
from tensorkiln.ir.visit import map_stmt, walk_stmt
from tensorkiln.ops.evaluate import evaluate
from tensorkiln.runtime import DeviceTensor, Executor, load_module
from tensorkiln.schedule.primitives import Schedule
from tensorkiln.script import from_source
from tensorkiln.target import Target
from tensorkiln.target.cuda_tools import assembled, instruction_counts
from tensorkiln.transform.tir.check_races import races_of
from tests.cuda.driver_calls import Driver
from tests.cuda.emulator.launch import CU_TENSOR_MAP_SWIZZLE_128B, Emulated, EmulatorFault, MapOf
from tests.cuda.faults import Change, put, require_found
from tests.cuda.lookalike import require_cuda
from tests.cuda.networks import let_run
from tests.cuda.test_metrics import require_tool
from tests.cuda.test_streams import there
from tests.cuda.test_tensor_cores import (
    LARGE,
    ORDERS,
    Product,
    device_function,
    largest_error,
    launched,
    linear,
    scheduled,
    whole_range,
)
from tests.cuda.test_wgmma import TYPES
from tests.schedule.battery import Battery, arguments, extent_of, typed
from tests.schedule.gpu.runner import DeviceRunner
from tests.schedule.gpu.test_device_primitives import long_product
from tests.transform.graphs import graph

pytestmark = pytest.mark.filterwarnings("ignore:.*is the baseline")
TMA: dict[str, object] = {"kind": "cuda", "arch": "sm_90a", "matmul_copies": "tma"}
TARGET = Target(TMA)
WARP = Target({**TMA, "matmul_copies": "warp"})
N, S = Var("N"), Var("S")
ROWS = "its rows are {} bytes apart, no multiple of 16"


@dataclass(frozen=True)
class Row:
    """A product, and what is said of each factor: the dimensions of its box, or why it has none."""

    product: Product
    left_factor: tuple[int, ...] | str
    right_factor: tuple[int, ...] | str


def matmul(**attrs: Any) -> Callable[..., Any]:
    return lambda g, x, y: g.matmul(x, y, **attrs)


def square(g: Any, x: Any) -> Any:
    return g.matmul(x, x, transpose_b=True)


def bias_and_relu(g: Any, x: Any, w: Any, bias: Any) -> Any:
    return g.relu(g.linear(x, w, bias))


def residual(g: Any, x: Any, w: Any, r: Any) -> Any:
    return g.relu(g.add(g.linear(x, w), r))


BOX = (64, 64)
PRODUCTS: dict[str, Row] = {
    "whole boxes": Row(Product(linear, [(128, 192), (192, 128)], 192), BOX, BOX),
    "edges": Row(Product(linear, [(72, 456), (456, 72)], 456), BOX, BOX),
    "odd rows": Row(Product(linear, [(67, 136), (136, 72)], 136), BOX, BOX),
    "a box is larger": Row(Product(linear, [(40, 72), (72, 40)], 72), BOX, BOX),
    "odd columns": Row(Product(linear, [(72, 136), (136, 70)], 136), BOX, ROWS.format(140)),
    "odd terms": Row(Product(linear, [(72, 130), (130, 72)], 130), ROWS.format(260), BOX),
    "odd": Row(Product(linear, [(67, 130), (130, 70)], 130), ROWS.format(260), ROWS.format(140)),
    "batch": Row(Product(matmul(), [(3, 72, 136), (3, 136, 40)], 136), (64, 64, 1), (64, 64, 1)),
    "broadcast batch": Row(Product(matmul(), [(3, 72, 136), (136, 72)], 136), BOX, BOX),
    "two batches": Row(
        Product(matmul(transpose_b=True), [(2, 2, 40, 72), (2, 2, 40, 72)], 72),
        (64, 64, 1),
        (64, 64, 1),
    ),
    "transposed a": Row(Product(matmul(transpose_a=True), [(136, 72), (136, 40)], 136), BOX, BOX),
    "transposed b": Row(Product(matmul(transpose_b=True), [(72, 136), (40, 136)], 136), BOX, BOX),
    "both transposed": Row(
        Product(matmul(transpose_a=True, transpose_b=True), [(136, 72), (40, 136)], 136), BOX, BOX
    ),
    "square": Row(Product(square, [(72, 136)], 136), BOX, BOX),
    "bias and relu": Row(Product(bias_and_relu, [(65, 136), (136, 64), (64,)], 136), BOX, BOX),
    "residual": Row(Product(residual, [(65, 136), (136, 72), (65, 72)], 136), BOX, BOX),
    "symbolic rows": Row(
        Product(linear, [(N, 136), (136, 72)], 136, [{"N": 1}, {"N": 130}]), BOX, BOX
    ),
    "symbolic terms": Row(
        Product(matmul(transpose_a=True), [(N, 72), (N, 72)], 130, [{"N": 3}, {"N": 130}]),
        BOX,
        BOX,
    ),
    "symbolic batch": Row(
        Product(matmul(transpose_b=True), [(2, S, 136), (2, S, 136)], 136, [{"S": 1}, {"S": 70}]),
        (64, 64, 1),
        (64, 64, 1),
    ),
}
OFTEN = [
    *("odd columns", "odd terms", "batch", "both transposed", "residual"),
    *("symbolic terms", "symbolic batch"),
]


@cache
def runner(dtype: str, names: tuple[str, ...], target: Target = TARGET) -> DeviceRunner:
    """Some products of a type, scheduled and built."""
    b = Battery()
    for name in names:
        p = PRODUCTS[name].product
        params = [typed(dtype, *s) for s in p.shapes]
        b.add(name.replace(" ", "_"), p.build, *params, sizes=p.sizes, make=whole_range)
    return DeviceRunner(b, target=target)


@pytest.mark.parametrize("name", OFTEN)
def test_products(name: str) -> None:
    check("float16", name, tuple(OFTEN))


@pytest.mark.parametrize("name", ["whole boxes"])
def test_bfloat16(name: str) -> None:
    check("bfloat16", name, (name,))


@pytest.mark.fuzz
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("name", PRODUCTS)
def test_all_products(dtype: str, name: str) -> None:
    check(dtype, name, tuple(PRODUCTS))


def check(dtype: str, name: str, names: tuple[str, ...]) -> None:
    """Against float64, in all orders, early and late, aligned and not; always the bits that copies
    of threads give."""
    device_runner, below = (runner(dtype, names, target) for target in (TARGET, WARP))
    case, kernels = device_runner.battery.cases[name.replace(" ", "_")], device_runner.kernels
    for k, sizes in enumerate(case.sizes):
        inputs = arguments(case, sizes, k)
        (want,) = evaluate(case.function, inputs, sizes, dtype="float64")
        allowed = largest_error(case, PRODUCTS[name].product.terms, inputs, sizes)
        (first,) = launched(below, case, inputs, sizes)
        for round_number in range(6):
            kernels.aligned, kernels.order, kernels.late = (
                round_number != 2,
                ORDERS[round_number % 3],
                round_number > 2,
            )
            (output,) = launched(device_runner, case, inputs, sizes)
            assert (np.abs(output.astype(np.float64) - want) <= allowed).all()
            assert (output == first).all()


# ---- which tensors -------------------------------------------------------------------------------


def functions_of(name: str, target: Target = TARGET) -> PrimFunc:
    return device_function(scheduled("float16", PRODUCTS[name].product, target), target)


@pytest.mark.parametrize("name", PRODUCTS)
def test_which_factors_are_boxes(name: str) -> None:
    """One of 64 rows or terms by 128 bytes for each factor of the smallest tile; of a tensor that
    has none there is a reason."""
    row = PRODUCTS[name]
    f = functions_of(name)
    box_shapes = [box.map.box if isinstance(box, TensorMapBox) else box for _, box in boxes_of(f)]
    assert box_shapes == [row.right_factor, row.left_factor] or box_shapes == [
        row.left_factor,
        row.right_factor,
    ], box_shapes
    maps, reasons = tensor_maps_of(f)
    assert {m.box for m in maps} == {b for b in box_shapes if not isinstance(b, str)}
    assert sorted(reasons.values()) == sorted(b for b in box_shapes if isinstance(b, str))
    for m in maps:
        source, values = f.params[m.param], [7] * len(f.params)
        assert isinstance(source, Buffer)
        shape = [extent_of(e, {"N": 7, "S": 7}) for e in source.shape]
        dims = [d.at(values) for d in m.dims]
        assert math.prod(dims) == math.prod(shape) and dims[0] == shape[-1]
        assert m.dtype == "float16"
        assert all(stride.factor % 16 == 0 for stride in m.strides)


def test_a_tensor_that_is_both_factors_has_one_map() -> None:
    maps, _ = tensor_maps_of(functions_of("square"))
    assert [m.param for m in maps] == [0]


def test_other_targets_have_none() -> None:
    for options in ({"matmul_copies": "warp"}, {"matmul_stages": 1}, {"max_num_threads": 128}):
        target = Target({**TMA, **options})
        f = functions_of("edges", target)
        assert tensor_maps_of(f) == ((), {}) and "bulk" not in emit_ptx_ir(f, target)


def test_two_matrices_are_copied_so_without_being_asked() -> None:
    """Where a factor is no box, all threads copy both."""
    target = Target({"kind": "cuda", "arch": "sm_90a"})
    for name, row in PRODUCTS.items():
        are_boxes = not any(isinstance(f, str) for f in (row.left_factor, row.right_factor))
        assert (launch_of(functions_of(name, target)).ring is not None) == are_boxes, name


@pytest.mark.parametrize(
    ("rows", "columns"),
    [
        (128, 256),
        *(
            pytest.param(rows, columns, marks=pytest.mark.fuzz)
            for rows in (64, 128)
            for columns in WARPGROUP_COLUMNS
        ),
    ],
)
def test_tiles(rows: int, columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Boxes of a tile that is larger than one: of as many rows, or side by side where they are
    transposed. With two warpgroups, and edges of every kind."""
    check_boxes(WarpgroupTile(rows, columns), (rows + 8, columns + 16), monkeypatch)


@pytest.mark.parametrize(
    ("shape", "columns"), [((64, 96), 128), ((64, 192), 256), ((40, 200), 256)]
)
def test_the_only_tile_is_not_whole(
    shape: tuple[int, int], columns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What lies beyond is in columns that are known."""
    check_boxes(WarpgroupTile(64, columns), shape, monkeypatch, 192)


def check_boxes(
    tile: WarpgroupTile,
    shape: tuple[int, int],
    monkeypatch: pytest.MonkeyPatch,
    terms: int = 200,
) -> None:
    """A product of a shape in such tiles: its boxes, and what it computes."""
    monkeypatch.setattr(wgmma, "warpgroup_tile", lambda *shape: tile)
    b = Battery()
    shapes = (shape[0], terms), (terms, shape[1])
    b.add("one", linear, *(typed("float16", *s) for s in shapes), make=whole_range)
    device_runner = DeviceRunner(b, target=Target({**TMA, "matmul_stages": 2}))
    (call,) = device_runner.kernels.launches(device_runner.kernels.names[0])
    boxes = {
        box.map.param: (box.map.box, box.count)
        for _, box in boxes_of(device_runner.kernels.func(call.name))
        if isinstance(box, TensorMapBox)
    }
    assert boxes == {0: ((64, tile.rows), 1), 1: ((64, 64), tile.columns // 64)}
    case, kernels = device_runner.battery.cases["one"], device_runner.kernels
    inputs = arguments(case, {}, 0)
    (want,) = evaluate(case.function, inputs, {}, dtype="float64")
    allowed = largest_error(case, terms, inputs, {})
    kernels.aligned = True
    for kernels.late in (False, True):
        (output,) = launched(device_runner, case, inputs, {})
        assert (np.abs(output.astype(np.float64) - want) <= allowed).all()


Rewrite = Callable[[Store], Stmt]


def copies_changed(
    f: PrimFunc, change: Rewrite, cond: Callable[[Any], Any] | None = None
) -> PrimFunc:
    """A function whose copies in its ring are others."""

    def there(s: Stmt) -> Stmt:
        if isinstance(s, For) and s.attrs.get("asynchronous"):
            return map_stmt(s, lambda e: e, inside)
        return map_stmt(s, lambda e: e, there)

    def inside(s: Stmt) -> Stmt:
        if isinstance(s, If) and cond is not None:
            s = replace(s, cond=cond(s.cond))
        if isinstance(s, Store):
            return change(s)
        return map_stmt(s, lambda e: e, inside)

    return replace(f, body=there(f.body))


def _moved(s: Store, by: int) -> Store:
    """Another piece of the row."""
    *leading_indices, last = s.indices
    assert isinstance(last, Ramp)
    place = binary("bitxor", last.base, IntImm(8 * by, last.base.dtype))
    return replace(s, indices=(*leading_indices, replace(last, base=place)))


def _from(s: Store, by: int) -> Store:
    if not isinstance(s.value, Load):
        return s
    first, *other_indices = s.value.indices
    return replace(s, value=replace(s.value, indices=(first * by, *other_indices)))


def _read_elsewhere(s: Store) -> Store:
    if not isinstance(s.value, Load):
        return s
    first, *other_indices = s.value.indices
    return replace(
        s, value=replace(s.value, indices=(binary("bitxor", first, IntImm(1)), *other_indices))
    )


def _less(cond: Binary) -> Binary:
    assert isinstance(cond, Binary) and cond.op == "and"
    a = cond.a
    assert isinstance(a, Binary)
    return replace(cond, a=replace(a, b=a.b - 1))


NO_BOXES: dict[str, tuple[Callable[[PrimFunc], PrimFunc], str]] = {
    "other places": (
        lambda f: copies_changed(f, lambda s: _moved(s, 1)),
        "it goes to other places in shared memory",
    ),
    "every other row": (
        lambda f: copies_changed(f, lambda s: _from(s, 2)),
        "",
    ),
    "one row again and again": (
        lambda f: copies_changed(f, lambda s: _from(s, 0)),
        "it copies elements several times",
    ),
    "rows in pairs": (
        lambda f: copies_changed(f, _read_elsewhere),
        "its rows and columns do not follow each other",
    ),
    "zeros in the last row": (
        lambda f: copies_changed(f, lambda s: s, _less),
        "it has zeros within the tensor, or reads a part of it",
    ),
}


@pytest.mark.parametrize("name", NO_BOXES)
def test_what_is_no_box_is_copied_by_threads(name: str) -> None:
    """Nests that look like boxes, and copy something else."""
    change, reason = NO_BOXES[name]
    f = change(functions_of("edges"))
    boxes = [box for _, box in boxes_of(f)]
    assert len(boxes) == 2 and all(isinstance(box, str) for box in boxes), boxes
    assert not reason or set(boxes) == {reason}, boxes
    assert tensor_maps_of(f)[0] == ()
    assert "bulk" not in emit_ptx_ir(f, TARGET)


# ---- a kernel of several rounds ------------------------------------------------------------------

SHAPES = ((72, 456), (456, 72))  # eight rounds: each part is filled twice


@cache
def kernel(stages: int = 4, name: str = "edges") -> PrimFunc:
    target = Target({**TMA, "matmul_stages": stages})
    return functions_of(name, target)


@cache
def text(name: str = "edges") -> str:
    return emit_ptx_ir(kernel(name=name), TARGET)


def launch(f: PrimFunc, ir: str, late: bool, order: int = 0, name: str = "edges") -> None:
    kernels = Emulated([ir])
    kernels.aligned = True
    kernels.order(*ORDERS[order])
    kernels.copies(late)
    kernels.products(late)
    rng = np.random.default_rng(3)
    shapes = PRODUCTS[name].product.shapes
    x, w = (rng.integers(-2, 3, shape).astype(np.float16) for shape in shapes)
    out = np.zeros((shapes[0][0], shapes[1][1]), np.float16)
    args = [x, w, out]
    maps = [MapOf(m, args) for m in tensor_maps_of(f)[0]]
    grid = [int(e.value) for e in launch_of(f).grid]  # type: ignore[attr-defined]
    shared = launch_of(f).shared_bytes
    kernels.run(f.name, grid, launch_of(f).block, [*args, *maps], shared)
    np.testing.assert_array_equal(out.astype(np.float64), x.astype(np.float64) @ w)


@pytest.mark.in_turn()
@pytest.mark.parametrize("stages", [2, 3, 4])
def test_each_number_of_parts(stages: int) -> None:
    f = kernel(stages)
    ir = emit_ptx_ir(f, TARGET)
    assert launch_of(f).block == (160, 1, 1)  # a warpgroup, and a warp of which one thread copies
    for late in (False, True):
        for order in range(3):
            launch(f, ir, late, order)


def test_it_is_proved() -> None:
    """What threads would copy is proved, which boxes do too."""
    races = races_of(kernel(), notes=False)
    assert races.proved, (races.faults[:1], races.doubts[:1])


@pytest.mark.fuzz
def test_every_step_is_proved() -> None:
    scheduled("float16", PRODUCTS["edges"].product, TARGET, check=True)


def test_text_is_parsed_again() -> None:
    mod = IRModule((kernel(),), "kernels")
    module_text = print_module(mod)
    assert 'annotations={"parts": 4, "producers": 32, "tensor_maps": True}' in module_text
    again = from_source(module_text)
    (loop,) = [s for s in walk_stmt(again.prim_funcs[0].body) if ring_of(s) is not None]
    ring = ring_of(loop)
    assert ring is not None and ring.tensor_maps


def test_the_primitive_wants_producers() -> None:
    s = Schedule(long_product)
    with pytest.raises(UserError, match="tensor_maps without producers"):
        partial(s.pipeline, s.loops()[0], 2, tensor_maps=True)()


# ---- NVIDIA's assembler --------------------------------------------------------------------------


@pytest.mark.in_turn()
@pytest.mark.parametrize("name", ["whole", "batch", "edges", "odd columns"])
def test_the_assembler_takes_them(name: str) -> None:
    """With nothing spilled and no advice; maps stay where the driver puts them: no local memory."""
    require_tool("ptxas")
    p = LARGE[name] if name in LARGE else PRODUCTS[name].product
    f = device_function(scheduled("float16", p, TARGET), TARGET)
    ptx = ptx_of({f.name: emit_ptx_ir(f, TARGET)}, ["sm_90a"])["sm_90a"]
    assembly = assembled(ptx, "sm_90a")
    k = assembly.kernels[f.name]
    assert (k.spills, k.stack, assembly.advice) == (0, 0, ())
    dims = 3 if name == "batch" else 2
    assert f"cp.async.bulk.tensor.{dims}d.shared::cluster.global" in ptx
    assert "mbarrier.arrive.expect_tx" in ptx and ".param .align 128 .b8 " in ptx
    require_tool("nvdisasm")
    assert instruction_counts(assembly.cubin)[f.name]["UTMALDG"] >= 1


def test_one_thread_begins_the_copies_of_a_round() -> None:
    """Where all factors are boxes, no copies of threads are awaited in the body for aligned
    tensors, and no fence."""
    aligned = _aligned_body(text())
    assert "cp.async.c" not in aligned and "noinc" not in aligned
    assert aligned.count("cp.async.bulk.tensor.2d") == 2
    mixed = _aligned_body(text("odd columns"))
    assert "cp.async.ca" in mixed and "noinc" in mixed and "cp.async.bulk" in mixed
    assert mixed.count("fence.proxy") == aligned.count("fence.proxy") + 1


def test_the_golden_text(golden: Callable[[Path, str], None]) -> None:
    """What is written for the barriers, and for the threads that copy."""
    body = _aligned_body(text())
    begin = body.rindex("\n", 0, body.rindex("\n", 0, body.index("mbarrier.init"))) + 1
    end = body.index("\n", body.index("@llvm.nvvm.bar.warp.sync")) + 1
    golden(Path(__file__).parent / "golden" / "tma_producers.ll", body[begin:end])


def _aligned_body(ir: str) -> str:
    match = re.search(r"  br i1 %\w+, label %(\w+), label %(\w+)\n", ir)
    assert match is not None
    return ir[ir.index(f"\n{match[1]}:\n") : ir.index(f"\n{match[2]}:\n")]


# ---- planted faults ------------------------------------------------------------------------------

EXPECT = r"(%\w+) = call i64 (@llvm\.nvvm\.mbarrier\.arrive\.expect\.tx\.[\w.]+)\((.*), i32 (\d+)\)"
TRY = r"(%\w+) = call i1 @llvm\.nvvm\.mbarrier\.try\.wait[^\n]*\n"
BULK = r'  call void asm sideeffect "cp\.async\.bulk[^\n]*\n'
FENCE = (
    re.escape('  call void asm sideeffect "fence.proxy.async.shared::cta;", "~{memory}"()') + "\n"
)
READS = {"copy", "undefined shared memory", "race"}
PLAIN = r"\1 = call i64 @llvm.nvvm.mbarrier.arrive.shared(\3)"


def _first_fence(ir: str) -> str:
    """Without the fence after barriers are made."""
    init_position = ir.rindex("mbarrier.init", 0, ir.index("cp.async.bulk"))
    fence_position = ir.index("fence.proxy", init_position)
    begin = ir.rindex("\n", 0, fence_position) + 1
    return ir[:begin] + ir[ir.index("\n", fence_position) + 1 :]


def _to(ir: str) -> str:
    """Boxes begin 64 bytes further on."""
    number = iter(range(99))

    def moved(match: re.Match[str]) -> str:
        k = next(number)
        return (
            f"  %moved{k} = getelementptr i8, ptr addrspace(3) {match[2]}, i64 64\n"
            f"{match[1]}%moved{k},"
        )

    return re.sub(
        r"(  call void asm sideeffect \"cp\.async\.bulk[^\n]*\(ptr addrspace\(3\) )(%\w+),",
        moved,
        ir,
    )


FAULTS: dict[str, tuple[Change, set[str]]] = {
    "bytes that never come": (put(EXPECT, r"\1 = call i64 \2(\3, i32 16400)"), {"deadlock"}),
    "fewer bytes than come": (put(EXPECT, r"\1 = call i64 \2(\3, i32 8192)"), {"bytes"}),
    "no bytes are expected": (put(EXPECT, PLAIN), {"bytes"}),
    "nobody arrives": (put(r"  " + EXPECT + r"\n", ""), {"bytes"}),
    "no copy": (put(BULK, "", 1), {"deadlock"}),
    "no wait for boxes": (
        put(TRY, r"\1 = icmp eq i32 0, 0" + "\n"),
        {*READS, "product", "bytes", "operand"},
    ),
    "the other parity for who copies": (
        put(r"xor i32 (%\w+), 1\n", r"add i32 \1, 0\n"),
        {"deadlock"},
    ),
    "the other parity for who multiplies": (
        put(r"and i32 (%\w+), 1\n(?!.*xor)", r"xor i32 \1, 1\n"),
        {"deadlock", "warp", *READS},
    ),
    "the barrier is not made for one more": (put(r"i32 1\)\n", "i32 2)\n"), {"deadlock"}),
    "barriers without a fence": (_first_fence, {"proxy"}),
    "a place between two others": (_to, {"alignment", "race", "copy", "product"}),
    "a map of fewer dimensions": (
        put(
            r'"cp\.async\.bulk\.tensor\.2d(.*?)\{\$2, \$3\}\], \[\$4\];", "r,l,r,r,r,(.*?)\((.*), '
            r"(ptr addrspace\(3\) %\w+)\)",
            r'"cp.async.bulk.tensor.3d\1{$2, $3, $4}], [$5];", "r,l,r,r,r,r,\2(\3, i32 0, \4)',
        ),
        {"operand"},
    ),
}


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("name", FAULTS)
def test_planted_faults(name: str, late: bool) -> None:
    change, kinds = FAULTS[name]
    wrong = change(text())
    require_found(lambda order: launch(kernel(), wrong, late, order), kinds)


@pytest.mark.parametrize("late", [False, True])
def test_copies_of_threads_beside_boxes_need_their_fence(late: bool) -> None:
    """The tensor cores see boxes without one, and what threads have copied after one."""
    ir = text("odd columns")
    launch(kernel(name="odd columns"), ir, late, name="odd columns")
    with pytest.raises(EmulatorFault) as caught:
        launch(kernel(name="odd columns"), re.sub(FENCE, "", ir), late, name="odd columns")
    assert caught.value.kind == "proxy"


# ---- through the look-alike of the driver --------------------------------------------------------

Arrays = Sequence[np.ndarray]


def network(dtype: str = "float16") -> tk.IRModule:
    """Two products, so that a run is a graph, one of whose factors is the first's result."""

    def build(g: Any, x: Any, w: Any, v: Any) -> Any:
        return g.linear(g.relu(g.linear(x, w)), v)

    shapes = (72, 136), (136, 200), (200, 40)
    params = {n: tensor(s, dtype) for n, s in zip("xwv", shapes, strict=True)}
    return graph(build, **params)


THERE = """
import tensorkiln as tk
from tensorkiln.script import R

@tk.script.ir_module
class Module:
    @R.function
    def main(x: A(72, 136), w: A(136, 200), v: A(200, 40)) -> A(72, 40):
        y = R.linear(x, w)
        z = R.relu(y)
        u = R.linear(z, v)
        return u
"""


@cache
def compiled_there(dtype: str = "float16") -> tk.Executable:
    """The same of tensors on the device."""
    source = re.sub(r"A\((.*?)\)", rf'R.Tensor((\1), "{dtype}", device="gpu")', THERE)
    exe = tk.compile(from_source(source), {"devices": [{**TMA, "target_key": "gpu"}, "llvm"]})
    let_run(exe)
    return exe


@cache
def compiled(dtype: str = "float16") -> tk.Executable:
    exe = tk.compile(network(dtype), TMA)
    let_run(exe)
    return exe


def inputs_of(seed: int, dtype: str = "float16") -> Arrays:
    rng = np.random.default_rng(seed)
    shapes = (72, 136), (136, 200), (200, 40)
    elements = np.dtype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
    return [rng.standard_normal(s).astype(np.float32).astype(elements) for s in shapes]


def close(output: np.ndarray, operands: Arrays, bits: int) -> None:
    x, w, v = (a.astype(np.float64) for a in operands)
    want, magnitude = np.maximum(x @ w, 0) @ v, np.maximum(np.abs(x) @ np.abs(w), 0) @ np.abs(v)
    assert (np.abs(output.astype(np.float64) - want) <= magnitude * 2.0 ** (2 - bits)).all()


@pytest.mark.parametrize("dtype", TYPES)
def test_runs(dtype: str) -> None:
    """By itself and as a graph: the same bits; arrays of the host, and tensors of the device that
    are elsewhere in each call, whose maps are others."""
    host_module, there_ = compiled(dtype), compiled_there(dtype)
    plain, moved, graphs = (
        host_module.create_executor(),
        there_.create_executor(),
        there_.create_executor(graphs=True),
    )
    for turn in range(3):
        operands = inputs_of(turn, dtype)
        have = plain["main"](*operands).numpy()
        close(have, operands, 11 if dtype == "float16" else 8)
        tensors = [there(a) for a in operands]
        for executor in (moved, graphs):
            assert executor["main"](*tensors).numpy().tobytes() == have.tobytes()
    counts = graphs.graph_counts
    assert (counts["made"], counts["launched"]) == (1, 3) and counts["updated"] >= 2


def test_symbolic_sizes() -> None:
    """The runtime makes maps of the sizes of each call; of a tensor without elements, none."""

    def build(g: Any, x: Any, w: Any) -> Any:
        return g.linear(x, w)

    params = {"x": tensor((N, 136), "float16"), "w": tensor((136, 72), "float16")}
    exe = tk.compile(graph(build, **params), TMA)
    let_run(exe)
    (row,) = json.loads(exe.artifacts["kernels.fmap.json"].text())["functions"].values()
    assert row["params"][row["tensor_maps"][0]["dims"][1]["param"]] == "int64"
    main, graphs = (exe.create_executor(graphs=on)["main"] for on in (False, True))
    w = inputs_of(0)[1][:, :72].copy()
    for n in (1, 130, 0, 64):
        x = np.random.default_rng(n).standard_normal((n, 136)).astype(np.float16)
        have = main(x, w).numpy()
        want = x.astype(np.float64) @ w.astype(np.float64)
        magnitude = np.abs(x.astype(np.float64)) @ np.abs(w.astype(np.float64))
        assert have.shape == (n, 72) and (np.abs(have - want) <= magnitude * 2.0**-10).all()
        assert graphs(x, w).numpy().tobytes() == have.tobytes()


def test_no_terms() -> None:
    """Of a tensor without elements there is no map; the sums are zeros."""
    params = {"x": tensor((N, 72), "float16"), "y": tensor((N, 72), "float16")}
    exe = tk.compile(graph(matmul(transpose_a=True), **params), TMA)
    let_run(exe)
    main = exe.create_executor()["main"]
    for n in (0, 130):
        x, y = (
            np.random.default_rng(n + k).standard_normal((n, 72)).astype(np.float16) for k in (0, 1)
        )
        want, magnitude = x.T.astype(np.float64) @ y, np.abs(x.T.astype(np.float64)) @ np.abs(y)
        assert (np.abs(main(x, y).numpy() - want) <= magnitude * 2.0**-10).all()


def test_tensors_that_are_not_aligned() -> None:
    """Threads copy them: to the same bits."""
    main = compiled_there().create_executor()["main"]
    operands = inputs_of(5)
    want = main(*map(there, operands)).numpy()
    for k in range(3):
        tensors = [_shifted(a) if i == k else there(a) for i, a in enumerate(operands)]
        assert main(*tensors).numpy().tobytes() == want.tobytes()


def test_a_callers_graph() -> None:
    """A capture has the maps of the tensors that it was given, wherever others are by then."""
    driver = Driver()
    stream = driver.make("cuStreamCreate", 1).value or 0
    executor = compiled_there().create_executor()
    operands = [there(a) for a in inputs_of(0)]
    executor["main"](*operands)
    executor.set_stream(stream)
    out = there(np.zeros((72, 40), np.float16))
    driver.begin_capture(stream)
    executor["main"](*operands, out=out)
    captured = driver.end_capture(stream)
    assert captured.value
    ready = driver.instantiate(captured)
    for turn in range(2):
        arrays = inputs_of(turn)
        for tensor_, a in zip(operands, arrays, strict=True):
            there(a).copyto(tensor_)
        driver.launch(ready, stream)
        out.queued_in(stream)
        close(out.numpy(), arrays, 11)
    for name, handle in (("cuGraphExecDestroy", ready), ("cuGraphDestroy", captured)):
        assert driver(name, handle) == 0
    executor.set_stream(None)
    assert driver("cuStreamDestroy", ctypes.c_void_p(stream)) == 0


def _shifted(a: np.ndarray) -> DeviceTensor:
    """A tensor of the device that begins at its second element."""
    whole = there(np.concatenate([a.ravel()[:1], a.ravel()]))
    return DeviceTensor(whole._memory, a.shape, a.dtype, whole.device, a.itemsize)


def test_an_exported_library(tmp_path: Path) -> None:
    exe = compiled()
    module = load_module(exe.export_library(tmp_path / "net.so"))
    operands = inputs_of(7)
    have = Executor(module, tk.cuda(0))["main"](*operands).numpy()
    assert have.tobytes() == exe.create_executor()["main"](*operands).numpy().tobytes()
    module.close()


def test_artifacts_describe_the_maps() -> None:
    exe = compiled()
    table = exe.artifacts["kernels.fmap.json"]
    rows = json.loads(table.text())["functions"]
    assert [len(row["tensor_maps"]) for row in rows.values()] == [2, 2]
    first = rows["linear_relu_device"]["tensor_maps"][0]
    assert first == {
        "param": 0,
        "dtype": "float16",
        "dims": [136, 72],
        "strides": [272],
        "box": [64, 64],
        "swizzle": 128,
    }
    functions = device_functions_from(table.view, "x")
    assert functions is not None and functions[0].params[-2:] == (
        "map of 0 (box 64 x 64)",
        "map of 1 (box 64 x 64)",
    )
    mixed = tk.compile(
        graph(linear, x=tensor((72, 136), "float16"), w=tensor((136, 70), "float16")), TMA
    )
    table = mixed.artifacts["kernels.fmap.json"]
    (row,) = json.loads(table.text())["functions"].values()
    assert row["copied_by_threads"] == {"p1": ROWS.format(140)}
    text = "".join(print_signatures([table], "cuda"))
    assert f"; copied by threads: p1: {ROWS.format(140)}" in text, text


def test_libraries_without_maps_have_none() -> None:
    """Nor does their text say a word of them."""
    exe = tk.compile(network(), {**TMA, "matmul_copies": "warp"})
    assert "tensor_map" not in exe.artifacts["kernels.fmap.json"].text()
    assert "kiln_tensor_map" not in exe.artifacts["entry.c"].text()


PROGRAM = """
import sys
from tests.cuda.test_tma import compiled, inputs_of
try:
    compiled().create_executor()["main"](*inputs_of(0))
except Exception as error:
    print(f"{type(error).__name__}: {error}")
"""


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"LOOKALIKE_VERSION": "11080"},
            "linear_relu_device takes tensor maps, and libcuda.so.1 has no function "
            "cuTensorMapEncodeTiled: expected the driver of CUDA 12.0 or newer",
        ),
        (
            {"LOOKALIKE_FAIL": "cuTensorMapEncodeTiled:3:1"},
            "the tensor map of argument 0 for linear_device failed with CUDA_ERROR_INVALID_VALUE",
        ),
    ],
)
def test_errors_of_the_driver(settings: dict[str, str], message: str) -> None:
    """A driver that is too old says so before anything runs; one that refuses a map, which."""
    if require_cuda():
        pytest.skip("a GPU's own driver cannot be told to fail")
    root = Path(__file__).parents[2]
    environment = {**os.environ, **settings, "PYTHONPATH": str(root)}
    command = [sys.executable, "-c", PROGRAM]
    process = subprocess.run(
        command, cwd=root, env=environment, capture_output=True, text=True, timeout=300
    )
    assert process.returncode == 0 and message in process.stdout, (
        process.stdout + process.stderr[-2000:]
    )


# What cuda.h says of arguments, and what breaks each rule.
GOOD: dict[str, Any] = {
    "type": 6,
    "rank": 2,
    "address": 0x1000,
    "dims": (136, 72),
    "strides": (272,),
    "box": (64, 64),
    "steps": (1, 1),
    "modes": (0, CU_TENSOR_MAP_SWIZZLE_128B, 2, 0),
}
WRONG: dict[str, dict[str, Any]] = {
    "an address": {"address": 0x1008},
    "no dimension": {"rank": 0},
    "six dimensions": {"rank": 6},
    "an empty dimension": {"dims": (136, 0)},
    "a dimension": {"dims": (136, (1 << 31) + 1)},
    "a stride": {"strides": (264,)},
    "a long stride": {"strides": (1 << 40,)},
    "rows that overlap": {"strides": (256,)},
    "a box": {"box": (64, 257)},
    "an empty box": {"box": (64, 0)},
    "part of a piece": {"box": (60, 64)},
    "wider than the pattern": {"box": (72, 64)},
    "steps": {"steps": (1, 9)},
    "a type": {"type": 99},
    "a pattern": {"modes": (0, 9, 2, 0)},
}


@pytest.mark.parametrize("name", [None, *WRONG])
def test_the_look_alike_takes_what_the_header_allows(name: str | None) -> None:
    if require_cuda():
        pytest.skip("a GPU's own driver refuses what it likes")
    fields = {**GOOD, **(WRONG[name] if name else {})}
    driver = Driver()
    room = ctypes.create_string_buffer(256)
    start = ctypes.addressof(room)
    arrays = {
        "dims": ctypes.c_uint64,
        "strides": ctypes.c_uint64,
        "box": ctypes.c_uint32,
        "steps": ctypes.c_uint32,
    }
    for misalignment in (0, 8):
        address = start + -start % 128 + misalignment
        error = driver(
            "cuTensorMapEncodeTiled",
            ctypes.c_void_p(address),
            fields["type"],
            fields["rank"],
            ctypes.c_void_p(fields["address"]),
            *((t * 8)(*fields[n]) for n, t in arrays.items()),
            *fields["modes"],
        )
        assert error == (1 if name or misalignment else 0)


def test_targets() -> None:
    for options in ({"arch": "sm_90"}, {"arch": "sm_100a"}, {"arch": "sm_90a", "also": ["sm_80"]}):
        with pytest.raises(UserError, match=r"has no warpgroups that multiply"):
            Target({**TMA, **options})
    with pytest.raises(UserError, match="products by warps have no warp of their own"):
        Target({**TMA, "matmul_kernel": "mma"})
