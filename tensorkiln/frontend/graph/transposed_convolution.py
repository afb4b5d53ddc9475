"""Transposed convolution in any number of spatial dimensions.

Of three and more the first becomes channels and samples, one after another, until two are left: the
taps along depth are further output channels, whose results overlap and are added.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tensorkiln.frontend.graph.context import Context
from tensorkiln.frontend.graph.convolution import POINT, image, without_height
from tensorkiln.frontend.graph.issues import malformed, unsupported
from tensorkiln.frontend.graph.padding import pad
from tensorkiln.frontend.graph.values import Val
from tensorkiln.frontend.graph.windows import Same, Windows, numbers, spatial_rank
from tensorkiln.ir.expr import Expr, as_expr, int_value
from tensorkiln.ops.window import Window


def conv_transpose(
    g: Context,
    x: Val,
    w: Val,
    b: Val | None = None,
    *,
    strides: Sequence[int] | None = None,
    dilations: Sequence[int] | None = None,
    pads: Sequence[int] | None = None,
    same: Same | None = None,
    output_padding: Sequence[int] | None = None,
    output_shape: Sequence[int] | None = None,
    groups: int = 1,
) -> Val:
    """Transposed convolution of x [N, C, ...] with w [C, M/groups, k, ...] and bias [M].

    `pads` are cut from the full result, and `output_padding` is added at its ends. `output_shape`
    are the spatial extents of the result instead, or with `same` they are extent * stride.
    """
    windows = Windows(_kernel(g, x, w, groups), strides, dilations, pads).along(g, x)
    n = len(windows)
    ends = numbers(output_padding or (0,) * n, n, "output_padding", 0)
    if output_shape is not None:
        extents: Sequence[int | None] = numbers(output_shape, n, "output_shape")
    else:
        extents = [None] * n
    if output_shape is not None or same is not None:
        rows = zip(windows, g.shape(x)[2:], ends, extents, strict=True)
        windows = [_fitted(*row, same) for row in rows]
    cuts = [replace(c, after=c.after - end) for c, end in zip(windows, ends, strict=True)]
    if n <= 2:
        return _flat(g, x, w, b, cuts, groups)
    y = _folded(g, x, w, cuts, groups)
    return y if b is None else g.emit("add", y, g.reshape(b, (g.shape(y)[1], *[1] * n)))


def _kernel(g: Context, x: Val, w: Val, groups: int) -> list[int]:
    """The spatial extents of the weights; NodeProblem if they do not fit x, or are symbolic."""
    if g.rank(w) != g.rank(x):
        raise malformed(f"the weights have {g.rank(w)} dimensions, the operand {g.rank(x)}")
    spatial_rank(g, x)
    sizes = [int_value(d) for d in g.shape(w)]
    if None in sizes:
        raise unsupported("the weights have symbolic dimensions")
    channels, _, *kernel = (d or 1 for d in sizes)
    if groups < 1 or channels % groups:
        raise malformed(f"group={groups} does not divide {channels} channels")
    return kernel


def _fitted(
    window: Window, extent: Expr, end: int, output_extent: int | None, rule: Same | None
) -> Window:
    """The window whose padding gives the result the extent `output_extent`, or extent * stride."""
    size = int_value(extent)
    if size is None:
        raise unsupported("output_shape or auto_pad=SAME over a symbolic dimension")
    full = window.stride * (size - 1) + window.span + end
    before, after = (rule or Same.LOWER).halves(full - (output_extent or size * window.stride))
    return replace(window, before=before, after=after)


def _flat(g: Context, x: Val, w: Val, b: Val | None, cuts: Sequence[Window], groups: int) -> Val:
    """The transposed convolution along one or two dimensions: the padding of `cuts` is what is cut,
    or added where it is negative. Without strides it is a convolution by mirrored weights."""
    rank = g.rank(x)
    rows, cols = cuts if len(cuts) == 2 else (POINT, cuts[0])
    x, w = image(g, x), image(g, w)
    strides, dilation = (rows.stride, cols.stride), (rows.dilation, cols.dilation)
    crop = (rows.before, cols.before, rows.after, cols.after)
    if strides != (1, 1) and dilation != (1, 1):
        w, dilation = _dilated(g, w, dilation), (1, 1)
    if groups == 1 and [int_value(d) for d in g.shape(x)[2:]] == [1, 1] and dilation == (1, 1):
        y = _of_one_pixel(g, x, w, b, crop)
    elif strides == (1, 1):
        y = _mirrored(g, x, w, b, groups, (rows, cols))
    else:
        args = [x, w] + ([b] if b is not None else [])
        y = g.emit("conv2d_transpose", *args, strides=strides, cut=crop, groups=groups)
    return without_height(g, y, rank)


def _of_one_pixel(g: Context, x: Val, w: Val, b: Val | None, crop: Sequence[int]) -> Val:
    """The transposed convolution of images of one pixel: a product of matrices."""
    c, m, kh, kw = g.shape(w)
    rows = g.reshape(x, (g.shape(x)[0], c))
    y = g.emit("matmul", rows, g.reshape(w, (c, m * kh * kw)))
    y = _cropped(g, g.reshape(y, (g.shape(x)[0], m, kh, kw)), [-n for n in crop])
    return y if b is None else g.emit("add", y, g.reshape(b, (m, 1, 1)))


def _mirrored(
    g: Context, x: Val, w: Val, b: Val | None, groups: int, cuts: tuple[Window, Window]
) -> Val:
    """A transposed convolution without strides, as a convolution."""
    rows, cols = cuts
    ends = (rows.before, cols.before, rows.after, cols.after)
    pads = [c.span - 1 - n for c, n in zip((*cuts, *cuts), ends, strict=True)]
    picture = _cropped(g, x, [min(p, 0) for p in pads])
    args = [picture, _mirrored_weights(g, w, groups)] + ([b] if b is not None else [])
    padding = tuple(max(p, 0) for p in pads)
    dilation = (rows.dilation, cols.dilation)
    return g.emit("conv2d", *args, padding=padding, dilation=dilation, groups=groups)


def _cropped(g: Context, x: Val, pads: Sequence[int]) -> Val:
    """`x` with its rows and columns padded by (top, left, bottom, right); negative pads crop."""
    return pad(g, x, pads, (2, 3), "constant", 0.0)


def _mirrored_weights(g: Context, w: Val, groups: int) -> Val:
    """[C, M/g, kh, kw] as the weights [M, C/g, kh, kw] of a convolution, their taps mirrored."""
    c, m, kh, kw = (int_value(d) or 0 for d in g.shape(w))
    split = g.reshape(w, (groups, c // groups, m, kh, kw))
    mirrored = g.emit(
        "slice",
        split,
        begin=(0, 0, 0, kh - 1, kw - 1),
        strides=(1, 1, 1, -1, -1),
        shape=(groups, c // groups, m, kh, kw),
    )
    return g.reshape(g.transpose(mirrored, (0, 2, 1, 3, 4)), (groups * m, c // groups, kh, kw))


def _dilated(g: Context, w: Val, dilation: tuple[int, int]) -> Val:
    """The weights [C, M/g, ...] with dilation - 1 zeros between neighbouring taps."""
    c, m, kh, kw = g.shape(w)
    wide = g.reshape(w, (c, m, kh, 1, kw, 1))
    after = (0, 0, 0, dilation[0] - 1, 0, dilation[1] - 1)
    wide = g.emit("pad", wide, before=(0,) * 6, after=after)
    wide = g.reshape(wide, (c, m, kh * dilation[0], kw * dilation[1]))
    return _cropped(g, wide, (0, 0, 1 - dilation[0], 1 - dilation[1]))


def _folded(g: Context, x: Val, w: Val, cuts: Sequence[Window], groups: int) -> Val:
    """The transposed convolution of x [N, C, D, ...] with w [C, M/g, k, ...]."""
    if len(cuts) == 2:
        return _flat(g, x, w, None, cuts, groups)
    window, shape, weights, rank = cuts[0], g.shape(x), g.shape(w), g.rank(x)
    picture = g.transpose(x, (0, 2, 1, *range(3, rank)))
    picture = g.reshape(picture, (g.dims.product((shape[0], shape[2])), shape[1], *shape[3:]))
    inner = g.dims.product((weights[1], weights[2]))
    y = _folded(g, picture, g.reshape(w, (weights[0], inner, *weights[3:])), cuts[1:], groups)
    outputs = g.dims.divide(g.shape(y)[1], weights[2])
    assert outputs is not None
    wide = g.reshape(y, (shape[0], shape[2], outputs, weights[2], *g.shape(y)[2:]))
    ordered = g.transpose(wide, (0, 2, 3, 1, *range(4, rank + 1)))
    full = overlap_add(g, ordered, 2, window.stride, window.dilation)
    return pad(g, full, (-window.before, -window.after), (2,), "constant", 0.0)


def overlap_add(g: Context, x: Val, axis: int, stride: int, dilation: int) -> Val:
    """The sums of what is put to the same place: element [.., k, i, ..] of the dimensions `axis`
    and the next one to place i*stride + k*dilation of one dimension."""
    shape, rank = g.shape(x), g.rank(x)
    taps, count = int_value(shape[axis]) or 0, shape[axis + 1]
    reach = (taps - 1) * dilation
    length = g.dims.simplify((count - 1) * stride + (reach + 1))
    total: Val | None = None
    for k in range(taps):
        begin = tuple(k if i == axis else 0 for i in range(rank))
        slice_shape = (*shape[:axis], as_expr(1), *shape[axis + 1 :])
        part = g.emit("slice", x, begin=begin, strides=(1,) * rank, shape=slice_shape)
        part = g.reshape(part, (*shape[:axis], count, *shape[axis + 2 :]))
        spaced = _with_zeros(g, part, axis, stride)
        spaced = pad(g, spaced, (k * dilation, reach - k * dilation), (axis,), "constant", 0.0)
        total = spaced if total is None else g.emit("add", total, spaced)
    assert total is not None
    return g.reshape(total, (*shape[:axis], length, *shape[axis + 2 :]))


def _with_zeros(g: Context, x: Val, axis: int, stride: int) -> Val:
    """`stride` - 1 zeros between neighbours along a dimension."""
    if stride == 1:
        return x
    shape: tuple[Expr, ...] = g.shape(x)
    wide = g.reshape(x, (*shape[: axis + 1], 1, *shape[axis + 1 :]))
    wide = pad(g, wide, (0, stride - 1), (axis + 1,), "constant", 0.0)
    flat = g.reshape(wide, (*shape[:axis], shape[axis] * stride, *shape[axis + 1 :]))
    return pad(g, flat, (0, 1 - stride), (axis,), "constant", 0.0)
