"""Sums of products (`schedule/gpu/products.py`) of float16 or bfloat16 by warpgroups: wgmma of
sm_90a.

A block has one or two warpgroups, each of which computes 64 rows of the tile, all of its columns.
In each round 64 terms of both factors are copied to shared memory, with zeros beyond the last row,
column or term, in the permuted rows that the instruction reads (`schedule/intrin/warpgroup.py`).
All threads copy, for later rounds (`families/tensor_cores/factors.py`); or a producer warp does
(`ir/rings.py`), by its threads or by TMA.

Sums stay in registers, as float32. In the end, what a group computes of them that has 16 bits, such
as with a bias and an activation, goes through shared memory, and threads compute the rest of the
group from there, in the order of the output.
"""

from __future__ import annotations

from collections.abc import Callable

from tensorkiln.arith import affine, simplify
from tensorkiln.families.tensor_cores.factors import (
    ROUND,
    Factor,
    copy_ahead,
    divide_copies,
    factors_of,
    how_copied,
    with_factors,
)
from tensorkiln.families.wgmma.gpu_row import (
    OUT_COLUMNS,
    PAD,
    WarpgroupTile,
    out_columns,
    warpgroup_tile,
)
from tensorkiln.ir.buffer import Load, buffer
from tensorkiln.ir.device_instructions import (
    MATRIX_ALIGN,
    WARP_THREADS,
    WARPGROUP_ROWS,
    WARPGROUP_TERMS,
    WARPGROUP_THREADS,
    warpgroup_mma_name,
)
from tensorkiln.ir.dtype import FLOAT32
from tensorkiln.ir.expr import (
    Broadcast,
    Expr,
    IntImm,
    Shuffle,
    Var,
    as_expr,
    const,
    int_value,
    intrin,
)
from tensorkiln.ir.stmt import PrimFunc, Stmt, Store, seq
from tensorkiln.ir.visit import free_vars, substitute
from tensorkiln.schedule.build import lane_ramp, loop, nest, within
from tensorkiln.schedule.gpu.block import each_thread
from tensorkiln.schedule.gpu.grid import bind_threads
from tensorkiln.schedule.gpu.guards import guarded_load
from tensorkiln.schedule.gpu.products import Product
from tensorkiln.schedule.gpu.tiles import (
    Side,
    TiledProduct,
    bind_tiles,
    split_index,
    tiled_product,
)
from tensorkiln.schedule.group import Group, inplace_params, product
from tensorkiln.schedule.intrin.fragments import SUMS, warpgroup_sums
from tensorkiln.schedule.intrin.warpgroup import swizzled, whole_rows
from tensorkiln.schedule.primitives import Schedule
from tensorkiln.target import Target
from tensorkiln.target.gpus import OWN_WARP

_REGISTER = "register"  # the role of loops over what a thread has in registers
_LANE = "lane"  # the role of loops over adjacent columns that a thread accesses at once
_PIECE = 16  # bytes of which hardware copies many
# Vectors that a thread computes before it stores them, so that it waits together for what it loads
# for them: what is loaded may be where it stores.
_AT_ONCE = 8
_IMAGE = 4  # dimensions


def schedule(group: Group, target: Target, check: bool = False) -> Schedule | None:
    """The schedule of a group whose output elements are functions of one sum of products of float16
    or bfloat16. None if it is not such a product, or has too few rows or columns for tiles."""
    group, contraction = tiled_product(group)
    factors = None if contraction is None else factors_of(contraction)
    if contraction is None or factors is None or any(not x.dtype.is_half for x in factors):
        return None
    tile = _tile_of(contraction, target)
    if tile is None:
        return None
    tiles = _WarpgroupTiles(group, contraction, tile, factors, target)
    s = Schedule(
        PrimFunc(group.name, group.params, tiles.stmt(), inplace=inplace_params(group)), check
    )
    bind_tiles(s)
    copied_factors = tiles.left, tiles.right
    copies = _copies(tile, copied_factors, tiles.of, target)
    producers = WARP_THREADS * (copies in OWN_WARP)
    by_maps = copies == "tma"
    ahead = copy_ahead(
        s, copied_factors, tiles.of, tile, tiles.out_bytes, target, producers, by_maps
    )
    for factor in copied_factors:
        divide_copies(s, factor, producers if ahead and producers else tile.threads)
    # Padding puts the rows that a warp writes at once into different banks.
    s.storage_align(tiles.out.name, 0, tiles.out_columns, PAD)
    for name in s.loops(role=_LANE):
        s.vectorize(name)
    bind_threads(s)
    # Registers have no addresses: only constant indices, of unrolled loops, keep arrays in them.
    for name in s.loops(role=_REGISTER):
        s.unroll(name)
    for name in ("sums", "parts", "results"):
        s.set_scope(name, "register")
    return s


def _tile_of(p: Product, target: Target) -> WarpgroupTile | None:
    rows, columns, batch, terms = (
        int_value(product(tuple(e for _, e in axes)))
        for axes in (p.rows, p.columns, p.batch, p.terms)
    )
    rounds = None if terms is None else -(-terms // WARPGROUP_TERMS)
    return warpgroup_tile(rows, columns, batch or 1, target, rounds)


def _is_matrix(factor: Factor, of: TiledProduct) -> bool:
    """Whether a factor is copied as it is, in pieces of 16 bytes, from a tensor with a dimension
    for its rows or columns, which follow each other there, and another one for its terms."""
    value, axes = factor.side.value, factor.side.axes
    if not isinstance(value, Load) or factor.how.lanes * value.dtype.bytes != _PIECE:
        return False
    rows, terms = ({var for var, _ in x} for x in (axes, of.p.terms))
    of_rows = [i for i in value.indices if not rows.isdisjoint(free_vars(i))]
    of_terms = [i for i in value.indices if not terms.isdisjoint(free_vars(i))]
    if len(of_rows) != 1 or not of_terms or of_rows[0] in of_terms:
        return False
    position = Var("position")
    place = simplify(substitute(of_rows[0], split_index(axes, position)))
    linear = affine(place, (position,))
    follows = linear is not None and int_value(as_expr(linear[0].get(position, 0))) == 1
    return follows and int_value(value.buffer.shape[-1]) != 1


def _is_windows(factor: Factor) -> bool:
    """Whether a factor is copied from images of known sizes with channels last, which fill the
    terms of a round."""
    guarded = guarded_load(factor.side.value)
    load = factor.side.value if guarded is None else guarded[1]
    if not isinstance(load, Load) or len(load.buffer.shape) != _IMAGE:
        return False
    sizes, copying = [int_value(n) for n in load.buffer.shape], factor.how
    in_pieces = copying.lanes * load.dtype.bytes == _PIECE and not copying.transposed
    return in_pieces and None not in sizes and (sizes[-1] or 0) % WARPGROUP_TERMS == 0


def _copies(
    tile: WarpgroupTile, factors: tuple[Factor, Factor], of: TiledProduct, target: Target
) -> str:
    """Who copies the factors (`matmul_copies`). Where the target does not say: hardware, if both
    are matrices, which reached 94% of cuBLAS at 4096 on an H100 where threads reached 72%; a warp
    of its own that computes addresses is the slowest, 57%. All threads do where a block has no room
    for a further warp. Windows of images are copied by hardware, too."""
    thread_limit, copies = target["max_num_threads"], target["matmul_copies"]
    assert isinstance(thread_limit, int)
    if tile.threads + WARP_THREADS > thread_limit:
        return "threads"
    by_hardware = all(_is_matrix(f, of) or _is_windows(f) for f in factors)
    return str(copies or ("tma" if by_hardware else "threads"))


class _WarpgroupTiles:
    """The program of a product in tiles."""

    def __init__(
        self,
        group: Group,
        p: Product,
        tile: WarpgroupTile,
        factors: tuple[Expr, Expr],
        target: Target,
    ) -> None:
        self.p, self.tile = p, tile
        self.of = TiledProduct(group, p, tile.rows, tile.columns, WARPGROUP_TERMS, factors)
        self.left = _matrices("left", self.of.left, self.of)
        self.right = _matrices("right", self.of.right, self.of)
        self.fragment = warpgroup_sums(tile.columns)
        self.sums = buffer("sums", (tile.threads, self.fragment.count), FLOAT32, "local")
        out_type = self.of.register_part.dtype
        self.out_columns = out_columns(tile, out_type.bytes, int_value(self.of.rounds), target)
        self.out_bytes = tile.out_bytes(self.out_columns, out_type.bytes)
        # The same in the pieces in which they are stored: eight columns of each.
        self.blocks = tile.columns // self.out_columns
        self.eights = self.out_columns // SUMS.columns
        shape = (tile.threads, self.blocks, self.eights, SUMS.count)
        self.parts = buffer("parts", shape, FLOAT32, "local")
        self.out = buffer("totals", (tile.rows, self.out_columns), out_type, "shared")
        self.lanes = self.of.result_lanes
        results = tile.threads, _AT_ONCE, self.lanes
        self.results = buffer("results", results, group.out.dtype, "local")

    def stmt(self) -> Stmt:
        """for batch, tile of rows, tile of columns: the tile."""
        return self.of.grid(self._tile)

    def _tile(self, z: Expr, first_row: Expr, first_column: Expr) -> Stmt:
        def step(k: Expr) -> Stmt:
            products = self._each_thread(self._multiply)
            tile = (z, first_row, first_column)
            return with_factors(self.left, self.right, self.of, tile, k, products)

        return within(
            [self.out, self.sums, self.parts, self.results],
            self._each_thread(self._start),
            loop("k", self.of.rounds, step, ROUND, keep=True),
            self._each_thread(self._divide),
            loop(
                "c", self.blocks, lambda c: self._finish(c, z, first_row, first_column), _REGISTER
            ),
        )

    def _each_thread(self, body: Callable[[Expr], Stmt]) -> Stmt:
        return each_thread("thread", self.tile.threads, body)

    # ---- sums ----------------------------------------------------------------------------------

    def _sums_of(self, t: Expr) -> Load:
        return Load(self.sums, (t, lane_ramp(self.fragment.count)))

    def _start(self, t: Expr) -> Stmt:
        sums = self._sums_of(t)
        return Store(self.sums, sums.indices, Broadcast(const(0, FLOAT32), self.fragment.count))

    def _multiply(self, t: Expr) -> Stmt:
        """Add the products of the terms in shared memory to the sums of a thread."""
        first = simplify(t // WARPGROUP_THREADS * WARPGROUP_ROWS)
        rows = whole_rows(self.left.buffer, WARPGROUP_ROWS, first)
        columns = whole_rows(self.right.buffer, self.tile.columns)
        flips = "a" * self.left.how.transposed + "b" * self.right.how.transposed
        sums = self._sums_of(t)
        value = intrin(warpgroup_mma_name(self.tile.columns, flips), rows, columns, sums)
        return Store(self.sums, sums.indices, value)

    # ---- output --------------------------------------------------------------------------------

    def _divide(self, t: Expr) -> Stmt:
        """Divide the vector of a thread's sums into vectors of eight columns each."""
        stores, sums = [], self._sums_of(t)
        for k in range(0, self.fragment.count, SUMS.count):
            # wgmma needs all sums of a thread as one vector; the steps that store them take a few
            # each.
            c, b = divmod(k // SUMS.count, self.eights)
            part = Shuffle(sums, sums, tuple(range(k, k + SUMS.count)))
            stores.append(Store(self.parts, self._part(t, IntImm(c), IntImm(b)), part))
        return seq(*stores)

    def _part(self, t: Expr, c: Expr, b: Expr) -> tuple[Expr, ...]:
        return (t, c, b, lane_ramp(SUMS.count))

    def _finish(self, c: Expr, z: Expr, first_row: Expr, first_column: Expr) -> Stmt:
        """Store some columns of the tile. What threads compute of their sums goes to shared memory;
        from there all threads compute the rest of the group, in the order of the output."""
        base = simplify(first_column + c * self.out_columns)

        def share(t: Expr) -> Stmt:
            def eight(b: Expr) -> Stmt:
                return self._share(t, (c, b), (z, first_row, base))

            return loop("b", self.eights, eight, _REGISTER)

        return seq(
            self._each_thread(share),
            self._each_thread(lambda t: self._store(t, z, first_row, base)),
        )

    def _store(self, t: Expr, z: Expr, first_row: Expr, first_column: Expr) -> Stmt:
        """Compute the rest of the group for some columns, and store it. Neighbouring threads have
        neighbouring vectors."""
        across = OUT_COLUMNS // self.lanes
        rows = self.tile.rows * across // self.tile.threads  # rows of a thread, of 64 columns
        count = rows * self.out_columns // OUT_COLUMNS
        at_once = max(n for n in range(1, _AT_ONCE + 1) if count % n == 0)

        def finish(n: Expr, into: bool) -> Stmt:
            def one(r: Expr, lane: Expr) -> Stmt:
                k = simplify(n * at_once + r)
                i = simplify(k % rows * (self.tile.threads // across) + t // across)
                j = simplify(k // rows * OUT_COLUMNS + t % across * self.lanes)
                place = z, simplify(first_row + i), (simplify(first_column + j), lane), self.lanes
                result = Load(self.results, (t, r, lane))
                if not into:
                    return self.of.finish(result, *place, self.p.value)
                part = Load(self.out, (i, simplify(j + lane)))
                return self.of.finish(part, *place, self.of.register_part, result)

            return nest(["r", "lane"], [at_once, self.lanes], one, [_REGISTER, _LANE])

        return loop("n", count // at_once, lambda n: seq(finish(n, True), finish(n, False)))

    def _share(self, t: Expr, eight: tuple[Expr, Expr], tile: tuple[Expr, Expr, Expr]) -> Stmt:
        """Store what a thread computes of its sums of eight columns to shared memory, two at a
        time. `tile`: the batch, the first row, and the first column of those stored."""
        z, first_row, first_column = tile
        c, b = eight
        role = _LANE if self.of.register_lanes == 2 else _REGISTER
        stores = []
        for k in range(0, SUMS.count, 2):
            row, column = self.fragment.place(t % WARPGROUP_THREADS, IntImm(k))
            row = simplify(t // WARPGROUP_THREADS * WARPGROUP_ROWS + row)
            column = simplify(b * SUMS.columns + column)

            def one(j: Expr, k: int = k, row: Expr = row, column: Expr = column) -> Stmt:
                return self.of.store_register_part(
                    lambda x: Store(self.out, (row, column + j), x),
                    Load(self.parts, (t, c, b, simplify(j + k))),
                    z,
                    simplify(first_row + row),
                    (simplify(first_column + column), j),
                )

            stores.append(loop("j", 2, one, role))
        return seq(*stores)


def _matrices(name: str, side: Side, of: TiledProduct) -> Factor:
    """A factor in permuted rows of 128 bytes, as wgmma reads it."""
    copying = how_copied(name, side, of)
    shared_buffer = buffer(name, (side.size, of.depth), side.dtype, "shared", MATRIX_ALIGN)
    return Factor(side, shared_buffer, copying, lambda j, k: swizzled(j, k, copying.transposed))
