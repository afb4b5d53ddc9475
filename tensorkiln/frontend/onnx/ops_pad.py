"""Pad, by numbers of elements that are known, symbolic, or decided by data."""

from __future__ import annotations

from tensorkiln.frontend.graph.context import Context
from tensorkiln.frontend.graph.data_extents import extents_of, is_computed
from tensorkiln.frontend.graph.issues import malformed
from tensorkiln.frontend.graph.padding import Width, pad, pad_by, width
from tensorkiln.frontend.graph.values import Val
from tensorkiln.frontend.onnx.choices import axes_of_rank, one_hot_axes, require_one_of
from tensorkiln.frontend.onnx.dispatch import Float, Ints, Str, Table
from tensorkiln.ir.expr import int_value
from tensorkiln.ir.relax import Constant


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
    dimensions = tuple(range(rank)) if axes is None else g.axes(g.ints(axes, "axes"), rank)
    widths = _decided_by_data(g, pads) if is_computed(g, pads) else _constant_widths(g, pads)
    if value is None or isinstance(value, Constant):
        fill = 0.0 if value is None else g.scalar(value, "the padding value")
        return pad_by(g, x, widths, dimensions, mode, fill)
    y = pad_by(g, x, widths, dimensions, mode, 0.0)
    if mode != "constant":
        return y
    mask = g.emit("full", shape=g.shape(x), value=1, dtype="uint8")
    inside = g.cast(pad_by(g, mask, widths, dimensions, mode, 0.0), "bool")
    return g.emit("where", inside, y, g.reshape(value, ()))


def _constant_widths(g: Context, pads: Val) -> list[Width]:
    return [width(g, p) for p in g.extents(pads, "pads")]


def _decided_by_data(g: Context, pads: Val) -> list[Width]:
    whole, zero = g.cast(pads, "int64"), g.const(0, "int64")
    added = extents_of(g, g.emit("maximum", whole, zero), "pads")
    removed = extents_of(g, g.emit("maximum", g.emit("neg", whole), zero), "pads")
    return [Width(a, r) for a, r in zip(added, removed, strict=True)]


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
    amounts = g.reshape(g.cast(pads, "int64"), (2, count, 1))
    spread = g.emit("sum", g.emit("mul", amounts, hot), axes=(1,), keepdims=False)
    return g.reshape(spread, (2 * rank,))


TABLE: Table = {"Pad": {2: pad_2, 11: pad_11}}
