"""Fused attention whose two products are of tiles of the processor (ir/tiles.py), of operands of
bfloat16 that are packed as for products of pairs (program.py).

    for tile of up to 16 queries:
        query[16] = q[rows]                                 memory: rows of adjacent features
        for block of keys:
            for 32 keys:
                c[2] = 0
                for 32 features: c[j] += query * k[16 keys of j, features]
                scores = c
            for query: softmax                              vectors, as in program.py
            for 32 columns of the head:
                c[2] = weighted
                for 32 keys: c[j] += powers * v[keys, 16 columns of j]
                weighted = c
        for query: weighted / total, epilogue               vectors

Packed keys and values are matrices of tiles as they lie in memory, 16 rows of 64 bytes. What is
left of the features, which are a multiple of 16, is in tiles of 8 rows. What is left of the keys is
copied, with zeros behind them, because their number may be unknown; the powers of those zeros are
zero. The last tile of an unknown number of queries multiplies as many rows as the others, and takes
the softmax of fewer.

A query's sums are added in one order, whatever queries are beside it: each step adds the sum of its
own 32 terms, and those of keys that only later queries of a tile see are zero.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from tensorkiln.arith import simplify
from tensorkiln.families.attention.program import Attention, QueryBuffers, QueryRow
from tensorkiln.families.attention.row import TILE_KEYS
from tensorkiln.ir.buffer import Buffer, Load, buffer
from tensorkiln.ir.expr import Expr, IntImm, as_expr, const, int_value, minimum
from tensorkiln.ir.stmt import PrimFunc, Stmt, Store, seq
from tensorkiln.ir.tiles import TILE_ROWS
from tensorkiln.schedule.build import loop, nest, vectors, within
from tensorkiln.schedule.tile_sums import COLUMNS, TileSum

_COLUMNS = 2  # tiles of columns of a sum


def tiled_program(c: Attention) -> PrimFunc:
    """for batch, head, tile of queries: blocks of keys, then the epilogue."""

    def tiles(b: Expr, h: Expr, start: int, count: Expr, height: int) -> Stmt:
        def tile(i: Expr) -> Stmt:
            return _QueryTile(c, b, h, simplify(i * c.tile_rows + start), height).stmt()

        return loop("tile", count, tile, "row", keep=True)

    def head(b: Expr, h: Expr) -> Stmt:
        rows = int_value(c.rows)
        if rows is None:
            many = simplify((c.rows + (c.tile_rows - 1)) // c.tile_rows)
            return tiles(b, h, 0, many, c.tile_rows)
        whole, tail = divmod(rows, c.tile_rows)
        last = tiles(b, h, rows - tail, IntImm(1), tail) if tail else None
        return seq(tiles(b, h, 0, as_expr(whole), c.tile_rows), last)

    body = nest(["b", "h"], [c.batch, c.heads], head, ["task", "task"])
    return PrimFunc(c.group.name, c.group.params, body)


class _QueryTile:
    """The statements for a tile of `height` queries from `first` on of head `h`."""

    def __init__(self, c: Attention, b: Expr, h: Expr, first: Expr, height: int):
        self.c, self.b, self.h, self.first = c, b, h, first
        self.rows = as_expr(height)
        if int_value(c.rows) is None:
            self.rows = simplify(minimum(height, c.rows - first))
        self.keys = c.keys_seen(first)
        self.buffers = QueryBuffers(c, height)
        self.sums = TileSum(
            (height,), _COLUMNS, TILE_ROWS, c.together, dtype=c.dtype, left=c.narrow, right=c.narrow
        )
        # Steps of whole tiles of features, and the sum of those that are left.
        self.steps, groups = divmod(c.depth // c.together, TILE_ROWS)
        self.tail_sums = self.sums.part(_COLUMNS, groups) if groups else None
        # Whole tiles of keys in memory, and a copy of the values of those that are left.
        self.whole = simplify(c.keys // TILE_KEYS)
        self.tail_values: Buffer | None = None
        if int_value(simplify(c.keys % TILE_KEYS)) != 0:
            shape = (TILE_ROWS, c.depth * c.together)
            self.tail_values = buffer("tail_values", shape, c.narrow, "local")

    def stmt(self) -> Stmt:
        """Read the queries, take the keys block by block, scale and store."""
        c, b = self.c, self.buffers
        blocks = c.blocks if c.single_block else c.blocks_of(self.keys)
        copies = [self.tail_values] if self.tail_values else []
        tiles = [*self.sums.buffers, *(self.tail_sums.buffers if self.tail_sums else ())]
        return within(
            [*b.of_all, *copies, *tiles],
            self.queries("start", lambda row: seq(*row.start())),
            *map(self.copy, copies),
            loop("block", blocks, self.block, "block"),
            self.queries("finish", lambda row: row.finish()),
        )

    def queries(self, name: str, body: Callable[[QueryRow], Stmt]) -> Stmt:
        """`body` for each query that exists."""

        def row(r: Expr) -> Stmt:
            position = self.b, self.h, simplify(self.first + r)
            return body(QueryRow(self.c, position, self.buffers, r))

        return loop(name, self.rows, row, "query", keep=True)

    def copy(self, into: Buffer) -> Stmt:
        """Copy the values of the keys behind the last whole tile, and zeros behind those."""
        c, few = self.c, self.c.together
        first = self.whole * TILE_ROWS
        pairs = simplify((c.keys + (few - 1)) // few - first)

        def row(name: str, extent: Expr, lo: Expr, value: Callable[[Expr, Expr], Expr]) -> Stmt:
            def pair(u: Expr) -> Stmt:
                def element(o: Expr, lane: Expr) -> Stmt:
                    column = o * (c.lanes * few) + lane
                    return Store(into, (u, column), value(u, column))

                return vectors(name, (c.vectors, c.lanes * few), element)

            return loop(f"u_{name}", extent, pair, lo=lo)

        def value(u: Expr, column: Expr) -> Expr:
            return Load(c.vbuf, (self.b, self.h, simplify(first + u), column))

        zero = const(0, c.narrow)
        return seq(
            row("values", pairs, IntImm(0), value),
            row("zeros", simplify(TILE_ROWS - pairs), pairs, lambda *_: zero),
        )

    def block(self, index: Expr) -> Stmt:
        """Scores, softmax and weighted values of one block of keys."""
        first, count = self.c.keys_of(index, self.keys)
        steps = simplify((count + (TILE_KEYS - 1)) // TILE_KEYS)
        size = simplify(steps * (TILE_KEYS // self.c.lanes))
        return within(
            self.buffers.of_block,
            self.products(index, count),
            self.queries("softmax", lambda row: row.softmax(first, count, size)),
            self.values(index, steps),
        )

    def products(self, index: Expr, count: Expr) -> Stmt:
        """scores = q k^T of `count` keys, two tiles of them at a time."""
        tiles = simplify((count + (COLUMNS - 1)) // COLUMNS)
        pairs = simplify(tiles // _COLUMNS)

        def scores(columns: int) -> Callable[[Expr], Stmt]:
            return lambda j: self.scores(index, j, columns)

        return seq(
            loop("j", pairs, scores(_COLUMNS), "keys"),
            loop("j_last", simplify(tiles % _COLUMNS), scores(1), lo=pairs),
        )

    def scores(self, index: Expr, j: Expr, columns: int) -> Stmt:
        """The scores of `columns` tiles of keys, the j-th pair of tiles of a block."""
        keys = simplify(index * (self.c.block // COLUMNS) + j * _COLUMNS)
        sums, tail = self.sums.part(columns, TILE_ROWS), None
        if self.tail_sums:
            tail_sums = self.tail_sums.part(columns, self.tail_sums.groups)
            tail = self.features(tail_sums, keys, as_expr(self.steps * TILE_ROWS))
        return seq(
            sums.clear(),
            loop("d", self.steps, lambda d: self.features(sums, keys, d * TILE_ROWS), "term"),
            tail,
            sums.write(self.buffers.scores, j * (_COLUMNS * COLUMNS)),
        )

    def features(self, t: TileSum, keys: Expr, first: Expr) -> Stmt:
        """A step of the scores of tiles of keys: pairs of features from `first` on."""
        c, query = self.c, self.buffers.query
        assert query is not None

        def left(_: int, i: Expr, e: Expr) -> Load:
            return Load(query, (i, simplify(first * c.together + e)))

        def right(o: int, i: Expr, e: Expr) -> Load:
            return Load(c.kbuf, (self.b, self.h, simplify(keys + o), simplify(first + i), e))

        return t.step(left, right)

    def values(self, index: Expr, steps: Expr) -> Stmt:
        """weighted += powers . v of so many tiles of keys, two tiles of columns at a time."""

        def weigh(columns: int) -> Callable[[Expr], Stmt]:
            return lambda j: self.weigh(index, steps, j, columns)

        full, single = divmod(self.c.vectors, _COLUMNS)
        return seq(
            loop("column", full, weigh(_COLUMNS), "columns"),
            weigh(1)(as_expr(full)) if single else None,
        )

    def weigh(self, index: Expr, steps: Expr, j: Expr, columns: int) -> Stmt:
        """The sums of `columns` tiles of columns, the j-th pair of tiles, over the values of a
        block."""
        c, weighted = self.c, self.buffers.weighted
        sums, first = self.sums.part(columns, TILE_ROWS), simplify(j * (_COLUMNS * COLUMNS))
        before = simplify(index * (c.block // TILE_KEYS))  # tiles of keys of the blocks before

        def step(t: Expr, value: Callable[[Expr, Expr], Load]) -> Stmt:
            def left(_: int, i: Expr, e: Expr) -> Load:
                return Load(self.buffers.powers, (i, simplify(t * TILE_KEYS + e)))

            def right(o: int, i: Expr, e: Expr) -> Load:
                return value(i, simplify((first + o * COLUMNS) * c.together + e))

            return sums.step(left, right)

        def in_memory(t: Expr) -> Stmt:
            pair = (before + t) * TILE_ROWS
            return step(t, lambda i, e: Load(c.vbuf, (self.b, self.h, simplify(pair + i), e)))

        whole, tail = steps, None
        if (copied := self.tail_values) is not None:
            whole = simplify(minimum(steps, self.whole - before))
            of_copy = partial(step, value=lambda i, e: Load(copied, (i, e)))
            tail = loop("t_tail", simplify(steps - whole), of_copy, lo=whole)
        return seq(
            sums.clear() if c.single_block else sums.read(weighted, first),
            loop("t", whole, in_memory, "term"),
            tail,
            sums.write(weighted, first),
        )
