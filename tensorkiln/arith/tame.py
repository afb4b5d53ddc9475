"""Which expressions are index arithmetic, and so may be treated as unbounded integers.

The rules of `arith` hold if nothing overflows and divisors are positive. Loop variables, dimensions
and expressions of them satisfy both, because memory is finite. Numbers that a program loads or that
its caller passes need not: operations on them may wrap around, and such a divisor may be 0.
"""

from __future__ import annotations

from collections.abc import Collection

from tensorkiln.arith.engine import COMPARE
from tensorkiln.ir.dtype import DType
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
        # By identity of operations, which are kept so that no other object gets their id.
        self._memo: dict[int, tuple[Expr, int | None, DType]] = {}

    def loop(self, var: Var, lo: Expr, extent: Expr) -> None:
        """Declare a loop variable: its magnitude is that of lo + extent, or `_LONG`."""
        first, count = self.magnitude(lo), self.magnitude(extent)
        self._declare(var, _LONG if first is None or count is None else first + count)

    def let(self, var: Var, value: Expr) -> None:
        """Declare a variable with the magnitude of its value."""
        self._declare(var, self.magnitude(value))

    def _declare(self, var: Var, magnitude: int | None) -> None:
        self._magnitudes[var] = magnitude
        self._memo.clear()

    def __call__(self, e: Expr) -> bool:
        """Whether an expression or a condition is index arithmetic."""
        return self.magnitude(e) is not None

    def magnitude(self, e: Expr) -> int | None:
        """Return the assumed magnitude of a value; None if it is not index arithmetic, or if it may
        overflow its type."""
        return self._typed(e)[0]

    def _typed(self, e: Expr) -> tuple[int | None, DType]:
        """The magnitude of a value and its type, which follows from those of its operands: asked
        of each operation alone it would be found again for each."""
        match e:
            case IntImm(value, dtype):
                return _fitting(abs(value), dtype), dtype
            case Var():
                return _fitting(self._magnitudes.get(e, _SIZE), e.dtype), e.dtype
        entry = self._memo.get(id(e))
        if entry is None:
            entry = self._memo[id(e)] = (e, *self._of_operation(e))
        return entry[1:]

    def _of_operation(self, e: Expr) -> tuple[int | None, DType]:
        match e:
            case Binary(op, a, b):
                x, operand = self._typed(a)
                dtype = e.result(operand)
                if x is None:
                    return None, dtype
                y = self._typed(b)[0]
                return (None if y is None else _fitting(self._binary(op, x, y, b), dtype)), dtype
            case Unary("neg" | "not" | "abs", a):
                return self._typed(a)
            case Cast(a, dtype) if dtype.is_int and not dtype.is_unsigned:
                return _fitting(self._typed(a)[0], dtype), dtype
            case Select(c, a, b):
                x, dtype = self._typed(a)
                y = None if x is None or self._typed(c)[0] is None else self._typed(b)[0]
                return None if x is None or y is None else _fitting(max(x, y), dtype), dtype
        return None, e.dtype

    def _binary(self, op: str, x: int, y: int, b: Expr) -> int | None:
        """The magnitude of an operation on values of magnitudes `x` and `y`, the second of which is
        `b`."""
        match op:
            case "add" | "sub":
                return x + y
            case "mul":
                return x * y
            case "bitxor" | "bitand":
                return x + y + 1
            case "min" | "max" | "and" | "or":
                return max(x, y)
            case "floordiv" | "floormod" if self._positive(b):
                return max(x, y)
        return 1 if op in COMPARE else None

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


def _fitting(magnitude: int | None, dtype: DType) -> int | None:
    """A magnitude; None of a type that is no scalar integer or bool, or that may overflow."""
    if magnitude is None or dtype.lanes != 1 or dtype.is_float:
        return None
    # One bit is kept free, because simplification may turn `x <= c` into `x < c + 1`.
    return magnitude if dtype.is_bool or magnitude < 1 << (dtype.bits - 2) else None
