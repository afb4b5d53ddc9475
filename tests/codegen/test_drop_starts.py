"""drop_starts: sums in registers begin with their first term, where no bit changes."""

from __future__ import annotations

import math

import pytest

from tensorkiln.codegen.expand.drop_starts import drop_starts
from tensorkiln.ir.buffer import Buffer, buffer
from tensorkiln.ir.dtype import FLOAT32
from tensorkiln.ir.equal import first_difference
from tensorkiln.ir.expr import Expr, IntImm, binary, const
from tensorkiln.ir.module import IRModule
from tensorkiln.ir.stmt import Alloc, PrimFunc, Stmt, Store, seq

X, Y = buffer("x", (4,), "float32"), buffer("y", (4,), "float32")
ZERO, ONE = IntImm(0), IntImm(1)


def _sum(op: str, start: Expr, scope: str = "register", index: Expr = ZERO) -> PrimFunc:
    """t[0] = start; t[0] = t[0] op x[1]; y[0] = t[0]"""
    t = buffer("t", (4,), "float32", scope)
    update = Store(t, (ZERO,), binary(op, t[0], X[1]))
    return _program(t, Store(t, (index,), start), update)


def _program(t: Buffer, *stmts: Stmt) -> PrimFunc:
    body = Alloc(t, seq(*stmts, Store(Y, (ZERO,), t[0])))
    return PrimFunc("f", (X, Y), body)


def difference(a: PrimFunc, b: PrimFunc) -> object:
    return first_difference(IRModule((a,)), IRModule((b,)))


NEUTRAL = {"max": -math.inf, "min": math.inf, "mul": 1.0, "add": -0.0}


@pytest.mark.parametrize("op", NEUTRAL)
def test_a_start_that_changes_nothing_goes(op: str) -> None:
    t = buffer("t", (4,), "float32", "register")
    changed = drop_starts(_sum(op, const(NEUTRAL[op], FLOAT32)))
    assert difference(changed, _program(t, Store(t, (ZERO,), X[1]))) is None


@pytest.mark.parametrize(
    "f",
    [
        _sum("add", const(0.0, FLOAT32)),  # 0 + -0 is 0
        _sum("max", const(math.inf, FLOAT32)),
        _sum("max", const(-math.inf, FLOAT32), index=ONE),
        _sum("max", const(-math.inf, FLOAT32), scope="local"),  # views may name it
    ],
)
def test_other_starts_stay(f: PrimFunc) -> None:
    assert drop_starts(f) is f


def test_the_term_may_not_read_the_sum() -> None:
    t = buffer("t", (4,), "float32", "register")
    twice = Store(t, (ZERO,), binary("max", t[0], t[0] + X[0]))
    f = _program(t, Store(t, (ZERO,), const(-math.inf, FLOAT32)), twice)
    assert drop_starts(f) is f


def test_a_store_of_what_is_there_goes() -> None:
    t = buffer("t", (4,), "float32", "register")
    first = Store(t, (ZERO,), X[0])
    changed = drop_starts(_program(t, first, Store(t, (ZERO,), t[0])))
    assert difference(changed, _program(t, first)) is None
