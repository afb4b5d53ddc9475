"""Layout changes of images of unknown size: between row-major ones, with or without a halo, and
blocks of channels.

    for image, block of channels, row, tile of columns:
        rows[l, w] = x[.., l, .., w]               l: channels of the block
        columns[w, l] = rows[l, w]                 transposed in registers
        out[.., w, l] = columns[w, l]

From blocks to rows, rows and columns change places. Tiles have as many columns as a vector has
elements, then 4; what is left over is moved one by one. Rows that stay rows are copied in
vectors.

Roles of loops: "task", over images and their channels; "turned" of a transposition; "step", which
is unrolled; "column", which is cut into vectors; "lane".
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

from tensorkiln.arith import simplify
from tensorkiln.ir.buffer import Load, buffer
from tensorkiln.ir.expr import Expr, IntImm, Var, const, int_value
from tensorkiln.ir.stmt import PrimFunc, Stmt, Store, seq
from tensorkiln.ir.visit import walk
from tensorkiln.kernels.estimates import expected
from tensorkiln.schedule.access import has_vector_loads, lane_bounds, lane_stride, simplify_value
from tensorkiln.schedule.build import PARALLEL_WORK, loop, nest, within, zero_border
from tensorkiln.schedule.group import Group, view_index
from tensorkiln.schedule.intrin.transpose import transpose_name
from tensorkiln.schedule.primitives import Schedule
from tensorkiln.schedule.register_tile import share
from tensorkiln.target import Target

# Most columns of a tile: its vectors are then half of the registers of processors with 32.
_LARGEST, _SMALL = 16, 4


def schedule(group: Group, target: Target, check: bool = False) -> Schedule | None:
    """A layout change of images of unknown size, and elementwise work before it; None where
    neither rows nor channels of what is read are adjacent."""
    images = _Images(group, target)
    form = images.form()
    if form is None:
        return None
    s = Schedule(_program(images, form), check)
    for columns in s.loops(role="column"):
        if images.lanes > 1 and s.reaches(columns, images.lanes):
            s.vectorize(s.split(columns, images.lanes, tail="peel").inner)
    for turned in s.loops(role="turned"):
        (inner,) = s.children(turned)
        rows, columns = (int_value(s.loop(x).extent) for x in (inner, turned))
        assert rows is not None and columns is not None
        s.tensorize(turned, transpose_name(rows, columns, group.out.dtype.name))
    for lane in s.loops(role="lane"):
        s.vectorize(lane)
    for step in s.loops(role="step"):
        s.unroll(step)
    if target.has_threads and images.work > PARALLEL_WORK:
        for outer in [x for x in s.loops(role="task") if s.parent(x) is None]:
            share(s, [outer, *s.children(outer)])
    return s


class _Images:
    """The elements that are moved, and the blocks of channels that they are in."""

    def __init__(self, group: Group, target: Target):
        self.group, self.t = group, group.out_type
        self.value = group.element(group.out_var)
        self.lanes = target.vector_lanes("float32")
        self.channels = int_value(self.t.shape[1]) or 0
        self.work = 2 * self.channels * math.prod(map(expected, self.t.shape[2:]))

    def form(self) -> str | None:
        """What happens to rows: they stay "rows", are transposed "to_blocks", or come out of
        blocks, "to_rows". None if neither rows nor channels are adjacent."""
        blocked = self.t.memory.block(1) > 1
        n, b, h, w, lane = (Var(name) for name in ("n", "b", "h", "w", "l"))
        value = self.at(n, b, lane, h, w)
        loads = [x for x in walk(value) if isinstance(x, Load)]
        if has_vector_loads(value, w):
            return "to_blocks" if blocked else "rows"
        if blocked or not loads or not has_vector_loads(value, lane):
            return None
        # Lanes past the last channel are read, so they must be part of what is read.
        whole = all(
            lane_stride(x, lane) == 0
            or (len(x.buffer.shape) == 5 and int_value(x.buffer.shape[-1]) == self.lanes)
            for x in loads
        )
        return "to_rows" if whole else None

    def at(self, n: Expr, block: Expr, lane: Expr, h: Expr, w: Expr) -> Expr:
        """The element of the channel in a lane of a block, at a row and column."""
        bounds = lane_bounds(lane, self.lanes)
        channel = simplify(block * self.lanes + lane, bounds)
        return simplify_value(self.value(n, channel, h, w), bounds)

    def place(self, n: Expr, block: Expr, lane: Expr, h: Expr, w: Expr) -> tuple[Expr, ...]:
        """The index of that element in the result."""
        bounds = lane_bounds(lane, self.lanes)
        channel = simplify(block * self.lanes + lane, bounds)
        return tuple(simplify(i, bounds) for i in view_index(self.t, (n, channel, h, w)))

    def blocks(self) -> Iterator[tuple[int, int, int]]:
        """(first block, number of blocks, channels of each): whole blocks, then a partial one."""
        whole, tail_channels = divmod(self.channels, self.lanes)
        if whole:
            yield 0, whole, self.lanes
        if tail_channels:
            yield whole, 1, tail_channels


def _program(c: _Images, form: str) -> PrimFunc:
    group, t = c.group, c.t
    images, height = t.shape[0], t.shape[2]
    out = group.out

    def planes(n: Expr, c0: Expr) -> Stmt:
        def row(h: Expr, w: Expr) -> Stmt:
            index = (n, c0, h, w)
            return Store(out, group.store_index(index), simplify_value(c.value(*index), {}))

        border = zero_border(out, t, (n, c0))
        return seq(border, nest(["h", "w"], t.shape[2:], row, ["", "column"], keep=True))

    if form == "rows":
        body = nest(["n", "c"], [images, c.channels], planes, ["task"] * 2, keep=True)
        return PrimFunc(group.name, group.params, body)

    def block(first: int, valid: int) -> Callable[[Expr, Expr], Stmt]:
        def one(n: Expr, b: Expr) -> Stmt:
            block = simplify(b + first)
            rows = loop("h", height, lambda h: _row(c, form, n, block, h, valid), keep=True)
            if form == "to_blocks":
                return seq(zero_border(out, t, (n, block)), rows)
            if not t.memory.halo(2) and not t.memory.halo(3):
                return rows

            def border(lane: Expr) -> Stmt:
                return seq(zero_border(out, t, (n, simplify(block * c.lanes + lane))))

            return seq(loop("c", valid, border), rows)

        return one

    parts = [
        nest(["n", "b"], [images, count], block(first, valid), ["task"] * 2, keep=True)
        for first, count, valid in c.blocks()
    ]
    return PrimFunc(group.name, group.params, seq(*parts))


def _row(c: _Images, form: str, n: Expr, b: Expr, h: Expr, valid: int) -> Stmt:
    """All columns of a row, in tiles and one by one."""
    width, sizes = c.t.shape[3], sorted({min(c.lanes, _LARGEST), min(c.lanes, _SMALL)})
    parts: list[Stmt] = []
    start: Expr = IntImm(0)
    for size in reversed(sizes):
        tiles = simplify((width - start) // size)
        parts.append(_tiles(c, form, n, b, h, valid, start, tiles, size))
        start = simplify(start + tiles * size)

    def single(w: Expr) -> Stmt:
        column = simplify(start + w)

        def element(lane: Expr) -> Stmt:
            return Store(c.group.out, c.place(n, b, lane, h, column), c.at(n, b, lane, h, column))

        def zero(lane: Expr) -> Stmt:
            padding = const(0, c.group.out.dtype)
            return Store(c.group.out, c.place(n, b, simplify(lane + valid), h, column), padding)

        padding = loop("m", c.lanes - valid, zero) if form == "to_blocks" else None
        return seq(loop("l", valid, element, keep=True), padding)

    tail_loop = loop("w", simplify(width - start), single, keep=True)
    return seq(*parts, tail_loop)


def _tiles(
    c: _Images,
    form: str,
    n: Expr,
    b: Expr,
    h: Expr,
    valid: int,
    start: Expr,
    tiles: Expr,
    size: int,
) -> Stmt:
    dtype, to_blocks = c.group.out.dtype, form == "to_blocks"
    channels, out = c.lanes, c.group.out
    shape = (channels, size) if to_blocks else (size, channels)

    def tile(i: Expr) -> Stmt:
        rows = buffer("rows", shape, dtype, "register")
        columns = buffer("columns", shape[::-1], dtype, "register")
        first = simplify(start + i * size)

        def read(r: Expr, k: Expr) -> Stmt:
            lane, w = (r, k) if to_blocks else (k, r)
            return Store(rows, (r, k), c.at(n, b, lane, h, simplify(first + w)))

        def write(r: Expr, k: Expr) -> Stmt:
            lane, w = (k, r) if to_blocks else (r, k)
            value = Load(columns, (r, k))
            return Store(out, c.place(n, b, lane, h, simplify(first + w)), value)

        missing = None
        if to_blocks:
            zero = const(0, dtype)
            missing = loop(
                "m",
                channels - valid,
                lambda m: loop("l", size, lambda k: Store(rows, (m + valid, k), zero), "lane"),
                "step",
            )
        some = valid if to_blocks else size
        return within(
            [rows, columns],
            nest(["r", "l"], [some, size if to_blocks else channels], read, ["step", "lane"]),
            missing,
            nest(
                ["p", "q"],
                shape[::-1],
                lambda p, q: Store(columns, (p, q), Load(rows, (q, p))),
                ["turned", ""],
            ),
            nest(
                ["s", "l"],
                [size if to_blocks else valid, channels if to_blocks else size],
                write,
                ["step", "lane"],
            ),
        )

    return loop("tile", tiles, tile, keep=True)
