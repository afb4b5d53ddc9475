"""vectorize_loops: before, after."""

from __future__ import annotations

import pytest

from tensorkiln.base.errors import UnsupportedError, UserError
from tensorkiln.ir.buffer import AddressOf, Load, buffer
from tensorkiln.ir.equal import first_difference
from tensorkiln.ir.expr import (
    Broadcast,
    CallExtern,
    Expr,
    IntImm,
    Ramp,
    Var,
    as_expr,
    binary,
    cast,
    intrin,
    select,
)
from tensorkiln.ir.module import IRModule
from tensorkiln.ir.stmt import CallKernel, For, If, Let, Prefetch, PrimFunc, Stmt, Store, seq
from tensorkiln.transform.tir.vectorize_loops import vectorize_loops
from tests.transform.graphs import check_text

X, Y = buffer("x", (8, 64)), buffer("y", (8, 64))
AT = buffer("at", (64,), "int64")
R, L, N = Var("i"), Var("l"), Var("n")
ZERO = IntImm(0)


def module(body: Stmt) -> IRModule:
    return IRModule((PrimFunc("f", (X, AT, Y, N), body),))


def lanes(body: Stmt, lo: Expr = ZERO, count: int = 8) -> Stmt:
    return For(L, lo, as_expr(count), "vectorized", body)


def rows(body: Stmt, kind: str = "serial") -> Stmt:
    return For(R, ZERO, IntImm(8), kind, body)


def ramp(base: Expr, step: int = 1, count: int = 8) -> Ramp:
    return Ramp(base, IntImm(step), count)


V, W = Var("v"), Var("v", X.dtype.with_lanes(8))
S, SW = Var("s", X.dtype), Var("s", X.dtype.with_lanes(8))
J, JW = Var("j"), Var("j", AT.dtype.with_lanes(8))

VECTORIZED: dict[str, tuple[Stmt, Stmt]] = {
    "ramp": (
        rows(lanes(Store(Y, (R, L), X[R, L] + 1.0))),
        rows(Store(Y, (R, ramp(ZERO)), Load(X, (R, ramp(ZERO))) + 1.0)),
    ),
    "offset": (
        rows(lanes(Store(Y, (R, R * 8 + L), X[R, L]), lo=IntImm(8))),
        rows(Store(Y, (R, ramp(R * 8 + 8)), Load(X, (R, ramp(IntImm(8)))))),
    ),
    "strided": (
        rows(lanes(Store(Y, (R, L), X[R, L * 3 + 1]))),
        rows(Store(Y, (R, ramp(ZERO)), Load(X, (R, ramp(IntImm(1), 3))))),
    ),
    "uniform": (
        rows(lanes(Store(Y, (R, L), X[R, 5]))),
        rows(Store(Y, (R, ramp(ZERO)), Broadcast(X[R, 5], 8))),
    ),
    "let": (
        rows(lanes(Let(S, X[R, L], Store(Y, (R, L), S * S)))),
        rows(Let(SW, Load(X, (R, ramp(ZERO))), Store(Y, (R, ramp(ZERO)), SW * SW))),
    ),
    "let of an index": (
        rows(lanes(Let(J, AT[L], Store(Y, (R, L), X[R, J])))),
        rows(Let(JW, Load(AT, (ramp(ZERO),)), Store(Y, (R, ramp(ZERO)), Load(X, (R, JW))))),
    ),
    "select": (
        rows(lanes(Store(Y, (R, L), select(X[R, L] < 0.0, 0.0, X[R, 3])))),
        rows(
            Store(
                Y,
                (R, ramp(ZERO)),
                select(Load(X, (R, ramp(ZERO))) < 0.0, 0.0, Broadcast(X[R, 3], 8)),
            )
        ),
    ),
    "variable as a value": (
        rows(lanes(Store(Y, (R, L), cast(L, "float32")))),
        rows(Store(Y, (R, ramp(ZERO)), cast(ramp(ZERO), "float32"))),
    ),
    "intrinsic of mixed lanes": (
        rows(lanes(Store(Y, (R, L), intrin("fma", X[R, L], X[R, 0], X[R, L])))),
        rows(
            Store(
                Y,
                (R, ramp(ZERO)),
                intrin(
                    "fma", Load(X, (R, ramp(ZERO))), Broadcast(X[R, 0], 8), Load(X, (R, ramp(ZERO)))
                ),
            )
        ),
    ),
    "prefetch": (
        rows(lanes(seq(Prefetch(X, (R, L + 8)), Store(Y, (R, L), X[R, L])), lo=IntImm(16))),
        rows(
            seq(
                Prefetch(X, (R, IntImm(24))),
                Store(Y, (R, ramp(IntImm(16))), Load(X, (R, ramp(IntImm(16))))),
            )
        ),
    ),
    "condition outside": (
        rows(lanes(If(R < 3, Store(Y, (R, L), X[R, L])))),
        rows(If(R < 3, Store(Y, (R, ramp(ZERO)), Load(X, (R, ramp(ZERO)))))),
    ),
}


@pytest.mark.parametrize("name", VECTORIZED)
def test_vectorize(name: str) -> None:
    before, after = (module(s) for s in VECTORIZED[name])
    result = vectorize_loops(before)
    assert first_difference(result, after) is None, first_difference(result, after)
    assert vectorize_loops(result) is result


def test_vectorize_refuses_what_has_no_lanes() -> None:
    store = Store(Y, (R, L), X[R, L])
    wide = Broadcast(X[R, L], 8)
    called = Store(Y, (R, L), CallExtern("f", (L,), X.dtype))
    for statement_name, body in (
        ("a statement If", If(L < 3, store)),
        ("a statement For", For(N, ZERO, L, "serial", store)),
        ("an expression CallExtern", called),
        ("an expression that is a vector already", Store(Y, (ZERO, ramp(ZERO)), wide)),
        ("an access with lanes in several indices", Store(Y, (L, L), X[R, L])),
        ("a store of all lanes to one element of y", Store(Y, (R, ZERO), X[R, L])),
        ("a statement CallKernel", CallKernel("k", (AddressOf(X, (R, L)),))),
    ):
        with pytest.raises(
            UnsupportedError, match=f"{statement_name} cannot be vectorized over l"
        ) as caught:
            vectorize_loops(module(rows(lanes(body))))
        assert "make this loop serial" in caught.value.issues[0].hint
    with pytest.raises(UserError, match="no constant extent"):
        vectorize_loops(module(rows(For(L, ZERO, N, "vectorized", Store(Y, (R, L), X[R, L])))))


def test_nothing_to_do_is_the_same_module() -> None:
    mod = module(rows(If(binary("eq", R, 2), Store(Y, (R, ZERO), X[R, 0])), "parallel"))
    assert vectorize_loops(mod) is mod


def test_lanes_as_text() -> None:
    check_text(
        vectorize_loops,
        """
        @T.prim_func
        def f(X: T.Buffer((8, 64), "float32"), Y: T.Buffer((8, 64), "float32")):
            for i in range(8):
                for l in T.vectorized(8):
                    Y[i, l] = X[i, l] + X[i, 5]
        """,
        """
        @T.prim_func
        def f(X: T.Buffer((8, 64), "float32"), Y: T.Buffer((8, 64), "float32")):
            for i in range(8):
                Y[i, T.Ramp(0, 1, 8)] = X[i, T.Ramp(0, 1, 8)] + T.Broadcast(X[i, 5], 8)
        """,
    )
