"""Statements: loops, branches and lets, to the exact tree and by running them."""

from __future__ import annotations

import hypothesis.strategies as st
from hypothesis import given, settings

from tensorkiln.arith import Bounds, simplify_stmt
from tensorkiln.ir.buffer import buffer
from tensorkiln.ir.expr import Binary, Expr, ExprLike, Var, as_expr, minimum
from tensorkiln.ir.stmt import Alloc, For, If, Let, Seq, Stmt, Store, seq
from tests.arith.evaluate import stores

OUT = buffer("out", (64,), "int64")
i, j, n, x = (Var(name) for name in ("i", "j", "n", "x"))


def put(index: ExprLike, value: ExprLike = 0) -> Store:
    return Store(OUT, (as_expr(index),), as_expr(value))


def loop(var: Var, extent: ExprLike, body: Stmt, lo: int = 0, kind: str = "serial") -> For:
    return For(var, as_expr(lo), as_expr(extent), kind, body)


def test_loop_ranges_are_known_inside() -> None:
    s = loop(i, 4, loop(j, 16, put((i * 16 + j) // 16, (i * 16 + j) % 16)))
    assert simplify_stmt(s) == loop(i, 4, loop(j, 16, put(i, j)))


def test_symbolic_extents_bound_their_loops() -> None:
    s = loop(i, n, loop(j, x, If(i * x + j < n * x, put(i, j))))
    assert simplify_stmt(s) == loop(i, n, loop(j, x, put(i, j)))


def test_loop_of_one_is_its_body() -> None:
    assert simplify_stmt(loop(i, 1, put(i + 2, i), lo=3)) == put(5, 3)
    assert simplify_stmt(loop(i, n, put(i)), Bounds({n: (1, 1)})) == put(0)


def test_loop_of_none_is_dropped() -> None:
    s = seq(put(0), loop(i, 0, put(i)), put(1))
    assert simplify_stmt(s) == seq(put(0), put(1))
    assert simplify_stmt(loop(i, n - 4, put(i)), Bounds({n: (0, 4)})) == Seq(())
    assert simplify_stmt(loop(i, 8, loop(j, 0, put(j)))) == Seq(())


def test_decided_branches_are_taken() -> None:
    s = loop(i, 8, If(i < 8, put(i), put(0)))
    assert simplify_stmt(s) == loop(i, 8, put(i))
    s = loop(i, 8, If(i >= 8, put(i), put(0)))
    assert simplify_stmt(s) == loop(i, 8, put(0))
    assert simplify_stmt(loop(i, 8, If(i >= 8, put(i)))) == Seq(())


def test_a_condition_holds_in_its_branch_and_not_in_the_other() -> None:
    s = loop(i, n, If(i < 4, If(i < 5, put(1), put(2)), If(i < 4, put(3), put(4))))
    assert simplify_stmt(s) == loop(i, n, If(i < 4, put(1), put(4)))


def test_empty_then_turns_the_condition_round() -> None:
    s = loop(i, n, If(i < 4, loop(j, 0, put(1)), put(2)))
    assert simplify_stmt(s) == loop(i, n, If(i >= 4, put(2)))


def test_tail_of_a_tiled_loop() -> None:
    s = loop(i, (n + 15) // 16, loop(j, minimum(n - i * 16, 16), If(i * 16 + j < n, put(i, j))))
    body = loop(j, minimum(n - i * 16, 16), put(i, j))
    assert simplify_stmt(s) == loop(i, (n + 15) // 16, body)


def test_let_of_a_number_or_name_is_put_in_place() -> None:
    assert simplify_stmt(Let(x, as_expr(3) + 0, put(x + 1))) == put(4)
    assert simplify_stmt(Let(x, i + 0, put(x, x))) == put(i, i)
    s = loop(i, 4, Let(x, i * 2 + 1, If(x < 8, put(x))))
    assert simplify_stmt(s) == loop(i, 4, Let(x, i * 2 + 1, put(x)))


def test_loop_stays_where_a_local_shape_needs_its_variable() -> None:
    local = buffer("tmp", (i + 4,), "int64", "local")
    s = loop(i, 1, Alloc(local, Store(local, (i + 0 * j,), i)))
    assert isinstance(simplify_stmt(s), For)


def test_unchanged_is_the_same_object() -> None:
    s = loop(i, 4, seq(put(i), If(i < 3, put(i, 1)), Let(x, i * 3, put(x))))
    assert simplify_stmt(s) is s


@st.composite
def indices(draw: st.DrawFn, scope: tuple[Var, ...]) -> Expr:
    e = as_expr(draw(st.integers(0, 9)))
    for var in scope:
        e = e + var * draw(st.integers(-2, 4))
    op = draw(st.sampled_from(["add", "floordiv", "floormod", "min"]))
    return Binary(op, e, as_expr(draw(st.sampled_from([1, 2, 3, 4]))))


@st.composite
def programs(draw: st.DrawFn, depth: int = 3, scope: tuple[Var, ...] = (n,)) -> Stmt:
    kind = draw(st.sampled_from(["store", "for", "if", "let", "seq"])) if depth else "store"
    fresh = Var(f"v{depth}")
    match kind:
        case "for":
            extent = draw(st.one_of(st.integers(0, 3).map(as_expr), indices(scope)))
            body = draw(programs(depth - 1, (*scope, fresh)))
            return loop(fresh, extent, body, draw(st.integers(-1, 2)))
        case "if":
            op = draw(st.sampled_from(["lt", "ge", "eq", "ne"]))
            cond = Binary(op, draw(indices(scope)), draw(indices(scope)))
            orelse = draw(st.one_of(st.none(), programs(depth - 1, scope)))
            return If(cond, draw(programs(depth - 1, scope)), orelse)
        case "let":
            return Let(fresh, draw(indices(scope)), draw(programs(depth - 1, (*scope, fresh))))
        case "seq":
            return seq(draw(programs(depth - 1, scope)), draw(programs(depth - 1, scope)))
    return put(draw(indices(scope)), draw(indices(scope)))


@settings(max_examples=200)
@given(programs())
def test_programs_store_the_same(s: Stmt) -> None:
    new = simplify_stmt(s, Bounds({n: (0, 3)}))
    for value in range(4):
        assert stores(s, {n: value}) == stores(new, {n: value})
