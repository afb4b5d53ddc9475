"""Which expressions are index arithmetic, and so may be treated as unbounded integers.

The rules of `arith` hold if nothing overflows and divisors are positive. Loop variables, dimensions
and expressions of them satisfy both, because memory is finite. Numbers that a program loads or that
its caller passes need not: operations on them may wrap around, and such a divisor may be 0.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from tensorkiln.arith.engine import COMPARE
from tensorkiln.ir.expr import Binary, Cast, Expr, IntImm, Select, Unary, Var, int_value

# Assumed magnitude of a dimension. Low, so that products of several dimensions, which are sizes of
# memory and fit their type, are not taken to overflow.
_SIZE = 1 << 8
# Assumed magnitude of the variable of a loop of unknown extent.
_LONG = 1 << 31


class Tame:
    """Tells whether expressions are index arithmetic, from assumed magnitudes of their variables.
    Nothing is assumed of variables in `wild`, such as scalar parameters; variables that were never
    declared are dimensions."""

    def __init__(self, wild: Collection[Var] = ()):
        self._magnitudes: dict[Var, int | None] = dict.fromkeys(wild)

    def loop(self, var: Var, lo: Expr, extent: Expr) -> None:
        """Declare a loop variable: its magnitude is that of lo + extent, or `_LONG`."""
        first, count = self.magnitude(lo), self.magnitude(extent)
        self._magnitudes[var] = _LONG if first is None or count is None else first + count

    def let(self, var: Var, value: Expr) -> None:
        """Declare a variable with the magnitude of its value."""
        self._magnitudes[var] = self.magnitude(value)

    def __call__(self, e: Expr) -> bool:
        """Whether an expression or a condition is index arithmetic."""
        return self.magnitude(e) is not None

    def magnitude(self, e: Expr) -> int | None:
        """Return the assumed magnitude of a value; None if it is not index arithmetic, or if it may
        overflow its type."""
        magnitude = self._raw_magnitude(e)
        if magnitude is None or e.dtype.is_bool:
            return magnitude
        # One bit is kept free, because simplification may turn `x <= c` into `x < c + 1`.
        return magnitude if magnitude < 1 << (e.dtype.bits - 2) else None

    def _raw_magnitude(self, e: Expr) -> int | None:
        if e.dtype.lanes != 1 or e.dtype.is_float:
            return None
        match e:
            case IntImm(value):
                return abs(value)
            case Var():
                return self._magnitudes.get(e, _SIZE)
            case Unary("neg" | "not" | "abs", a):
                return self.magnitude(a)
            case Cast(a, dtype) if dtype.is_int and not dtype.is_unsigned:
                return self.magnitude(a)
            case Select(c, a, b):
                return None if self.magnitude(c) is None else self._joint_magnitude(a, b, max)
            case Binary(op, a, b):
                return self._binary(op, a, b)
        return None

    def _binary(self, op: str, a: Expr, b: Expr) -> int | None:
        match op:
            case "add" | "sub":
                return self._joint_magnitude(a, b, int.__add__)
            case "mul":
                return self._joint_magnitude(a, b, int.__mul__)
            case "bitxor" | "bitand":
                return self._joint_magnitude(a, b, lambda x, y: x + y + 1)
            case "min" | "max" | "and" | "or":
                return self._joint_magnitude(a, b, max)
            case "floordiv" | "floormod" if self._positive(b):
                return self._joint_magnitude(a, b, max)
        return self._joint_magnitude(a, b, lambda x, y: 1) if op in COMPARE else None

    def _joint_magnitude(self, a: Expr, b: Expr, f: Callable[[int, int], int]) -> int | None:
        x, y = self.magnitude(a), self.magnitude(b)
        return None if x is None or y is None else f(x, y)

    def _positive(self, e: Expr) -> bool:
        """Whether `e` is a positive constant, a dimension, or made of them by +, *, min, max."""
        match e:
            case IntImm():
                return (int_value(e) or 0) > 0
            case Var():
                return e not in self._magnitudes
            case Binary("add" | "mul" | "min" | "max", a, b):
                return self._positive(a) and self._positive(b)
        return False
