"""What a convolution in parts computes: the plain program that `schedule.py` schedules.

Input [N][C/v][H + halo][W + halo][v], weights packed [OC/nr][IC/v][kh][kw][v][nr], output
[N][OC/v][H + halo][W + halo][v]; v: lanes of a vector, nr: channels of a panel. The parts of rows
and columns (row.py) are loops of their own. There is no boundary code: what a sum reads is inside
the image or in its halo of zeros. Long sums are taken in pieces (schedule/accumulate.py).

Where the image or the weights of a panel do not stay in a cache, several parts of several panels
are computed together, each piece of their sums for all pixels before the next piece:

    for group of panels:
        total = bias                              panels, pixels of all parts
        for piece:                                some channels of the input
            for panel: for part: for pixel: total += sum over the piece
        output = total

What a piece reads of the image then stays in the second-level cache, its weights of a panel in the
first. DeepLabV3's dilations of 12, 24 and 36 (2048 channels, 28 x 28 pixels) take 0.28, 0.16 and
0.32 of the time of the former order beside other processes (EPYC, Zen 3, one thread).

Roles of loops: "batch", "group" of panels, "panel", "phase", "piece", "image" of a batch inside of
pieces, "row" and "column" of a phase's pixels in sums, "total_row" and "total_column" around them,
"channel" of the input; "vector" and "lane" as in schedule/register_tile.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import prod

from tensorkiln.arith import simplify
from tensorkiln.families.conv_parts.row import Part, dilated_parts, phase_parts
from tensorkiln.ir.buffer import Buffer, Load, buffer
from tensorkiln.ir.expr import Expr, IntImm, as_expr, int_value, minimum
from tensorkiln.ir.relax import RVar
from tensorkiln.ir.stmt import Alloc, PrimFunc, Stmt, Store, seq
from tensorkiln.kernels.knobs import MOST_ON_STACK, SUM_TERMS
from tensorkiln.ops.transposed import phases_of
from tensorkiln.schedule.accumulate import add_piece, add_product, pieces_of
from tensorkiln.schedule.build import FETCH, loop, nest, vectors, within
from tensorkiln.schedule.channel_blocks import ChannelBlocks, size_of
from tensorkiln.schedule.group import Group, inplace_params, view_index
from tensorkiln.schedule.register_tile import FEW_TASKS
from tensorkiln.target.registers import has_few_registers

# The panels of a group that read one image, where there are groups for all threads.
_GROUP = 2


@dataclass(frozen=True, slots=True)
class PartSet:
    """Parts, each with a suffix for the names of its buffers, that are computed together: each
    piece of the sums, of `granules` blocks of input channels, for all pixels before the next piece;
    0: the sums of a pixel are finished before the next pixel."""

    parts: tuple[tuple[str, Part, Part], ...]
    granules: int

    @property
    def pixels(self) -> int:
        """The pixels of the output that the parts have."""
        return sum(prod((r.number, r.count, s.number, s.count)) for _, r, s in self.parts)

    @property
    def by_dimension(self) -> tuple[list[Part], list[Part]]:
        """The parts of rows and of columns."""
        return [rows for _, rows, _ in self.parts], [columns for *_, columns in self.parts]

    @property
    def taps(self) -> int:
        """The most taps that a sum has."""
        return max(rows.taps * columns.taps for _, rows, columns in self.parts)


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
        self.panel_bytes = self.nr * self.dtype.bytes  # of one term's weights, or a pixel's totals
        plane = prod(size_of(n) for n in self.xt.physical_shape[2:])
        self.image_bytes = self.granules * plane * self.dtype.bytes
        self.batch = int_value(self.ot.shape[0]) or 0  # 0: unknown
        self.tasks = self.panels * max(self.batch, 1)
        self.sets = self._sets()
        in_pieces = [x for x in self.sets if x.granules]
        self.group_panels = self._group_size(in_pieces) if in_pieces else 0
        self.images = self._images(in_pieces) if in_pieces else 1
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

    def nests(self) -> Iterator[tuple[str, Part, Part]]:
        """For each loop nest that adds terms, in the order of the program: the buffer of registers
        that holds its sums, and its part of rows and of columns."""
        for x in self.sets:
            tail = x.granules and self.granules % x.granules
            for name, rows, columns in x.parts * (2 if tail else 1):
                _, whole, last = self.pieces(rows, columns)
                pieces = x.granules or whole + bool(last) > 1
                yield ("part" if pieces else "total") + name, rows, columns

    def reads_all_weights(self, x: PartSet) -> bool:
        """Whether the sums of parts take every tap."""
        taps = [
            {
                p.tap + k + p.tap_step * j
                for p in parts
                for k in range(p.number)
                for j in range(p.taps)
            }
            for parts in x.by_dimension
        ]
        return prod(map(len, taps)) == prod(size_of(n) for n in self.wt.shape[2:])

    def reads_whole_image(self, x: PartSet) -> bool:
        """Whether the sums of parts read an image from its first element in memory to the last."""
        for d, parts in enumerate(x.by_dimension, 2):
            reads = [p.reads for p in parts]
            first, last = min(lo for lo, _ in reads), max(hi for _, hi in reads)
            width = self.xt.memory.halo(d)
            if (first, last) != (-width, size_of(self.xt.shape[d]) + width - 1):
                return False
        return True

    def _sets(self) -> list[PartSet]:
        """All parts together if their totals stay in the cache, else each by itself, in pieces as
        long as there is room for the totals on the stack."""
        parts = self.parts()
        whole = self._in_pieces(parts)
        if whole.granules:
            return [whole]
        sets: list[PartSet] = []
        for part in parts:
            x = self._in_pieces([part])
            in_pieces = [y for y in (*sets, x) if y.granules]
            sets.append(x if self._have_room(in_pieces) else replace(x, granules=0))
        return sets

    def _in_pieces(self, parts: Sequence[tuple[str, Part, Part]]) -> PartSet:
        """Parts, in pieces if these are worth it: if the image does not stay in the second-level
        cache from one panel to the next, or, where few registers make small tiles, a panel's
        weights in the first-level cache from one tile to the next; but the totals do."""
        target, single = self.group.target, PartSet(tuple(parts), 0)
        terms = self.granules * self.step * single.taps
        large = self.image_bytes > target.l2_bytes // 2
        if has_few_registers(target):
            large = large or terms * self.panel_bytes > target.l1d_bytes // 2
        fits = self._have_room([single]) and self.tasks >= FEW_TASKS
        if not (large and fits and terms > SUM_TERMS):
            return single
        # A piece of the image and the totals fill half of the cache.
        totals = single.pixels * self.panel_bytes * self._group_size([single])
        space = target.l2_bytes // 2 - totals
        largest = min(
            SUM_TERMS // (self.step * single.taps), space * self.granules // self.image_bytes
        )
        return replace(single, granules=_even(self.granules, max(1, largest)))

    def _group_size(self, sets: Sequence[PartSet]) -> int:
        """The panels of a group, whose parts are computed in pieces."""
        enough = self.tasks >= _GROUP * FEW_TASKS and self.panels >= _GROUP
        return _GROUP if enough and self._have_room(sets, _GROUP) else 1

    def _images(self, sets: Sequence[PartSet]) -> int:
        """The images of a batch that read each piece of the weights in turn: all of them, or 1."""
        shared = self.panels >= FEW_TASKS * self.group_panels and self.batch > 0
        fits = self._have_room(sets, self.group_panels * self.batch)
        return self.batch if shared and fits else 1

    def _have_room(self, sets: Sequence[PartSet], copies: int = 1) -> bool:
        """Whether the totals of parts, for so many panels and images, have room: those of each set
        in a quarter of the second-level cache, and all together on the stack, whose frame has space
        for each of them."""
        sizes = [x.pixels * self.panel_bytes * copies for x in sets]
        cached = max(sizes, default=0) <= self.group.target.l2_bytes // 4
        return cached and sum(sizes) <= MOST_ON_STACK


def _even(count: int, largest: int) -> int:
    """A size of pieces, at most `largest`: one that divides `count` if it is not much smaller, as
    the last piece would be code of its own."""
    divisor = max(d for d in range(1, largest + 1) if count % d == 0)
    return divisor if 3 * divisor >= 2 * largest else min(largest, count)


def conv_parts_program(c: ConvParts) -> PrimFunc:
    """for image, panel of channels, phase, row, column: bias + sum over the taps, epilogue; or for
    group of panels, piece by piece."""

    def panel(n: Expr, p: Expr) -> Stmt:
        return seq(c.border(n, p), *(_of_panel(c, n, p, x) for x in c.sets))

    def group(n: Expr, q: Expr) -> Stmt:
        return _PanelGroup(c, n, q).stmt()

    images, groups = c.ot.shape[0], -(-c.panels // max(1, c.group_panels))
    if not c.group_panels:
        loops = nest(["n", "panel"], [images, c.panels], panel, ["batch", "panel"], keep=True)
    elif c.images > 1:
        loops = loop("group", groups, lambda q: _PanelGroup(c, None, q).stmt(), "group", keep=True)
    else:
        loops = nest(["n", "group"], [images, groups], group, ["batch", "group"], keep=True)
    return PrimFunc(c.group.name, c.group.params, loops, inplace=inplace_params(c.group))


def _of_panel(c: ConvParts, n: Expr, panel: Expr, parts: PartSet) -> Stmt:
    """Every pixel of a panel of channels, one by one."""

    def phases(number: str, rows: Part, columns: Part) -> Stmt:
        def phase(r: Expr, s: Expr) -> Stmt:
            x = _Phase(c, n, panel, number, rows, columns, r, s)
            return x.pixels("", x.pixel)

        return _phases(rows, columns, phase)

    return seq(*(phases(*part) for part in parts.parts))


def _phases(rows: Part, columns: Part, body: Callable[[Expr, Expr], Stmt]) -> Stmt:
    """`body` for every phase of a part."""
    return nest(["r", "s"], [rows.number, columns.number], body, ["phase", "phase"], keep=True)


@dataclass(frozen=True, slots=True)
class _PanelGroup:
    """A group of panels of channels, of image `n`, or of all images (None)."""

    c: ConvParts
    n: Expr | None
    number: Expr

    def stmt(self) -> Stmt:
        """The halo, then the sets of parts one after the other."""
        border = self.panels("border_", lambda n, panel, p: self.c.border(n, panel))
        return seq(border, *(self.parts(x) for x in self.c.sets))

    def panels(
        self, name: str, body: Callable[[Expr, Expr, tuple[Expr, Expr]], Stmt | None]
    ) -> Stmt:
        """`body(image, panel, their places in the group)` for every panel, then every image."""
        c, size = self.c, self.c.group_panels
        first = simplify(self.number * size)
        count = simplify(minimum(size, c.panels - first)) if c.panels % size else as_expr(size)

        def every(p: Expr, i: Expr) -> Stmt:
            n = i if self.n is None else self.n
            return seq(body(n, simplify(first + p), (p, i)))

        roles = [f"{name}panel", f"{name}image"]
        return nest(["panel", "image"], [count, as_expr(c.images)], every, roles)

    def parts(self, x: PartSet) -> Stmt:
        """The pixels of a set of parts: piece by piece, or one by one."""
        c = self.c
        if not x.granules:
            return self.panels("", lambda n, panel, p: _of_panel(c, n, panel, x))
        total = {
            number: buffer(
                f"total{number}",
                (
                    *(c.group_panels, c.images, rows.number, columns.number),
                    *(rows.count, columns.count, c.vectors, c.lanes),
                ),
                c.dtype,
                "local",
            )
            for number, rows, columns in x.parts
        }

        def pixels(
            name: str, body: Callable[[_Phase, Buffer, tuple[Expr, ...], Expr, Expr], Stmt]
        ) -> Stmt:
            def panel(n: Expr, p: Expr, place: tuple[Expr, Expr]) -> Stmt:
                def part(number: str, rows: Part, columns: Part) -> Stmt:
                    def phase(r: Expr, s: Expr) -> Stmt:
                        of = _Phase(c, n, p, number, rows, columns, r, s)

                        def pixel(h: Expr, w: Expr) -> Stmt:
                            return body(of, total[number], (*place, r, s, h, w), h, w)

                        return of.pixels(name, pixel)

                    return _phases(rows, columns, phase)

                return seq(*(part(*y) for y in x.parts))

            return self.panels(name, panel)

        def piece(i: Expr, count: int) -> Stmt:
            lo = simplify(i * x.granules)

            def add(of: _Phase, totals: Buffer, place: tuple[Expr, ...], h: Expr, w: Expr) -> Stmt:
                terms = partial(of.terms, h=h, w=w, lo=lo, count=count)
                return add_piece(totals, terms, f"part{of.number}", place)

            return pixels("", add)

        whole, tail = divmod(c.granules, x.granules)
        return within(
            list(total.values()),
            pixels("total_", lambda of, totals, place, h, w: of.start(totals, place)),
            loop("piece", whole, lambda i: piece(i, x.granules), "piece"),
            piece(as_expr(whole), tail) if tail else None,
            pixels("total_", lambda of, totals, place, h, w: of.finish(totals, place, h, w)),
        )


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

    def pixels(self, role: str, body: Callable[[Expr, Expr], Stmt]) -> Stmt:
        """`body` for every row and column, in loops whose roles begin with `role`."""
        extents = [self.rows.count, self.columns.count]
        return nest(["h", "w"], extents, body, [f"{role}row", f"{role}column"], keep=True)

    def pixel(self, h: Expr, w: Expr) -> Stmt:
        """The sum of pixel (h, w) and what is stored of it."""
        c = self.c
        total = buffer(f"total{self.number}", (c.vectors, c.lanes), c.dtype, "local")
        after = self.finish(total, (), h, w)
        return Alloc(total, seq(self.start(total, ()), self.sums(total, h, w), after))

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

        def piece(i: Expr, count: int) -> Stmt:
            terms = partial(self.terms, h=h, w=w, lo=simplify(i * size), count=count)
            return add_piece(total, terms, f"part{self.number}")

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
