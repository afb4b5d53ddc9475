"""Products on tensor cores whose factors are copied several rounds ahead: how many parts of shared
memory they get, that they are right and proved with each number of them, and that a wait for too
few of their copies is found."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tensorkiln.base.errors import UserError
from tensorkiln.codegen.ptx.compile import ptx_of
from tensorkiln.codegen.ptx.emit import emit_ptx_ir
from tensorkiln.families.tensor_cores.gpu_row import WarpTile, stages_of
from tensorkiln.families.wgmma.gpu_row import WarpgroupTile
from tensorkiln.ir.copies import is_asynchronous
from tensorkiln.ir.expr import Var
from tensorkiln.ir.launch import launch_of
from tensorkiln.ir.relax import Value
from tensorkiln.ir.stmt import PrimFunc, Sync
from tensorkiln.ir.visit import walk_stmt
from tensorkiln.kernels.case import c, rand
from tensorkiln.ops.evaluate import evaluate
from tensorkiln.target import Target
from tensorkiln.target.cuda_tools import assembled
from tensorkiln.transform.tir.check_races import races_of
from tests.cuda.emulator.launch import Emulated, EmulatorFault
from tests.cuda.faults import batch_unawaited, copies_unawaited, missing_barrier, wrong_stage
from tests.cuda.networks import exported, host_kernels, runner
from tests.cuda.test_metrics import require_tool
from tests.cuda.test_tensor_cores import (
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
from tests.schedule.battery import Battery, arguments, typed
from tests.schedule.gpu.runner import DeviceRunner
from tests.transform.graphs import graph

# By who multiplies: a target, and shapes of a product that takes several rounds.
BY_THREADS = {"arch": "sm_90a", "matmul_copies": "threads"}
KINDS = {
    "mma": ({"kind": "cuda", "arch": "sm_80"}, ((48, 136), (136, 40))),
    "wgmma": (
        {"kind": "cuda", **BY_THREADS},
        ((72, 264), (264, 72)),
    ),
}
STAGES = (1, 2, 3, 4)
EACH = [(kind, stages) for kind in KINDS for stages in STAGES]
SLICE = [("mma", 3), ("wgmma", 4)]


def target_with(kind: str, stages: int) -> Target:
    return Target({**KINDS[kind][0], "matmul_stages": stages})


@cache
def kernel(kind: str, stages: int) -> PrimFunc:
    p = Product(linear, KINDS[kind][1], KINDS[kind][1][0][1])
    target = target_with(kind, stages)
    return device_function(scheduled("float16", p, target), target)


def parts(f: PrimFunc) -> set[int]:
    """Of how many parts the buffers of factors are."""
    factors = [b for b in launch_of(f).shared if b.name in ("left", "right")]
    return {int(b.shape[0].value) if len(b.shape) == 3 else 1 for b in factors}  # type: ignore[attr-defined]


def launch(f: PrimFunc, kind: str, irs: list[str], name: str, late: bool, order: int) -> None:
    """Of integers, whose sums are exact."""
    (m, k), (_, n) = KINDS[kind][1]
    rng = np.random.default_rng(3)
    x, w = (rng.integers(-2, 3, shape).astype(np.float16) for shape in ((m, k), (k, n)))
    out = np.zeros((m, n), np.float16)
    kernels = Emulated(irs)
    kernels.aligned = True
    kernels.order(*ORDERS[order])
    kernels.copies(late)
    kernels.products(late)
    grid = [int(e.value) for e in launch_of(f).grid]  # type: ignore[attr-defined]
    kernels.run(name, grid, launch_of(f).block, [x, w, out], launch_of(f).shared_bytes)
    np.testing.assert_array_equal(out.astype(np.float64), x.astype(np.float64) @ w)


@pytest.mark.in_turn("kind")
@pytest.mark.parametrize(("kind", "stages"), EACH)
def test_each_number_is_right(kind: str, stages: int) -> None:
    """Copies and products as early and as late as they may happen."""
    f = kernel(kind, stages)
    assert parts(f) == {stages}
    waits = [s for s in walk_stmt(f.body) if isinstance(s, Sync) and s.scope == "copies"]
    assert [s.pending for s in waits] == ([] if stages == 1 else [2 * (stages - 2)])
    ir = emit_ptx_ir(f, target_with(kind, stages))
    for late in (False, True):
        launch(f, kind, [ir], f.name, late, stages % 3)


@pytest.mark.parametrize(
    ("kind", "stages"),
    [pytest.param(*e, marks=() if e in SLICE else pytest.mark.fuzz) for e in EACH],
)
def test_each_number_is_proved(kind: str, stages: int) -> None:
    races = races_of(kernel(kind, stages), notes=False)
    assert races.proved, (races.faults[:1], races.doubts[:1])


@pytest.mark.in_turn("kind")
@pytest.mark.parametrize(("kind", "stages"), EACH)
def test_the_assembler_takes_them(kind: str, stages: int) -> None:
    require_tool("ptxas")
    f, target = kernel(kind, stages), target_with(kind, stages)
    text = ptx_of({f.name: emit_ptx_ir(f, target)}, [target.arch])[target.arch]
    assert ("cp.async.wait_group" in text) == (stages > 2)
    assert ("cp.async" in text) == (stages > 1)
    assembly = assembled(text, target.arch)
    assert assembly.kernels[f.name].spills == 0 and assembly.advice == ()


PLANTED = {
    "missing barrier": (missing_barrier, {"race", "copy", "undefined shared memory"}),
    "unawaited copies": (copies_unawaited, {"copy"}),
    "batch unawaited": (batch_unawaited, {"copy"}),
    "wrong stage": (wrong_stage, {"race", "copy", "undefined shared memory"}),
}


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("fault", PLANTED)
@pytest.mark.parametrize(("kind", "stages"), SLICE)
def test_planted_faults(kind: str, stages: int, fault: str, late: bool) -> None:
    """The emulator finds each, and so do proofs."""
    plant, kinds = PLANTED[fault]
    planted = list(plant(kernel(kind, stages)))
    assert planted
    for f in planted:
        with pytest.raises(EmulatorFault) as caught:
            launch(f, kind, [emit_ptx_ir(f, target_with(kind, stages))], f.name, late, 0)
        assert caught.value.kind in kinds, str(caught.value)


@pytest.mark.parametrize(("kind", "stages"), SLICE)
def test_proofs_find_a_batch_unawaited(kind: str, stages: int) -> None:
    (f,) = batch_unawaited(kernel(kind, stages))
    assert {r.kind for r in races_of(f, notes=False).faults} == {"copy"}


# ---- products of many rounds ---------------------------------------------------------------------

N, S = Var("N"), Var("S")
LONG: dict[str, Product] = {
    "rows": Product(linear, [(N, 328), (328, 72)], 328, [{"N": 1}, {"N": 70}]),
    "batch": Product(
        lambda g, x, y: g.matmul(x, y, transpose_b=True),
        [(2, S, 264), (2, S, 264)],
        264,
        [{"S": 40}],
    ),
    "one_by_one": Product(conv(), [(2, 200, 4, 8), (40, 200, 1, 1)], 200),
    "bias": Product(
        lambda g, x, w, b: g.relu(g.linear(x, w, b)), [(72, 200), (200, 40), (40,)], 200
    ),
}
# By name: a target, the type of parameters, the class, and whether a warp of its own copies.
RUNGS: dict[str, tuple[dict[str, object], str, str, bool]] = {
    "mma": ({"arch": "sm_80"}, "float16", "gpu_tensor_cores", False),
    "mma, two": ({"arch": "sm_80", "matmul_stages": 2}, "bfloat16", "gpu_tensor_cores", False),
    "wgmma": (BY_THREADS, "float16", "gpu_wgmma", False),
    "ring": ({"arch": "sm_90a", "matmul_copies": "warp"}, "float16", "gpu_wgmma", True),
    "ring, three": (
        {"arch": "sm_90a", "matmul_copies": "warp", "matmul_stages": 3},
        "bfloat16",
        "gpu_wgmma",
        True,
    ),
}


@pytest.mark.in_turn()
@pytest.mark.parametrize("rung", RUNGS)
def test_long_products(rung: str) -> None:
    """Against float64, early and late, of arrays that are aligned to 16 bytes or to an element."""
    options, dtype, kernel_class, has_ring = RUNGS[rung]
    b = Battery()
    for name, p in LONG.items():
        b.add(name, p.build, *(typed(dtype, *s) for s in p.shapes), sizes=p.sizes, make=whole_range)
    device_runner = DeviceRunner(b, target=Target({"kind": "cuda", **options}))
    assert {f.op_class for f in device_runner.mod.prim_funcs} == {kernel_class}
    device = [f for f in device_runner.kernels.mod.prim_funcs if f.is_device]
    assert all((launch_of(f).ring is not None) == has_ring for f in device)
    assert all(any(map(is_asynchronous, walk_stmt(f.body))) for f in device)
    for case in b.cases.values():
        terms = LONG[case.name].terms
        for k, sizes in enumerate(case.sizes):
            inputs = arguments(case, sizes, k)
            (want,) = evaluate(case.function, inputs, sizes, dtype="float64")
            allowed, first = largest_error(case, terms, inputs, sizes), None
            for round_number in range(4):
                kernels = device_runner.kernels
                kernels.aligned, kernels.late = round_number < 2, round_number % 2 > 0
                kernels.order = ORDERS[(k + round_number) % 3]
                (output,) = launched(device_runner, case, inputs, sizes)
                assert (np.abs(output.astype(np.float64) - want) <= allowed).all()
                assert first is None or (output == first).all()
                first = output


def network(g: Any, x: Any) -> Any:
    """Two convolutions, one of them a product of many terms, and a perceptron with a residual."""
    c1, c2 = (rand(64, 32, 1, 1), rand(40, 64, 3, 3))
    y = g.relu(g.conv2d(x, half(c1)))
    y = g.relu(g.conv2d(y, half(c2), padding=(1, 1, 1, 1)))
    y = g.reshape(y, shape=(40, 64))
    hidden = g.relu(g.linear(y, half(rand(64, 328))))
    return g.add(g.linear(hidden, half(rand(328, 64))), y)


def half(value: Value) -> Value:
    return c((value.data * 0.1).astype(np.float16), "float16")  # type: ignore[attr-defined]


@pytest.mark.in_turn()
@pytest.mark.parametrize("rung", ["mma", "wgmma", "ring"])
def test_a_network_through_the_driver(rung: str, tmp_path: Path) -> None:
    """As an exported library, whose kernels the driver loads and launches."""
    mod = graph(network, x=typed("float16", 1, 32, 8, 8))
    exe, lib = exported(mod, {"kind": "cuda", **RUNGS[rung][0]}, tmp_path / "net.so")
    try:
        assert host_kernels(exe) == []
        assert RUNGS[rung][2] in {p.kernel_class for p in exe.placement()}
        ptx = next(a.text() for a in exe.artifacts if a.file_name.endswith(".ptx"))
        assert "cp.async" in ptx and ("mbarrier" in ptx) == (rung == "ring")
        for seed in range(2):
            x = whole_range(seed, np.dtype(np.float16), (1, 32, 8, 8))
            (want,) = evaluate(mod, {"x": x}, {}, dtype="float64")
            (output,) = runner(lib)(x)
            np.testing.assert_allclose(output, want, rtol=0.02, atol=0.02 * np.abs(want).max())
    finally:
        lib.close()


# ---- how many ------------------------------------------------------------------------------------


def test_as_many_as_memory_has_room_for() -> None:
    def chosen(tile: WarpTile | WarpgroupTile, rounds: int | None, **options: object) -> int:
        target = Target({"kind": "cuda", **options})
        remaining_bytes = tile.shared - tile.factors
        return stages_of(tile, remaining_bytes // 2, rounds, target)

    small, large = WarpTile(64, 64, 64, 2, 2), WarpTile(128, 128, 64, 2, 2)
    assert [chosen(small, n, arch="sm_80") for n in (1, 2, 3, 9, None)] == [1, 2, 3, 4, 4]
    assert chosen(small, None, arch="sm_75") == 1  # has no such copies
    assert chosen(small, None, arch="sm_90", also=["sm_75"]) == 1
    assert chosen(large, None, arch="sm_80") == 3
    assert chosen(large, None, arch="sm_86") == 2
    assert chosen(WarpTile(128, 128, 128, 2, 2), None, arch="sm_86") == 1  # of two blocks
    assert chosen(large, None, arch="sm_80", matmul_stages=2) == 2
    assert chosen(large, None, arch="sm_80", matmul_stages=1) == 1
    assert chosen(WarpgroupTile(128, 256), None, arch="sm_90a") == 4
    assert chosen(WarpgroupTile(64, 64), None, arch="sm_90a") == 4
    assert chosen(WarpgroupTile(64, 64), None, arch="sm_90a", matmul_stages=8) == 6


def test_what_is_no_copy_is_copied_at_once() -> None:
    """Pieces below 4 bytes, and factors that something is computed of."""
    for kind in KINDS:
        target = target_with(kind, 4)
        for p in (
            Product(linear, [(67, 251), (251, 71)], 251),
            Product(lambda g, x, w: g.linear(g.relu(x), w), [(64, 256), (256, 64)], 256),
            Product(conv(padding=(1, 1, 1, 1)), [(2, 32, 7, 9), (40, 32, 3, 3)], 288),
        ):
            f = device_function(scheduled("float16", p, target), target)
            assert parts(f) == {1}
            assert not any(map(is_asynchronous, walk_stmt(f.body)))


def test_the_option() -> None:
    assert Target("cuda")["matmul_stages"] == 4
    for wrong in (0, 9, "two", True):
        with pytest.raises(UserError):
            Target({"kind": "cuda", "matmul_stages": wrong})
