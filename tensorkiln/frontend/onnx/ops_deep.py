"""Convolutions in three and more spatial dimensions, and Col2Im.

The first spatial dimension becomes channels and samples, one after another, until two are left:
a convolution over depth is one in which the taps along depth are further input channels; of a
transposed one they are further output channels, whose results overlap and are added.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tensorkiln.frontend.graph.context import Context
from tensorkiln.frontend.graph.issues import malformed, unsupported
from tensorkiln.frontend.graph.values import Val
from tensorkiln.frontend.onnx.dispatch import Ints, Table
from tensorkiln.frontend.onnx.ops_pad import pad
from tensorkiln.ir.expr import Expr, ExprLike, as_expr, int_value
from tensorkiln.ops.window import Window

# From a picture, its weights and the bias to the convolution over the last two dimensions.
Flat = Callable[[Val, Val], Val]


def conv_deep(
    g: Context, x: Val, w: Val, b: Val | None, windows: Sequence[Window], groups: int, flat: Flat
) -> Val:
    """The convolution of x [N, C, D, ...] with w [M, C/g, k, ...]; `flat` is the one over the last
    two dimensions, `windows` are those along the others."""
    y = _folded(g, x, w, windows, groups, flat)
    if b is None:
        return y
    column = (g.shape(y)[1], *[as_expr(1)] * (g.rank(y) - 2))
    return g.emit("add", y, g.reshape(b, column))


def _folded(g: Context, x: Val, w: Val, windows: Sequence[Window], groups: int, flat: Flat) -> Val:
    if not windows:
        return flat(x, w)
    window, rank = windows[0], g.rank(x)
    shape, weights = g.shape(x), g.shape(w)
    channels = int_value(shape[1])
    if channels is None or groups < 1 or channels % groups:
        raise malformed(f"group={groups} does not divide the channels")
    deep = pad(g, x, (window.before, window.after), (2,), "constant", 0.0)
    extent = int_value(shape[2])
    if extent is not None and (int_value(window.count(extent)) or 0) < 1:
        raise malformed(f"a kernel of {window.span} along a dimension of {extent}")
    count = window.count(shape[2])
    each: tuple[ExprLike, ...] = (shape[0], groups, 1, channels // groups, count, *shape[3:])
    taps = []
    for k in range(window.kernel):
        begin = (0, 0, k * window.dilation, *[0] * (rank - 3))
        strides = (1, 1, window.stride, *[1] * (rank - 3))
        part = (*shape[:2], count, *shape[3:])
        tap = g.emit("slice", deep, begin=begin, strides=strides, shape=part)
        taps.append(g.reshape(tap, each))
    wide = taps[0] if len(taps) == 1 else g.emit("concat", *taps, axis=2)
    rest = tuple(range(5, rank + 2))
    ordered = g.transpose(wide, (0, 4, 1, 2, 3, *rest))
    samples = g.dims.product((shape[0], count))
    picture = g.reshape(ordered, (samples, window.kernel * channels, *shape[3:]))
    turned = g.transpose(w, (0, 2, 1, *range(3, rank)))
    inner = g.dims.product((weights[1], weights[2]))
    y = _folded(
        g,
        picture,
        g.reshape(turned, (weights[0], inner, *weights[3:])),
        windows[1:],
        groups,
        flat,
    )
    split = g.reshape(y, (shape[0], count, *g.shape(y)[1:]))
    return g.transpose(split, (0, 2, 1, *range(3, rank)))


def conv_transpose_deep(g: Context, x: Val, w: Val, stride: int, dilation: int, flat: Flat) -> Val:
    """The transposed convolution of x [N, C, D, ...] with w [C, M/g, k, ...], not cut along D;
    `flat` is the one over the dimensions after D."""
    shape, weights, rank = g.shape(x), g.shape(w), g.rank(x)
    taps = int_value(weights[2])
    if taps is None:
        raise unsupported("the kernel's extent is symbolic")
    picture = g.transpose(x, (0, 2, 1, *range(3, rank)))
    picture = g.reshape(picture, (g.dims.product((shape[0], shape[2])), shape[1], *shape[3:]))
    inner = g.dims.product((weights[1], weights[2]))
    y = flat(picture, g.reshape(w, (weights[0], inner, *weights[3:])))
    outputs = g.dims.divide(g.shape(y)[1], as_expr(taps))
    assert outputs is not None
    wide = g.reshape(y, (shape[0], shape[2], outputs, taps, *g.shape(y)[2:]))
    ordered = g.transpose(wide, (0, 2, 3, 1, *range(4, rank + 1)))
    return overlapped(g, ordered, 2, stride, dilation)


def overlapped(g: Context, x: Val, axis: int, stride: int, dilation: int) -> Val:
    """The sums of what is put to the same place: element [.., k, i, ..] of the dimensions `axis`
    and the next one to place i*stride + k*dilation of one dimension."""
    shape, rank = g.shape(x), g.rank(x)
    taps, count = int_value(shape[axis]) or 0, shape[axis + 1]
    reach = (taps - 1) * dilation
    length = g.dims.simplify((count - 1) * stride + (reach + 1))
    total: Val | None = None
    for k in range(taps):
        begin = tuple(k if i == axis else 0 for i in range(rank))
        one = (*shape[:axis], as_expr(1), *shape[axis + 1 :])
        part = g.emit("slice", x, begin=begin, strides=(1,) * rank, shape=one)
        part = g.reshape(part, (*shape[:axis], count, *shape[axis + 2 :]))
        placed = _spread(g, part, axis, stride)
        placed = pad(g, placed, (k * dilation, reach - k * dilation), (axis,), "constant", 0.0)
        total = placed if total is None else g.emit("add", total, placed)
    assert total is not None
    return g.reshape(total, (*shape[:axis], length, *shape[axis + 2 :]))


def _spread(g: Context, x: Val, axis: int, stride: int) -> Val:
    """`stride` - 1 zeros between neighbours along a dimension."""
    if stride == 1:
        return x
    shape: tuple[Expr, ...] = g.shape(x)
    wide = g.reshape(x, (*shape[: axis + 1], 1, *shape[axis + 1 :]))
    wide = pad(g, wide, (0, stride - 1), (axis + 1,), "constant", 0.0)
    flat = g.reshape(wide, (*shape[:axis], shape[axis] * stride, *shape[axis + 1 :]))
    return pad(g, flat, (0, 1 - stride), (axis,), "constant", 0.0)


def col2im(
    g: Context,
    x: Val,
    image_shape: Val,
    block_shape: Val,
    *,
    dilations: Ints | None = None,
    pads: Ints | None = None,
    strides: Ints | None = None,
) -> Val:
    """x [N, C * elements of a block, blocks] as pictures [N, C, ...], where blocks that overlap are
    added."""
    image, block = g.ints(image_shape, "image_shape"), g.ints(block_shape, "block_shape")
    n = len(image)
    steps, apart = strides or (1,) * n, dilations or (1,) * n
    around = pads or (0,) * (2 * n)
    if g.rank(x) != 3 or not (len(block) == len(steps) == len(apart) == n):
        raise malformed("image_shape, block_shape, strides and dilations differ in length")
    if len(around) != 2 * n or min((*block, *steps, *apart), default=0) < 1 or min(around) < 0:
        raise malformed(f"pads={list(around)}, strides={list(steps)}, dilations={list(apart)}")
    windows = [Window(block[i], steps[i], around[i], around[n + i], apart[i]) for i in range(n)]
    counts = [int_value(w.count(size)) or 0 for w, size in zip(windows, image, strict=True)]
    samples, rows, columns = g.shape(x)
    taps = 1
    for k in block:
        taps *= k
    channels = g.dims.divide(rows, as_expr(taps))
    blocks = 1
    for c in counts:
        blocks *= c
    if channels is None or int_value(columns) not in (None, blocks):
        raise malformed(
            f"{int_value(rows)} rows and {int_value(columns)} columns, expected a multiple of "
            f"{taps} and {blocks}"
        )
    y = g.reshape(x, (samples, channels, *block, *counts))
    for i, (w, size) in enumerate(zip(windows, image, strict=True)):
        # [N, C, placed dimensions, taps that are left, places that are left]
        rank = g.rank(y)
        left = n - i
        order = [*range(2 + i), 2 + i, 2 + i + left, *range(3 + i, 2 + i + left)]
        order += range(3 + i + left, rank)
        y = overlapped(g, g.transpose(y, order), 2 + i, w.stride, w.dilation)
        over = size + w.before - (int_value(g.shape(y)[2 + i]) or 0)
        y = pad(g, y, (-w.before, over), (2 + i,), "constant", 0.0)
    return y


TABLE: Table = {"Col2Im": {18: col2im}}
