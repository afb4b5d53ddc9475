"""Writes elementary functions as straight-line let-bindings."""

from __future__ import annotations

from collections.abc import Sequence

from tensorkiln.ir.dtype import INT32, DType
from tensorkiln.ir.expr import Expr, Var, binary, const, intrin

Lets = list[tuple[Var, Expr]]


class Builder:
    """Names the intermediate values of one function."""

    def __init__(self, dtype: DType):
        self.dtype = dtype
        self.lets: Lets = []

    def let(self, e: Expr) -> Expr:
        """Bind a value to a fresh variable."""
        var = Var(f"m{len(self.lets)}", e.dtype)
        self.lets.append((var, e))
        return var

    def num(self, value: float) -> Expr:
        """A float literal."""
        return const(value, self.dtype)

    def int32(self, value: int) -> Expr:
        """An int32 literal."""
        return const(value, INT32.with_lanes(self.dtype.lanes))

    def fma(self, a: Expr, b: Expr, c: Expr) -> Expr:
        """a b + c."""
        return self.let(intrin("fma", a, b, c))

    def poly(self, x: Expr, coefficients: Sequence[float]) -> Expr:
        """Horner's rule, lowest coefficient first."""
        acc = self.num(coefficients[-1])
        for c in reversed(coefficients[:-1]):
            acc = self.fma(acc, x, self.num(c))
        return acc

    def whole(self, value: int) -> Expr:
        """A literal of the integer type as wide as the floats."""
        return const(value, DType(f"int{self.dtype.bits}", self.dtype.lanes))

    def bits(self, x: Expr) -> Expr:
        """The bits of a float."""
        return self.let(intrin(f"bitcast_i{self.dtype.bits}", x))

    def from_bits(self, x: Expr) -> Expr:
        """The float of some bits."""
        return self.let(intrin(f"bitcast_f{self.dtype.bits}", x))

    def two_to(self, n: Expr) -> Expr:
        """2**n for an integer n that gives a normal number."""
        bias, shift = (127, 23) if self.dtype.bits == 32 else (1023, 52)
        return self.from_bits(binary("shl", n + self.whole(bias), self.whole(shift)))
