"""Which expressions are index arithmetic, for which integers are as good as those of mathematics.

The rules of this room hold where nothing overflows and divisors are positive. Both is so of loop
variables, sizes and what is computed of them, as memory is finite. It need not be so of numbers
that a program loads, or that its caller passes: those wrap at their width, and may divide by 0.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from tensorkiln.ir.expr import Binary, Cast, Expr, IntImm, Select, Unary, Var, int_value

_SIZE = 1 << 8  # of a dimension; products of several are sizes of memory, so they fit
_LONG = 1 << 31  # a loop of unknown extent is shorter
_COMPARE = ("lt", "le", "gt", "ge", "eq", "ne")


class Tame:
    """How large variables may be; those that are not known are dimensions."""

    def __init__(self, wild: Collection[Var] = ()):
        self._most: dict[Var, int | None] = dict.fromkeys(wild)

    def loop(self, var: Var, lo: Expr, extent: Expr) -> None:
        """A loop's variable."""
        first, count = self.most(lo), self.most(extent)
        self._most[var] = _LONG if first is None or count is None else first + count

    def let(self, var: Var, value: Expr) -> None:
        """A variable with a value."""
        self._most[var] = self.most(value)

    def __call__(self, e: Expr) -> bool:
        """Whether an expression, a condition too, is index arithmetic."""
        return self.most(e) is not None

    def most(self, e: Expr) -> int | None:
        """What the size of a value is at most, roughly; None for what is no index arithmetic."""
        found = self._found(e)
        if found is None or e.dtype.is_bool:
            return found
        # One bit to spare: `x <= c` becomes `x < c + 1`.
        return found if found < 1 << (e.dtype.bits - 2) else None

    def _found(self, e: Expr) -> int | None:
        if e.dtype.lanes != 1 or e.dtype.is_float:
            return None
        match e:
            case IntImm(value):
                return abs(value)
            case Var():
                return self._most.get(e, _SIZE)
            case Unary("neg" | "not" | "abs", a):
                return self.most(a)
            case Cast(a, dtype) if dtype.is_int and not dtype.is_unsigned:
                return self.most(a)
            case Select(c, a, b):
                return None if self.most(c) is None else self._both(a, b, max)
            case Binary(op, a, b):
                return self._binary(op, a, b)
        return None

    def _binary(self, op: str, a: Expr, b: Expr) -> int | None:
        match op:
            case "add" | "sub":
                return self._both(a, b, int.__add__)
            case "mul":
                return self._both(a, b, int.__mul__)
            case "min" | "max" | "and" | "or":
                return self._both(a, b, max)
            case "floordiv" | "floormod" if self._positive(b):
                return self._both(a, b, max)
        return self._both(a, b, lambda x, y: 1) if op in _COMPARE else None

    def _both(self, a: Expr, b: Expr, f: Callable[[int, int], int]) -> int | None:
        x, y = self.most(a), self.most(b)
        return None if x is None or y is None else f(x, y)

    def _positive(self, e: Expr) -> bool:
        """Whether it is a number above 0, a dimension, or made of such."""
        match e:
            case IntImm():
                return (int_value(e) or 0) > 0
            case Var():
                return e not in self._most
            case Binary("add" | "mul" | "min" | "max", a, b):
                return self._positive(a) and self._positive(b)
        return False
