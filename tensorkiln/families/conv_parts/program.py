"""What a convolution in parts computes: the plain program that `schedule.py` schedules.

Input [N][C/v][H + halo][W + halo][v], weights packed [OC/nr][IC/v][kh][kw][v][nr], output
[N][OC/v][H + halo][W + halo][v]; v: lanes of a vector, nr: channels of a panel. The parts of rows
and columns (row.py) are loops of their own. There is no boundary code: what a sum reads is inside
the image or in its halo of zeros. Long sums are taken in pieces (schedule/accumulate.py).

Roles of loops: "batch", "panel", "phase", "row" and "column" of a phase's pixels in sums,
"total_row" and "total_column" around them, "channel" of the input; "vector" and "lane" as in
schedule/register_tile.py.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from tensorkiln.arith import simplify
from tensorkiln.base.dataclass import dataclass
from tensorkiln.families.conv_parts.row import Part, dilated_parts, phase_parts
from tensorkiln.ir.buffer import Buffer, Load, buffer
from tensorkiln.ir.expr import Expr, IntImm, as_expr
from tensorkiln.ir.relax import RVar
from tensorkiln.ir.stmt import Alloc, PrimFunc, Stmt, Store, seq
from tensorkiln.ops.transposed import phases_of
from tensorkiln.schedule.accumulate import add_piece, add_product, pieces_of
from tensorkiln.schedule.build import FETCH, loop, nest, vectors
from tensorkiln.schedule.channel_blocks import ChannelBlocks, size_of
from tensorkiln.schedule.group import Group, inplace_params, view_index

# An image part of more bytes does not stay in a second-level cache beside the weights; totals of
# fewer bytes do. With fewer panels, threads share rows.
_IMAGE, _TOTALS, _PANELS = 1 << 18, 1 << 17, 8


class ConvParts(ChannelBlocks):
    """The geometry of one convolution and its operands."""

    def __init__(self, group: Group):
        super().__init__(group)
        x, w = self.call.args[:2]
        assert isinstance(x, RVar) and isinstance(w, RVar)
        self.x, self.w = group.buffers[x], group.buffers[w]
        self.xt, self.wt = x.tensor, w.tensor
        axes = self.wt.memory.axes
        self.nr, self.step = axes[-1].modulus, axes[-2].modulus
        self.set_panels(self.nr // self.lanes)
        self.granules = -(-size_of(self.xt.shape[1]) // self.step)
        if self.call.op == "conv2d":
            self.row_parts, self.column_parts = dilated_parts(self.call, self.ot)
        else:
            pair = phases_of(self.wt, self.call.attrs)
            sizes = zip(pair, (self.rows, self.columns), strict=True)
            self.row_parts, self.column_parts = (phase_parts(p, size) for p, size in sizes)
        parts_by_dim = (self.row_parts, self.column_parts)
        terms = [sum(p.number * p.count * p.taps for p in d) for d in parts_by_dim]
        # Multiply-adds of one image; eight count as one scalar operation.
        taps = max(terms[0] * terms[1], FETCH)
        self.work = self.channels * self.granules * self.step * taps // 8

    def parts(self) -> list[tuple[str, Part, Part]]:
        """Parts of rows and of columns in the order in which they are computed, each with a suffix
        for the names of its buffers."""
        pairs = [(rows, columns) for rows in self.row_parts for columns in self.column_parts]
        several = len(pairs) > 1
        return [(str(k) if several else "", *pair) for k, pair in enumerate(pairs)]

    def pieces(self, rows: Part, columns: Part) -> tuple[int, int, int]:
        """(granules of a piece of a sum, whole pieces, granules of a last short one)"""
        taps = rows.taps * columns.taps
        return pieces_of(self.granules, self.step * taps) if taps else (0, 0, 0)

    def has_outer_pieces(self, rows: Part, columns: Part) -> bool:
        """Whether each piece of the sum is added for all pixels before the next piece. So if the
        image that a sum reads does not stay in the cache from one pixel to the next, but the totals
        do."""
        _, whole, tail_size = self.pieces(rows, columns)
        totals = rows.count * columns.count * self.vectors * self.lanes * self.dtype.bytes
        image = self.granules * self.step * rows.count * columns.count * self.dtype.bytes
        fits = totals <= _TOTALS and self.panels >= _PANELS
        return whole + bool(tail_size) > 1 and image > _IMAGE and fits

    def nests(self, rows: Part, columns: Part) -> int:
        """How many loop nests compute the sums of a part's pixels."""
        _, whole, tail_size = self.pieces(rows, columns)
        return 2 if tail_size and whole and self.has_outer_pieces(rows, columns) else 1

    def registers(self, number: str, rows: Part, columns: Part) -> str:
        """The buffer that holds the sums of a part while terms are added."""
        _, whole, tail_size = self.pieces(rows, columns)
        return ("part" if whole + bool(tail_size) > 1 else "total") + number


def conv_parts_program(c: ConvParts) -> PrimFunc:
    """for image, panel of channels, phase, row, column: bias + sum over the taps, epilogue."""

    def phase(n: Expr, panel: Expr, number: str, rows: Part, columns: Part) -> Stmt:
        def sums(r: Expr, s: Expr) -> Stmt:
            return _Phase(c, n, panel, number, rows, columns, r, s).stmt()

        extents = [rows.number, columns.number]
        return nest(["r", "s"], extents, sums, ["phase", "phase"], keep=True)

    def image(n: Expr, panel: Expr) -> Stmt:
        return seq(c.border(n, panel), *(phase(n, panel, *part) for part in c.parts()))

    body = nest(["n", "panel"], [c.ot.shape[0], c.panels], image, ["batch", "panel"], keep=True)
    return PrimFunc(c.group.name, c.group.params, body, inplace=inplace_params(c.group))


@dataclass(frozen=True, slots=True)
class _Phase:
    """One panel of channels of phase (r, s) of a part."""

    c: ConvParts
    n: Expr
    panel: Expr
    number: str
    rows: Part
    columns: Part
    r: Expr
    s: Expr

    def stmt(self) -> Stmt:
        """Every pixel; where pieces of sums are outermost, all pixels of one, then of the next."""
        if not self.c.has_outer_pieces(self.rows, self.columns):
            return self.pixels("", self.pixel)
        extents = (self.rows.count, self.columns.count, self.c.vectors, self.c.lanes)
        total = self.buffer(*extents)
        before = self.pixels("total_", lambda h, w: self.start(total, (h, w)))
        after = self.pixels("total_", lambda h, w: self.finish(total, (h, w), h, w))
        return Alloc(total, seq(before, self.pieces(total), after))

    def pixels(self, role: str, body: Callable[[Expr, Expr], Stmt]) -> Stmt:
        """`body` for every row and column, in loops whose roles begin with `role`."""
        extents = [self.rows.count, self.columns.count]
        return nest(["h", "w"], extents, body, [f"{role}row", f"{role}column"], keep=True)

    def pixel(self, h: Expr, w: Expr) -> Stmt:
        """The sum of pixel (h, w) and what is stored of it."""
        total = self.buffer(self.c.vectors, self.c.lanes)
        after = self.finish(total, (), h, w)
        return Alloc(total, seq(self.start(total, ()), self.sums(total, h, w), after))

    def buffer(self, *shape: int) -> Buffer:
        """Totals of this part."""
        return buffer(f"total{self.number}", shape, self.c.dtype, "local")

    def start(self, total: Buffer, place: tuple[Expr, ...]) -> Stmt:
        """The vectors of `total` at a place, before anything is added."""

        def store(o: Expr, lane: Expr) -> Stmt:
            return Store(total, (*place, o, lane), self.c.initial(self.block(o), lane))

        return vectors("start", (self.c.vectors, self.c.lanes), store)

    def finish(self, total: Buffer, place: tuple[Expr, ...], h: Expr, w: Expr) -> Stmt:
        """Store pixel (h, w)."""
        c, rows, columns = self.c, self.rows, self.columns
        y = simplify(h * rows.step + self.r + rows.first)
        x = simplify(w * columns.step + self.s + columns.first)

        def store(o: Expr, lane: Expr) -> Stmt:
            value = Load(total, (*place, o, lane))
            return c.finish(value, self.n, self.block(o), lane, y, x)

        return vectors("end", (c.vectors, c.lanes), store)

    def block(self, o: Expr) -> Expr:
        """The channel block of vector `o`."""
        return simplify(self.panel * self.c.vectors + o)

    def sums(self, total: Buffer, h: Expr, w: Expr) -> Stmt | None:
        """Add every term of a pixel to `total`: in one loop nest, or piece by piece."""
        c = self.c
        size, whole, tail_size = c.pieces(self.rows, self.columns)
        if whole + bool(tail_size) < 2:
            return self.terms(total, h, w, IntImm(0), c.granules) if size else None
        return self.pieces(total, h, w)

    def pieces(self, total: Buffer, *pixel: Expr) -> Stmt:
        """Add every term of a pixel, of all pixels if none is given, piece by piece."""
        size, whole, tail_size = self.c.pieces(self.rows, self.columns)

        def one(lo: Expr, count: int, h: Expr, w: Expr) -> Stmt:
            terms = partial(self.terms, h=h, w=w, lo=lo, count=count)
            return add_piece(total, terms, f"part{self.number}", () if pixel else (h, w))

        def piece(i: Expr, count: int) -> Stmt:
            lo = simplify(i * size)
            if pixel:
                return one(lo, count, *pixel)
            return self.pixels("", lambda h, w: one(lo, count, h, w))

        pieces = loop("piece", whole, lambda i: piece(i, size))
        return seq(pieces, piece(as_expr(whole), tail_size) if tail_size else None)

    def terms(self, acc: Buffer, h: Expr, w: Expr, lo: Expr, count: int) -> Stmt:
        """Add the terms of `count` granules of input channels from granule `lo` on."""
        c, rows, columns = self.c, self.rows, self.columns

        def term(g: Expr, i: Expr, j: Expr, ci: Expr, o: Expr, lane: Expr) -> Stmt:
            granule = simplify(lo + g)
            x_index = (
                self.n,
                simplify(granule * c.step + ci),
                h * rows.source_step + rows.source + i * rows.source_tap,
                w * columns.source_step + columns.source + j * columns.source_tap,
            )
            x = Load(c.x, tuple(map(simplify, view_index(c.xt, x_index))))
            kh = simplify(self.r + rows.tap + i * rows.tap_step)
            kw = simplify(self.s + columns.tap + j * columns.tap_step)
            weight = (self.panel, granule, kh, kw, ci, simplify(o * c.lanes + lane))
            return add_product(acc, (o, lane), x, Load(c.w, weight))

        names = ["g", "i", "j", "c", "o", "l"]
        extents = [count, rows.taps, columns.taps, c.step, c.vectors, c.lanes]
        return nest(names, extents, term, ["", "", "", "channel", "vector", "lane"])
