"""Convolution in any number of spatial dimensions.

One dimension is treated as two, of which the first has extent 1. Of three and more the first
becomes channels and samples, one after another, until two are left: a convolution over depth is one
in which the taps along depth are further input channels.
"""

from __future__ import annotations

from collections.abc import Sequence

from tensorkiln.frontend.graph.agreement import fit
from tensorkiln.frontend.graph.context import Context
from tensorkiln.frontend.graph.issues import malformed, unsupported
from tensorkiln.frontend.graph.padding import pad
from tensorkiln.frontend.graph.values import Val
from tensorkiln.frontend.graph.windows import Same, Windows, padded_same
from tensorkiln.ir.expr import ExprLike, as_expr, int_value
from tensorkiln.ops.window import Window

# The window along a dimension of extent 1 that is added.
POINT = Window(1, 1, 0, 0)


def conv(
    g: Context,
    x: Val,
    w: Val,
    b: Val | None = None,
    *,
    strides: Sequence[int] | None = None,
    dilations: Sequence[int] | None = None,
    pads: Sequence[int] | None = None,
    same: Same | None = None,
    groups: int = 1,
) -> Val:
    """Convolution of x [N, C, ...] with w [M, C/groups, k, ...] and bias [M]; windows are described
    as by `Windows`."""
    shape = Windows(kernel_shape(g, x, w), strides, dilations, pads, same)
    x, shape = padded_same(g, x, shape, 0.0)
    windows = shape.along(g, x)
    if len(windows) <= 2:
        return _flat(g, x, w, b, windows, groups)
    y = _folded(g, x, w, windows, groups)
    if b is None:
        return y
    column = (g.shape(y)[1], *[as_expr(1)] * (g.rank(y) - 2))
    return g.emit("add", y, g.reshape(b, column))


def kernel_shape(g: Context, x: Val, w: Val) -> tuple[int, ...]:
    """The spatial extents of the weights; NodeProblem if they do not fit x, or are symbolic."""
    if g.rank(w) != g.rank(x):
        raise malformed(f"the weights have {g.rank(w)} dimensions, the operand {g.rank(x)}")
    extents = [int_value(d) for d in g.shape(w)[2:]]
    if None in extents:
        raise unsupported("the kernel's extent is symbolic")
    return tuple(e for e in extents if e is not None)


def image(g: Context, x: Val) -> Val:
    """Reshape [N, C, L] to [N, C, 1, L]; return [N, C, H, W] unchanged."""
    if g.rank(x) == 4:
        return x
    n, c, width = g.shape(x)
    return g.reshape(x, (n, c, 1, width))


def without_height(g: Context, y: Val, rank: int) -> Val:
    """An image [N, C, H, W] as a tensor of 3 or 4 dimensions."""
    n, c, _, width = g.shape(y)
    return y if rank == 4 else g.reshape(y, (n, c, width))


def _flat(g: Context, x: Val, w: Val, b: Val | None, windows: Sequence[Window], groups: int) -> Val:
    """The convolution along one or two dimensions."""
    rows, cols = windows if len(windows) == 2 else (POINT, windows[0])
    y = g.emit(
        "conv2d",
        *[image(g, x), image(g, w)],
        *([b] if b is not None else []),
        strides=(rows.stride, cols.stride),
        padding=(rows.before, cols.before, rows.after, cols.after),
        dilation=(rows.dilation, cols.dilation),
        groups=groups,
    )
    return without_height(g, y, g.rank(x))


def _folded(g: Context, x: Val, w: Val, windows: Sequence[Window], groups: int) -> Val:
    """The convolution of x [N, C, D, ...] with w [M, C/g, k, ...]: the taps along all but the last
    two dimensions are input channels."""
    if len(windows) == 2:
        return _flat(g, x, w, None, windows, groups)
    window, rank = windows[0], g.rank(x)
    channels, per_group = g.shape(x)[1], g.shape(w)[1]
    number = int_value(channels)
    if groups < 1 or (number or 0) % groups:
        raise malformed(f"group={groups} does not divide the channels")
    if number is not None and int_value(per_group) not in (None, number // groups):
        raise malformed(f"weights of {per_group} channels for {groups} group(s) of {number} in all")
    per_group = per_group if number is None else as_expr(number // groups)
    x = fit(g, x, (g.shape(x)[0], g.dims.simplify(per_group * groups), *g.shape(x)[2:]))
    w = fit(g, w, (g.shape(w)[0], per_group, *g.shape(w)[2:]))
    shape, weights = g.shape(x), g.shape(w)
    deep = pad(g, x, (window.before, window.after), (2,), "constant", 0.0)
    extent = int_value(shape[2])
    if extent is not None and (int_value(window.count(extent)) or 0) < 1:
        raise malformed(f"a kernel of {window.span} along a dimension of {extent}")
    count = window.count(shape[2])
    tap_shape: tuple[ExprLike, ...] = (shape[0], groups, 1, per_group, count, *shape[3:])
    taps = []
    for k in range(window.kernel):
        begin = (0, 0, k * window.dilation, *[0] * (rank - 3))
        strides = (1, 1, window.stride, *[1] * (rank - 3))
        part = (*shape[:2], count, *shape[3:])
        tap = g.emit("slice", deep, begin=begin, strides=strides, shape=part)
        taps.append(g.reshape(tap, tap_shape))
    wide = taps[0] if len(taps) == 1 else g.emit("concat", *taps, axis=2)
    spatial_axes = tuple(range(5, rank + 2))
    ordered = g.transpose(wide, (0, 4, 1, 2, 3, *spatial_axes))
    samples = g.dims.product((shape[0], count))
    picture = g.reshape(ordered, (samples, shape[1] * window.kernel, *shape[3:]))
    turned = g.transpose(w, (0, 2, 1, *range(3, rank)))
    inner = g.dims.product((weights[1], weights[2]))
    flat = g.reshape(turned, (weights[0], inner, *weights[3:]))
    y = _folded(g, picture, flat, windows[1:], groups)
    split = g.reshape(y, (shape[0], count, *g.shape(y)[1:]))
    return g.transpose(split, (0, 2, 1, *range(3, rank)))
