"""What a transposed convolution computes, phase by phase: the plain program that `schedule.py`
schedules.

Input [N][C/v][H + halo][W + halo][v], weights packed [OC/nr][IC/v][kh][kw][v][nr], output
[N][OC/v][H + halo][W + halo][v]; v: lanes of a vector, nr: channels of a panel. Pixel (q, p) of
phase (r, c) is pixel (stride * q + r, stride * p + c) of the output. Phases that sum as many taps,
of the same pixels, are one loop. There is no boundary code because the input's halo is zero. Long
sums are taken in pieces (accumulate.py).

Roles of loops: "batch", "panel", "phase", "row" and "column" of a phase's pixels, "channel" of the
input; "vector" and "lane" as in register_tile.py.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

from tensorkiln.arith import simplify
from tensorkiln.ir.buffer import Buffer, Load, buffer
from tensorkiln.ir.expr import Expr, IntImm, as_expr
from tensorkiln.ir.relax import RVar
from tensorkiln.ir.stmt import Alloc, PrimFunc, Stmt, Store, seq
from tensorkiln.ops.transposed import Phases, phases_of
from tensorkiln.schedule.accumulate import add_piece, add_product, pieces_of
from tensorkiln.schedule.build import FETCH, loop, nest, vectors
from tensorkiln.schedule.channel_blocks import ChannelBlocks, size_of
from tensorkiln.schedule.group import Group, inplace_params, view_index


@dataclass(frozen=True, slots=True)
class Part:
    """Neighbouring phases along one dimension that are computed alike: `first` to `first + number`,
    of `count` elements each, which sum `taps` terms from input `source` + q down; the first of them
    has tap `tap` + (phase - first), each next one `stride` more."""

    first: int
    number: int
    count: int
    taps: int
    source: int
    tap: int

    @property
    def alike(self) -> tuple[int, int, int]:
        """What phases of one part have in common."""
        return self.count, self.taps, self.source


def parts_of(p: Phases, size: int) -> list[Part]:
    """The parts of a result of `size` elements."""
    found: list[Part] = []
    for r in range(min(p.stride, size)):
        new = Part(r, 1, p.places(r, size), p.taps(r), p.input(r), p.tap(r))
        old = found[-1] if found else new
        if old.tap + old.number == new.tap and old.alike == new.alike:
            found[-1] = replace(old, number=old.number + 1)
        else:
            found.append(new)
    return found


class Transposed(ChannelBlocks):
    """The geometry of one transposed convolution and its operands."""

    def __init__(self, group: Group):
        super().__init__(group)
        x, w = self.call.args[:2]
        assert isinstance(x, RVar) and isinstance(w, RVar)
        self.x, self.w = group.buffers[x], group.buffers[w]
        self.xt, self.wt = x.tensor, w.tensor
        axes = self.wt.memory.axes
        self.nr, self.step = axes[-1].modulus, axes[-2].modulus
        self.set_panels(self.nr // self.lanes)
        self.granules = -(-size_of(self.wt.shape[0]) // self.step)
        self.pair = phases_of(self.wt, self.call.attrs)
        sizes = zip(self.pair, (self.height, self.width), strict=True)
        self.rows, self.columns = (parts_of(p, size) for p, size in sizes)
        taps = self.granules * self.step * self.pair[0].kernel * self.pair[1].kernel
        pixels = max(size_of(self.xt.shape[2]) * size_of(self.xt.shape[3]), FETCH)
        # Multiply-adds of one image; eight count as one scalar operation.
        self.work = self.channels * pixels * taps // 8

    def parts(self) -> list[tuple[str, Part, Part]]:
        """Parts of rows and of columns in the order in which they are computed, each with what is
        appended to the names of its buffers."""
        pairs = [(rows, columns) for rows in self.rows for columns in self.columns]
        several = len(pairs) > 1
        return [(str(k) if several else "", *pair) for k, pair in enumerate(pairs)]

    def pieces(self, rows: Part, columns: Part) -> tuple[int, int, int]:
        """The pieces of a sum: granules of each, how many, and granules of a last short one."""
        taps = rows.taps * columns.taps
        return pieces_of(self.granules, self.step * taps) if taps else (0, 0, 0)

    def registers(self, number: str, rows: Part, columns: Part) -> str:
        """The buffer that holds the sums of a part while terms are added."""
        _, whole, rest = self.pieces(rows, columns)
        return ("part" if whole + bool(rest) > 1 else "total") + number


def transposed_program(c: Transposed) -> PrimFunc:
    """for image, panel of channels, phase, row, column: bias + sum over the taps, epilogue."""

    def phase(n: Expr, panel: Expr, number: str, rows: Part, columns: Part) -> Stmt:
        def pixel(r: Expr, s: Expr, h: Expr, w: Expr) -> Stmt:
            return _Pixel(c, n, panel, number, rows, columns, r, s, h, w).stmt()

        names, roles = ["r", "s", "h", "w"], ["phase", "phase", "row", "column"]
        extents = [rows.number, columns.number, rows.count, columns.count]
        return nest(names, extents, pixel, roles, keep=True)

    def image(n: Expr, panel: Expr) -> Stmt:
        return seq(c.border(n, panel), *(phase(n, panel, *part) for part in c.parts()))

    body = nest(["n", "panel"], [c.ot.shape[0], c.panels], image, ["batch", "panel"], keep=True)
    return PrimFunc(c.group.name, c.group.params, body, inplace=inplace_params(c.group))


@dataclass(frozen=True, slots=True)
class _Pixel:
    """One panel of channels of pixel (h, w) of phase (r, s) of its part."""

    c: Transposed
    n: Expr
    panel: Expr
    number: str
    rows: Part
    columns: Part
    r: Expr
    s: Expr
    h: Expr
    w: Expr

    def stmt(self) -> Stmt:
        """Its sum and what is stored of it."""
        c, (ph, pw) = self.c, self.c.pair
        total = buffer(f"total{self.number}", (c.vectors, c.lanes), c.dtype, "local")
        y = simplify(self.h * ph.stride + self.r + self.rows.first)
        x = simplify(self.w * pw.stride + self.s + self.columns.first)

        def block(o: Expr) -> Expr:
            return simplify(self.panel * c.vectors + o)

        def start(o: Expr, lane: Expr) -> Stmt:
            return Store(total, (o, lane), c.initial(block(o), lane))

        def finish(o: Expr, lane: Expr) -> Stmt:
            return c.finish(Load(total, (o, lane)), self.n, block(o), lane, y, x)

        before, after = vectors("start", total.shape, start), vectors("end", total.shape, finish)
        return Alloc(total, seq(before, self.sums(total), after))

    def sums(self, total: Buffer) -> Stmt | None:
        """Add every term to `total`: in one loop nest, or piece by piece."""
        c = self.c
        size, whole, rest = c.pieces(self.rows, self.columns)
        if whole + bool(rest) < 2:
            return self.terms(total, IntImm(0), c.granules) if size else None

        def piece(i: Expr, count: int) -> Stmt:
            lo = simplify(i * size)
            terms = partial(self.terms, lo=lo, count=count)
            return add_piece(total, terms, f"part{self.number}")

        pieces = loop("piece", whole, lambda i: piece(i, size))
        return seq(pieces, piece(as_expr(whole), rest) if rest else None)

    def terms(self, acc: Buffer, lo: Expr, count: int) -> Stmt:
        """Add the terms of `count` granules of input channels from granule `lo` on."""
        c, (ph, pw) = self.c, self.c.pair

        def term(g: Expr, i: Expr, j: Expr, ci: Expr, o: Expr, lane: Expr) -> Stmt:
            granule = simplify(lo + g)
            at = (
                self.n,
                simplify(granule * c.step + ci),
                self.h + self.rows.source - i,
                self.w + self.columns.source - j,
            )
            x = Load(c.x, tuple(map(simplify, view_index(c.xt, at))))
            tap = self.r + self.rows.tap + i * ph.stride, self.s + self.columns.tap + j * pw.stride
            weight = (self.panel, granule, *map(simplify, tap), ci, simplify(o * c.lanes + lane))
            return add_product(acc, (o, lane), x, Load(c.w, weight))

        names = ["g", "i", "j", "c", "o", "l"]
        extents = [count, self.rows.taps, self.columns.taps, c.step, c.vectors, c.lanes]
        return nest(names, extents, term, ["", "", "", "channel", "vector", "lane"])
