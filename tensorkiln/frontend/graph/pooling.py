"""Pooling in any number of spatial dimensions.

A maximum and a mean over windows of several dimensions are those over windows of one dimension
after another, since also the elements by which a mean divides are counted for each dimension. So
three and more dimensions are pooled on their own, which takes fewer operations: after the last two,
which are planes in memory and are pooled at once. Where the sizes of planes are symbolic, which
leaves fewer kernels for them, they come last, one after the other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from tensorkiln.frontend.graph.context import Context
from tensorkiln.frontend.graph.convolution import POINT
from tensorkiln.frontend.graph.padding import pad
from tensorkiln.frontend.graph.scattering import lowest
from tensorkiln.frontend.graph.values import Val
from tensorkiln.frontend.graph.windows import Windows, padded_same
from tensorkiln.ir.expr import Expr, as_expr, int_value
from tensorkiln.ops.window import Window

# From an image [N, C, H, W] and the windows along H and W to the pooled image.
Pool = Callable[[Val, Window, Window], Val]


def max_pool(
    g: Context, x: Val, shape: Windows, *, positions: bool, column_major: bool = False
) -> tuple[Val, Val | None]:
    """The maximum over windows of x [N, C, ...], and with `positions` where in x, as if it were
    flat, the first maximum of each window is; `column_major` counts within a picture with the first
    spatial dimension fastest."""
    x, shape = padded_same(g, x, shape, lowest(g.type(x).dtype))
    windows = shape.along(g, x)
    y = pooled(g, x, windows, lambda image, h, w: _emit(g, "max_pool2d", image, h, w))
    return y, _max_positions(g, x, windows, column_major) if positions else None


def average_pool(g: Context, x: Val, shape: Windows, *, count_include_pad: bool) -> Val:
    """The mean over windows of x [N, C, ...], with `count_include_pad` also of the padding."""

    def pool(image: Val, h: Window, w: Window) -> Val:
        return _emit(g, "avg_pool2d", image, h, w, count_include_pad=count_include_pad)

    y, around = padded_same(g, x, shape, 0.0)
    if around is shape:
        return pooled(g, x, shape.along(g, x), pool)
    total = pooled(g, y, around.along(g, y), pool)
    if count_include_pad:
        return total
    mask = g.emit("full", shape=g.shape(x), value=1.0, dtype=g.dtype(x))
    inside, _ = padded_same(g, mask, shape, 0.0)
    return g.emit("div", total, pooled(g, inside, around.along(g, y), pool))


def pooled(g: Context, x: Val, windows: Sequence[Window], pool: Pool) -> Val:
    """x [N, C, ...] pooled along all dimensions."""
    shape = list(g.shape(x))
    if len(windows) == 1:
        shape.insert(2, as_expr(1))
        x = _planes(g, x, shape, (POINT, windows[0]), pool)
        return g.reshape(x, (*shape[:2], shape[3]))
    *outer_windows, rows, cols = windows
    axes = [*enumerate(outer_windows, 2)]
    if axes and None in map(int_value, shape[-2:]):
        for axis, window in (*axes, (len(shape) - 2, rows)):
            x = _alone(g, x, shape, axis, window, pool)
        x = _planes(g, x, shape, (POINT, cols), pool)
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
    lead, trail = (g.dims.product(part) for part in (shape[1:axis], shape[axis + 1 :]))
    y = pool(g.reshape(x, (shape[0], lead, shape[axis], trail)), window, POINT)
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


def _max_positions(g: Context, x: Val, windows: Sequence[Window], column_major: bool) -> Val:
    """The positions that `max_pool` gives."""
    shape = g.static(x, "the operand")
    extents, n = shape[2:], len(windows)
    offsets = np.zeros((1,) * (2 * n), np.int64)
    numbers = np.zeros((1,) * (2 * n), np.int64)
    in_picture = np.ones((1,) * (2 * n), bool)
    counts = []
    for i, (w, size) in enumerate(zip(windows, extents, strict=True)):
        counts.append(int_value(w.count(size)) or 0)
        taps = np.arange(counts[i])[:, None] * w.stride - w.before
        taps = taps + np.arange(w.kernel) * w.dilation
        taps = taps.reshape(
            [counts[i] if j == i else w.kernel if j == n + i else 1 for j in range(2 * n)]
        )
        in_picture = in_picture & (taps >= 0) & (taps < size)
        offsets = offsets + taps * int(np.prod(extents[i + 1 :]))
        numbers = numbers + taps * int(
            np.prod(extents[:i]) if column_major else np.prod(extents[i + 1 :])
        )
    size, windows_count = int(np.prod(extents)), int(np.prod(counts))
    table = np.where(in_picture, offsets, size).reshape(windows_count, -1)
    padded = pad(
        g, g.reshape(x, (*shape[:2], size)), (0, 1), (2,), "constant", lowest(g.type(x).dtype)
    )
    elements = g.emit("take", padded, g.const(table, "int64"), axis=2)
    first = g.emit("argmax", elements, axis=3, keepdims=False)
    starts = np.arange(windows_count).reshape(1, 1, -1) * table.shape[1]
    position_of = g.const(numbers.reshape(-1), "int64")
    positions = g.emit("take", position_of, g.emit("add", first, g.const(starts, "int64")), axis=0)
    planes = np.arange(shape[0] * shape[1]).reshape(*shape[:2], 1) * size
    return g.reshape(g.emit("add", positions, g.const(planes, "int64")), (*shape[:2], *counts))
