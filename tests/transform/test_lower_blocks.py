"""lower_blocks: blocks and views become loops, branches and index arithmetic."""

from __future__ import annotations

import pytest

from tensorkiln.base.errors import UnsupportedError
from tensorkiln.ir.buffer import Buffer, buffer
from tensorkiln.ir.equal import first_difference
from tensorkiln.ir.expr import Expr, IntImm, Var, as_expr, binary
from tensorkiln.ir.module import IRModule
from tensorkiln.ir.stmt import (
    Alloc,
    Block,
    BlockIter,
    For,
    If,
    Let,
    MatchBuffer,
    PrimFunc,
    Region,
    Stmt,
    Store,
    seq,
)
from tensorkiln.ir.verify import verify
from tensorkiln.ir.visit import substitute
from tensorkiln.transform.tir.lower_blocks import lower_blocks
from tests.transform.graphs import check_text

A, B, C = buffer("A", (8, 4)), buffer("B", (8, 4)), buffer("C", (8,))
AT = buffer("at", (8,), "int64")
J, K, VI, VK = Var("i"), Var("k"), Var("vi"), Var("vk")


def module(body: Stmt) -> IRModule:
    return IRModule((PrimFunc("f", (A, AT, B, C), body, outputs=2),))


def loop(var: Var, extent: int, body: Stmt) -> Stmt:
    return For(var, IntImm(0), IntImm(extent), "serial", body)


def block(iters: tuple[BlockIter, ...], body: Stmt, init: Stmt | None = None) -> Block:
    writes = (Region(C, ((IntImm(0), IntImm(8)),)),)
    return Block("C", iters, (), writes, body, init)


def spatial(var: Var, extent: int, value: Expr) -> BlockIter:
    return BlockIter(var, IntImm(extent), "spatial", value)


def reduce(var: Var, extent: int, value: Expr) -> BlockIter:
    return BlockIter(var, IntImm(extent), "reduce", value)


def lowered(body: Stmt) -> Stmt:
    mod = module(body)
    verify(mod)
    new = lower_blocks(mod)
    verify(new)
    return new.prim_funcs[0].body


def same(a: Stmt, b: Stmt) -> None:
    assert first_difference(module(a), module(b)) is None


ZERO = Store(C, (VI,), as_expr(0.0))


def update(i: Expr, k: Expr) -> Stmt:
    return Store(C, (i,), C[i] + A[i, k])


def test_init_runs_at_the_first_term() -> None:
    iters = (spatial(VI, 8, J), reduce(VK, 4, K))
    lowered_function = lowered(loop(J, 8, loop(K, 4, block(iters, update(VI, VK), ZERO))))
    first = If(binary("eq", K, IntImm(0)), Store(C, (J,), as_expr(0.0)))
    same(lowered_function, loop(J, 8, loop(K, 4, seq(first, update(J, K)))))


def test_init_without_a_reduction_always_runs() -> None:
    lowered_function = lowered(
        loop(J, 8, block((spatial(VI, 8, J),), update(VI, as_expr(1)), ZERO))
    )
    same(lowered_function, loop(J, 8, seq(Store(C, (J,), as_expr(0.0)), update(J, as_expr(1)))))


def test_the_first_term_of_split_loops() -> None:
    """Both parts of a split reduction are 0 at the first term."""
    inner = Var("k1")
    iters = (spatial(VI, 8, J), reduce(VK, 4, K * 2 + inner))
    lowered_function = lowered(
        loop(J, 8, loop(K, 2, loop(inner, 2, block(iters, update(VI, VK), ZERO))))
    )
    body = lowered_function.body.body.body.stmts  # type: ignore[attr-defined]
    assert isinstance(body[0], If) and len(body) == 2
    conditions = [
        (k, j)
        for k in range(2)
        for j in range(2)
        if _holds(body[0].cond, {lowered_function.body.var: k, lowered_function.body.body.var: j})
    ]
    assert conditions == [(0, 0)]


def _holds(cond: Expr, values: dict[Var, int]) -> bool:
    value = substitute(cond, {v: IntImm(x) for v, x in values.items()})
    assert isinstance(value, IntImm)
    return bool(value.value)


def test_a_value_that_reads_memory_is_read_once() -> None:
    body = seq(Store(AT, (J,), IntImm(7)), Store(C, (VI,), as_expr(1.0)))
    read = AT[J]
    mod = IRModule(
        (PrimFunc("f", (AT, C), loop(J, 8, block((spatial(VI, 8, read),), body)), outputs=2),)
    )
    found = lower_blocks(mod).prim_funcs[0].body
    assert isinstance(found.body, Let) and found.body.value == read  # type: ignore[attr-defined]


def test_views_become_index_arithmetic() -> None:
    row = Buffer("row", A.dtype, (IntImm(4),))
    view = MatchBuffer(row, B, (J, IntImm(0)), loop(K, 4, Store(row, (K,), A[J, K])))
    same(lowered(loop(J, 8, view)), loop(J, 8, loop(K, 4, Store(B, (J, K), A[J, K]))))


def test_views_of_views_and_columns() -> None:
    column = Buffer("column", A.dtype, (IntImm(8),), strides_given=(IntImm(4),))
    half = Buffer("half", A.dtype, (IntImm(4),), strides_given=(IntImm(4),))
    inner = MatchBuffer(half, column, (IntImm(4),), loop(K, 4, Store(half, (K,), as_expr(1.0))))
    lowered_function = lowered(MatchBuffer(column, B, (IntImm(0), IntImm(2)), inner))
    same(lowered_function, loop(K, 4, Store(B, (K + 4, IntImm(2)), as_expr(1.0))))


def test_a_flat_source_takes_any_strides() -> None:
    tile = Buffer("t", C.dtype, (IntImm(2), IntImm(2)), strides_given=(IntImm(4), IntImm(2)))
    body = loop(J, 2, loop(K, 2, Store(tile, (J, K), as_expr(1.0))))
    lowered_function = lowered(MatchBuffer(tile, C, (IntImm(1),), body))
    index = lowered_function.body.body.indices  # type: ignore[attr-defined]
    same(lowered_function, loop(J, 2, loop(K, 2, Store(C, (J * 4 + K * 2 + 1,), as_expr(1.0)))))
    assert len(index) == 1


def test_other_strides_stay_a_view() -> None:
    flat = Buffer("flat", B.dtype, (IntImm(16),), strides_given=(IntImm(2),))
    body = loop(J, 16, Store(flat, (J,), as_expr(1.0)))
    view = MatchBuffer(flat, B, (IntImm(0), IntImm(0)), body)
    same(lowered(view), view)


def test_registers_cannot_stay_a_view() -> None:
    regs = Buffer("r", A.dtype, (IntImm(2), IntImm(4)), "register")
    view = Buffer("v", A.dtype, (IntImm(4),), "register", strides_given=(IntImm(2),))
    store = Store(view, (IntImm(0),), as_expr(1.0))
    body = Alloc(regs, MatchBuffer(view, regs, (IntImm(0), IntImm(0)), store))
    with pytest.raises(
        UnsupportedError, match="view v has other strides than its source, the register buffer r"
    ) as info:
        lower_blocks(module(body))
    assert "strides" in info.value.issues[0].hint


def test_programs_without_blocks_are_left_alone() -> None:
    mod = module(loop(J, 8, Store(C, (J,), as_expr(1.0))))
    assert lower_blocks(mod) is mod


def test_a_sum_as_text() -> None:
    check_text(
        lower_blocks,
        """
        @T.prim_func
        def f(X: T.Buffer((8, 4), "float32"), Y: T.Buffer((8,), "float32")):
            for i, k in T.grid(8, 4):
                with T.block("sum"):
                    vi, vk = T.axis.remap("SR", [i, k])
                    with T.init():
                        Y[vi] = 0.0
                    Y[vi] = Y[vi] + X[vi, vk]
        """,
        """
        @T.prim_func
        def f(X: T.Buffer((8, 4), "float32"), Y: T.Buffer((8,), "float32")):
            for i, k in T.grid(8, 4):
                if k == 0:
                    Y[i] = 0.0
                Y[i] = Y[i] + X[i, k]
        """,
    )
