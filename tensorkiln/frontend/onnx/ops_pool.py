"""Pooling in any number of spatial dimensions."""

from __future__ import annotations

from collections.abc import Sequence

from tensorkiln.frontend.graph import pooling
from tensorkiln.frontend.graph.context import Context
from tensorkiln.frontend.graph.issues import malformed, unsupported
from tensorkiln.frontend.graph.values import Val
from tensorkiln.frontend.graph.windows import Windows, padded_same
from tensorkiln.frontend.onnx.auto_pad import padding
from tensorkiln.frontend.onnx.context import OnnxContext
from tensorkiln.frontend.onnx.dispatch import Int, Ints, Str, Table
from tensorkiln.ir.expr import Expr, binary, int_value
from tensorkiln.ops.window import Window


def max_pool(
    g: OnnxContext,
    x: Val,
    *,
    kernel_shape: Ints,
    auto_pad: Str = "NOTSET",
    ceil_mode: Int = 0,
    dilations: Ints | None = None,
    pads: Ints | None = None,
    storage_order: Int = 0,
    strides: Ints | None = None,
) -> Sequence[Val]:
    """Maximum over windows of x [N, C, ...]; the places of the maxima only if they are used."""
    shape = Windows(kernel_shape, strides, dilations, *padding(auto_pad, pads), bool(ceil_mode))
    y, positions = pooling.max_pool(
        g, x, shape, positions=any(g.outputs[1:]), column_major=bool(storage_order)
    )
    return (y,) if positions is None else (y, positions)


def average_pool(
    g: Context,
    x: Val,
    *,
    kernel_shape: Ints,
    auto_pad: Str = "NOTSET",
    ceil_mode: Int = 0,
    count_include_pad: Int = 0,
    dilations: Ints | None = None,
    pads: Ints | None = None,
    strides: Ints | None = None,
) -> Val:
    """Mean over windows of x [N, C, ...]."""
    shape = Windows(kernel_shape, strides, dilations, *padding(auto_pad, pads), bool(ceil_mode))
    return pooling.average_pool(g, x, shape, count_include_pad=bool(count_include_pad))


def lp_pool(
    g: Context,
    x: Val,
    *,
    kernel_shape: Ints,
    auto_pad: Str = "NOTSET",
    ceil_mode: Int = 0,
    dilations: Ints | None = None,
    p: Int = 2,
    pads: Ints | None = None,
    strides: Ints | None = None,
) -> Val:
    """(sum of |x|**p)**(1/p) over windows of x [N, C, ...]; the sums are convolutions by ones."""
    shape = Windows(kernel_shape, strides, dilations, *padding(auto_pad, pads), bool(ceil_mode))

    def pool(image: Val, h: Window, w: Window) -> Val:
        dims = g.shape(image)
        after = [_reach(window, extent) for window, extent in zip((h, w), dims[2:], strict=True)]
        flat = g.reshape(image, (g.dims.product(dims[:2]), 1, *dims[2:]))
        kernel = g.emit("full", shape=(1, 1, h.kernel, w.kernel), value=1.0, dtype=g.dtype(image))
        y = g.emit(
            "conv2d",
            flat,
            kernel,
            strides=(h.stride, w.stride),
            padding=(h.before, w.before, *after),
            dilation=(h.dilation, w.dilation),
        )
        return g.reshape(y, (*dims[:2], *g.shape(y)[2:]))

    # No pass sees a statistic in a convolution, so powers of 16 bits are widened here.
    wide = g.cast(x, g.type(x).dtype.sums.name)
    powers, shape = padded_same(g, _power(g, g.emit("abs", wide), p), shape, 0.0)
    total = pooling.pooled(g, powers, shape.along(g, powers), pool)
    return g.cast(_root(g, total, p), g.dtype(x))


def _reach(w: Window, extent: Expr) -> int:
    """The padding behind a dimension up to the end of its last window."""
    if not w.ceil_mode:
        return w.after
    size = int_value(extent)
    if size is None:
        raise unsupported("ceil_mode over a symbolic dimension", "freeze={name: size}")
    count = int_value(w.count(size)) or 1
    return max((count - 1) * w.stride + w.span - size - w.before, 0)


def _power(g: Context, x: Val, exponent: int) -> Val:
    if exponent < 1:
        raise malformed(f"p={exponent}, expected 1 or more")
    return x if exponent == 1 else g.emit("pow", x, g.like(exponent, x))


def _root(g: Context, x: Val, exponent: int) -> Val:
    if exponent <= 2:
        return x if exponent == 1 else g.emit("sqrt", x)
    return g.emit("pow", x, g.like(1 / exponent, x))


def _of_some(g: Context, x: Val) -> Val:
    """`x`, which must have an element in each spatial dimension."""
    for axis, extent in enumerate(g.shape(x)[2:], 2):
        x = g.require(x, binary("ge", extent, 1), f"a non-empty dimension {axis}")
    return x


def global_average_pool(g: Context, x: Val) -> Val:
    """Mean over all spatial dimensions, which are kept with extent 1."""
    x = _of_some(g, x)
    return g.emit("mean", x, axes=tuple(range(2, g.rank(x))), keepdims=True)


def global_max_pool(g: Context, x: Val) -> Val:
    """Maximum over all spatial dimensions, which are kept with extent 1."""
    x = _of_some(g, x)
    return g.emit("max", x, axes=tuple(range(2, g.rank(x))), keepdims=True)


def global_lp_pool(g: Context, x: Val, *, p: Int = 2) -> Val:
    """(sum of |x|**p)**(1/p) over all spatial dimensions, which are kept with extent 1."""
    powers = _power(g, g.emit("abs", x), p)
    axes = tuple(range(2, g.rank(x)))
    return _root(g, g.emit("sum", powers, axes=axes, keepdims=True), p)


TABLE: Table = {
    "MaxPool": {1: max_pool},
    "AveragePool": {7: average_pool},
    "LpPool": {2: lp_pool},
    "GlobalAveragePool": {1: global_average_pool},
    "GlobalMaxPool": {1: global_max_pool},
    "GlobalLpPool": {2: global_lp_pool},
}
