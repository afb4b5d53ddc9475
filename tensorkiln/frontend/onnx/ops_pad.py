"""Pad, by numbers of elements that are known, symbolic, or decided by data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tensorkiln.frontend.graph.context import Context
from tensorkiln.frontend.graph.data_extents import extents_of, is_computed
from tensorkiln.frontend.graph.issues import malformed
from tensorkiln.frontend.graph.values import Val
from tensorkiln.frontend.onnx.choices import axes_of_rank, one_hot_axes, require_one_of
from tensorkiln.frontend.onnx.dispatch import Float, Ints, Str, Table
from tensorkiln.ir.expr import Expr, ExprLike, as_expr, int_value
from tensorkiln.ir.relax import Constant

MODES = ("constant", "reflect", "edge", "wrap")


def pad_2(g: Context, x: Val, *, pads: Ints, mode: Str = "constant", value: Float = 0.0) -> Val:
    """Pad with its pads as an attribute (until opset 10)."""
    return pad(g, x, pads, range(g.rank(x)), mode, value)


def pad_11(
    g: Context,
    x: Val,
    pads: Val,
    value: Val | None = None,
    axes: Val | None = None,
    *,
    mode: Str = "constant",
) -> Val:
    """Pad with pads, value and (from opset 18) axes as operands."""
    rank = g.rank(x)
    if axes is not None and is_computed(g, axes):
        pads, axes = _of_all_axes(g, pads, axes, rank), None
    where = tuple(range(rank)) if axes is None else g.axes(g.ints(axes, "axes"), rank)
    widths = _decided_by_data(g, pads) if is_computed(g, pads) else _known(g, pads)
    if value is None or isinstance(value, Constant):
        fill = 0.0 if value is None else g.scalar(value, "the padding value")
        return _padded(g, x, widths, where, mode, fill)
    y = _padded(g, x, widths, where, mode, 0.0)
    if mode != "constant":
        return y
    ones = g.emit("full", shape=g.shape(x), value=1, dtype="uint8")
    inside = g.cast(_padded(g, ones, widths, where, mode, 0.0), "bool")
    return g.emit("where", inside, y, g.reshape(value, ()))


@dataclass(frozen=True, slots=True)
class _Width:
    """How many elements are added at an end, or removed: one of both is 0."""

    added: Expr
    removed: Expr


_NONE = _Width(as_expr(0), as_expr(0))


def pad(
    g: Context, x: Val, pads: Sequence[ExprLike], axes: Sequence[int], mode: str, value: float
) -> Val:
    """Pad `x` along `axes`.

    `pads` lists the number of elements to add before each of `axes`, then the numbers to add
    after: [1, 2, 3, 4] for two axes adds 1 before and 3 after the first. A negative number removes
    elements.
    """
    return _padded(g, x, [_width(g, as_expr(p)) for p in pads], axes, mode, value)


def _width(g: Context, count: Expr) -> _Width:
    return _Width(g.dims.max(count, 0), g.dims.max(g.dims.simplify(0 - count), 0))


def _known(g: Context, pads: Val) -> list[_Width]:
    return [_width(g, p) for p in g.extents(pads, "pads")]


def _decided_by_data(g: Context, pads: Val) -> list[_Width]:
    whole, zero = g.cast(pads, "int64"), g.const(0, "int64")
    added = extents_of(g, g.emit("maximum", whole, zero), "pads")
    removed = extents_of(g, g.emit("maximum", g.emit("neg", whole), zero), "pads")
    return [_Width(a, r) for a, r in zip(added, removed, strict=True)]


def _of_all_axes(g: Context, pads: Val, axes: Val, rank: int) -> Val:
    """The pads of all dimensions, from those of axes that data decides."""
    count = int_value(g.dims.product(g.shape(axes)))
    if count is None or int_value(g.dims.product(g.shape(pads))) != 2 * count:
        raise malformed(f"pads of shape {list(g.shape(pads))} for axes {list(g.shape(axes))}")
    hot = one_hot_axes(g, axes, rank)
    per_axis = g.emit("sum", hot, axes=(0,), keepdims=False)
    named = g.emit("sum", per_axis, axes=(0,), keepdims=False)
    twice = g.emit("max", per_axis, axes=(0,), keepdims=False)
    expected = axes_of_rank(count, rank)
    require_one_of(g, g.emit("mul", named, twice), [count], "axes", axes, expected)
    each = g.reshape(g.cast(pads, "int64"), (2, count, 1))
    spread = g.emit("sum", g.emit("mul", each, hot), axes=(1,), keepdims=False)
    return g.reshape(spread, (2 * rank,))


def _padded(
    g: Context,
    x: Val,
    widths: Sequence[_Width],
    axes: Sequence[int],
    mode: str,
    value: float,
) -> Val:
    if len(widths) != 2 * len(axes):
        raise malformed(f"pads has {len(widths)} entries for {len(axes)} dimensions")
    if mode not in MODES:
        raise malformed(f"mode={mode!r}; expected {', '.join(map(repr, MODES))}")
    before, after = [_NONE] * g.rank(x), [_NONE] * g.rank(x)
    for k, axis in enumerate(axes):
        before[axis], after[axis] = widths[k], widths[len(axes) + k]
    x = _cropped(g, x, before, after)
    low, high = (tuple(w.added for w in side) for side in (before, after))
    if all(int_value(n) == 0 for n in (*low, *high)):
        return x
    by_data = any(g.dims.is_computed(n) for n in (*low, *high, *g.shape(x)))
    if mode == "wrap" or (mode == "reflect" and by_data):
        return _repeated(g, x, low, high, mirrored=mode == "reflect")
    return g.emit("pad", x, before=low, after=high, value=value, mode=mode)


def _repeated(
    g: Context, x: Val, before: Sequence[Expr], after: Sequence[Expr], *, mirrored: bool
) -> Val:
    """`x` repeated without end in both directions, or each time `mirrored` at its ends, of which
    that many elements are kept."""
    for axis, (low, high) in enumerate(zip(before, after, strict=True)):
        if int_value(low) == int_value(high) == 0:
            continue
        extent = g.shape(x)[axis]
        count = g.dims.simplify(extent + low + high)
        place = g.emit("arange", start=0, step=1, count=count, dtype="int64")
        period = g.dims.simplify((extent - 1) * 2 if mirrored else extent)
        size = g.shape_value([g.dims.max(period, 1)])
        index = g.emit("mod", g.emit("sub", place, g.shape_value([low])), size)
        if mirrored:
            back = g.emit("sub", g.shape_value([period]), index)
            index = g.emit("minimum", index, back)
        x = g.emit("take", x, index, axis=axis)
    return x


def _cropped(g: Context, x: Val, before: Sequence[_Width], after: Sequence[_Width]) -> Val:
    begin = tuple(w.removed for w in before)
    cuts = [b.removed + a.removed for b, a in zip(before, after, strict=True)]
    if all(int_value(c) == 0 for c in cuts):
        return x
    shape = tuple(g.dims.simplify(d - c) for d, c in zip(g.shape(x), cuts, strict=True))
    if any(n is not None and n < 0 for n in map(int_value, shape)):
        raise malformed("pads remove more elements than there are")
    return g.emit("slice", x, begin=begin, strides=(1,) * g.rank(x), shape=shape)


TABLE: Table = {"Pad": {2: pad_2, 11: pad_11}}

__all__ = ["TABLE", "pad"]
