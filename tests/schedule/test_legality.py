"""Which changes of order are proved, and which dependence forbids the others."""

from __future__ import annotations

import re
import time

import pytest

from tensorkiln.ir.buffer import AddressOf, buffer
from tensorkiln.ir.expr import CallExtern, IntImm, Var, const
from tensorkiln.ir.stmt import (
    Alloc,
    Assert,
    Block,
    BlockIter,
    Evaluate,
    For,
    If,
    PrimFunc,
    Seq,
    Stmt,
    Store,
    While,
)
from tensorkiln.schedule.primitives import (
    PRIMITIVES,
    ScheduleError,
    block,
    blocks,
    fuse,
    loops,
    normal,
    parallel,
    partition,
    reorder,
    require_order,
    split,
)
from tensorkiln.script import T
from tests.schedule import corpus as c

LEGAL = [
    (c.matmul, "reorder", "j", "i"),
    (c.matmul, "parallel", "j"),
    (c.matmul, "bind", "i", "blockIdx.x"),
    (c.matmul_apart, "reorder", "k", "j_1", "i_1"),  # the order of a sum is free
    (c.matmul_apart, "vectorize", "j_1"),
    (c.matmul_symbolic, "reorder", "i_1", "k"),
    (c.matmul_symbolic, "parallel", "i_1"),
    (c.conv2d, "reorder", "s", "r", "c", "x_1", "o_1", "y_1"),
    (c.row_sum, "reorder", "i_1", "j"),
    (c.least, "reorder", "j", "i"),
    (c.reshape, "parallel", "i"),  # quotients and remainders are exact
    (c.every_other, "parallel", "i_1"),
    (c.permute, "vectorize", "k"),
    (c.lanes, "parallel", "j"),
    (c.lower, "parallel", "i_1"),
    (c.lower, "parallel", "j_1"),
    (c.triangle_sum, "parallel", "i"),
    (c.padded, "parallel", "j"),
    (c.running_total, "parallel", "i"),  # every iteration has its own s
    (c.softmax, "parallel", "i"),
    (c.rows_of_scratch, "parallel", "i"),
    (c.rows_of_scratch, "vectorize", "j_1"),
    (c.wavefront, "reorder", "j_1", "i_1"),
    (c.seidel, "reorder", "j_1", "i_1"),
    (c.skewed, "parallel", "j_1"),
    (c.shortest, "reorder", "j", "i"),
    (c.reverse_pairs, "parallel", "i_1"),
    (c.where, "parallel", "i"),
    (c.gathered, "parallel", "i"),
    (c.gathered, "vectorize", "j"),
    (c.last_row_wins, "parallel", "j"),
    (c.last_row_wins, "reorder", "j", "i"),  # each element sees its rows in order
    (c.histogram, "parallel", "b"),
    (c.parts_of_histogram, "parallel", "p"),  # by the bounds of the index, whatever is read
]

# program, primitive, arguments; the dependence that is named
ILLEGAL = [
    (c.matmul, ("parallel", "k"), "updated by block 'C_1' .* block 'C_1' updates it"),
    (c.least, ("vectorize", "j"), "updated by block 'C_1'"),
    (c.row_sum, ("parallel", "j"), "updated by block 'C_1'"),
    (c.prefix_sum, ("parallel", "i"), "written by block 'C_1' at i=1 .* reads it at i=2"),
    (c.prefix_sum, ("vectorize", "i"), "written by block 'C_1'"),
    (c.running_total, ("parallel", "j"), "s\\[0\\] is"),
    (c.seidel, ("parallel", "i_1"), "C\\[\\d, \\d\\] is written by block 'C_1'"),
    (c.seidel, ("parallel", "j_1"), "may run at once"),
    (c.skewed, ("reorder", "j_1", "i_1"), "the order would be the other way"),
    (c.skewed, ("parallel", "i_1"), "written by block 'C_1'"),
    (c.wavefront, ("parallel", "i_1"), "written by block 'C_2'"),
    (c.shortest, ("reorder", "i_1", "k", "j_1"), "block 'C_1'"),
    (c.overwrite, ("parallel", "i_1"), "C\\[\\?\\] is written by block 'C_1'"),
    (c.histogram, ("parallel", "i"), "C\\[\\?\\] is updated"),
    (c.parts_of_histogram, ("parallel", "i"), "is written by block"),
    (c.overlapping_parts, ("parallel", "p"), "is written by block"),
    (c.last_row_wins, ("parallel", "i"), "C\\[\\d\\] is written by block 'C' at i="),
    (c.softmax, ("parallel", "j_2"), "s\\[0\\] is updated by block 's_1'"),
    (c.largest_at, ("parallel", "j"), "block 'P_1'"),
]


@pytest.mark.parametrize("row", LEGAL, ids=lambda r: f"{r[0].name}-{'-'.join(r[1:])}")
def test_proved(row: tuple[PrimFunc, str, str]) -> None:
    f, primitive, *args = row
    PRIMITIVES[primitive](f, *args)


@pytest.mark.parametrize("row", ILLEGAL, ids=lambda r: f"{r[0].name}-{'-'.join(r[1])}")
def test_refused(row: tuple[PrimFunc, tuple[str, ...], str]) -> None:
    f, (primitive, *args), message = row
    with pytest.raises(ScheduleError) as e:
        PRIMITIVES[primitive](f, *args)
    assert re.search(message, e.value.message), e.value.message
    assert e.value.where.startswith(f"{primitive}({args[0]!r}")
    assert e.value.hint
    PRIMITIVES[primitive](f, *args, check=False)  # the form is right, only the order is not


def test_fused_symbolic_loops_are_told_apart() -> None:
    f = fuse(c.matmul_symbolic, "i", "j")
    parallel(f, "i_j")

    @T.prim_func
    def plane(A: T.Buffer(("m", "n")), C: T.Buffer(("m", "n"))) -> None:
        for i, j in T.grid(m, n):  # noqa: F821
            C[i, j] = A[i, j]

    parallel(fuse(plane, "i", "j"), "i_j")


def test_pieces_of_a_block_keep_their_order() -> None:
    """Copies are one block: their updates commute, other writes do not."""
    f = split(c.matmul_apart, "k", 3, tail="peel")
    parallel(f, "i_1")
    scan = partition(c.prefix_sum, "i", 4)
    with pytest.raises(ScheduleError):
        parallel(scan, "i_tail")
    whole = normal(c.matmul_apart)
    require_order(whole, f, "peeled")
    with pytest.raises(ScheduleError, match="would not run for the same iterations"):
        require_order(whole, partition_without_tail(), "cut")


def partition_without_tail() -> PrimFunc:
    f = split(c.matmul_apart, "k", 3, tail="peel")

    def drop(s: Stmt) -> Stmt:
        match s:
            case Seq(stmts):
                kept = [
                    drop(t)
                    for t in stmts
                    if getattr(getattr(t, "var", None), "name", "") != "k_tail"
                ]
                return Seq(tuple(kept))
            case For():
                return For(s.var, s.lo, s.extent, s.kind, drop(s.body), s.attrs)
        return s

    return PrimFunc(f.name, f.params, drop(f.body), f.outputs)


def test_whole_statements_may_not_change_places() -> None:
    f = normal(c.three_stages)
    body = f.body.body.body  # type: ignore[attr-defined]
    first, second, third = body.stmts
    around = (f.body.buffer, f.body.body.buffer)  # type: ignore[attr-defined]

    def ordered(*stmts: Stmt) -> PrimFunc:
        inner: Stmt = Seq(stmts)
        for b in reversed(around):
            inner = Alloc(b, inner)
        return PrimFunc(f.name, f.params, inner, f.outputs)

    require_order(f, ordered(first, second, third), "kept")
    with pytest.raises(ScheduleError, match="s\\[.*\\] is written by block 's'") as e:
        require_order(f, ordered(second, first, third), "moved")
    assert e.value.where == "moved" and "keep 's' before 't'" in e.value.hint


# ---- what scripts of plain loops do not say ----------------------------------------------------


def nest(body: Stmt, *loops_: tuple[Var, int]) -> Stmt:
    for v, extent in reversed(loops_):
        body = For(v, const(0), const(extent), "serial", body)
    return body


def test_nothing_passes_a_c_call() -> None:
    i, j = Var("i"), Var("j")
    out = buffer("C", (4, 4))
    call = Evaluate(CallExtern("log", ()))
    f = PrimFunc(
        "f", (out,), nest(Seq((Store(out, (i, j), const(0, out.dtype)), call)), (i, 4), (j, 4))
    )
    assert blocks(f) == ("C", "log")
    with pytest.raises(ScheduleError, match="nothing may pass a C call"):
        reorder(f, "j", "i")
    with pytest.raises(ScheduleError):
        parallel(f, "i")
    split(f, "i", 2)
    # what it is given, it may read and write
    fill = Evaluate(CallExtern("fill", (AddressOf(out, (i, IntImm(0))),)))
    g = PrimFunc("g", (out,), nest(fill, (i, 4)))
    assert [r.buffer for r in block(g, "fill").writes] == [out]
    with pytest.raises(ScheduleError):
        parallel(g, "i")


def test_nothing_passes_an_assertion() -> None:
    i = Var("i")
    out, given = buffer("C", (4,)), buffer("A", (4,), "int64")
    body = Seq((Assert(given[i] > 0, "positive"), Store(out, (i,), const(0, out.dtype))))
    f = PrimFunc("f", (given, out), nest(body, (i, 4)))
    with pytest.raises(ScheduleError, match="an assertion"):
        parallel(f, "i")


def test_while_loops_are_followed() -> None:
    """Each row has its own counter: rows are free, a row's steps are not."""
    i, k = Var("i"), Var("k")
    left, out = buffer("N", (4,), "int64"), buffer("C", (4, 3))
    step = Seq(
        (
            nest(Store(out, (i, k), out[i, k] * 2.0), (k, 3)),
            Store(left, (i,), left[i] - 1),
        )
    )
    f = PrimFunc("f", (left, out), nest(While(left[i] > 0, step), (i, 4)), outputs=2)
    assert blocks(f) == ("while", "C", "N") and loops(f) == ("i", "k")
    parallel(f, "i")
    parallel(f, "k")
    one = PrimFunc(
        "g",
        (left, out),
        nest(
            While(
                left[IntImm(0)] > 0,
                Seq(
                    (
                        Store(left, (IntImm(0),), left[IntImm(0)] - 1),
                        nest(Store(out, (i, k), out[i, k] * 2.0), (k, 3)),
                    )
                ),
            ),
            (i, 4),
        ),
        outputs=2,
    )
    with pytest.raises(ScheduleError, match=r"N\[0\] is"):
        parallel(one, "i")


def test_conditions_on_memory_are_read() -> None:
    i, j = Var("i"), Var("j")
    flag, out = buffer("F", (4,), "int64"), buffer("C", (4, 4))
    inner = nest(Store(out, (i, j), const(1, out.dtype)), (j, 4))
    moved = Store(flag, ((i + 1) % 4,), const(0))
    f = PrimFunc("f", (flag, out), nest(Seq((If(flag[i] > 0, inner), moved)), (i, 4)), outputs=2)
    with pytest.raises(ScheduleError, match=r"F\[\d\] is (read|written) by block"):
        parallel(f, "i")


def reduction(kind: str = "reduce") -> PrimFunc:
    """C[i] = sum over k, with an init."""
    i, k, vi, vk = Var("i"), Var("k"), Var("vi"), Var("vk")
    given, out = buffer("A", (4, 8)), buffer("C", (4,))
    step = Block(
        "sum",
        (BlockIter(vi, const(4), "spatial", i), BlockIter(vk, const(8), kind, k)),
        (),
        (),
        Store(out, (vi,), out[vi] + given[vi, vk]),
        Store(out, (vi,), const(0, out.dtype)),
    )
    return PrimFunc("f", (given, out), nest(step, (i, 4), (k, 8)))


def test_the_first_term_stays_first() -> None:
    f = reduction()
    reorder(f, "k", "i")
    halves = split(f, "k", 4)
    moved = reorder(halves, "k_1", "k_0")
    with pytest.raises(ScheduleError):
        parallel(moved, "k_1")
    # terms in the reverse order: the init would come last
    k = Var("k")

    def backward(s: Stmt) -> Stmt:
        if isinstance(s, For):
            return For(s.var if s.var.name == "i" else k, s.lo, s.extent, s.kind, backward(s.body))
        assert isinstance(s, Block)
        last = BlockIter(s.iters[1].var, s.iters[1].extent, "reduce", 7 - k)
        return Block(s.name, (s.iters[0], last), (), (), s.body, s.init)

    turned = PrimFunc(f.name, f.params, backward(f.body), f.outputs)
    with pytest.raises(ScheduleError, match="'sum'"):
        require_order(f, turned, "reversed")


def test_opaque_iterations_stay_in_order() -> None:
    f = reduction("opaque")
    with pytest.raises(ScheduleError):
        parallel(f, "k")
    parallel(f, "i")


def test_operand_whose_memory_the_output_takes() -> None:
    i, j = Var("i"), Var("j")
    given, out = buffer("A", (4, 4)), buffer("C", (4, 4))
    body = nest(Store(out, (i, j), given[i, j]), (i, 4), (j, 4))
    parallel(PrimFunc("f", (given, out), body, inplace=(0,)), "i")
    shifted = nest(Store(out, (i, j), given[i + 1, j]), (i, 3), (j, 4))
    parallel(PrimFunc("f", (given, out), shifted), "i")
    with pytest.raises(ScheduleError, match="read by block 'C'"):
        parallel(PrimFunc("f", (given, out), shifted, inplace=(0,)), "i")


def test_a_hopeless_proof_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tensorkiln.arith.integer_sets.MOST_OPERATIONS", 10)
    with pytest.raises(ScheduleError, match="the proof takes too long"):
        reorder(c.skewed, "j_1", "i_1")


def test_proofs_are_quick() -> None:
    """A tiled matrix product: far below what a person notices."""
    f = split(split(split(c.matmul_apart, "i_1", 2), "j_1", 2), "k", 2)
    reorder(f, "i_1_0", "j_1_0", "k_0", "i_1_1", "j_1_1", "k_1")
    start = time.process_time()
    for _ in range(5):
        reorder(f, "j_1_0", "k_0", "i_1_0", "k_1", "i_1_1", "j_1_1")
    assert (time.process_time() - start) / 5 < 0.05
