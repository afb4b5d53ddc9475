"""Compute what literals decide, for languages whose compilers refuse it.

    X[i] * (65536 * 65536 + 7)   ->   X[i] * 7
    sqrt(-1.0)                   ->   nan

A tensor program may say anything of literals, and integers wrap; WGSL refuses modules in which a
constant expression overflows, is infinite or is not a number. Runs after `scalarize`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from tensorkiln.ir.dtype import FLOAT32
from tensorkiln.ir.expr import (
    Binary,
    Cast,
    Expr,
    FloatImm,
    IntImm,
    Intrin,
    Select,
    Unary,
    binary,
    cast,
    select,
    unary,
)
from tensorkiln.ir.stmt import PrimFunc, Stmt
from tensorkiln.ir.visit import map_children, map_stmt

# Operators of float32 that languages compute themselves; others are calls of functions.
_FLOAT: dict[str, Callable[..., Any]] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": np.divide,
    "neg": np.negative,
    "sqrt": np.sqrt,
}


def fold(f: PrimFunc) -> PrimFunc:
    """`f` with operators on literals alone evaluated, those that `binary` and the like, and
    `_FLOAT`, can evaluate; the same object if there are none."""
    body = _stmt(f.body)
    return f if body is f.body else replace(f, body=body)


def _stmt(s: Stmt) -> Stmt:
    return map_stmt(s, _expr, _stmt)


def _expr(e: Expr) -> Expr:
    e = map_children(e, _expr)
    match e:
        case Binary(op, FloatImm(a), FloatImm(b)):
            return _float(e, op, a, b)
        case Unary(op, FloatImm(a)) | Intrin(op, (FloatImm(a),)):
            return _float(e, op, a)
        case Binary(op, IntImm() as x, IntImm() as y):
            return binary(op, x, y)
        case Unary(op, IntImm() as x):
            return unary(op, x)
        case Cast(IntImm() as x):
            return cast(x, e.dtype)
        case Select(IntImm() as cond, x, y):
            return select(cond, x, y)
    return e


def _float(e: Expr, op: str, *values: float) -> Expr:
    compute = _FLOAT.get(op)
    if compute is None or e.dtype != FLOAT32:
        return e
    with np.errstate(all="ignore"):
        return FloatImm(float(compute(*map(np.float32, values))), FLOAT32)
