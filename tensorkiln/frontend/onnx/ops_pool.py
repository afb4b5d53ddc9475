"""Pooling in any number of spatial dimensions.

A maximum and a mean over windows of several dimensions are those over windows of one dimension
after another, since also the elements by which a mean divides are counted for each dimension. So
three and more dimensions are pooled on their own, which takes fewer operations: after the last two,
which are planes in memory and are pooled at once. Where the sizes of planes are symbolic, which
leaves fewer kernels for them, they come last, one after the other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tensorkiln.frontend.graph.context import Context
from tensorkiln.frontend.graph.issues import malformed, unsupported
from tensorkiln.frontend.graph.values import Val
from tensorkiln.frontend.onnx.dispatch import Int, Ints, Str, Table
from tensorkiln.frontend.onnx.ops_scatter import least
from tensorkiln.frontend.onnx.ops_unpool import max_indices
from tensorkiln.frontend.onnx.windows import Windows, padded_same
from tensorkiln.ir.expr import Expr, as_expr, binary, int_value
from tensorkiln.ops.window import Window

# From an image [N, C, H, W] and the windows along H and W to the pooled image.
Pool = Callable[[Val, Window, Window], Val]
_ALONE = Window(1, 1, 0, 0)


def _pooled(g: Context, x: Val, windows: Sequence[Window], pool: Pool) -> Val:
    """x [N, C, ...] pooled along all dimensions."""
    shape = list(g.shape(x))
    if len(windows) == 1:
        shape.insert(2, as_expr(1))
        x = _planes(g, x, shape, (_ALONE, windows[0]), pool)
        return g.reshape(x, (*shape[:2], shape[3]))
    *others, rows, cols = windows
    axes = [*enumerate(others, 2)]
    if axes and None in map(int_value, shape[-2:]):
        for axis, window in (*axes, (len(shape) - 2, rows)):
            x = _alone(g, x, shape, axis, window, pool)
        x = _planes(g, x, shape, (_ALONE, cols), pool)
    else:
        x = _planes(g, x, shape, (rows, cols), pool)
        for axis, window in reversed(axes):
            x = _alone(g, x, shape, axis, window, pool)
    return g.reshape(x, shape)


def _planes(g: Context, x: Val, shape: list[Expr], pair: tuple[Window, Window], pool: Pool) -> Val:
    """x, whose elements are those of extents `shape`, pooled along the last two, which are set."""
    lead = g.dims.product(shape[1:-2])
    y = pool(g.reshape(x, (shape[0], lead, *shape[-2:])), *pair)
    shape[-2:] = g.shape(y)[2:]
    return y


def _alone(g: Context, x: Val, shape: list[Expr], axis: int, window: Window, pool: Pool) -> Val:
    """The same along one dimension before the last."""
    lead, rest = (g.dims.product(part) for part in (shape[1:axis], shape[axis + 1 :]))
    y = pool(g.reshape(x, (shape[0], lead, shape[axis], rest)), window, _ALONE)
    shape[axis] = g.shape(y)[2]
    return y


def _emit(g: Context, op: str, x: Val, rows: Window, cols: Window, **attrs: bool) -> Val:
    """The pooling operator `op` on an image."""
    return g.emit(
        op,
        x,
        kernel=(rows.kernel, cols.kernel),
        strides=(rows.stride, cols.stride),
        padding=(rows.before, cols.before, rows.after, cols.after),
        dilation=(rows.dilation, cols.dilation),
        ceil_mode=rows.ceil_mode or cols.ceil_mode,
        **attrs,
    )


def max_pool(
    g: Context,
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
    given = Windows(kernel_shape, strides, dilations, pads, auto_pad, bool(ceil_mode))
    x, given = padded_same(g, x, given, least(g.type(x).dtype))
    windows = given.along(g, x)
    y = _pooled(g, x, windows, lambda image, h, w: _emit(g, "max_pool2d", image, h, w))
    return (y, max_indices(g, x, windows, bool(storage_order))) if any(g.outputs[1:]) else (y,)


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
    given = Windows(kernel_shape, strides, dilations, pads, auto_pad, bool(ceil_mode))
    include = bool(count_include_pad)

    def pool(image: Val, h: Window, w: Window) -> Val:
        return _emit(g, "avg_pool2d", image, h, w, count_include_pad=include)

    y, around = padded_same(g, x, given, 0.0)
    if around is given:
        return _pooled(g, x, given.along(g, x), pool)
    total = _pooled(g, y, around.along(g, y), pool)
    if include:
        return total
    ones = g.emit("full", shape=g.shape(x), value=1.0, dtype=g.dtype(x))
    inside, _ = padded_same(g, ones, given, 0.0)
    return g.emit("div", total, _pooled(g, inside, around.along(g, y), pool))


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
    given = Windows(kernel_shape, strides, dilations, pads, auto_pad, bool(ceil_mode))

    def pool(image: Val, h: Window, w: Window) -> Val:
        shape = g.shape(image)
        after = [_reach(window, extent) for window, extent in zip((h, w), shape[2:], strict=True)]
        flat = g.reshape(image, (g.dims.product(shape[:2]), 1, *shape[2:]))
        ones = g.emit("full", shape=(1, 1, h.kernel, w.kernel), value=1.0, dtype=g.dtype(image))
        y = g.emit(
            "conv2d",
            flat,
            ones,
            strides=(h.stride, w.stride),
            padding=(h.before, w.before, *after),
            dilation=(h.dilation, w.dilation),
        )
        return g.reshape(y, (*shape[:2], *g.shape(y)[2:]))

    # No pass sees a statistic in a convolution, so powers of 16 bits are widened here.
    wide = g.cast(x, g.type(x).dtype.sums.name)
    powers, given = padded_same(g, _power(g, g.emit("abs", wide), p), given, 0.0)
    return g.cast(_root(g, _pooled(g, powers, given.along(g, powers), pool), p), g.dtype(x))


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
