"""Sums of products (`schedule/gpu/products.py`) on tensor cores.

A block of up to four warps computes a tile of rows x columns. In each round all threads copy a tile
of each factor, 64 bytes of terms, to shared memory, with zeros beyond the last row, column or term.
Where a device copies while it computes, they copy for later rounds (`factors.py`). Each warp loads
fragments of its part of both (`schedule/intrin/fragments.py`) and multiplies them. Sums stay in
registers, as float32 or int32.

In shared memory a factor has a row of terms for each row of the tile or, transposed, a row of the
tile's rows for each term. Rows are padded by 16 bytes beyond a power of two, so that the 8 rows of
one load lie in different banks.
"""

from __future__ import annotations

from collections.abc import Callable

from tensorkiln.arith import simplify
from tensorkiln.families.tensor_cores.factors import (
    ROUND,
    Factor,
    copy_ahead,
    divide_copies,
    factors_of,
    how_copied,
    with_factors,
)
from tensorkiln.families.tensor_cores.gpu_row import MMA_TERMS, PAD, WarpTile, warp_tile
from tensorkiln.ir.buffer import Load, buffer
from tensorkiln.ir.device_instructions import WARP_THREADS
from tensorkiln.ir.dtype import FLOAT32, INT32, DType
from tensorkiln.ir.expr import (
    Broadcast,
    Expr,
    IntImm,
    Shuffle,
    cast,
    const,
    int_value,
)
from tensorkiln.ir.stmt import PrimFunc, Stmt, Store, seq
from tensorkiln.schedule.build import lane_ramp, loop, nest, within
from tensorkiln.schedule.gpu.block import each_thread
from tensorkiln.schedule.gpu.fragments import loaded, multiplied
from tensorkiln.schedule.gpu.grid import bind_threads
from tensorkiln.schedule.gpu.products import Product
from tensorkiln.schedule.gpu.tiles import (
    Side,
    TiledProduct,
    bind_tiles,
    tiled_product,
)
from tensorkiln.schedule.group import Group, inplace_params, product, static
from tensorkiln.schedule.intrin.fragments import (
    LEFT_MATRICES,
    RIGHT_MATRICES,
    SUMS,
    Digit,
    left_fragment,
    right_fragment,
)
from tensorkiln.schedule.primitives import Schedule
from tensorkiln.target import Target
from tensorkiln.target.capability import least_capability

_BLOCK = 16  # rows of one instruction's product, and columns of two
_REGISTER = "register"  # the role of loops over what a thread has in registers
_STORE = "store"  # the role of nests that store to the output


def schedule(group: Group, target: Target, check: bool = False) -> Schedule | None:
    """The schedule of a group whose output elements are functions of one sum of products of
    float16, bfloat16 or 8-bit integers, or of float32 where the target allows tf32. None if it is
    not such a product, or has too few rows or columns for tiles."""
    group, contraction = tiled_product(group)
    factors = None if contraction is None else factors_of(contraction)
    if contraction is None or factors is None:
        return None
    tile = _tile_of(contraction, factors[0].dtype, target)
    if tile is None:
        return None
    tiles = _TensorCoreTiles(group, contraction, tile, factors, least_capability(target))
    s = Schedule(
        PrimFunc(group.name, group.params, tiles.stmt(), inplace=inplace_params(group)), check
    )
    bind_tiles(s)
    copied_factors = tiles.left, tiles.right
    # It may put a dimension in front of the buffers, so padding follows.
    before = copy_ahead(s, copied_factors, tiles.of, tile, tiles.out_bytes, target)
    for factor in copied_factors:
        divide_copies(s, factor, tile.threads)
    for name in s.loops(role=_STORE):
        s.cooperative(name, tile.threads, tiles.lanes)
    for b, rows in ((tiles.left.buffer, before), (tiles.right.buffer, before), (tiles.out, 0)):
        s.storage_align(b.name, rows, static(b.shape[1], "a row"), PAD // b.dtype.bytes)
    bind_threads(s)
    # Registers have no addresses: only constant indices, of unrolled loops, keep arrays in them.
    for name in s.loops(role=_REGISTER):
        s.unroll(name)
    for name in ("sums", "a", "b"):
        s.set_scope(name, "register")
    return s


def _tile_of(p: Product, dtype: DType, target: Target) -> WarpTile | None:
    rows, columns, batch, terms = (
        int_value(product(tuple(e for _, e in axes)))
        for axes in (p.rows, p.columns, p.batch, p.terms)
    )
    term_bytes = None if terms is None else terms * dtype.bytes
    return warp_tile(rows, columns, batch or 1, term_bytes, target)


def _rows_of(name: str, side: Side, of: TiledProduct) -> Factor:
    """A factor in plain rows of shared memory: one for each row or column of the tile or,
    transposed, one for each term."""
    copy = how_copied(name, side, of)
    shape = (of.depth, side.size) if copy.transposed else (side.size, of.depth)
    shared_buffer = buffer(name, shape, side.dtype, "shared")
    return Factor(side, shared_buffer, copy, lambda j, k: (k, j) if copy.transposed else (j, k))


class _TensorCoreTiles:
    """The program of a product in tiles."""

    def __init__(
        self,
        group: Group,
        p: Product,
        tile: WarpTile,
        factors: tuple[Expr, Expr],
        capability: int,
    ):
        size, self.capability = factors[0].dtype.bytes, capability
        depth = tile.term_bytes // size
        self.p, self.tile, self.dtype = p, tile, factors[0].dtype
        self.of = TiledProduct(group, p, tile.rows, tile.columns, depth, factors)
        self.left = _rows_of("left", self.of.left, self.of)
        self.right = _rows_of("right", self.of.right, self.of)
        rows, columns = tile.of_warp
        self.blocks = rows // _BLOCK, columns // _BLOCK
        total = p.dtype if p.dtype == INT32 else FLOAT32
        # The first dimension is that of threads: `set_scope` makes each row the registers of one
        # thread.
        shape = (tile.threads, self.blocks[0], 2 * self.blocks[1], SUMS.count)
        self.sums = buffer("sums", shape, total, "local")
        self.out = buffer("totals", (tile.down * _BLOCK, tile.columns), self.of.rounded, "shared")
        self.out_bytes = tile.down * _BLOCK * (tile.columns * self.out.dtype.bytes + PAD)
        self.lanes = self.of.result_lanes

    def stmt(self) -> Stmt:
        """for batch, tile of rows, tile of columns: the tile."""
        return self.of.grid(self._tile)

    def _tile(self, z: Expr, first_row: Expr, first_column: Expr) -> Stmt:
        def step(k: Expr) -> Stmt:
            products = each_thread("thread", self.tile.threads, self._products)
            tile = (z, first_row, first_column)
            return with_factors(self.left, self.right, self.of, tile, k, products)

        return within(
            [self.out, self.sums],
            self._each_sum(self._start),
            loop("k", self.of.rounds, step, ROUND, keep=True),
            loop(
                # 16 rows of each warp at a time, so that `totals` takes little shared memory.
                "r",
                self.blocks[0],
                lambda r: self._finish(r, z, first_row, first_column),
                _REGISTER,
            ),
        )

    # ---- shared memory to sums -----------------------------------------------------------------

    def _products(self, t: Expr) -> Stmt:
        """Add the products of the terms in shared memory to the sums of a thread."""
        down, across = self.blocks
        a = buffer("a", (down, left_fragment(self.left.buffer.dtype).count), self.left.buffer.dtype)
        pair = 2 * right_fragment(self.right.buffer.dtype).count
        b = buffer("b", (across, pair), self.right.buffer.dtype)
        first_row, first_column = self._place(t)

        def step(k: Expr) -> Stmt:
            term = k * (MMA_TERMS // self.dtype.bytes)

            def left(r: Expr) -> Stmt:
                row = simplify(first_row + r * _BLOCK)
                value = self._fragments(self.left, LEFT_MATRICES, t, row, term)
                return Store(a, (r, lane_ramp(value.dtype.lanes)), value)

            def right(c: Expr) -> Stmt:
                column = simplify(first_column + c * _BLOCK)
                value = self._fragments(self.right, RIGHT_MATRICES, t, column, term)
                return Store(b, (c, lane_ramp(value.dtype.lanes)), value)

            def multiply(r: Expr, c: Expr) -> Stmt:
                x = Load(a, (r, lane_ramp(left_fragment(a.dtype).count)))
                pair_fragment = Load(b, (c, lane_ramp(pair)))
                stmts = []
                # `b` has the fragments of 16 columns, from one load; an instruction multiplies 8 of
                # them.
                for half in range(2):
                    lanes = tuple(range(half * pair // 2, (half + 1) * pair // 2))
                    sum_index = self._sums_at(t, r, simplify(c * 2 + half))
                    y = Shuffle(pair_fragment, pair_fragment, lanes)
                    value = multiplied(x, y, Load(self.sums, sum_index), self.capability)
                    stmts.append(Store(self.sums, sum_index, value))
                return seq(*stmts)

            return seq(
                loop("r", down, left, _REGISTER),
                loop("c", across, right, _REGISTER),
                nest(["r", "c"], [down, across], multiply, [_REGISTER] * 2),
            )

        steps = self.of.depth * self.dtype.bytes // MMA_TERMS
        return within([a, b], loop("term", steps, step, _REGISTER))

    def _fragments(
        self, c: Factor, digits: tuple[Digit, ...], t: Expr, first: Expr, term: Expr
    ) -> Expr:
        """The fragments of 16 rows or columns from `first`, and of the terms of one product."""
        return loaded(c.buffer, c.how.transposed, digits, t, first, term)

    # ---- sums ----------------------------------------------------------------------------------

    def _place(self, t: Expr) -> tuple[Expr, Expr]:
        """The first row and column, in the tile, of the warp of thread t."""
        rows, columns = self.tile.of_warp
        warp = t // WARP_THREADS
        return warp // self.tile.across * rows, warp % self.tile.across * columns

    def _sums_at(self, t: Expr, r: Expr, c: Expr) -> tuple[Expr, ...]:
        return (t, r, c, lane_ramp(SUMS.count))

    def _each_sum(self, body: Callable[[Expr, Expr, Expr], Stmt]) -> Stmt:
        """`body` for each thread and each of its products, of 16 rows and 8 columns."""
        extents = [self.blocks[0], 2 * self.blocks[1]]

        def sums(t: Expr) -> Stmt:
            return nest(["r", "c"], extents, lambda r, c: body(t, r, c), [_REGISTER] * 2)

        return each_thread("thread", self.tile.threads, sums)

    def _start(self, t: Expr, r: Expr, c: Expr) -> Stmt:
        zero = Broadcast(const(0, self.sums.dtype), SUMS.count)
        return Store(self.sums, self._sums_at(t, r, c), zero)

    def _finish(self, r: Expr, z: Expr, first_row: Expr, first_column: Expr) -> Stmt:
        """Store 16 rows of each warp. The sums go to shared memory, rounded once to the type of the
        operator; from there all threads compute the rest of the group, in the order of the
        output."""
        warp_rows, _ = self.tile.of_warp

        def share(t: Expr) -> Stmt:
            return loop("c", 2 * self.blocks[1], lambda c: self._share(t, r, c), _REGISTER)

        def store(i: Expr, j: Expr) -> Stmt:
            row = simplify(first_row + i // _BLOCK * warp_rows + r * _BLOCK + i % _BLOCK)
            total = cast(Load(self.out, (i, j)), self.p.dtype)
            return self.of.finish(total, z, row, (first_column, j), self.lanes)

        extents = [self.tile.down * _BLOCK, self.tile.columns]
        return seq(
            each_thread("thread", self.tile.threads, share),
            nest(["i", "j"], extents, store, [_STORE, ""], True),
        )

    def _share(self, t: Expr, r: Expr, c: Expr) -> Stmt:
        """Store the sums of one product of a thread to shared memory, two at a time."""
        warp, (_, column) = t // WARP_THREADS, self._place(t)
        sums = Load(self.sums, self._sums_at(t, r, c))
        stores = []
        for k in range(0, SUMS.count, 2):
            row, first = SUMS.place(t % WARP_THREADS, IntImm(k))
            row = simplify(warp // self.tile.across * _BLOCK + row)
            out_column = simplify(column + c * SUMS.columns + first)
            pair = cast(Shuffle(sums, sums, (k, k + 1)), self.out.dtype.with_lanes(2))
            stores.append(Store(self.out, (row, lane_ramp(2, out_column)), pair))
        return seq(*stores)
