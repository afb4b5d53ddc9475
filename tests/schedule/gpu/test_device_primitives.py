"""`cooperative` and `pipeline`: results, barriers, bank conflicts, and refusals."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tensorkiln.base.errors import UserError
from tensorkiln.ir.expr import int_value
from tensorkiln.ir.stmt import Alloc, For, If, PrimFunc, Sync
from tensorkiln.ir.visit import walk_stmt
from tensorkiln.schedule.primitives import PRIMITIVES, Schedule, ScheduleError, bind, replay
from tensorkiln.script import T
from tensorkiln.transform.tir.check_races import Races, races_of
from tests.ir.evaluate import run
from tests.schedule import corpus as c
from tests.schedule.gpu.runner import Kernels


@T.prim_func
def transpose(A: T.Buffer((32, 16)), C: T.Buffer((16, 32))) -> None:
    for y, x in T.grid(1, 2):
        for i, j in T.grid(16, 16):
            C[y * 16 + i, x * 16 + j] = A[x * 16 + j, y * 16 + i]


@T.prim_func
def product(A: T.Buffer((8, 12)), B: T.Buffer((12, 32)), C: T.Buffer((8, 32))) -> None:
    for y, x in T.grid(1, 2):
        for i, j in T.grid(8, 16):
            C[y * 8 + i, x * 16 + j] = T.float32(0)
        for k in range(3):
            for i, j in T.grid(8, 16):
                for q in range(4):
                    C[y * 8 + i, x * 16 + j] = (
                        C[y * 8 + i, x * 16 + j]
                        + A[y * 8 + i, k * 4 + q] * B[k * 4 + q, x * 16 + j]
                    )


@T.prim_func
def long_product(A: T.Buffer((8, 28)), B: T.Buffer((28, 32)), C: T.Buffer((8, 32))) -> None:
    for y, x in T.grid(1, 2):
        for i, j in T.grid(8, 16):
            C[y * 8 + i, x * 16 + j] = T.float32(0)
        for k in range(7):
            for i, j in T.grid(8, 16):
                for q in range(4):
                    C[y * 8 + i, x * 16 + j] = (
                        C[y * 8 + i, x * 16 + j]
                        + A[y * 8 + i, k * 4 + q] * B[k * 4 + q, x * 16 + j]
                    )


@T.prim_func
def rounds(A: T.Buffer(("n", 8)), C: T.Buffer(("n", 8))) -> None:
    for b in range(2):
        for k in range(n):  # noqa: F821
            for j in range(4):
                C[k, 7 - b * 4 - j] = A[k, b * 4 + j] * T.float32(2)


@T.prim_func
def later_rounds(A: T.Buffer((9, 8)), C: T.Buffer((9, 8))) -> None:
    for b in range(2):
        for k in range(2, 9):
            for j in range(4):
                C[k, 7 - b * 4 - j] = A[k, b * 4 + j] * T.float32(2)


@T.prim_func
def waves(A: T.Buffer((6, 8)), C: T.Buffer((6, 8))) -> None:
    for k in range(5):
        S = T.alloc_buffer((8,), "float32", scope="shared")
        for i in range(8):
            S[i] = C[k, 7 - i]  # what the round before computed
        for j in range(8):
            C[k + 1, j] = S[j] + A[k, j]


def arrays(f: PrimFunc, **sizes: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    shapes = {b.name: [int_value(d) or sizes.get(str(d), 0) for d in b.shape] for b in f.buffers}
    return {k: rng.integers(0, 5, shape).astype("float32") for k, shape in shapes.items()}


def checked(f: PrimFunc, made: PrimFunc, on_device: bool = True, **sizes: int) -> Races | None:
    """A schedule gives the results of its program; what is proved of its device function."""
    want, found = (arrays(f, **sizes) for _ in range(2))
    run(f, want)
    run(made, found)
    np.testing.assert_array_equal(found["C"], want["C"])
    if not on_device:
        return None
    kernels = Kernels([made])
    found = arrays(f, **sizes)
    kernels.run(f.name, sizes, *found.values())
    np.testing.assert_array_equal(found["C"], want["C"])
    (launch,) = kernels.launches(f.name)
    races = races_of(kernels.func(launch.name))
    assert races.proved, (races.faults, races.doubts)
    return races


# ---- cooperative ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "threads,vector",
    [(64, 1), (64, 4), (32, 2), (48, 1), (48, 4), (256, 1), ((8, 4), 2), ((4, 2, 4), 1)],
)
def test_threads_share_a_nest(threads: Any, vector: int) -> None:
    s = Schedule(transpose)
    for loop, index in (("y", "blockIdx.y"), ("x", "blockIdx.x")):
        s.bind(loop, index)
    copy = s.cache_read("C", "A", "shared", at="x")
    made = s.cooperative(copy.loops[0], threads, vector)
    assert len(made.threads) == (1 if isinstance(threads, int) else len(threads))
    assert (made.lanes is None) == (vector == 1)
    s.cooperative("i", threads)
    races = checked(transpose, s.func)
    assert races is not None
    loaded = [n for n in races.notes if n.kind == "uncoalesced" and n.buffer == "A"]
    assert not loaded or not isinstance(threads, int)  # neighbours read neighbours


def test_the_rest_is_left_out() -> None:
    s = Schedule(transpose)
    for loop, index in (("y", "blockIdx.y"), ("x", "blockIdx.x")):
        s.bind(loop, index)
    s.cooperative("i", 48)
    assert any(isinstance(t, If) for t in walk_stmt(s.func.body))
    checked(transpose, s.func)
    whole = replay(str(s.trace), transpose)
    assert whole.script() == s.func.script()


# ---- conflicts of banks --------------------------------------------------------------------------


def transposed() -> Schedule:
    s = Schedule(transpose)
    s.bind("y", "blockIdx.y")
    s.bind("x", "blockIdx.x")
    copy = s.cache_read("C", "A", "shared", at="x")
    s.cooperative(copy.loops[0], 64)
    s.cooperative("i", 64)
    return s


def conflicts(races: Races | None) -> list[int]:
    assert races is not None
    return [n.count for n in races.notes if n.kind == "bank conflict"]


def test_padding_makes_fewer_conflicts() -> None:
    s = transposed()
    assert 8 in conflicts(checked(transpose, s.func))
    s.storage_align("A_shared", 0, 16, 1)
    assert set(conflicts(checked(transpose, s.func))) == {2}


# ---- pipeline ------------------------------------------------------------------------------------


def tiled_product(stages: int, f: PrimFunc = product) -> PrimFunc:
    s = Schedule(f)
    s.bind("y", "blockIdx.x")
    s.bind("x", "blockIdx.y")
    copies = [s.cache_read("C_1", name, "shared", at="k") for name in "AB"]
    if stages > 1:
        assert s.pipeline("k", stages) == "k_ahead"
    fills = [n for n in s.blocks() if n.split("_")[0] in "AB"]
    assert len(fills) == (4 if stages > 1 else 2) and len(copies) == 2
    for name in fills:
        s.cooperative(next(x for x in s.loops_of(name) if x.startswith("ax")), 16, 4)
    for name in ("i", "i_1"):
        s.bind(name, "threadIdx.x")
    return s.func


def barriers(f: PrimFunc, within: str) -> int:
    """Barriers in one round of a loop."""
    made = Kernels([f])
    (launch,) = made.launches(f.name)
    loops = [s for s in walk_stmt(made.func(launch.name).body) if isinstance(s, For)]
    (loop,) = (s for s in loops if s.var.name == within)
    return sum(isinstance(s, Sync) for s in walk_stmt(loop))


@pytest.mark.parametrize("stages", [1, 2, 3])
def test_rounds_are_copied_ahead(stages: int) -> None:
    f = tiled_product(stages)
    checked(product, f)
    assert barriers(f, "k") == (2 if stages == 1 else 1)
    shapes = {t.buffer.name: t.buffer.shape for t in walk_stmt(f.body) if isinstance(t, Alloc)}
    assert len(shapes["A_shared"]) == (2 if stages == 1 else 3)


def test_stages_are_used_again() -> None:
    """Of more rounds than stages."""
    checked(long_product, tiled_product(3, f=long_product))


@pytest.mark.parametrize("stages", [2, 3, 4])
@pytest.mark.parametrize("n", [0, 1, 2, 3, 7])
def test_any_number_of_rounds(stages: int, n: int) -> None:
    s = Schedule(rounds)
    s.bind("b", "blockIdx.x")
    s.cache_read("C", "A", "shared", at="k")
    s.pipeline("k", stages)
    checked(rounds, s.func, on_device=False, n=n)


def test_rounds_that_do_not_begin_at_0() -> None:
    s = Schedule(later_rounds)
    s.bind("b", "blockIdx.x")
    s.cache_read("C", "A", "shared", at="k")
    first = s.pipeline("k", 3)
    s.cooperative(next(x for x in s.loops() if x.startswith("ax") and s.parent(x) == first), 8)
    s.bind("j", "threadIdx.x")
    checked(later_rounds, s.func)


# ---- refused -------------------------------------------------------------------------------------


def cached(f: PrimFunc, block: str, at: str, **binds: str) -> PrimFunc:
    s = Schedule(f)
    for loop, index in binds.items():
        s.bind(loop, index)
    s.cache_read(block, "A", "shared", at=at)
    return s.func


@T.prim_func
def filled_late(A: T.Buffer((4, 8)), C: T.Buffer((4, 8))) -> None:
    for k in range(4):
        S = T.alloc_buffer((8,), "float32", scope="shared")
        for i in range(8):
            S[i] = A[k, i]
        for i in range(8):
            C[k, i] = S[7 - i]
        for i in range(8):
            S[i] = C[k, i]


@T.prim_func
def unused(A: T.Buffer((4, 8)), C: T.Buffer((4, 8))) -> None:
    for k in range(4):
        S = T.alloc_buffer((8,), "float32", scope="shared")
        for i in range(8):
            S[i] = A[k, i]


TILE = cached(transpose, "C", "x", y="blockIdx.y", x="blockIdx.x")
ROWS: list[tuple[PrimFunc, str, tuple[Any, ...], dict[str, Any], str, str]] = [
    (TILE, "cooperative", ("ax0", 0), {}, "threads=0", "positive number"),
    (TILE, "cooperative", ("ax0", (4, 4, 2, 2)), {}, "threads=(4, 4, 2, 2)", "(x, y, z)"),
    (TILE, "cooperative", ("ax0", 8, 3), {}, "vectors of 3 do not divide loop 'ax1'", "innermost"),
    (TILE, "cooperative", ("ax0", 8, 0), {}, "vector=0", "positive number"),
    (TILE, "cooperative", ("ax9", 8), {}, "no loop or block 'ax9'", "ax"),
    (
        bind(c.matmul, "j", "threadIdx.x"),
        "cooperative",
        ("i", 8),
        {},
        "'j' is thread already",
        "serial loops",
    ),
    (c.prefix_sum, "cooperative", ("i", 4), {}, "may run at once", ""),
    (c.skewed, "cooperative", ("i_1", 4), {}, "at once", ""),
    (TILE, "pipeline", ("x",), {}, "the loop is thread", "a serial loop"),
    (TILE, "pipeline", ("ax0",), {}, "it allocates no shared buffer", "cache_read"),
    (cached(rounds, "C", "k"), "pipeline", ("k", 1), {}, "stages=1", "from 2 on"),
    (filled_late, "pipeline", ("k",), {}, "after it began to compute", "copies come first"),
    (unused, "pipeline", ("k",), {}, "nothing uses what it copies", "copies come first"),
    (filled_late, "pipeline", ("k", 5), {}, "5 stages for 4 rounds", "at most as many"),
    (waves, "pipeline", ("k",), {}, "the other way", ""),
]


@pytest.mark.parametrize("row", ROWS, ids=lambda r: f"{r[0].name}-{r[1]}-{r[2]}")
def test_refused(row: tuple[PrimFunc, str, tuple[Any, ...], dict[str, Any], str, str]) -> None:
    f, primitive, args, options, message, hint = row
    text = f.script()
    with pytest.raises(ScheduleError) as e:
        PRIMITIVES[primitive](f, *args, **options)
    assert isinstance(e.value, UserError) and e.value.code == "illegal-schedule"
    assert e.value.where.startswith(primitive), e.value.where
    assert message in e.value.message, e.value.message
    assert hint in e.value.hint, e.value.hint
    assert f.script() == text
