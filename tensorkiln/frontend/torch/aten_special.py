"""Special functions of ATen, extremes up to each element, and places in sorted sequences."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from tensorkiln.base.element_types import PROGRAM_TYPES
from tensorkiln.frontend.graph.issues import malformed, unsupported
from tensorkiln.frontend.graph.values import Val
from tensorkiln.frontend.torch.aten_index import sort
from tensorkiln.frontend.torch.context import AtenContext, Operand
from tensorkiln.frontend.torch.dispatch import AtenImporter, AtenTable
from tensorkiln.ir.expr import as_expr, int_value

# -- functions, computed in float64 ---------------------------------------------------------------

# M. Giles, "Approximating the erfinv function", 2010: coefficients of w - 2.5, and from w = 5 on of
# sqrt(w) - 3, for w = -log(1 - x**2). Two steps of Newton's method follow.
_NEAR: tuple[float, ...] = (2.81022636e-08, 3.43273939e-07, -3.5233877e-06, -4.39150654e-06)
_NEAR += (0.00021858087, -0.00125372503, -0.00417768164, 0.246640727, 1.50140941)
_FAR: tuple[float, ...] = (-0.000200214257, 0.000100950558, 0.00134934322, -0.00367342844)
_FAR += (0.00573950773, -0.0076224613, 0.00943887047, 1.00167406, 2.83297682)
# C. Lanczos, "A precision approximation of the gamma function", 1964, with g = 7 and 9 terms.
_LANCZOS: tuple[float, ...] = (676.5203681218851, -1259.1392167224028, 771.32342877765313)
_LANCZOS += (-176.61502916214059, 12.507343278686905, -0.13857109526572012)
_LANCZOS += (9.9843695780195716e-6, 1.5056327351493116e-7)


class _Doubles:
    """Arithmetic of float64 on values and numbers."""

    def __init__(self, g: AtenContext) -> None:
        self.g = g

    def __call__(self, op: str, *args: Val | float) -> Val:
        values = [self.g.const(a, "float64") if isinstance(a, int | float) else a for a in args]
        return self.g.emit(op, *values)

    def polynomial(self, coefficients: Sequence[float], x: Val) -> Val:
        """The powers of x, the highest first."""
        total: Val = self.g.const(coefficients[0], "float64")
        for c in coefficients[1:]:
            total = self("add", self("mul", total, x), c)
        return total


def erfinv(g: AtenContext, x: Val) -> Val:
    """y with erf(y) = x; infinite at -1 and 1, and NaN beyond."""
    f, wide = _Doubles(g), g.cast(x, "float64")
    size = f("abs", wide)
    inner = f("minimum", size, 1 - 2.0**-53)
    w = f("neg", f("log", f("mul", f("sub", 1.0, inner), f("add", 1.0, inner))))
    near = f.polynomial(_NEAR, f("sub", w, 2.5))
    far = f.polynomial(_FAR, f("sub", f("sqrt", f("maximum", w, 5.0)), 3.0))
    y = f("mul", f("where", f("less", w, 5.0), near, far), inner)
    for _ in range(2):
        slope = f("mul", 2 / math.sqrt(math.pi), f("exp", f("neg", f("mul", y, y))))
        y = f("sub", y, f("div", f("sub", f("erf", y), inner), slope))
    y = f("where", f("less", size, 1.0), y, f("where", f("equal", size, 1.0), math.inf, math.nan))
    return g.floating(f("where", f("less", wide, 0.0), f("neg", y), y))


def lgamma(g: AtenContext, x: Val) -> Val:
    """log|gamma(x)|; infinite at 0 and negative integers."""
    f, wide = _Doubles(g), g.cast(x, "float64")
    low = f("less", wide, 0.5)
    z = f("sub", f("where", low, f("sub", 1.0, wide), wide), 1.0)
    total: Val = g.const(0.99999999999980993, "float64")
    for k, c in enumerate(_LANCZOS, 1):
        total = f("add", total, f("div", c, f("add", z, float(k))))
    t = f("add", z, 7.5)
    grown = f("sub", f("mul", f("add", z, 0.5), f("log", t)), t)
    above = f("add", f("add", grown, f("log", total)), 0.5 * math.log(2 * math.pi))
    # log|pi / sin(pi x)| - lgamma(1 - x), with the sine of the distance to the nearest integer
    part = f("mul", f("sub", wide, f("round", wide)), math.pi)
    mirrored = f("sub", f("sub", math.log(math.pi), f("log", f("abs", f("sin", part)))), above)
    pole = f("logical_and", f("less_equal", wide, 0.0), f("equal", wide, f("floor", wide)))
    y = f("where", f("equal", f("abs", wide), math.inf), math.inf, f("where", low, mirrored, above))
    return g.floating(f("where", pole, math.inf, y))


# -- up to each element ---------------------------------------------------------------------------


def _up_to_each(g: AtenContext, x: Val, axis: int) -> tuple[Val, Val, Callable[[Val], Val]]:
    """For x with the dimension last: its elements j as [..., 1, n], whether j <= i, [n, n], and
    what puts the dimension back. The time is quadratic in its extent."""
    rank = g.rank(x)
    dimension = g.axis(axis, rank)
    order = [*(d for d in range(rank) if d != dimension), dimension]
    moved = g.transpose(x, order)
    n = g.shape(moved)[-1]
    upto = g.emit("less_equal", g.iota(n, 2, 1), g.iota(n, 2, 0))
    wide = g.reshape(moved, (*g.shape(moved)[:-1], 1, n))
    return wide, upto, lambda y: g.transpose(y, [order.index(d) for d in range(rank)])


def _over_last(g: AtenContext, op: str, x: Val) -> Val:
    return g.emit(op, x, axes=(g.rank(x) - 1,), keepdims=False)


def cumulative_extreme(name: str) -> AtenImporter:
    """The greatest ("max") or least element up to each one, and the last place where it is. A NaN
    counts as both."""

    def run(g: AtenContext, x: Val, axis: int) -> Sequence[Val]:
        if not g.rank(x):
            return x, g.const(0, "int64")
        boolean, dtype = g.type(x).dtype.is_bool, g.dtype(x)
        wide, upto, back = _up_to_each(g, g.cast(x, "uint8") if boolean else x, axis)
        kind = (
            np.dtype(g.dtype(wide))
            if PROGRAM_TYPES[g.dtype(wide)].in_numpy
            else np.dtype("float32")
        )
        if kind.kind == "f":
            worst = -math.inf if name == "max" else math.inf
        else:
            worst = np.iinfo(kind).min if name == "max" else np.iinfo(kind).max
        best = _over_last(g, name, g.emit("where", upto, wide, g.like(worst, wide)))
        is_best = g.emit("equal", wide, g.reshape(best, (*g.shape(best), 1)))
        if kind.kind == "f":
            is_best = g.emit("logical_or", is_best, g.emit("isnan", wide))
        places = g.iota(g.shape(best)[-1], 2, 1)
        mine = g.emit("where", g.emit("logical_and", upto, is_best), places, g.const(0, "int64"))
        return g.cast(back(best), dtype), back(_over_last(g, "max", mine))

    return run


def logcumsumexp(g: AtenContext, x: Val, axis: int) -> Val:
    """log of the sum of exp of each element and all before it."""
    if not g.rank(x):
        return x
    wide, upto, back = _up_to_each(g, x, axis)
    prefixes = g.emit("where", upto, wide, g.like(-math.inf, wide))
    top = _over_last(g, "max", prefixes)
    safe = g.emit("where", g.emit("equal", top, g.like(-math.inf, top)), g.like(0, top), top)
    terms = g.emit("exp", g.emit("sub", prefixes, g.reshape(safe, (*g.shape(safe), 1))))
    return back(g.emit("add", safe, g.emit("log", _over_last(g, "sum", terms))))


# -- in order -------------------------------------------------------------------------------------


def kthvalue(
    g: AtenContext, x: Val, k: Operand, axis: int = -1, keepdim: bool = False
) -> Sequence[Val]:
    """The k-th least element along a dimension, counted from 1, and its place."""
    count = int_value(as_expr(k)) if not isinstance(k, Val) else None
    if count is None:
        raise unsupported("a symbolic k")
    if not g.rank(x):
        return x, g.const(0, "int64")
    dimension, outputs = g.axis(axis, g.rank(x)), []
    for v in sort(g, x, axis):
        element = g.sliced(v, dimension, count - 1, 1)
        shape = g.shape(element)
        outputs.append(
            element
            if keepdim
            else g.reshape(element, [*shape[:dimension], *shape[dimension + 1 :]])
        )
    return outputs


def searchsorted(
    g: AtenContext,
    sequence: Val,
    x: Operand,
    *,
    out_int32: bool = False,
    right: bool = False,
    side: str | None = None,
    sorter: Val | None = None,
) -> Val:
    """Where to put each element of x into a sorted sequence, or the one of its row: before all
    equal elements, or with `right` behind them. All of a sequence is looked at."""
    if sorter is not None:
        raise unsupported("sorter", "torch.gather sorts the sequence")
    value = g.number(x, g.common(sequence, x)) if not isinstance(x, Val) else x
    dtype = g.common(sequence, value)
    row, value = g.cast(sequence, dtype), g.cast(value, dtype)
    if g.rank(row) != 1 and g.rank(row) != g.rank(value):
        raise malformed(f"a sequence of {g.rank(row)} dimensions for {g.rank(value)}")
    shape = g.shape(row)
    row = g.reshape(row, (*shape[:-1], 1, shape[-1])) if g.rank(row) > 1 else row
    compare = "less_equal" if right or side == "right" else "less"
    before = g.emit(compare, row, g.reshape(value, (*g.shape(value), 1)))
    return g.cast(_over_last(g, "sum", g.cast(before, "int64")), "int32" if out_int32 else "int64")


def bucketize(
    g: AtenContext, x: Operand, boundaries: Val, *, out_int32: bool = False, right: bool = False
) -> Val:
    """`searchsorted` with the operands in the other order."""
    return searchsorted(g, boundaries, x, out_int32=out_int32, right=right)


TABLE: AtenTable = {
    "erfinv": erfinv,
    "lgamma": lgamma,
    "cummax": cumulative_extreme("max"),
    "cummin": cumulative_extreme("min"),
    "logcumsumexp": logcumsumexp,
    "kthvalue": kthvalue,
    "searchsorted.Tensor": searchsorted,
    "searchsorted.Scalar": searchsorted,
    "bucketize.Tensor": bucketize,
    "bucketize.Scalar": bucketize,
}
