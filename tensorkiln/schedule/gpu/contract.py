"""Products on a device, of any operator whose element is a sum of products: linear, matmul, and
convolution, whose images are gathered as they are read (an implicit product).

The indices of the output are rows, columns or a batch, by which factor depends on them:

    out[n, o, h, w] = sum x[n, c, h + kh, w + kw] * weight[o, c, kh, kw]
    rows: o    columns: n, h, w    terms: c, kh, kw

A block of threads computes a tile of rows x columns, `depth` terms at a time, which it copies to
shared memory first, with zeros beyond the last row, column or term. Each thread has the sums of a
part of the tile in registers. Columns are the indices among which the last of the output is, so
that neighbouring threads write neighbouring elements. Terms are added one after the other.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tensorkiln.arith import simplify
from tensorkiln.ir.buffer import Buffer, Load, buffer
from tensorkiln.ir.expr import (
    Expr,
    IntImm,
    int_value,
    neutral,
)
from tensorkiln.ir.stmt import PrimFunc, Stmt, Store, seq
from tensorkiln.schedule.build import loop, nest, within
from tensorkiln.schedule.gpu.block import each_thread
from tensorkiln.schedule.gpu.grid import bind_threads, most_threads
from tensorkiln.schedule.gpu.products import Product
from tensorkiln.schedule.gpu.tiles import Side, TiledProduct, bind_tiles, tiled_product
from tensorkiln.schedule.group import Group, inplace_params, product
from tensorkiln.schedule.primitives import Schedule
from tensorkiln.target import Target

# With fewer rows or columns most of a tile would be empty.
_LEAST = 8
# Columns of threads in a block: half of a warp of 32 reads neighbouring elements.
_ACROSS = 16
# Largest tile, and tiles from which on a device is full without smaller ones.
_LARGEST, _FULL = 128, 128
_SYMBOLIC = 64  # the tile of an extent that is not known
_DEPTH = 16
_BANKS = 128  # bytes of a word of each bank of shared memory
_COPY = "copy"  # the role of nests that fill a tile in shared memory


def schedule_contraction(group: Group, target: Target, check: bool = False) -> Schedule | None:
    """A group whose output elements are functions of one sum of products. None if it is not such a
    product, or too narrow for tiles."""
    group, found = tiled_product(group)
    tile = None if found is None else tile_of(found, target)
    if found is None or tile is None:
        return None
    body = _Tiles(group, found, tile).stmt()
    s = Schedule(PrimFunc(group.name, group.params, body, inplace=inplace_params(group)), check)
    bind_tiles(s)
    for name in s.loops(role=_COPY):
        s.cooperative(name, tile.threads)
    bind_threads(s)
    # Neighbouring threads write neighbouring terms, a column of `left`: rows are as much longer
    # than a power of two as makes all of these use all banks of shared memory.
    pad = max(1, _BANKS // (found.dtype.bytes * tile.depth))
    s.storage_align("left", 0, tile.rows, min(pad, tile.rows - 1))
    for name in s.loops(role="register"):
        s.unroll(name)
    s.set_scope("sums", "register")
    return s


@dataclass(frozen=True, slots=True)
class Tile:
    """Rows x columns of a block of `down` x `across` threads, and terms copied at a time."""

    rows: int
    columns: int
    depth: int
    down: int
    across: int

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return self.down * self.across


def tile_of(p: Product, target: Target) -> Tile | None:
    """The tile for a product, from its extents and what a block of the target has; None if it has
    too few rows or columns."""
    rows, columns = (int_value(product(tuple(e for _, e in x))) for x in (p.rows, p.columns))
    if min(_LEAST if rows is None else rows, _LEAST if columns is None else columns) < _LEAST:
        return None
    threads = most_threads(target)
    across = min(_ACROSS, threads)
    down = threads // across
    batch = int_value(product(tuple(e for _, e in p.batch))) or 1
    sizes = [_size(rows, down), _size(columns, across)]
    large = [_LARGEST // unit * unit for unit in (down, across)]
    tiles = batch * ((rows or 0) // large[0]) * ((columns or 0) // large[1])
    if sizes == [_SYMBOLIC, _SYMBOLIC] and tiles >= _FULL:
        sizes = large
    depth, shared = _DEPTH, target["max_shared_memory_per_block"]
    assert isinstance(shared, int)
    while depth > 1 and sum(sizes) * depth * p.dtype.bytes + _BANKS > min(shared, 12 << 10):
        depth //= 2
    return Tile(sizes[0], sizes[1], depth, down, across)


def _size(extent: int | None, threads: int) -> int:
    """Rows or columns of a tile, a multiple of the threads along it: up to _SYMBOLIC."""
    size = max(_SYMBOLIC, threads)
    while extent is not None and size // 2 >= max(extent, threads):
        size //= 2
    return size


class _Tiles:
    """The statements of all tiles."""

    def __init__(self, group: Group, p: Product, tile: Tile):
        self.p, self.tile = p, tile
        self.of = TiledProduct(group, p, tile.rows, tile.columns, tile.depth)
        self.down, self.across = tile.rows // tile.down, tile.columns // tile.across
        self.left = buffer("left", (tile.depth, tile.rows), p.dtype, "shared")
        self.right = buffer("right", (tile.depth, tile.columns), p.dtype, "shared")
        self.sums = buffer("sums", (tile.threads, self.down, self.across), p.dtype, "local")

    def stmt(self) -> Stmt:
        """for batch, tile of rows, tile of columns: the tile."""
        return self.of.grid(self._tile)

    def _tile(self, z: Expr, first_row: Expr, first_column: Expr) -> Stmt:
        tile, p, of = self.tile, self.p, self.of

        def step(k: Expr) -> Stmt:
            first = k * tile.depth
            return seq(
                self._copy(self.left, of.left, (z, first_row, first), along_terms=True),
                self._copy(self.right, of.right, (z, first_column, first), along_terms=False),
                each_thread("thread", tile.threads, self._products),
            )

        def start(t: Expr, r: Expr, c: Expr) -> Stmt:
            return Store(self.sums, (t, r, c), neutral("sum", p.dtype))

        def finish(t: Expr, r: Expr, c: Expr) -> Stmt:
            row = simplify(first_row + self._row(t, r))
            column = simplify(first_column + self._column(t, c))
            return of.finish(Load(self.sums, (t, r, c)), z, row, (column, IntImm(0)))

        return within(
            [self.left, self.right, self.sums],
            self._each_sum(start),
            loop("k", of.rounds, step, keep=True),
            self._each_sum(finish),
        )

    def _each_sum(self, body: Callable[[Expr, Expr, Expr], Stmt]) -> Stmt:
        """For each thread and each of its sums."""

        def sums(t: Expr) -> Stmt:
            roles = ["register", "register"]
            return nest(["r", "c"], [self.down, self.across], lambda r, c: body(t, r, c), roles)

        return each_thread("thread", self.tile.threads, sums)

    def _products(self, t: Expr) -> Stmt:
        """Add the products of the terms in shared memory to the sums of a thread."""
        tile, dtype = self.tile, self.p.dtype
        rows = buffer("row", (self.down,), dtype, "register")
        columns = buffer("column", (self.across,), dtype, "register")

        def term(k: Expr) -> Stmt:
            def row(r: Expr) -> Stmt:
                return Store(rows, (r,), Load(self.left, (k, self._row(t, r))))

            def column(c: Expr) -> Stmt:
                return Store(columns, (c,), Load(self.right, (k, self._column(t, c))))

            def add(r: Expr, c: Expr) -> Stmt:
                total = Load(self.sums, (t, r, c)) + Load(rows, (r,)) * Load(columns, (c,))
                return Store(self.sums, (t, r, c), total)

            roles = ["register", "register"]
            return within(
                [rows, columns],
                loop("r", self.down, row, "register"),
                loop("c", self.across, column, "register"),
                nest(["r", "c"], [self.down, self.across], add, roles),
            )

        return loop("term", tile.depth, term)

    def _row(self, t: Expr, r: Expr) -> Expr:
        """The row in the tile of sum r of a thread."""
        return simplify(r * self.tile.down + t // self.tile.across)

    def _column(self, t: Expr, c: Expr) -> Expr:
        return simplify(c * self.tile.across + t % self.tile.across)

    def _copy(
        self, into: Buffer, side: Side, start: tuple[Expr, Expr, Expr], along_terms: bool
    ) -> Stmt:
        """Copy a tile of a factor to shared memory, by all threads; neighbouring ones read
        neighbouring terms, or neighbouring columns."""

        def element(k: Expr, j: Expr) -> Stmt:
            return self.of.copy(side, start, j, k, lambda value: Store(into, (k, j), value))

        extents = [IntImm(self.tile.depth), IntImm(side.size)]
        if along_terms:
            return nest(["j", "k"], extents[::-1], lambda j, k: element(k, j), [_COPY, ""], True)
        return nest(["k", "j"], extents, element, [_COPY, ""], True)
