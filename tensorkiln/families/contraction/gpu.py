"""Sums of products on a device, in tiles of shared memory: linear, matmul and convolution (implicit
GEMM) are one schedule.

Each index of the output is a row, a column or a batch index, by which factor depends on it:

    out[n, o, h, w] = sum x[n, c, h + kh, w + kw] * weight[o, c, kh, kw]
    rows: o    columns: n, h, w    terms: c, kh, kw

A block of threads computes a tile of rows x columns. In each round it copies `depth` terms of both
factors to shared memory, with zeros beyond the last row, column or term. Every thread keeps the
sums of a part of the tile in registers: groups of up to 4 x 4, whose factors are adjacent in shared
memory, so that four are one load. Terms are added one after the other.

Columns are those indices that include the last one of the output, so that neighbouring threads
write neighbouring elements. Threads write vectors of four where the rows of the output are aligned
to them. Where they are not, the columns of one thread lie apart and those of neighbouring threads
are adjacent (`_columns_apart`).

A tile of a factor is copied along the axis (its own or the terms) in which its elements are
adjacent in memory, in vectors of up to 16 bytes. Elements of an image are gathered one at a time.
Where a tile has whole windows, all elements that a thread copies are of one channel and one column,
so most of their address is computed once. On devices that copy while threads compute, shared memory
has two parts, one of which is filled for the next round. There a thread of the largest tile has
8 x 16 sums, which multiply what it loads most often, and loads the factors of a term while it
multiplies those of the term before.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from tensorkiln.arith import simplify
from tensorkiln.families.contraction.costs import LEAST_ROWS
from tensorkiln.ir.buffer import Buffer, Load, buffer
from tensorkiln.ir.copies import LEAST, copy_of
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
from tensorkiln.schedule.gpu.tiles import (
    Side,
    TiledProduct,
    adjacent,
    bind_tiles,
    tiled_product,
)
from tensorkiln.schedule.group import Group, inplace_params, product
from tensorkiln.schedule.primitives import Cooperative, Schedule
from tensorkiln.target import Target
from tensorkiln.target.capability import copies_ahead, most_shared

# Threads of a block along columns. A warp is 4 x 8 threads, so that it loads as few different
# elements of both factors as it can.
_ACROSS = 16
_WARP_DOWN, _WARP_ACROSS = 4, 8
# The largest tile, and the number of tiles that fill a device: with fewer, smaller tiles are
# better.
_LARGEST, _FULL = 128, 128
_WIDE_ACROSS = 8  # threads along columns of the largest tile, where copies go on
_SYMBOLIC = 64  # the tile of an extent that is not known
_SUMS = 64  # of a thread, at most
_GROUP = 4  # adjacent rows or columns of a thread
_DEPTH = 16
# The same for copies ahead of the largest tile, where a multiprocessor has room for two blocks: the
# waits at the end of a round cost less.
_DEEP = 32
_STAGES = 2  # of shared memory, where copies go on while threads compute
_WINDOW = 36  # terms of whole windows that are copied at a time, at most
_SHARED = 24 << 10  # bytes of a block: two blocks then fit any device
_VECTOR = 16  # bytes
_BANKS = 128  # bytes of a word of each bank of shared memory
_CHUNK, _ODD_CHUNK = 8, 9  # terms that neighbouring threads copy
# The same for copies ahead of the largest tile: a warp reads two lines of memory at a time, each of
# which takes a turn of the first-level cache.
_CHUNK_FULL = 16
# Terms that are unrolled together. With more of them, ptxas loads the factors of all terms first,
# and takes up to 208 registers for four sums.
_UNROLLED = 9
_COPY = {"left": "copy left", "right": "copy right"}  # roles of nests that fill a tile
_FIRST = IntImm(0)
_ROUND, _TERM, _REGISTER, _LANE = "round", "term", "register", "lane"


def schedule(group: Group, target: Target, check: bool = False) -> Schedule | None:
    """The schedule of a group whose output elements are functions of one sum of products. None if
    it is not such a product, or has too few rows or columns for tiles."""
    group, contraction = tiled_product(group)
    tile = None if contraction is None else tile_of(contraction, target)
    if contraction is None or tile is None:
        return None
    tiles = _Tiles(group, contraction, tile)
    params, inplace = group.params, inplace_params(group)
    s = Schedule(PrimFunc(group.name, params, tiles.stmt(), inplace=inplace), check)
    bind_tiles(s)
    if tile.stages > 1:  # copies of the first round stand before the loop then
        (name,) = s.loops(role=_ROUND)
        s.pipeline(name, tile.stages)
    for copied in (tiles.left, tiles.right):
        for name in s.loops(role=_COPY[copied.buffer.name]):
            division: Cooperative = s.cooperative(name, tile.threads, copied.lanes)
            s.unroll(division.rounds)
        _set_gaps(s, copied, tile)
    bind_threads(s)
    # Unrolling pays where threads fetch instructions together. Where one runs after the other, as
    # on a CPU, longer code only takes longer to fetch.
    if target["thread_warp_size"] != 1:
        _unroll_terms(s, tile)
    for name in s.loops(role=_REGISTER):
        s.unroll(name)
    for name in s.loops(role=_LANE):
        s.vectorize(name)
    s.set_scope("sums", "register")
    return s


def _unroll_terms(s: Schedule, tile: BlockTile) -> None:
    terms = 2 if tile.ahead else 1  # of an iteration
    count = tile.depth // terms
    together = next(n for n in range(_UNROLLED // terms, 0, -1) if count % n == 0)
    for name in s.loops(role=_TERM):
        s.unroll(s.split(name, together).inner if together < count else name)


def _set_gaps(s: Schedule, copied: _Copied, tile: BlockTile) -> None:
    if copied.along_terms:
        # Each term is a row of shared memory, and neighbouring threads write to several rows.
        # Padding the rows puts these writes into different banks.
        gap = _gap(copied.chunk) // copied.side.dtype.bytes
        pad = min(gap, copied.side.size - 1)
        terms = 0 if tile.stages == 1 else 1
        s.storage_align(copied.buffer.name, terms, copied.side.size, pad)


@dataclass(frozen=True, slots=True)
class BlockTile:
    """The tile of a block: `rows` x `columns` sums, by `down` x `across` threads, `depth` terms per
    round. With two `stages`, the terms of the next round are copied while a round computes.
    `ahead`: on a GPU of NVIDIA, factors of a term are loaded while those of the term before are
    multiplied."""

    rows: int
    columns: int
    depth: int
    down: int
    across: int
    stages: int
    ahead: bool = False

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return self.down * self.across

    @property
    def full(self) -> bool:
        """Whether a thread has as many sums as its registers can hold."""
        return self.rows * self.columns >= _SUMS * self.threads


def tile_of(p: Product, target: Target) -> BlockTile | None:
    """The tile for a product, from its extents and the limits of the target; None if it has too few
    rows or columns."""
    rows, columns = (int_value(product(tuple(e for _, e in x))) for x in (p.rows, p.columns))
    if min(LEAST_ROWS if n is None else n for n in (rows, columns)) < LEAST_ROWS:
        return None
    threads = most_threads(target)
    across = min(_ACROSS, threads)
    down = threads // across
    batch = int_value(product(tuple(e for _, e in p.batch))) or 1
    usual = _size(rows, down), _size(columns, across)
    sizes = [(_SYMBOLIC, _LARGEST), (_LARGEST, _SYMBOLIC)]
    # With windows, threads also keep addresses in registers; the largest tile leaves none.
    if _window(p) == 1:  # the places of windows take registers too
        sizes.insert(0, (_LARGEST, _LARGEST))
    extents = rows or 0, columns or 0
    fits = (
        size
        for size in sizes
        if size[0] * size[1] <= _SUMS * threads
        and all(n >= u or m == u for n, m, u in zip(extents, size, usual, strict=True))
        and batch * (extents[0] // size[0]) * (extents[1] // size[1]) >= _FULL
    )
    size = next(fits, usual)
    depth = _depth(p, size, threads, target)
    tile = BlockTile(*size, depth, down, across, _stages(p, size, depth, target))
    return _wide(p, tile, target)


def _wide(p: Product, tile: BlockTile, target: Target) -> BlockTile:
    """The largest tile, where copies go on and sums take a register each, with twice as many sums
    for each thread, and deeper rounds if two blocks then have room; any other tile as it is."""
    is_largest = (tile.rows, tile.columns) == (_LARGEST, _LARGEST)
    if not is_largest or tile.stages == 1 or p.dtype.bytes > 4:
        return tile
    terms = int_value(product(tuple(e for _, e in p.terms)))
    needed = 2 * _STAGES * _shared_bytes(p, (tile.rows, tile.columns), _DEEP)
    is_long = terms is None or terms >= 2 * _DEEP
    depth = _DEEP if is_long and needed <= most_shared(target) else tile.depth
    return replace(
        tile, depth=depth, down=tile.threads // 2 // _WIDE_ACROSS, across=_WIDE_ACROSS, ahead=True
    )


def _stages(p: Product, size: tuple[int, int], depth: int, target: Target) -> int:
    """Parts of shared memory: several where the device can copy from memory to memory while threads
    compute, both factors are such copies, and there is a second round; else 1."""
    terms = int_value(product(tuple(e for _, e in p.terms)))
    if not copies_ahead(target) or (terms is not None and terms <= depth):
        return 1
    if not all(map(_is_copy, (p.left, p.right))):
        return 1
    shared = target["max_shared_memory_per_block"]
    assert isinstance(shared, int)
    whole = _shared_bytes(p, size, depth)
    rounds = _STAGES if terms is None else -(-terms // depth)
    return max(1, min(_STAGES, shared // whole, rounds))


def _is_copy(value: Expr) -> bool:
    """Whether elements of a factor are loads, or zero where a condition does not hold: then no
    thread has to compute anything to copy them."""
    into = buffer("tile", (1,), value.dtype, "shared")
    return value.dtype.bytes >= LEAST and copy_of(Store(into, (_FIRST,), value)) is not None


def _window(p: Product) -> int:
    """Terms of one channel of a convolution (taps of its filter); 0 if unknown."""
    return int_value(product(tuple(e for _, e in p.terms[1:]))) or 0


def _depth(p: Product, size: tuple[int, int], threads: int, target: Target) -> int:
    """Terms per round. Whole windows of a convolution, if each thread then copies those of one
    column, and if that does not add more zeros behind the last term."""
    shared = target["max_shared_memory_per_block"]
    assert isinstance(shared, int)

    def fits(depth: int) -> bool:
        return _shared_bytes(p, size, depth) <= min(shared, _SHARED)

    depth = _DEPTH
    while depth > 1 and not fits(depth):
        depth //= 2
    window, terms = _window(p), int_value(product(tuple(e for _, e in p.terms)))
    if window > 1 and terms is not None and threads % size[1] == 0:
        windows = window * (threads // size[1])
        adds_zeros = -(-terms // windows) * windows > -(-terms // depth) * depth
        if windows <= _WINDOW and fits(windows) and not adds_zeros:
            return windows
    return depth


def _shared_bytes(p: Product, size: tuple[int, int], depth: int) -> int:
    """An upper bound on the bytes of a round's tiles of both factors, gaps included."""
    gap = _gap(min(depth, _CHUNK_FULL))
    return (sum(size) * p.dtype.bytes + 2 * gap) * depth


def _gap(chunk: int) -> int:
    """Bytes of padding behind a row of shared memory, such that neighbouring threads, which write
    to `chunk` rows, write to different banks."""
    return max(_VECTOR, _BANKS // chunk)


def _size(extent: int | None, threads: int) -> int:
    """Rows or columns of a tile: a multiple of the threads along it, at most _SYMBOLIC, and not
    twice as many as `extent` needs."""
    size = max(_SYMBOLIC, threads)
    while extent is not None and size // 2 >= max(extent, threads):
        size //= 2
    return size


@dataclass(frozen=True, slots=True)
class _Copied:
    """A factor in shared memory. `buffer` has a row for each term. A thread copies `lanes` elements
    at once, along terms or along the factor's own axes. Along terms, neighbouring threads copy
    `chunk` terms of `together` rows or columns, such that a warp writes to all banks."""

    side: Side
    buffer: Buffer
    along_terms: bool
    lanes: int
    chunk: int
    together: int


def _copied(name: str, side: Side, of: TiledProduct, tile: BlockTile) -> _Copied:
    """How a factor is copied: along the axes in which more of its elements are adjacent in memory.
    Copies ahead go from memory to memory, so a vector cannot be taken apart in registers: along
    terms, which are different rows of shared memory, they copy single elements."""
    along_terms = adjacent((side.value,), of.p.terms, of.terms)
    along_own = adjacent((side.value,), side.axes, side.extent)
    # Where nothing is adjacent, as in padded images, the axis of the output that is adjacent
    # decides.
    terms = along_terms > along_own or (along_terms == along_own and name == "left")
    ahead = tile.stages > 1
    lanes = max(1, int(along_own)) if not terms else 1 if ahead else max(1, int(along_terms))
    while (of.depth if terms else side.size) % lanes:
        lanes //= 2
    shared_buffer = buffer(name, (of.depth, side.size), side.dtype, "shared")
    sizes = [_ODD_CHUNK] if lanes == 1 else []
    sizes += range(max(lanes, _CHUNK_FULL if ahead and tile.full else _CHUNK), 0, -1)
    chunk = next(n for n in sizes if of.depth % n == 0 and n % lanes == 0)
    together = _GROUP if chunk == _ODD_CHUNK and side.size % _GROUP == 0 else 1
    return _Copied(side, shared_buffer, terms, lanes, chunk, together)


class _Tiles:
    """The program of a product in tiles."""

    def __init__(self, group: Group, p: Product, tile: BlockTile):
        self.p, self.tile = p, tile
        self.of = TiledProduct(group, p, tile.rows, tile.columns, tile.depth)
        self.left = _copied("left", self.of.left, self.of, tile)
        self.right = _copied("right", self.of.right, self.of, tile)
        # Sums of a thread: groups, and rows or columns of each; of columns vectors, as they are
        # stored, and columns of each.
        self.down = _groups(tile.rows // tile.down)
        # Columns of a group are cut into vectors as long as can be stored.
        count, self.group = _groups(tile.columns // tile.across)
        lane_limit = min(self.of.result_lanes, _VECTOR // p.dtype.bytes)
        self.lanes = math.gcd(self.group, lane_limit)
        self.across = count, self.group // self.lanes, self.lanes
        self.column_roles = [_REGISTER, _REGISTER, _LANE if self.lanes > 1 else _REGISTER]
        self.sums = buffer("sums", (tile.threads, *self.down, *self.across), p.dtype, "local")

    def stmt(self) -> Stmt:
        """for batch, tile of rows, tile of columns: the tile."""
        return self.of.grid(self._tile)

    def _tile(self, z: Expr, first_row: Expr, first_column: Expr) -> Stmt:
        tile, p, of = self.tile, self.p, self.of

        def step(k: Expr) -> Stmt:
            first = k * tile.depth
            return within(
                [self.left.buffer, self.right.buffer],
                self._copy(self.left, (z, first_row, first)),
                self._copy(self.right, (z, first_column, first)),
                each_thread("thread", tile.threads, self._products),
            )

        def start(t: Expr, *index: Expr) -> Stmt:
            return Store(self.sums, (t, *index), neutral("sum", p.dtype))

        def finish(t: Expr, r: Expr, i: Expr, c: Expr, h: Expr, j: Expr) -> Stmt:
            row = simplify(first_row + self._row(t, r) + i)
            first = simplify(first_column + self._output_column(t, c, h))
            return of.finish(Load(self.sums, (t, r, i, c, h, j)), z, row, (first, j), self.lanes)

        return within(
            [self.sums],
            self._each_sum(start),
            loop("k", of.rounds, step, _ROUND, keep=True),
            self._each_sum(finish),
        )

    # ---- sums --------------------------------------------------------------------------------

    def _each_sum(self, body: Callable[..., Stmt]) -> Stmt:
        """`body` for each thread and each of its sums. The loops are over groups of rows, rows of a
        group, groups of columns, vectors of a group, columns of a vector."""

        def sums(t: Expr) -> Stmt:
            roles = [_REGISTER, _REGISTER, *self.column_roles]
            extents = [*self.down, *self.across]
            return nest(["r", "i", "c", "h", "j"], extents, lambda *index: body(t, *index), roles)

        return each_thread("thread", self.tile.threads, sums)

    def _products(self, t: Expr) -> Stmt:
        """The statement that adds the products of the terms in shared memory to the sums of thread
        t."""
        depth, dtype = self.tile.depth, self.p.dtype
        slots = (2,) if self.tile.ahead else ()  # for the factors of a term, and of the next one
        rows = buffer("row", (*slots, *self.down), dtype, "register")
        columns = buffer("column", (*slots, *self.across), dtype, "register")

        def load(k: Expr, *slot: Expr) -> Stmt:
            def row(r: Expr, i: Expr) -> Stmt:
                row_index = simplify(self._row(t, r) + i)
                return Store(rows, (*slot, r, i), Load(self.left.buffer, (k, row_index)))

            def column(c: Expr, h: Expr, j: Expr) -> Stmt:
                column_index = simplify(self._column(t, c) + h * self.lanes + j)
                value = Load(self.right.buffer, (k, column_index))
                return Store(columns, (*slot, c, h, j), value)

            loads = [
                nest(["r", "i"], self.down, row, [_REGISTER] * 2),
                nest(["c", "h", "j"], self.across, column, self.column_roles),
            ]
            # In this order ptxas finds registers in fewer equal banks for two terms at once.
            return seq(*(reversed(loads) if slot else loads))

        def add(*slot: Expr) -> Stmt:
            def product(r: Expr, i: Expr, c: Expr, h: Expr, j: Expr) -> Stmt:
                index = (t, r, i, c, h, j)
                value = Load(rows, (*slot, r, i)) * Load(columns, (*slot, c, h, j))
                return Store(self.sums, index, Load(self.sums, index) + value)

            roles = [_REGISTER, _REGISTER, *self.column_roles]
            return nest(["r", "i", "c", "h", "j"], [*self.down, *self.across], product, roles)

        if not self.tile.ahead:
            term = lambda k: within([rows, columns], load(k), add())  # noqa: E731
            return loop("term", depth, term, _TERM)

        def two_terms(pair: Expr) -> Stmt:
            first = pair * 2
            return seq(
                load(simplify(first + 1), IntImm(1)),
                add(IntImm(0)),
                # Behind the last term, the first one again, which nobody multiplies.
                load(simplify((first + 2) % depth), IntImm(0)),
                add(IntImm(1)),
            )

        pairs = loop("pair", depth // 2, two_terms, _TERM)
        return within([rows, columns], load(IntImm(0), IntImm(0)), pairs)

    @property
    def _warps(self) -> bool:
        """Whether a warp is a rectangle of threads, so that it loads fewer different elements than
        a line."""
        return self.tile.across % _WARP_ACROSS == 0 and self.tile.down % _WARP_DOWN == 0

    def _place(self, t: Expr) -> tuple[Expr, Expr]:
        """The position (down, across) of thread t among the threads of the block."""
        across, warp = self.tile.across, _WARP_DOWN * _WARP_ACROSS
        if not self._warps:
            return t // across, t % across
        warps, lane = across // _WARP_ACROSS, t % warp
        # GPUs of NVIDIA load vectors of 16 bytes for half a warp in one turn if all pairs of
        # neighbours, or all of threads that are two apart, load the same: here the former of a row
        # of the right factor, the latter of a row of the left one.
        above = 2 if self.tile.ahead else 1
        down = t // (warp * warps) * _WARP_DOWN
        down = down + lane // (above * _WARP_ACROSS) * above + lane % above
        return down, t // warp % warps * _WARP_ACROSS + lane // above % _WARP_ACROSS

    def _row(self, t: Expr, r: Expr) -> Expr:
        """The first row, in the tile, of group r of thread t."""
        group = self.down[1]
        return simplify((r * self.tile.down + self._place(t)[0]) * group)

    def _column(self, t: Expr, c: Expr) -> Expr:
        """The first position, in a row of shared memory, of group c of columns of thread t."""
        return simplify((c * self.tile.across + self._place(t)[1]) * self.group)

    @property
    def _columns_apart(self) -> bool:
        """Whether the vectors of a thread's group lie apart in the output.

        Where rows of the output are not aligned to groups, a thread stores vectors shorter than its
        group. If the group were adjacent in the output, a warp would store short vectors with gaps
        between them. So the vectors of neighbouring threads are adjacent instead. Shared memory has
        the columns in the order of threads. That needs copies along columns, whose vectors fit;
        copies along terms would write to the same banks.
        """
        right = self.right
        return (
            self.lanes < self.group
            and self._warps
            and not right.along_terms
            and (right.lanes <= self.lanes)
        )

    def _output_column(self, t: Expr, c: Expr, h: Expr) -> Expr:
        """The first column, in the tile, of vector h of group c of thread t."""
        if not self._columns_apart:
            return simplify(self._column(t, c) + h * self.lanes)
        across = self._place(t)[1]
        warp = c * (self.tile.across // _WARP_ACROSS) + across // _WARP_ACROSS
        return simplify(
            ((warp * self.across[1] + h) * _WARP_ACROSS + across % _WARP_ACROSS) * self.lanes
        )

    # ---- global memory to shared memory ------------------------------------------------------

    def _copy(self, copied: _Copied, start: tuple[Expr, Expr, Expr]) -> Stmt:
        """The statement by which all threads copy a tile of a factor to shared memory."""
        side, depth = copied.side, self.tile.depth
        role, lanes = _COPY[copied.buffer.name], copied.lanes

        def element(j: Expr, k: Expr, position: Expr) -> Stmt:
            def store(value: Expr) -> Stmt:
                return Store(copied.buffer, (k, position), value)

            along = (1, lanes) if copied.along_terms else (lanes, 1)
            return self.of.copy(side, start, j, k, store, along)

        if copied.along_terms:
            chunk, together = copied.chunk, copied.together
            extents = [depth // chunk, side.size // together, chunk, together]

            def place(ko: Expr, jo: Expr, ki: Expr, ji: Expr = _FIRST) -> Stmt:
                j = simplify(jo * together + ji)
                return element(j, simplify(ko * chunk + ki), j)

            count = 3 if together == 1 else 4
            names = ["ko", "jo", "ki", "ji"][:count]
            return nest(names, extents[:count], place, [role, "", "", ""][:count], True)
        window = _window(self.p)
        window = window if window and depth % window == 0 else 1
        names, extents, places = self._own_places(copied)
        # The outer loop is over the places within a window: what one thread copies is then at the
        # same place of several channels, and most of an address is computed once.
        return nest(
            ["ki", "ko", *names],
            [window, depth // window, *extents],
            lambda ki, ko, *inner_index: element(
                places(*inner_index)[0], simplify(ko * window + ki), places(*inner_index)[1]
            ),
            [role, *[""] * (1 + len(names))],
            True,
        )

    def _own_places(
        self, copied: _Copied
    ) -> tuple[list[str], list[int], Callable[..., tuple[Expr, Expr]]]:
        """The loops over the rows or columns of a tile, in the order of global memory: names,
        extents, and a function from their variables to (row or column, its position in a row of
        shared memory)."""
        if copied is self.left or not self._columns_apart:
            return ["j"], [copied.side.size], lambda j: (j, j)
        (_, vectors, lanes), width = self.across, _WARP_ACROSS

        def places(warp: Expr, h: Expr, thread: Expr, lane: Expr) -> tuple[Expr, Expr]:
            column = ((warp * vectors + h) * width + thread) * lanes + lane
            return simplify(column), simplify(
                ((warp * width + thread) * vectors + h) * lanes + lane
            )

        warps = copied.side.size // (width * vectors * lanes)
        return ["w", "h", "t", "j"], [warps, vectors, width, lanes], places


def _groups(count: int) -> tuple[int, int]:
    """(groups of adjacent rows or columns of a thread, rows or columns in each)"""
    size = next(n for n in (_GROUP, 2, 1) if count % n == 0)
    return count // size, size
