"""What a convolution computes, pixel by pixel: the plain program that `schedule.py` schedules.

Input [N][C/v][H + halo][W + halo][v] (or planar with few channels), weights packed
[OC/nr][IC/v][kh][kw][v][nr], output [N][OC/v][H + halo][W + halo][v]; v: lanes of a vector, nr:
channels of a panel. There is no boundary code because the input's halo is zero. Long sums are taken
in pieces (schedule/accumulate.py); the order of the additions depends on shapes alone.

Roles of loops: "batch", "panel", "patch" of rows or columns where the size of the image is
unknown, "strip" of rows, "row" and "column" of pixels, "piece" of a sum, "kernel_row" and
"kernel_column" of the filter, "granule" of input channels and "channel" of those; "vector", "lane",
"dot", "small_dot" and "sum" as in schedule/register_tile.py.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from tensorkiln.arith import simplify
from tensorkiln.families.conv2d.row import is_depthwise
from tensorkiln.ir.buffer import Buffer, Load, buffer
from tensorkiln.ir.expr import Expr, ExprLike, IntImm, as_expr, int_value, maximum, minimum
from tensorkiln.ir.relax import RVar
from tensorkiln.ir.stmt import Alloc, If, PrimFunc, Stmt, Store, seq
from tensorkiln.kernels.knobs import SUM_TERMS
from tensorkiln.kernels.layouts import has_float_pairs, together
from tensorkiln.kernels.small_weights import dot_role
from tensorkiln.ops.channel_window import ChannelWindow
from tensorkiln.schedule.accumulate import add_pairs, add_piece, add_product, pieces_of
from tensorkiln.schedule.build import FETCH, loop, nest, vectors
from tensorkiln.schedule.channel_blocks import ChannelBlocks, size_of
from tensorkiln.schedule.group import Group, inplace_params, view_index


class Conv(ChannelBlocks):
    """The geometry of one convolution and its operands."""

    def __init__(self, group: Group):
        super().__init__(group)
        call = self.call
        x, w = call.args[0], call.args[1]
        assert isinstance(x, RVar) and isinstance(w, RVar)
        self.x, self.w = group.buffers[x], group.buffers[w]
        self.xt, self.wt = x.tensor, w.tensor
        self.stride, self.dilation = call.attrs.strides, call.attrs.dilation
        self.pad = call.attrs.padding[:2]
        self.kernel = (size_of(self.wt.shape[2]), size_of(self.wt.shape[3]))
        self.depthwise = is_depthwise(call, self.ot)
        # Consecutive input channels that an instruction multiplies at once, and sums unless they
        # are pairs of float32 (schedule/accumulate.py).
        self.together = 1 if self.depthwise else together(self.wt, 1)
        self.in_pairs = not self.depthwise and has_float_pairs(self.wt, 1)
        axes = self.wt.memory.axes[:-1] if self.together > 1 else self.wt.memory.axes
        self.nr = 1 if self.depthwise else axes[-1].modulus
        self.set_panels(1 if self.depthwise else self.nr // self.lanes)
        self.blocked = self.xt.memory.block(1)
        self.step = 1 if self.depthwise else (axes[-2].modulus or 1) * self.together
        if self.together > 1:
            shape = (*self.wt.physical_shape[:-2], as_expr(self.nr * self.together))
            self.w = group.buffers[w] = replace(self.w, shape=shape)
        self.window = self._window()
        # Multiply-adds of one image; eight count as one scalar operation.
        self.taps = size_of(self.wt.shape[1]) * self.kernel[0] * self.kernel[1]
        self.work = self.channels * max(self.rows * self.columns, FETCH) * self.taps // 8
        # Rows and columns of the patches in which an image of unknown size is computed; 0: all.
        self.patch: tuple[int, int] = (0, 0)
        # Pixels of a register tile of such an image; 0: the schedule cuts its rows and columns.
        self.tile = 0
        # Products that one register sums.
        self.piece = SUM_TERMS
        # Whether pieces of sums are loops that the schedule moves outside of pixels.
        self.pieces_first = False

    def _window(self) -> ChannelWindow | None:
        """The range of input channels that each panel of a grouped convolution reads; None if a
        panel reads all of them, or the convolution is depthwise."""
        groups = self.call.attrs.groups
        if groups == 1 or self.depthwise:
            return None
        inputs = size_of(self.xt.shape[1]) // groups
        return ChannelWindow(groups, self.channels, inputs, *self.call.attrs.channel_window)

    def pieces(self) -> tuple[int, int, int]:
        """The pieces in which a sum of floats is added up: (granules of a piece, whole pieces,
        granules of a last short one)."""
        granules = -(-size_of(self.wt.shape[1]) // self.step)
        terms = self.step // (1 + self.in_pairs) * self.kernel[0] * self.kernel[1]
        return pieces_of(granules, terms, self.piece)

    @property
    def has_pieces(self) -> bool:
        """Whether sums are added up in several pieces."""
        if self.window is not None or self.depthwise or self.dtype.is_int:
            return False
        _, whole, tail = self.pieces()
        return whole + bool(tail) > 1

    def input(self, n: Expr, c: Expr, h: Expr, w: Expr, kh: Expr, kw: Expr) -> Load:
        """Load input channel c of image n under tap (kh, kw) of output pixel (h, w)."""
        y = h * self.stride[0] + kh * self.dilation[0] - self.pad[0]
        x = w * self.stride[1] + kw * self.dilation[1] - self.pad[1]
        return Load(self.x, tuple(map(simplify, view_index(self.xt, (n, c, y, x)))))


def conv2d_program(c: Conv) -> PrimFunc:
    """for image, panel of channels, row, column: bias + sum over the window, epilogue."""

    def pixel(n: Expr, panel: Expr, h: Expr, w: Expr, exists: Expr | None) -> Stmt:
        total = buffer("total", (c.vectors, c.lanes), c.dtype, "local")

        def start(o: Expr, lane: Expr) -> Stmt:
            return Store(total, (o, lane), c.initial(simplify(panel * c.vectors + o), lane))

        def finish(o: Expr, lane: Expr) -> Stmt:
            block = simplify(panel * c.vectors + o)
            epilogue = c.finish(Load(total, (o, lane)), n, block, lane, h, w)
            return epilogue if exists is None else If(exists, epilogue)

        sums = _PanelSums(c, n, panel, h, w).stmt(total)
        before, after = vectors("start", total.shape, start), vectors("end", total.shape, finish)
        return Alloc(total, seq(before, sums, after))

    def image(n: Expr, panel: Expr) -> Stmt:
        return seq(c.border(n, panel), _pixels(c, lambda *position: pixel(n, panel, *position)))

    body = nest(["n", "panel"], [c.ot.shape[0], c.panels], image, ["batch", "panel"])
    return PrimFunc(c.group.name, c.group.params, body, inplace=inplace_params(c.group))


# Divisions by small numbers are products with their reciprocals, scaled by this.
_SCALE = 1 << 16

# (row, column, condition that the pixel exists) -> the statement that computes it
Pixel = Callable[[Expr, Expr, Expr | None], Stmt]


def _pixels(c: Conv, body: Pixel) -> Stmt:
    """`body` at every pixel: patch by patch, if the convolution has patches."""
    sizes, extents = c.patch, (c.height, c.width)
    counts = [
        simplify((n + size - 1) // size) if size else IntImm(1)
        for n, size in zip(extents, sizes, strict=True)
    ]

    def patch(*patch_index: Expr) -> Stmt:
        first = [simplify(i * size) for i, size in zip(patch_index, sizes, strict=True)]
        rows, columns = (
            simplify(minimum(size, n - lo)) if size else n
            for n, lo, size in zip(extents, first, sizes, strict=True)
        )

        def pixel(h: Expr, w: Expr, exists: Expr | None = None) -> Stmt:
            return body(simplify(first[0] + h), simplify(first[1] + w), exists)

        if c.tile:
            return _tiles(c.tile, rows, columns, pixel)
        names, roles = ["h", "w"], ["row", "column"]
        return nest(names, [rows, columns], pixel, roles, keep=True)

    return nest(["rows", "columns"], counts, patch, ["patch"] * 2)


def _tiles(size: int, rows: Expr, columns: Expr, body: Pixel) -> Stmt:
    """`body` at every pixel of a patch, in tiles of `size` pixels of a row.

    The columns left over in each row are fewer than a tile. Their pixels, from all rows of the
    patch, are put one after the other and cut into tiles too. The last tile may have half the size,
    and fewer pixels than that: it computes the last pixel again, and does not store it.
    """
    tail_columns = simplify(columns % size)
    # place // tail_columns, by a product: exact, as a patch has few rows of fewer than `size`
    # pixels.
    inverse = (maximum(tail_columns, 1) + (_SCALE - 1)) // maximum(tail_columns, 1)
    count, half = simplify(rows * tail_columns), (size + 1) // 2
    whole = simplify((count + (size - half - 1)) // size)
    half_tiles = simplify(minimum(maximum(count - whole * size, 0), 1))

    def over(first: Expr, extent: int) -> Callable[[Expr], Stmt]:
        def pixel(q: Expr) -> Stmt:
            pixel_number = first + q
            place = minimum(pixel_number, count - 1)
            row = IntImm(0) if int_value(rows) == 1 else place * inverse // _SCALE
            column = place if int_value(rows) == 1 else place - row * tail_columns
            return body(row, simplify(columns - tail_columns) + column, pixel_number < count)

        return lambda _: loop("q", extent, pixel, "pixel", keep=True)

    def in_row(h: Expr, t: Expr, q: Expr) -> Stmt:
        return body(h, simplify(t * size + q), None)

    extents: list[ExprLike] = [rows, simplify(columns // size), size]
    return seq(
        nest(["h", "w", "q"], extents, in_row, ["", "", "pixel"], keep=True),
        loop("tile", whole, lambda t: over(t * size, size)(t), keep=True),
        loop("last", half_tiles, over(whole * size, half), keep=True),
    )


@dataclass(frozen=True, slots=True)
class _PanelSums:
    """The sums of one panel of channels of one pixel."""

    c: Conv
    n: Expr
    panel: Expr
    h: Expr
    w: Expr

    def stmt(self, total: Buffer) -> Stmt:
        """Add every term to `total`: in one loop nest, or piece by piece."""
        c = self.c
        if c.window is not None:  # a grouped convolution reads a range of the input's channels
            first, count = c.window.start(self.panel), c.window.count(self.panel)
            return self._all_taps(total, simplify(count), simplify(first))
        if c.depthwise:
            return self._taps(total, IntImm(0), 1, IntImm(0))
        if not c.has_pieces:
            return self._all_taps(total, -(-size_of(c.wt.shape[1]) // c.step), IntImm(0))
        size, whole, tail_size = c.pieces()
        add = add_pairs if c.in_pairs else add_piece

        def piece(i: Expr, count: int) -> Stmt:
            lo = simplify(i * size)
            return add(total, lambda part: self._taps(part, lo, count, IntImm(0)))

        def last(_: Expr) -> Stmt:
            return piece(as_expr(whole), tail_size)

        keep = c.pieces_first
        pieces = loop("piece", whole, lambda i: piece(i, size), "piece", keep=keep)
        return seq(pieces, loop("last", 1, last, "piece", keep=keep) if tail_size else None)

    def _all_taps(self, total: Buffer, count: ExprLike, first: Expr) -> Stmt:
        """Add the terms of all `count` granules to `total`, as `_taps`."""
        if not self.c.in_pairs:
            return self._taps(total, IntImm(0), count, first)
        return add_pairs(total, lambda part: self._taps(part, IntImm(0), count, first))

    def _taps(self, acc: Buffer, lo: Expr, count: ExprLike, first: Expr) -> Stmt:
        """Add the terms of `count` granules, of `c.step` input channels each, from granule `lo` of
        the weights on. Granule 0 of the weights reads granule `first` of the input."""
        c = self.c
        width = c.lanes // (1 + c.in_pairs)

        def term(g: Expr, kh: Expr, kw: Expr, ci: Expr, o: Expr, lane: Expr, b: Expr) -> Stmt:
            granule = simplify(lo + g)
            lanes = (o * width + lane) * c.together + b
            if c.depthwise:
                channel, weight = self.panel * c.lanes + lane, (self.panel, kh, kw, IntImm(0), lane)
            else:
                channel = (granule + first) * c.step + ci * c.together + b
                tap = (kh, kw, ci) if c.blocked > 1 else (kh, kw)
                weight = (self.panel, granule, *tap, lanes)
            x = c.input(self.n, simplify(channel), self.h, self.w, kh, kw)
            place = (o, lane * 2 + b if c.in_pairs else lane)
            return add_product(acc, place, x, Load(c.w, tuple(map(simplify, weight))))

        names = ["g", "kh", "kw", "c", "o", "l", "b"]
        extents = [count, *c.kernel, c.step // c.together, acc.shape[0], width, c.together]
        roles = ["granule", "kernel_row", "kernel_column", "channel", "vector", "lane"]
        return nest(names, extents, term, [*roles, dot_role(c.call)])
