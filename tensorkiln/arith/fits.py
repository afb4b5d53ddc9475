"""Which index expressions can be computed in a narrower type without a change of their value."""

from __future__ import annotations

from tensorkiln.arith.ranges import Bounds
from tensorkiln.arith.simplify import bound
from tensorkiln.ir.dtype import DType
from tensorkiln.ir.expr import Binary, Expr, IntImm, Select, Unary, Var

_WRAPS = ("add", "sub", "mul", "min", "max", "bitand", "bitxor")
_DIVIDES = ("floordiv", "floormod")


def fits(e: Expr, dtype: DType, bounds: Bounds) -> bool:
    """Whether `e` provably has the same value when it is computed in the signed type `dtype`.

    That holds if every part of it is within the type for all values of its variables within
    `bounds`, which must be those of the running program. As in `tame.py`, one bit is kept free, so
    that the narrow expression is index arithmetic again. Numbers that are loaded, passed, or
    converted from other types do not fit, because nothing is known of them.
    """
    if e.dtype.lanes != 1 or not e.dtype.is_int or e.dtype.is_unsigned:
        return False
    match e:
        case IntImm(value):
            return abs(value) < _end(dtype)
        case Var():
            return _within(e, dtype, bounds)
        case Unary("neg", a):
            return fits(a, dtype, bounds)
        case Binary(op, a, b) if op in _WRAPS or op in _DIVIDES:
            if not (fits(a, dtype, bounds) and fits(b, dtype, bounds)):
                return False
            if op in _DIVIDES and (bound(b, bounds)[0] or 0) <= 0:
                return False  # what `bound` says of divisions holds for positive divisors
            return _within(e, dtype, bounds)
        case Select(_, a, b):
            return fits(a, dtype, bounds) and fits(b, dtype, bounds)
    return False


def _end(dtype: DType) -> int:
    return 1 << (dtype.bits - 2)


def _within(e: Expr, dtype: DType, bounds: Bounds) -> bool:
    lo, hi = bound(e, bounds)
    return lo is not None and hi is not None and -_end(dtype) < lo and hi < _end(dtype)
