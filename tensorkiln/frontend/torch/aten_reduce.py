"""Reductions of ATen, softmax, and sums along a dimension."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from tensorkiln.frontend.graph import cumulative as running
from tensorkiln.frontend.graph.values import Val
from tensorkiln.frontend.torch.context import AtenContext, Operand
from tensorkiln.frontend.torch.dispatch import AtenImporter, AtenTable
from tensorkiln.frontend.torch.values import dtype_name
from tensorkiln.ir.expr import as_expr, int_value

Axes = int | Sequence[int] | None


def _axes(g: AtenContext, x: Val, axes: Axes) -> tuple[int, ...]:
    """The dimensions that are reduced, in order; none given means all of them."""
    rank = g.rank(x)
    if axes is None or (not isinstance(axes, int) and not axes):
        return tuple(range(rank))
    numbers = [axes] if isinstance(axes, int) else axes
    return tuple(sorted(g.axes(numbers, rank))) if rank else ()


def _over(g: AtenContext, name: str, x: Val, axes: tuple[int, ...], keep: bool) -> Val:
    return g.emit(name, x, axes=axes, keepdims=keep) if axes else x


def summed(name: str) -> AtenImporter:
    """A sum or product over all or some dimensions."""

    def run(
        g: AtenContext, x: Val, axes: Axes = None, keepdim: bool = False, *, dtype: Any = None
    ) -> Val:
        return _over(g, name, g.cast(x, g.out.dtype.name), _axes(g, x, axes), keepdim)

    return run


def mean(
    g: AtenContext, x: Val, axes: Axes = None, keepdim: bool = False, *, dtype: Any = None
) -> Val:
    """The mean over all or some dimensions; of nothing it is NaN."""
    dimensions, x = _axes(g, x, axes), g.cast(x, g.out.dtype.name)
    if any(int_value(g.shape(x)[d]) == 0 for d in dimensions):
        return g.spread(g.like(math.nan, x), g.out.shape)
    return _over(g, "mean", x, dimensions, keepdim)


def extreme(name: str) -> AtenImporter:
    """The greatest or least element over all or some dimensions."""

    def run(g: AtenContext, x: Val, axes: Axes = None, keepdim: bool = False) -> Val:
        return _of_bools(g, name, x, _axes(g, x, axes), keepdim)

    return run


def _of_bools(g: AtenContext, name: str, x: Val, axes: tuple[int, ...], keep: bool) -> Val:
    if not g.type(x).dtype.is_bool:
        return _over(g, name, x, axes, keep)
    return g.cast(_over(g, name, g.cast(x, "uint8"), axes, keep), "bool")


def extreme_with_place(name: str) -> AtenImporter:
    """The greatest or least element along a dimension, and its first place."""

    def run(g: AtenContext, x: Val, axis: int, keepdim: bool = False) -> list[Val | None]:
        dimensions = _axes(g, x, axis)
        values = _of_bools(g, name, x, dimensions, keepdim)
        places = _place(g, name, x, axis, keepdim) if 1 in g.used else None
        return [values, places]

    return run


def arg(name: str) -> AtenImporter:
    """The first place of the greatest or least element, in one dimension or among all."""

    def run(g: AtenContext, x: Val, axis: int | None = None, keepdim: bool = False) -> Val:
        if axis is not None:
            return _place(g, name, x, axis, keepdim)
        flat = g.reshape(x, (g.dims.product(g.shape(x)),))
        return g.reshape(_place(g, name, flat, 0, False), g.out.shape)

    return run


def _place(g: AtenContext, name: str, x: Val, axis: int, keepdim: bool) -> Val:
    if not g.rank(x):
        return g.const(0, "int64")
    x = g.cast(x, "uint8") if g.type(x).dtype.is_bool else x
    return g.emit(f"arg{name}", x, axis=g.axis(axis, g.rank(x)), keepdims=keepdim)


def truth(name: str) -> AtenImporter:
    """Whether any ("max") or all ("min") elements are not 0, over all or some dimensions."""

    def run(g: AtenContext, x: Val, axes: Axes = None, keepdim: bool = False) -> Val:
        if not g.type(x).dtype.is_bool:
            x = g.emit("not_equal", x, g.like(0, x))
        dimensions = _axes(g, x, axes)
        if any(int_value(g.shape(x)[d]) == 0 for d in dimensions):
            return g.spread(g.const(name == "min", g.out.dtype), g.out.shape)
        return g.cast(_over(g, name, g.cast(x, "uint8"), dimensions, keepdim), g.out.dtype.name)

    return run


def variance(
    g: AtenContext, x: Val, axes: Axes, correction: Operand, keepdim: bool
) -> tuple[Val, Val]:
    """The mean of squares of the distances from the mean, over count - correction; and the mean."""
    dimensions = _axes(g, x, axes)
    center = _over(g, "mean", x, dimensions, True)
    difference = g.emit("sub", x, center)
    total = _over(g, "sum", g.emit("mul", difference, difference), dimensions, keepdim)
    wide = g.type(x).dtype.sums.name  # float16 has no count above 65504
    count = g.number(g.dims.product(g.shape(x)[d] for d in dimensions), wide)
    by = g.emit("sub", count, g.const(1 if correction is None else float(correction), wide))
    by = g.emit("maximum", by, g.const(0, wide))
    average = center if keepdim else g.reshape(center, g.shape(total))
    return g.cast(g.emit("div", g.cast(total, wide), by), g.dtype(x)), average


def var(
    g: AtenContext,
    x: Val,
    axes: Axes = None,
    *,
    correction: Operand = None,
    keepdim: bool = False,
) -> Val:
    """The variance over all or some dimensions."""
    return variance(g, x, axes, correction, keepdim)[0]


def var_dim(
    g: AtenContext, x: Val, axes: Axes = None, unbiased: bool = True, keepdim: bool = False
) -> Val:
    """The variance over some dimensions, unbiased or not."""
    return variance(g, x, axes, int(unbiased), keepdim)[0]


def var_mean(
    g: AtenContext,
    x: Val,
    axes: Axes = None,
    *,
    correction: Operand = None,
    keepdim: bool = False,
) -> tuple[Val, Val]:
    """The variance and the mean over all or some dimensions."""
    return variance(g, x, axes, correction, keepdim)


def softmax(name: str) -> AtenImporter:
    """Softmax or its logarithm along a dimension."""

    def run(g: AtenContext, x: Val, axis: int, half_to_float: bool = False) -> Val:
        x = g.cast(x, g.out.dtype.name)
        if not g.rank(x):
            return g.reshape(g.emit(name, g.reshape(x, (1,)), axis=0), ())
        return g.emit(name, x, axis=g.axis(axis, g.rank(x)))

    return run


def cumulated(g: AtenContext, name: str, x: Val, axis: int) -> Val:
    """Along a dimension, the sum ("sum") or product ("prod") of each element and all before it."""
    if not g.rank(x) or any(int_value(d) == 0 for d in g.shape(x)):
        return x
    return running.cumulative(g, name, x, axis)


def cumulative(name: str) -> AtenImporter:
    """The importer of `cumulated`, in the element type of the result."""

    def run(g: AtenContext, x: Val, axis: int, *, dtype: Any = None) -> Val:
        return cumulated(g, name, g.cast(x, g.out.dtype.name), axis)

    return run


def vector_norm(
    g: AtenContext,
    x: Val,
    ord: Operand = 2,
    axes: Axes = None,
    keepdim: bool = False,
    *,
    dtype: Any = None,
) -> Val:
    """The norm (sum of |x|**ord)**(1/ord) over all or some dimensions."""
    x = g.emit("abs", g.cast(x, dtype_name(dtype) if dtype else g.out.dtype.name))
    dimensions = _axes(g, x, axes)
    if ord == math.inf:
        return _over(g, "max", x, dimensions, keepdim)
    if ord == -math.inf:
        return _over(g, "min", x, dimensions, keepdim)
    if ord == 0:
        x = g.cast(g.emit("not_equal", x, g.like(0, x)), g.dtype(x))
    if ord in (0, 1):
        return _over(g, "sum", x, dimensions, keepdim)
    if ord == 2:
        return g.emit("sqrt", _over(g, "sum", g.emit("mul", x, x), dimensions, keepdim))
    total = _over(g, "sum", g.emit("pow", x, g.like(float(ord), x)), dimensions, keepdim)
    return g.emit("pow", total, g.like(1 / ord, x))


def histc(g: AtenContext, x: Val, bins: int = 100, min: Operand = 0, max: Operand = 0) -> Val:
    """How many elements lie in each of equally wide bins from min to max; the last one holds max.
    Where min is max, they are those of the elements; others lie in no bin."""
    count = g.dims.product(g.shape(x))
    flat, dtype = g.reshape(x, (count,)), g.dtype(x)
    low, high = g.number(min, dtype), g.number(max, dtype)
    if min == max:
        if int_value(count) == 0:
            return g.spread(g.like(0, x), (as_expr(bins),))
        low, high = (g.emit(name, flat, axes=(0,), keepdims=False) for name in ("min", "max"))
        # A range of one number reaches 1 to both sides.
        around = g.emit("where", g.emit("equal", low, high), g.like(1, x), g.like(0, x))
        low, high = g.emit("sub", low, around), g.emit("add", high, around)
    inside = g.emit(
        "logical_and", g.emit("greater_equal", flat, low), g.emit("less_equal", flat, high)
    )
    scaled = g.emit("mul", g.emit("sub", flat, low), g.number(bins, dtype))
    place = g.cast(g.emit("div", scaled, g.emit("sub", high, low)), "int64")
    place = g.emit("minimum", place, g.const(bins - 1, "int64"))
    place = g.emit("where", inside, place, g.const(-1, "int64"))
    hits = g.emit("equal", g.iota(bins, 2, 0), g.reshape(place, (as_expr(1), count)))
    return g.emit("sum", g.cast(hits, dtype), axes=(1,), keepdims=False)


TABLE: AtenTable = {
    **{f"sum{overload}": summed("sum") for overload in ("", ".dim_IntList")},
    **{f"prod{overload}": summed("prod") for overload in ("", ".dim_int")},
    **{f"mean{overload}": mean for overload in ("", ".dim")},
    "amax": extreme("max"),
    "amin": extreme("min"),
    "max": extreme("max"),
    "min": extreme("min"),
    "max.dim": extreme_with_place("max"),
    "min.dim": extreme_with_place("min"),
    "argmax": arg("max"),
    "argmin": arg("min"),
    **{f"any{overload}": truth("max") for overload in ("", ".dim", ".dims")},
    **{f"all{overload}": truth("min") for overload in ("", ".dim", ".dims")},
    "_is_any_true": truth("max"),
    "_is_all_true": truth("min"),
    "var.correction": var,
    "var.dim": var_dim,
    "var_mean.correction": var_mean,
    "_softmax": softmax("softmax"),
    "_log_softmax": softmax("log_softmax"),
    "cumsum": cumulative("sum"),
    "cumprod": cumulative("prod"),
    "linalg_vector_norm": vector_norm,
    "histc": histc,
}
