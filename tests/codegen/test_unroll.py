"""Unrolled loops: before, after."""

from __future__ import annotations

import pytest

from tensorkiln.base.errors import UserError
from tensorkiln.codegen.expand.unroll import unroll_function
from tensorkiln.ir.buffer import buffer
from tensorkiln.ir.equal import first_difference
from tensorkiln.ir.expr import IntImm, Var, binary
from tensorkiln.ir.module import IRModule
from tensorkiln.ir.stmt import Alloc, For, If, Let, PrimFunc, Stmt, Store, seq

X, Y = buffer("x", (8, 64)), buffer("y", (8, 64))
R, L, N, S = Var("i"), Var("l"), Var("n"), Var("s", X.dtype)
ZERO = IntImm(0)


def program(body: Stmt) -> PrimFunc:
    return PrimFunc("f", (X, Y, N), body)


def difference(a: PrimFunc, b: PrimFunc) -> object:
    return first_difference(IRModule((a,)), IRModule((b,)))


def test_unroll_repeats_with_fresh_lets_and_inner_loops() -> None:
    tmp = buffer("t", (4,), "float32", "register")
    body = Alloc(
        tmp,
        Let(
            S,
            X[R, 0],
            seq(Store(tmp, (R,), S), For(L, ZERO, R + 1, "serial", Store(Y, (R, L), tmp[R]))),
        ),
    )
    before = program(For(R, IntImm(1), IntImm(2), "unrolled", body))

    def step(i: int) -> Stmt:
        s = Var("s", X.dtype)
        return Alloc(
            tmp,
            Let(
                s,
                X[i, 0],
                seq(
                    Store(tmp, (IntImm(i),), s),
                    For(L, ZERO, IntImm(i + 1), "serial", Store(Y, (IntImm(i), L), tmp[i])),
                ),
            ),
        )

    result = unroll_function(before)
    assert difference(result, program(seq(step(1), step(2)))) is None
    assert unroll_function(result) is result


def test_unroll_nested_and_empty() -> None:
    inner = For(L, R, IntImm(2), "unrolled", Store(Y, (R, L), X[R, L]))
    result = unroll_function(program(For(R, ZERO, IntImm(2), "unrolled", inner)))
    stores = [(0, 0), (0, 1), (1, 1), (1, 2)]
    want = seq(*(Store(Y, (IntImm(i), IntImm(j)), X[i, j]) for i, j in stores))
    assert difference(result, program(want)) is None
    empty = unroll_function(
        program(seq(For(R, ZERO, IntImm(0), "unrolled", inner), Store(Y, (ZERO, ZERO), X[0, 0])))
    )
    assert difference(empty, program(Store(Y, (ZERO, ZERO), X[0, 0]))) is None


def test_unroll_leaves_one_branch_of_conditions_that_become_known() -> None:
    first_store, second_store = Store(Y, (ZERO, R), X[R, 0]), Store(Y, (R, ZERO), X[0, R])
    result = unroll_function(
        program(
            For(R, ZERO, IntImm(2), "unrolled", If(binary("eq", R, 0), first_store, second_store))
        )
    )
    want = seq(Store(Y, (ZERO, ZERO), X[0, 0]), Store(Y, (IntImm(1), ZERO), X[0, 1]))
    assert difference(result, program(want)) is None
    result = unroll_function(
        program(For(R, ZERO, IntImm(2), "unrolled", If(binary("eq", R, 1), first_store)))
    )
    assert difference(result, program(Store(Y, (ZERO, IntImm(1)), X[1, 0]))) is None


def test_unroll_needs_a_constant_extent() -> None:
    with pytest.raises(UserError, match="unrolled loop over i has no constant extent"):
        unroll_function(program(For(R, ZERO, N, "unrolled", Store(Y, (R, ZERO), X[R, 0]))))
