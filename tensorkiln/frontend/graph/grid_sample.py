"""A picture read at computed coordinates."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from tensorkiln.frontend.graph.agreement import common_extent
from tensorkiln.frontend.graph.context import Context
from tensorkiln.frontend.graph.indexing import flat_offset
from tensorkiln.frontend.graph.issues import malformed
from tensorkiln.frontend.graph.values import Val
from tensorkiln.ir.expr import Expr, as_expr, int_value

_CUBIC_A = -0.75  # as torch and ONNX fix it


@dataclass(frozen=True, slots=True)
class Sampler:
    """How one picture is read: the element type of coordinates, and the attributes."""

    g: Context
    dtype: str
    padding: str
    align_corners: bool

    def number(self, value: float) -> Val:
        """A scalar in the type of coordinates."""
        return self.g.const(value, self.dtype)

    def extent(self, n: Expr) -> Val:
        """An extent in the type of coordinates."""
        return self.g.cast(self.g.reshape(self.g.shape_value([n]), ()), self.dtype)

    def position(self, x: Val, n: Expr) -> Val:
        """Coordinates from -1 to 1 as positions in a dimension of n: -1 and 1 are the centres of
        the first and last element, or without `align_corners` their outer edges."""
        g, size = self.g, self.extent(n)
        half, unit = self.number(0.5), self.number(1)
        shifted = g.emit("add", x, unit)
        if self.align_corners:
            return g.emit("mul", g.emit("mul", shifted, half), g.emit("sub", size, unit))
        return g.emit("mul", g.emit("sub", g.emit("mul", shifted, size), unit), half)

    def clamped(self, x: Val, n: Expr) -> Val:
        """Positions within the dimension; NaN is 0."""
        g, zero = self.g, self.number(0)
        x = g.emit("where", g.emit("isnan", x), zero, x)
        last = g.emit("sub", self.extent(n), self.number(1))
        return g.emit("minimum", g.emit("maximum", x, zero), last)

    def reflected(self, x: Val, n: Expr) -> Val:
        """Positions mirrored at the borders until they are within the dimension. Borders are the
        centres of the outer elements or, without `align_corners`, their edges."""
        g, edge = self.g, 0.0 if self.align_corners else 0.5
        span = g.emit("sub", self.extent(n), self.number(1 - 2 * edge))
        distance = g.emit("abs", g.emit("add", x, self.number(edge)))
        # Of a dimension of one element with aligned corners the span is 0, and the rest NaN.
        remainder = g.emit("mod", distance, span, fmod=1)
        turns = g.emit("floor", g.emit("div", distance, span))
        turns_even = g.emit("equal", g.emit("mod", turns, self.number(2), fmod=1), self.number(0))
        folded = g.emit("where", turns_even, remainder, g.emit("sub", span, remainder))
        return g.emit("sub", folded, self.number(edge))

    def placed(self, x: Val, n: Expr) -> Val:
        """Positions as the padding mode moves them into the dimension, if it does."""
        if self.padding == "reflection":
            return self.clamped(self.reflected(x, n), n)
        return self.clamped(x, n) if self.padding == "border" else x

    def taps(self, x: Val, n: Expr, mode: str) -> list[tuple[Val, Val | None]]:
        """(whole positions, weights) of the elements read along one dimension; None is 1."""
        g = self.g
        if mode == "nearest":
            return [(g.emit("round", self.placed(x, n)), None)]
        if mode == "linear":
            x = self.placed(x, n)  # cubic places each element that it reads
        low = g.emit("floor", x)
        t = g.emit("sub", x, low)
        if mode == "linear":
            far = g.emit("add", low, self.number(1))
            return [(low, g.emit("sub", self.number(1), t)), (far, t)]
        out: list[tuple[Val, Val | None]] = []
        for k, weight in zip((-1, 0, 1, 2), self._cubic(t), strict=True):
            out.append((self.placed(g.emit("add", low, self.number(k)), n), weight))
        return out

    def _cubic(self, t: Val) -> list[Val]:
        """The weights of the four elements around a point at t behind the second of them."""
        g, a = self.g, _CUBIC_A

        def poly(x: Val, *coefficients: float) -> Val:
            y: Val = self.number(coefficients[0])
            for c in coefficients[1:]:
                y = g.emit("add", g.emit("mul", y, x), self.number(c))
            return y

        back = g.emit("sub", self.number(1), t)
        near, far = (a + 2, -(a + 3), 0, 1), (a, -5 * a, 8 * a, -4 * a)
        unit = self.number(1)
        return [
            poly(g.emit("add", t, unit), *far),
            poly(t, *near),
            poly(back, *near),
            poly(g.emit("add", back, unit), *far),
        ]


def grid_sample(
    g: Context,
    x: Val,
    grid: Val,
    *,
    align_corners: bool = False,
    mode: str = "linear",
    padding_mode: str = "zeros",
) -> Val:
    """x [N, C, D1, ..., Dr] at the coordinates grid [N, ..., r], the last dimension first."""
    rank = g.rank(x) - 2
    if mode not in ("nearest", "linear", "cubic"):
        raise malformed(f"mode={mode!r}; expected 'nearest', 'linear' or 'cubic'")
    if padding_mode not in ("zeros", "border", "reflection"):
        modes = "'zeros', 'border' or 'reflection'"
        raise malformed(f"padding_mode={padding_mode!r}; expected {modes}")
    if rank < 1 or g.rank(grid) != rank + 2 or int_value(g.shape(grid)[-1]) not in (None, rank):
        raise malformed(f"for an operand of {g.rank(x)} dimensions, grid needs rows of {rank}")
    batch = common_extent(g.shape(x)[0], g.shape(grid)[0])
    x = g.fitted(x, (batch, *g.shape(x)[1:]))
    grid = g.fitted(grid, (batch, *g.shape(grid)[1:-1], rank))
    sampler = Sampler(g, g.dtype(grid), padding_mode, align_corners)
    samples, *points = g.shape(grid)[:-1]
    count = g.dims.product(points)
    flat = g.reshape(grid, (samples, count, rank))
    extents = g.shape(x)[2:]
    taps = []
    for axis, n in enumerate(extents):
        begin = (0, 0, rank - 1 - axis)
        column = g.emit("slice", flat, begin=begin, strides=(1, 1, 1), shape=(samples, count, 1))
        position = sampler.position(g.reshape(column, (samples, count)), n)
        taps.append(sampler.taps(position, n, mode))
    # Rows of channels: an element of the picture is one index into the first dimension.
    order = (0, *range(2, rank + 2), 1)
    rows = g.reshape(g.transpose(x, order), (g.dims.product((samples, *extents)), g.shape(x)[1]))
    total: Val | None = None
    for corner in itertools.product(*taps):
        read = read_corner(sampler, rows, corner, samples, extents, g.dtype(x))
        total = read if total is None else g.emit("add", total, read)
    assert total is not None
    channels = g.shape(x)[1]
    return g.reshape(g.transpose(total, (0, 2, 1)), (samples, channels, *points))


def read_corner(
    s: Sampler,
    rows: Val,
    corner: Sequence[tuple[Val, Val | None]],
    samples: Expr,
    extents: Sequence[Expr],
    dtype: str,
) -> Val:
    """The weighted elements [N, points, C] at one corner; 0 outside of the picture."""
    g = s.g
    weights, hits = [], []
    batch = g.emit("arange", start=0, step=1, count=samples, dtype="int64")
    places = [g.reshape(batch, (samples, as_expr(1)))]
    for (position, part), n in zip(corner, extents, strict=True):
        inside = s.clamped(position, n)
        hits.append(g.emit("equal", inside, position))
        places.append(g.cast(inside, "int64"))
        if part is not None:
            weights.append(part)
    read = g.emit(
        "take", rows, flat_offset(g, places, (samples, *extents)), axis=0, outside="clamp"
    )
    if weights:
        weight = functools.reduce(lambda a, b: g.emit("mul", a, b), weights)
        read = g.emit("mul", read, g.cast(_column(g, weight), dtype))
    if s.padding == "zeros":
        hit = functools.reduce(lambda a, b: g.emit("logical_and", a, b), hits)
        read = g.emit("where", _column(g, hit), read, g.like(0, read))
    return read


def _column(g: Context, x: Val) -> Val:
    """[..., m] as [..., m, 1]."""
    return g.reshape(x, (*g.shape(x), 1))
