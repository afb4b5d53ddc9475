"""The values of index expressions for all iterations of loops at once."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from tensorkiln.codegen.ptx.box_pieces import NoBox
from tensorkiln.ir.expr import Binary, Cast, Expr, IntImm, Var

Values = np.ndarray
_NUMPY = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "floordiv": np.floor_divide,
    "floormod": np.mod,
    "min": np.minimum,
    "max": np.maximum,
    "lt": np.less,
    "le": np.less_equal,
    "ge": np.greater_equal,
    "gt": np.greater,
    "and": np.logical_and,
    "bitxor": np.bitwise_xor,
    "bitand": np.bitwise_and,
}


def loop_values(loops: Mapping[Var, int]) -> dict[Var, Values]:
    """The values of the variables of some loops, which begin at 0, in each of their iterations: an
    array of one dimension for each variable, in the order of the iterations."""
    if not loops:
        return {}
    axes = np.meshgrid(*(np.arange(n) for n in loops.values()), indexing="ij")
    return dict(zip(loops, (a.ravel() for a in axes), strict=True))


def values_of(e: Expr, values: Mapping[Var, Values], reason: str) -> Values:
    """The value of an expression on integers for all values of its variables. Raises NoBox for the
    reason where it has other variables, or operations that indices do not have."""
    match e:
        case IntImm(value):
            return np.asarray(value)
        case Var() if e in values:
            return values[e]
        case Cast(a):
            return values_of(a, values, reason)
        case Binary(op, a, b) if op in _NUMPY:
            result: Values = _NUMPY[op](values_of(a, values, reason), values_of(b, values, reason))
            return result
    raise NoBox(reason)


__all__ = ["Values", "loop_values", "values_of"]
