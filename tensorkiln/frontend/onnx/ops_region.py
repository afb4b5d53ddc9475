"""Operators that read a picture at computed places: RoiAlign and DeformConv."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tensorkiln.frontend.graph.context import Context
from tensorkiln.frontend.graph.data_extents import extent_of
from tensorkiln.frontend.graph.grid_sample import Sampler, read_corner
from tensorkiln.frontend.graph.indexing import flat_offset
from tensorkiln.frontend.graph.issues import malformed, unsupported
from tensorkiln.frontend.graph.values import Val
from tensorkiln.frontend.graph.windows import Windows
from tensorkiln.frontend.onnx.dispatch import Float, Int, Ints, Str, Table
from tensorkiln.ir.expr import Expr, as_expr, int_value
from tensorkiln.ops.window import Window


def roi_align_10(
    g: Context,
    x: Val,
    rois: Val,
    batch_indices: Val,
    *,
    mode: Str = "avg",
    output_height: Int = 1,
    output_width: Int = 1,
    sampling_ratio: Int = 0,
    spatial_scale: Float = 1.0,
) -> Val:
    """RoiAlign whose coordinates are of the corners of elements (until opset 15)."""
    return roi_align_16(
        g,
        x,
        rois,
        batch_indices,
        coordinate_transformation_mode="output_half_pixel",
        mode=mode,
        output_height=output_height,
        output_width=output_width,
        sampling_ratio=sampling_ratio,
        spatial_scale=spatial_scale,
    )


def roi_align_16(
    g: Context,
    x: Val,
    rois: Val,
    batch_indices: Val,
    *,
    coordinate_transformation_mode: Str = "half_pixel",
    mode: Str = "avg",
    output_height: Int = 1,
    output_width: Int = 1,
    sampling_ratio: Int = 0,
    spatial_scale: Float = 1.0,
) -> Val:
    """Boxes rois [R, 4] of x [N, C, H, W] as pictures [R, C, oh, ow]: each element is the mean or
    the maximum of sampling_ratio**2 points, at which x is blended of four elements. With a
    sampling_ratio of 0 a box has as many points as elements of x."""
    modes = ("half_pixel", "output_half_pixel")
    if coordinate_transformation_mode not in modes:
        mode_name = coordinate_transformation_mode
        raise malformed(f"coordinate_transformation_mode={mode_name!r}; expected one of {modes}")
    if mode not in ("avg", "max"):
        raise malformed(f"mode={mode!r}; expected 'avg' or 'max'")
    if g.rank(x) != 4 or g.rank(rois) != 2 or g.rank(batch_indices) != 1:
        raise malformed("expected x [N, C, H, W], rois [R, 4] and batch_indices [R]")
    rois = g.fitted(rois, (g.shape(rois)[0], 4))
    batch_indices = g.fitted(batch_indices, g.shape(rois)[:1])
    half = coordinate_transformation_mode == "half_pixel"
    samples, channels, *extents = g.shape(x)
    count = g.shape(rois)[0]
    shift = g.const(0.5 if half else 0.0, g.dtype(rois))
    scaled = g.emit("sub", g.emit("mul", rois, g.like(spatial_scale, rois)), shift)
    edges = [_column(g, scaled, k) for k in range(4)]
    lines, points_of = [], []
    for axis, size in ((1, output_height), (0, output_width)):
        length = g.emit("sub", edges[axis + 2], edges[axis])
        if not half:
            length = g.emit("maximum", length, g.like(1, length))
        ratio = _Ratio.of(g, length, size, sampling_ratio)
        points_of.append(ratio)
        lines.append(_line(g, edges[axis], length, size, ratio, extents[1 - axis]))
    rows = g.reshape(g.transpose(x, (0, 2, 3, 1)), (g.dims.product((samples, *extents)), channels))
    batch = g.reshape(g.cast(batch_indices, "int64"), (count, 1, 1))
    parts = []
    for (y, wy), (columns, wx) in itertools.product(*lines):
        tall, wide = g.shape(y)[1], g.shape(columns)[1]
        places = (batch, g.reshape(y, (count, tall, 1)), g.reshape(columns, (count, 1, wide)))
        read = g.emit(
            "take", rows, flat_offset(g, places, (samples, *extents)), axis=0, outside="clamp"
        )
        weight = g.emit("mul", g.reshape(wy, (count, tall, 1)), g.reshape(wx, (count, 1, wide)))
        weight = g.cast(g.reshape(weight, (count, tall, wide, 1)), g.dtype(x))
        parts.append(g.emit("mul", read, weight))
    # The maximum is of the weighted elements, not of their sums.
    join = "add" if mode == "avg" else "maximum"
    points = functools.reduce(lambda a, b: g.emit(join, a, b), parts)
    tall, wide = (r.most for r in points_of)
    shape = (count, output_height, tall, output_width, wide, channels)
    over = "mean" if mode == "avg" else "max"
    if sampling_ratio > 0:
        y = g.emit(over, g.reshape(points, shape), axes=(2, 4), keepdims=False)
    else:
        y = _over_own_points(g, g.reshape(points, shape), points_of, mode)
    return g.transpose(y, (0, 3, 1, 2))


@dataclass(frozen=True, slots=True)
class _Ratio:
    """How many points an element of the result has along a dimension: `most`, or of each box as
    many as `each` [R, 1] says, as floats."""

    most: Expr
    each: Val | None = None

    @staticmethod
    def of(g: Context, length: Val, size: int, ratio: int) -> _Ratio:
        """For boxes of `length` [R, 1] and `size` elements; a `ratio` of 0 is as many as there are
        elements of the picture."""
        if ratio > 0:
            return _Ratio(as_expr(ratio))
        point_counts = g.emit("ceil", g.emit("div", length, g.like(size, length)))
        flat = g.reshape(point_counts, (g.shape(point_counts)[0],))
        # There may be no box.
        padded_counts = g.emit("concat", flat, g.const([1], g.dtype(flat)), axis=0)
        max_count = g.emit("max", padded_counts, axes=(0,), keepdims=False)
        return _Ratio(
            extent_of(g, g.cast(max_count, "int64"), "the number of points of a box"), point_counts
        )


def _over_own_points(g: Context, points: Val, ratios: Sequence[_Ratio], mode: str) -> Val:
    """The mean or maximum of the points [R, oh, gh, ow, gw, C] that each box has; 0 of none."""
    masks: list[Val] = []
    total: Val = g.like(1, points)
    for axis, ratio in zip((2, 4), ratios, strict=True):
        assert ratio.each is not None
        point_counts = g.reshape(
            g.cast(ratio.each, g.dtype(points)), (g.shape(points)[0], *[1] * 5)
        )
        line = g.emit("arange", start=0, step=1, count=ratio.most, dtype=g.dtype(points))
        line = g.reshape(line, [ratio.most if i == axis else 1 for i in range(6)])
        masks.append(g.emit("less", line, point_counts))
        total = g.emit("mul", total, point_counts)
    inside = g.emit("logical_and", *masks)
    if mode == "avg":
        inner_points = g.emit("where", inside, points, g.like(0, points))
        y = g.emit("sum", inner_points, axes=(2, 4), keepdims=False)
        count = g.emit("maximum", total, g.like(1, total))
        return g.emit("div", y, g.reshape(count, (g.shape(points)[0], 1, 1, 1)))
    inner_points = g.emit("where", inside, points, g.like(-np.inf, points))
    y = g.emit("max", inner_points, axes=(2, 4), keepdims=False)
    some = g.reshape(g.emit("greater", total, g.like(0, total)), (g.shape(points)[0], 1, 1, 1))
    return g.emit("where", some, y, g.like(0, y))


def _column(g: Context, x: Val, k: int) -> Val:
    return g.emit("slice", x, begin=(0, k), strides=(1, 1), shape=(g.shape(x)[0], as_expr(1)))


def _line(
    g: Context, start: Val, length: Val, size: int, ratio: _Ratio, extent: Expr
) -> list[tuple[Val, Val]]:
    """(places, weights) [R, size * points] of the two elements that each point along one dimension
    of boxes reads; the weights of points that are an element or more outside are 0."""
    dtype = g.dtype(start)
    unit = g.emit("mul", length, g.const(1 / size, dtype))
    points = g.emit("mul", unit, _steps(g, size, ratio, dtype))
    points = g.emit("add", start, points)
    n = g.cast(g.reshape(g.shape_value([extent]), ()), dtype)
    last = g.emit("sub", n, g.const(1, dtype))
    inside = g.emit("greater_equal", points, g.const(-1, dtype))
    inside = g.emit("logical_and", inside, g.emit("less_equal", points, n))
    position = g.emit("minimum", g.emit("maximum", points, g.const(0, dtype)), last)
    low = g.emit("floor", position)
    high = g.emit("minimum", g.emit("add", low, g.const(1, dtype)), last)
    far = g.emit("sub", position, low)
    near = g.emit("sub", g.const(1, dtype), far)
    taps = []
    for place, weight in ((low, near), (high, far)):
        inner_weight = g.emit("where", inside, weight, g.const(0, dtype))
        taps.append(
            (g.cast(g.emit("where", inside, place, g.const(0, dtype)), "int64"), inner_weight)
        )
    return taps


def _steps(g: Context, size: int, ratio: _Ratio, dtype: str) -> Val:
    """Where the points lie in a box, in elements of the result: [1 or R, size * points]."""
    max_points = int_value(ratio.most)
    if ratio.each is None:
        assert max_points is not None
        steps = np.arange(size)[:, None] + (np.arange(max_points) + 0.5) / max_points
        return g.const(steps.reshape(1, -1), dtype)
    line = g.emit("arange", start=0, step=1, count=ratio.most, dtype=dtype)
    inside = g.emit("add", g.reshape(line, (1, 1, ratio.most)), g.const(0.5, dtype))
    boxes = g.shape(ratio.each)[0]
    inside = g.emit("div", inside, g.reshape(ratio.each, (boxes, 1, 1)))
    first = g.const(np.arange(size).reshape(1, size, 1), dtype)
    return g.reshape(g.emit("add", first, inside), (boxes, g.dims.simplify(ratio.most * size)))


def deform_conv(
    g: Context,
    x: Val,
    w: Val,
    offset: Val,
    b: Val | None = None,
    mask: Val | None = None,
    *,
    dilations: Ints | None = None,
    group: Int = 1,
    kernel_shape: Ints | None = None,
    offset_group: Int = 1,
    pads: Ints | None = None,
    strides: Ints | None = None,
) -> Val:
    """A convolution of x [N, C, H, W] with w [M, C/g, kh, kw] whose taps are moved by offset
    [N, offset_group * kh * kw * 2, oh, ow], row before column, and weighted by mask; x is blended
    between elements, and 0 outside."""
    if g.rank(x) != 4 or g.rank(w) != 4 or g.rank(offset) != 4:
        raise unsupported("other than two spatial dimensions")
    samples, channels = g.shape(x)[:2]
    outputs, inner, *kernel = g.static(w, "the weights")
    if kernel_shape is not None and list(kernel_shape) != kernel:
        raise malformed(f"kernel_shape={list(kernel_shape)}, but the weights have {kernel}")
    count = int_value(channels)
    if count is None or count != inner * group or count % offset_group or outputs % group:
        raise malformed(f"group={group}, offset_group={offset_group} for {count} channels")
    windows = Windows(kernel, strides, dilations, pads).along(g, x)
    taps = kernel[0] * kernel[1]
    height, width = (w.count(n) for w, n in zip(windows, g.shape(x)[2:], strict=True))
    offset = g.fitted(offset, (samples, offset_group * taps * 2, height, width))
    several = g.dims.product((samples, as_expr(offset_group)))
    points = g.dims.product((as_expr(taps), height, width))
    moved = g.reshape(offset, (several, taps, 2, height, width))
    sampler = Sampler(g, g.dtype(offset), "zeros", False)
    read = []
    for axis in range(2):
        begin, part = (0, 0, axis, 0, 0), (several, taps, 1, height, width)
        axis_offset = g.emit("slice", moved, begin=begin, strides=(1,) * 5, shape=part)
        axis_offset = g.reshape(axis_offset, (several, taps, height, width))
        place = g.emit(
            "add", axis_offset, _grid(g, windows, axis, (height, width), g.dtype(offset))
        )
        flat = g.reshape(place, (several, points))
        read.append(sampler.taps(flat, g.shape(x)[2 + axis], "linear"))
    extents = g.shape(x)[2:]
    group_channels = count // offset_group
    split = g.transpose(g.reshape(x, (several, group_channels, *extents)), (0, 2, 3, 1))
    rows = g.reshape(split, (g.dims.product((several, *extents)), group_channels))
    values = functools.reduce(
        lambda a, b: g.emit("add", a, b),
        [
            read_corner(sampler, rows, corner, several, extents, g.dtype(x))
            for corner in itertools.product(*read)
        ],
    )
    if mask is not None:
        values = g.emit("mul", values, g.reshape(mask, (several, points, 1)))
    return _weighted(g, values, w, b, samples, group, (taps, height, width))


def _grid(
    g: Context, windows: Sequence[Window], axis: int, extents: Sequence[Expr], dtype: str
) -> Val:
    """Where the taps lie along one dimension if they are not moved: [taps, oh, ow], or with extents
    of 1 where that is the same."""
    window = windows[axis]
    line = g.emit("arange", start=0, step=window.stride, count=extents[axis], dtype="int64")
    line = g.reshape(line, [1, *_at(extents[axis], axis)])
    steps = np.arange(window.kernel) * window.dilation - window.before
    cross_kernel = windows[1 - axis].kernel
    column = np.repeat(steps, cross_kernel) if axis == 0 else np.tile(steps, cross_kernel)
    return g.cast(g.emit("add", line, g.const(column.reshape(-1, 1, 1), "int64")), dtype)


def _at(extent: Expr, axis: int) -> list[Expr]:
    return [extent, as_expr(1)] if axis == 0 else [as_expr(1), extent]


def _weighted(
    g: Context,
    values: Val,
    w: Val,
    b: Val | None,
    samples: Expr,
    group: int,
    shape: tuple[int, Expr, Expr],
) -> Val:
    """The products of what was read, [N * offset groups, taps * oh * ow, channels of one], with the
    weights."""
    taps, height, width = shape
    outputs, inner, *_ = g.static(w, "the weights")
    place = g.dims.product((height, width))
    several, _, channels = g.shape(values)
    wide = g.reshape(values, (several, taps, place, channels))
    columns = g.reshape(g.transpose(wide, (0, 3, 1, 2)), (samples, group, inner * taps, place))
    weights = g.reshape(w, (1, group, outputs // group, inner * taps))
    y = g.reshape(g.emit("matmul", weights, columns), (samples, outputs, height, width))
    return y if b is None else g.emit("add", y, g.reshape(b, (outputs, 1, 1)))


TABLE: Table = {
    "RoiAlign": {10: roi_align_10, 16: roi_align_16},
    "DeformConv": {19: deform_conv},
}
