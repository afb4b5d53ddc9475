"""Writes elementary functions as straight-line let-bindings.

Programs round to an integer by adding a large number and subtracting it again. Where a language
lets compilers reassociate sums (WGSL), those could cancel, so the language's own rounding is used.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tensorkiln.ir.dtype import DType
from tensorkiln.ir.expr import Expr, Var, const, intrin

Lets = list[tuple[Var, Expr]]


@dataclass(frozen=True, slots=True)
class Kit:
    """The constants and functions of one float type that those of `math_shared` are built from."""

    sqrt_half_bits: int
    # The least number whose exp is normal, below which exp is 0; one whose exp is infinite.
    exp_range: tuple[float, float]
    # Cody and Waite: pieces of decreasing size, the first short enough that n times it is exact.
    ln2: tuple[float, ...]
    half_pi: tuple[float, ...]
    # Coefficients of polynomials, lowest power first.
    exp: tuple[float, ...]  # (e**r - 1 - r) / r**2
    exp_short: tuple[float, ...]  # e**r
    sin: tuple[float, ...]
    cos: tuple[float, ...]
    erf: tuple[float, ...]
    erfcx: Callable[[Builder, Expr], Expr]  # exp(z*z) erfc(z) for z >= 0
    log: Callable[[Builder, Expr], Expr]


class Builder:
    """Names the intermediate values of one function. If the language `reassociates`, numbers are
    rounded to integers by an operation of its own."""

    def __init__(self, dtype: DType, kit: Kit, reassociates: bool = False):
        self.dtype = dtype
        self.kit = kit
        self.row = dtype.row
        self.reassociates = reassociates
        self.lets: Lets = []

    def let(self, e: Expr) -> Expr:
        """Bind a value to a fresh variable."""
        var = Var(f"m{len(self.lets)}", e.dtype)
        self.lets.append((var, e))
        return var

    def num(self, value: float) -> Expr:
        """A float literal."""
        return const(value, self.dtype)

    def fma(self, a: Expr, b: Expr, c: Expr) -> Expr:
        """a b + c."""
        return self.let(intrin("fma", a, b, c))

    def square(self, x: Expr) -> Expr:
        """x * x and a tiny normal number, to be added to 1: so that no denormal number is computed
        on the way."""
        return self.fma(x, x, self.num(2.0 ** -(self.row.bias // 2)))

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
