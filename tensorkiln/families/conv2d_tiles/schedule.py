"""Convolutions in tiles of the processor (ir/tiles.py): two tiles of pixels by a panel of one or
two tiles of output channels.

    for image, panel, group of two tiles of pixels:
        c[2, 2] = 0
        for block of input channels, kernel_row, kernel_column:    64 bytes of channels, or fewer
            a[2] = x[pixels under the tap, block]; b[2] = w[panel, block, tap]
            c[i, j] += a[i] * b[j]
        sums = c                                memory, after the whole sum
        for pixel: bias + sums[pixel], epilogue     vectors

A row of a tile is a pixel, whose channels are a block of the layout (`channel_blocks`); the weights
are those of the vector kernel (program.py). The instruction that multiplies takes as many cycles as
the left tile has rows, and at least eight: with fewer it waits for its weights. So rows are

* pixels of a row of the image, as many as cut it evenly, of two rows for the two tiles; or
* where strides are 1, and rows are short or have no halo, pixels of the whole image with its halo,
  one after the other: sums of those in the halo are computed, and not stored.

Of pictures of few channels a row of a tile has the pixels under a row of the filter, which are
adjacent: windows that overlap. The sum is then over the rows of the filter.

Each sum is added in one order, whatever tile a pixel is in.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from tensorkiln.arith import simplify
from tensorkiln.families.conv2d.program import Conv
from tensorkiln.ir.buffer import Buffer, Load, buffer
from tensorkiln.ir.expr import Expr, ExprLike, IntImm, as_expr, int_value
from tensorkiln.ir.relax import RVar
from tensorkiln.ir.stmt import If, PrimFunc, Stmt, seq
from tensorkiln.ir.tiles import TILE_ROWS
from tensorkiln.kernels.layouts import PIXEL
from tensorkiln.schedule.build import PARALLEL_WORK, loop, nest, vectors, within
from tensorkiln.schedule.group import Group, inplace_params, static
from tensorkiln.schedule.primitives import Schedule
from tensorkiln.schedule.register_tile import FEW_TASKS, nest_of, share
from tensorkiln.schedule.register_tile import lanes as in_vectors
from tensorkiln.schedule.tile_sums import COLUMNS, TileSum, fetch_next_panels, put_in_tiles
from tensorkiln.target import Target

# Rows of an image that are shorter than this are too few for a tile each.
_SHORT = 12


@dataclass(frozen=True, slots=True)
class _Tile:
    """A tile of pixels. `place`: (row, column) of pixel i in the output, and whether it exists,
    None for always. `source`: the indices, between those of block and channel, of the input's pixel
    that lies under a tap (i, kernel row, kernel column)."""

    place: Callable[[Expr], tuple[Expr, Expr, Expr | None]]
    source: Callable[[Expr, Expr, Expr], tuple[Expr, ...]]


@dataclass(frozen=True, slots=True)
class _Pixels:
    """Groups of tiles: a group for each index of loops of these extents, whose tiles have `rows`
    pixels each."""

    extents: tuple[int, ...]
    rows: tuple[int, ...]
    tiles: Callable[..., list[_Tile]]


def schedule(group: Group, target: Target, check: bool = False) -> Schedule | None:
    """Convolution with its elementwise epilogue, on a target that multiplies tiles. None where the
    epilogue reads the input too, because tiles read it through another view."""
    call = group.anchor
    assert call is not None
    if any(call.args[0] in c.args for c in group.calls.values() if c is not call):
        return None
    c = Conv(group)
    batch = int_value(c.ot.shape[0]) or 1
    shared = target.has_threads and batch * c.work > PARALLEL_WORK
    s = Schedule(_program(c, -(-FEW_TASKS // (batch * c.panels)) if shared else 1), check=check)
    put_in_tiles(s)
    fetch_next_panels(s, c.w)
    for pixel in s.loops(role="finish"):
        in_vectors(s, pixel)
    if shared:
        strips = s.loops(role="strip")
        for inside in strips or s.loops(role="panel"):
            share(s, nest_of(s, inside))
    return s


def _program(c: Conv, tasks: int) -> PrimFunc:
    """Panel by panel, group by group. Where panels are few, the loops over groups are divided into
    `tasks` strips."""
    sums = _Sums(c)
    parts = [_rows_of(c), _whole(c)][_is_flat(c)]

    def every(body: Callable[[Expr, Expr], Stmt], role: str = "panel") -> Stmt:
        extents: list[ExprLike] = [c.ot.shape[0], c.panels]
        return nest(["n", "panel"], extents, body, ["batch", role], keep=True)

    def strips(p: _Pixels, size: int, first: int, count: int) -> Callable[[Expr, Expr], Stmt]:
        def all_of(n: Expr, panel: Expr) -> Stmt:
            def strip(t: Expr) -> Stmt:
                return sums.groups(n, panel, p, simplify(t * size + first), size)

            return loop("strip", count, strip, "strip", keep=True)

        return all_of

    if tasks == 1:
        body = every(
            lambda n, panel: seq(
                c.border(n, panel),
                *(sums.groups(n, panel, p, IntImm(0), p.extents[0]) for p in parts),
            )
        )
    else:
        stmts = [every(c.border, "")]
        for p in parts:
            size = -(-p.extents[0] // tasks)
            whole, tail_size = divmod(p.extents[0], size)
            stmts.append(every(strips(p, size, 0, whole), ""))
            if tail_size:
                stmts.append(every(strips(p, tail_size, whole * size, 1), ""))
        body = seq(*stmts)
    return PrimFunc(c.group.name, c.group.params, body, inplace=inplace_params(c.group))


class _Sums:
    """The sums of groups of pixels, and their epilogue."""

    def __init__(self, c: Conv):
        self.c, self.x, self.w = c, c.x, c.w
        self.windows = c.blocked == PIXEL
        x, w = c.call.args[:2]
        assert isinstance(x, RVar) and isinstance(w, RVar)
        n, blocks, rows, columns, lanes = c.x.shape
        if self.windows:
            row = simplify(columns * lanes)
            self.x = c.group.buffers[x] = replace(c.x, shape=(n, blocks, rows, row))
            *lead, taps, groups, lanes = c.w.shape
            shape = (*lead, simplify(taps * groups), lanes)
            self.w = c.group.buffers[w] = replace(c.w, shape=shape)
        elif _is_flat(c):
            self.x = c.group.buffers[x] = replace(
                c.x, shape=(n, blocks, simplify(rows * columns), lanes)
            )

    def groups(self, n: Expr, panel: Expr, p: _Pixels, first: Expr, count: int) -> Stmt:
        """All groups of a panel of image n; of the outermost loop over groups only `count`
        iterations from `first`."""
        c = self.c
        few, x_type, w_type = c.together, c.x.dtype, c.w.dtype
        terms = c.step * c.kernel[1] if self.windows else c.step
        t = TileSum(
            p.rows, c.nr // COLUMNS, terms // few, few, dtype=c.dtype, left=x_type, right=w_type
        )

        def group(i: Expr, *index: Expr) -> Stmt:
            tiles = p.tiles(simplify(first + i), *index)
            memory = buffer("sums", t.memory_shape, c.dtype, "local")
            epilogues = [
                self._finish(n, panel, tile, m, memory, sum(p.rows[:k]))
                for k, (tile, m) in enumerate(zip(tiles, p.rows, strict=True))
            ]
            sums = seq(t.clear(), self._terms(n, panel, t, tiles), t.write(memory))
            return within([memory], sums, *epilogues)

        extents = [count, *p.extents[1:]]
        roles = ["group"] * len(extents)
        return within(t.buffers, nest(["group"] * len(extents), extents, group, roles))

    def _terms(self, n: Expr, panel: Expr, t: TileSum, tiles: list[_Tile]) -> Stmt:
        c, few = self.c, self.c.together

        def step(g: Expr, kh: Expr, kw: Expr) -> Stmt:
            tap = (kh,) if self.windows else (kh, kw)

            def left(k: int, i: Expr, j: Expr) -> Load:
                place = tiles[k].source(i, kh, kw)
                if self.windows:
                    place, j = place[:-1], simplify(place[-1] * c.step + j)
                return Load(self.x, (n, g, *map(simplify, place), j))

            def right(o: int, i: Expr, j: Expr) -> Load:
                return Load(self.w, (panel, g, *tap, i, simplify(j + o * COLUMNS * few)))

            return t.step(left, right)

        granules = -(-static(c.wt.shape[1], "channels") // c.step)
        extents = [granules, c.kernel[0], 1 if self.windows else c.kernel[1]]
        return nest(["g", "kh", "kw"], extents, step, ["term"] * 3)

    def _finish(
        self, n: Expr, panel: Expr, tile: _Tile, rows: int, memory: Buffer, first: int
    ) -> Stmt:
        """The epilogue of each pixel of a tile, whose sums begin at row `first` of `memory`."""
        c = self.c

        def pixel(i: Expr) -> Stmt:
            h, w, exists = tile.place(i)

            def channel(o: Expr, lane: Expr) -> Stmt:
                block = simplify(panel * c.vectors + o)
                total: Expr = Load(memory, (simplify(i + first), simplify(o * c.lanes + lane)))
                if len(c.call.args) > 2:
                    total = c.initial(block, lane) + total
                return c.finish(total, n, block, lane, h, w)

            epilogue = vectors("end", (c.vectors, c.lanes), channel)
            return epilogue if exists is None else If(exists, epilogue)

        return loop("pixel", rows, pixel, "finish", keep=True)


# ---- pixels ------------------------------------------------------------------------------------


def _is_flat(c: Conv) -> bool:
    """Whether tiles of pixels cross from row to row of the image, halo included."""
    halo = c.xt.memory.halo(3)
    if c.blocked == PIXEL:
        return False
    return c.stride == (1, 1) and (c.columns < _SHORT or (halo == 0 and c.kernel[1] == 1))


def _origin(c: Conv) -> tuple[int, int]:
    """Row and column, in the input with its halo, of tap (0, 0) of output pixel (0, 0)."""
    y, x = (c.xt.memory.halo(2 + d) - c.pad[d] for d in (0, 1))
    return y, x


def _heights(extent: int) -> tuple[int, int, int]:
    """(tiles of height h, h, tiles of height h + 1): an extent cut as evenly as possible."""
    size = -(-extent // -(-extent // TILE_ROWS))
    return extent // size, size, extent % size


def _whole(c: Conv) -> list[_Pixels]:
    """The pixels of an image one after the other, halos between them."""
    wide = static(c.x.shape[3], "columns")
    y, x = _origin(c)
    dh, dw = c.dilation
    count, size, tail_size = _heights((c.rows - 1) * wide + c.columns)

    def tile(first: Expr) -> _Tile:
        def place(i: Expr) -> tuple[Expr, Expr, Expr | None]:
            q = first + i
            h, w = simplify(q // wide), simplify(q % wide)
            return h, w, None if wide == c.columns else w < c.columns

        def source(i: Expr, kh: Expr, kw: Expr) -> tuple[Expr, ...]:
            return (first + i + (kh * dh + y) * wide + kw * dw + x,)

        return _Tile(place, source)

    def pairs(i: Expr) -> list[_Tile]:
        return [tile(simplify(i * 2 * size + n * size)) for n in (0, 1)]

    parts = [_Pixels((count // 2,), (size, size), pairs)] if count > 1 else []
    last = [size] * (count % 2) + ([tail_size] if tail_size else [])
    if last:
        start = count // 2 * 2 * size

        def ends(i: Expr) -> list[_Tile]:
            return [tile(as_expr(start + sum(last[:n]))) for n in range(len(last))]

        parts.append(_Pixels((1,), tuple(last), ends))
    return parts


def _rows_of(c: Conv) -> list[_Pixels]:
    """The pixels of two rows of an image, and of the last row of an odd number."""
    count, size, tail_size = _heights(c.columns)
    y, x = _origin(c)
    (sh, sw), (dh, dw) = c.stride, c.dilation

    def tile(h: Expr, first: Expr) -> _Tile:
        def place(i: Expr) -> tuple[Expr, Expr, Expr | None]:
            return h, simplify(first + i), None

        def source(i: Expr, kh: Expr, kw: Expr) -> tuple[Expr, ...]:
            return h * sh + kh * dh + y, (first + i) * sw + kw * dw + x

        return _Tile(place, source)

    def of_rows(row: int, height: int, start: int) -> Callable[..., list[_Tile]]:
        def tiles(i: Expr, k: Expr | None = None) -> list[_Tile]:
            first = simplify(start + (k if k is not None else IntImm(0)) * size)
            return [tile(simplify(i * height + row + n), first) for n in range(height)]

        return tiles

    parts: list[_Pixels] = []
    for row, height, many in ((0, 2, c.rows // 2), (c.rows // 2 * 2, 1, c.rows % 2)):
        if many:
            parts.append(_Pixels((many, count), (size,) * height, of_rows(row, height, 0)))
        if many and tail_size:
            tail = of_rows(row, height, count * size)
            parts.append(_Pixels((many,), (tail_size,) * height, tail))
    return parts
