"""One-pass attention on a device: scores never leave the registers and shared memory of a block.

A block of threads has a tile of queries of one head in shared memory, and takes keys and values a
tile at a time. As on CPUs (`families/attention/program.py`), it keeps for each query the maximum
score so far and the sum of exponentials, and rescales both when the maximum grows ("Online
normalizer calculation for softmax", Milakov and Gimelshein, 2018):

    for a tile of keys:
        threads: copy keys and values
        threads: own scores = q k^T * scale + mask;  part[own] = max(own scores)
        threads: top = max(top, part[all]);  weights = exp(own scores - top);  rescale own sums
        threads: own sums += weights v

A thread has a few rows. It keeps their maxima, its part of their sums, and its columns of their
weighted values in registers. All of it is float32; the order of a sum depends on the tile alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tensorkiln.arith import simplify
from tensorkiln.families.attention.gpu_blocks import AttentionBlocks, bind_blocks, is_inside
from tensorkiln.families.attention.gpu_row import AttentionTile, odd, tile_of
from tensorkiln.families.attention.program import LOWEST
from tensorkiln.ir.buffer import Buffer, Load, buffer
from tensorkiln.ir.expr import (
    Expr,
    ExprLike,
    IntImm,
    Var,
    const,
    intrin,
    logical_and,
    maximum,
    select,
)
from tensorkiln.ir.stmt import If, Let, PrimFunc, Stmt, Store, seq
from tensorkiln.schedule.access import simplify_value
from tensorkiln.schedule.build import loop, nest, within
from tensorkiln.schedule.gpu.block import each_thread, strided
from tensorkiln.schedule.gpu.grid import bind_threads
from tensorkiln.schedule.group import Group
from tensorkiln.schedule.primitives import Schedule
from tensorkiln.target import Target

_REGISTERS = ("scores", "weighted", "top", "total")


def schedule(group: Group, target: Target, check: bool = False) -> Schedule | None:
    """The schedule of attention, with data movement before and after it. None where no tile
    fits."""
    assert group.anchor is not None
    tile = tile_of(group.anchor, target)
    if tile is None:
        return None
    kernel = _Attention(group.unviewed, tile)
    s = Schedule(PrimFunc(group.name, kernel.group.params, kernel.grid(kernel.block)), check)
    bind_blocks(s)
    bind_threads(s)
    for name in s.loops(role="register"):
        s.unroll(name)
    for name in _REGISTERS:
        s.set_scope(name, "register")
    return s


class _Attention(AttentionBlocks):
    """The program of attention on a device."""

    def __init__(self, group: Group, tile: AttentionTile):
        super().__init__(group, tile.all_rows, tile.all_keys)
        self.tile, self.columns = tile, tile.columns(self.width)
        rows, keys, threads = tile.all_rows, tile.all_keys, tile.threads
        # Rows of odd length: what neighbouring threads write is then in different banks.
        self.queries = self._shared("queries", self.depth, odd(rows))
        self.key = self._shared("keys", self.depth, odd(keys))
        self.values = self._shared("values", keys, self.columns * tile.across)
        self.weights = self._shared("weights", keys, odd(rows))
        self.parts = self._shared("parts", tile.across, odd(rows))
        self.scores = self._own("scores", threads, tile.rows, tile.keys)
        self.weighted = self._own("weighted", threads, tile.rows, self.columns)
        self.top = self._own("top", threads, tile.rows)  # the greatest score so far
        self.total = self._own("total", threads, tile.rows)  # of the exponentials of own keys

    def _shared(self, name: str, *shape: ExprLike) -> Buffer:
        return buffer(name, shape, self.dtype, "shared")

    def _own(self, name: str, *shape: ExprLike) -> Buffer:
        return buffer(name, shape, self.dtype, "local")

    def _number(self, value: float) -> Expr:
        return const(value, self.dtype)

    def block(self, b: Expr, first: Expr, h: Expr) -> Stmt:
        """A tile of queries of a head, from `first` on."""
        tile = self.tile

        def step(j: Expr) -> Stmt:
            first_key = simplify(j * tile.all_keys)
            size = self.keys
            keys = self._copy(
                self.key, tile.all_keys, first_key, size, lambda t, d: self.k(b, h, t, d)
            )
            return seq(
                keys,
                self._copy_values(b, h, first_key),
                self._each_thread(lambda t: self._scores(t, b, h, first, first_key)),
                self._each_thread(self._softmax),
                self._each_thread(self._sums),
            )

        buffers = [self.queries, self.key, self.values, self.weights, self.parts]
        buffers += [self.scores, self.weighted, self.top, self.total]
        return within(
            buffers,
            self._copy(
                self.queries, tile.all_rows, first, self.rows, lambda s, d: self.q(b, h, s, d)
            ),
            self._each_thread(self._start),
            loop("j", self.rounds(first), step, keep=True),
            self._each_thread(self._parts_of_sums),
            self._each_thread(lambda t: self._finish(t, b, h, first)),
        )

    # --- threads -----------------------------------------------------------------------------

    def _each_thread(self, body: Callable[[Expr], Stmt]) -> Stmt:
        return each_thread("thread", self.tile.threads, body)

    def _row(self, t: Expr, r: Expr) -> Expr:
        """The row, in the tile, that is row r of thread t."""
        return simplify(r * self.tile.down + t // self.tile.across)

    def _column(self, t: Expr, c: Expr) -> Expr:
        """The key, or column of the values, that is number c of thread t."""
        return simplify(c * self.tile.across + t % self.tile.across)

    def _registers(
        self, names: Sequence[str], extents: Sequence[int], body: Callable[..., Stmt]
    ) -> Stmt:
        return nest(names, extents, body, ["register"] * len(names))

    def _copy(
        self,
        into: Buffer,
        size: int,
        first: Expr,
        extent: Expr,
        element: Callable[[Expr, Expr], Expr],
    ) -> Stmt:
        """Copy `size` rows from `first` on to shared memory, transposed, with zeros beyond the
        last. Neighbouring threads read neighbouring elements of a row."""

        def copy(e: Expr) -> Stmt:
            d, j = simplify(e % self.depth), simplify(e // self.depth)
            row = simplify(first + j)
            return self._guarded(into, (d, j), element(row, d), is_inside(row, extent, size))

        count = IntImm(self.depth * size)
        return self._each_thread(lambda t: strided("e", count, self.tile.threads, t, copy))

    def _copy_values(self, b: Expr, h: Expr, first: Expr) -> Stmt:
        """Copy rows of the values, with zeros beyond the last row and column."""
        size = self.columns * self.tile.across
        keys = self.tile.all_keys

        def copy(e: Expr) -> Stmt:
            d, j = simplify(e % size), simplify(e // size)
            row = simplify(first + j)
            inside = [*is_inside(row, self.keys, keys), *is_inside(d, IntImm(self.width), size)]
            return self._guarded(self.values, (j, d), self.v(b, h, row, d), inside)

        count = IntImm(size * keys)
        return self._each_thread(lambda t: strided("e", count, self.tile.threads, t, copy))

    def _guarded(
        self, into: Buffer, index: tuple[Expr, ...], value: Expr, inside: Sequence[Expr]
    ) -> Stmt:
        """Store a value, or zero unless all conditions `inside` hold."""
        store = Store(into, index, simplify_value(value, {}))
        zero = Store(into, index, self._number(0))
        return If(logical_and(*inside), store, zero) if inside else store

    def _start(self, t: Expr) -> Stmt:
        def row(r: Expr) -> Stmt:
            top = Store(self.top, (t, r), self._number(LOWEST))
            return seq(top, Store(self.total, (t, r), self._number(0)))

        def column(r: Expr, c: Expr) -> Stmt:
            return Store(self.weighted, (t, r, c), self._number(0))

        return seq(
            self._registers(["r"], [self.tile.rows], row),
            self._registers(["r", "c"], [self.tile.rows, self.columns], column),
        )

    def _scores(self, t: Expr, b: Expr, h: Expr, first: Expr, first_key: Expr) -> Stmt:
        """Compute the scores of a thread's rows and keys, and the maximum of each row over these
        keys."""
        tile = self.tile
        best = buffer("best", (tile.rows,), self.dtype, "register")

        def clear(r: Expr, c: Expr) -> Stmt:
            return Store(self.scores, (t, r, c), self._number(0))

        def product(d: Expr, r: Expr, c: Expr) -> Stmt:
            q, k = Load(self.queries, (d, self._row(t, r))), Load(self.key, (d, self._column(t, c)))
            return Store(self.scores, (t, r, c), Load(self.scores, (t, r, c)) + q * k)

        def term(d: Expr) -> Stmt:
            extents = [tile.rows, tile.keys]
            return self._registers(["r", "c"], extents, lambda r, c: product(d, r, c))

        def mask(r: Expr, c: Expr) -> Stmt:
            row, key = simplify(first + self._row(t, r)), simplify(first_key + self._column(t, c))
            raw_score, value = Load(self.scores, (t, r, c)), Var("s", self.dtype)
            inside = is_inside(key, self.keys, tile.all_keys)
            if self.mask is not None:
                inside += is_inside(row, self.rows, tile.all_rows)
            store = Store(self.scores, (t, r, c), value)
            greater = Store(best, (r,), maximum(Load(best, (r,)), value))
            score = simplify_value(self.score(raw_score, b, h, row, key), {})
            body = Let(value, score, seq(store, greater))
            # A score that is hidden gets weight exp(-inf) = 0.
            hidden = Store(self.scores, (t, r, c), self._number(float("-inf")))
            return If(logical_and(*inside), body, hidden) if inside else body

        def part(r: Expr) -> Stmt:
            return Store(self.parts, (t % tile.across, self._row(t, r)), Load(best, (r,)))

        rows, score_shape = [tile.rows], [tile.rows, tile.keys]
        return within(
            [best],
            self._registers(["r", "c"], score_shape, clear),
            loop("d", self.depth, term, keep=True),
            self._registers(["r"], rows, lambda r: Store(best, (r,), self._number(LOWEST))),
            self._registers(["r", "c"], score_shape, mask),
            self._registers(["r"], rows, part),
        )

    def _softmax(self, t: Expr) -> Stmt:
        """Update the maxima, turn scores into weights, and rescale the sums so far."""
        tile, origin = self.tile, (IntImm(0),)
        new = buffer("new", (1,), self.dtype, "register")
        alpha = buffer("alpha", (1,), self.dtype, "register")

        def row(r: Expr) -> Stmt:
            row_index, mine = (t, r), self._row(t, r)

            def part(j: Expr) -> Stmt:
                return Store(new, origin, maximum(Load(new, origin), Load(self.parts, (j, mine))))

            def weight(c: Expr) -> Stmt:
                value = Var("p", self.dtype)
                e = intrin("exp", Load(self.scores, (t, r, c)) - Load(new, origin))
                store = Store(self.weights, (self._column(t, c), mine), value)
                return Let(
                    value, e, seq(store, Store(self.total, row_index, self._at(row_index) + value))
                )

            def rescale(c: Expr) -> Stmt:
                scaled = Load(self.weighted, (t, r, c)) * Load(alpha, origin)
                return Store(self.weighted, (t, r, c), scaled)

            return seq(
                Store(new, origin, Load(self.top, row_index)),
                loop("p", tile.across, part, keep=True),
                Store(alpha, origin, intrin("exp", Load(self.top, row_index) - Load(new, origin))),
                Store(self.top, row_index, Load(new, origin)),
                Store(self.total, row_index, self._at(row_index) * Load(alpha, origin)),
                self._registers(["c"], [tile.keys], weight),
                self._registers(["c"], [self.columns], rescale),
            )

        return within([new, alpha], self._registers(["r"], [tile.rows], row))

    def _at(self, index: tuple[Expr, ...]) -> Expr:
        return Load(self.total, index)

    def _sums(self, t: Expr) -> Stmt:
        """Add the values of the tile of keys, times their weights."""

        def add(k: Expr, r: Expr, c: Expr) -> Stmt:
            p = Load(self.weights, (k, self._row(t, r)))
            v = Load(self.values, (k, self._column(t, c)))
            return Store(self.weighted, (t, r, c), Load(self.weighted, (t, r, c)) + p * v)

        def key(k: Expr) -> Stmt:
            extents = [self.tile.rows, self.columns]
            return self._registers(["r", "c"], extents, lambda r, c: add(k, r, c))

        return loop("k", self.tile.all_keys, key, keep=True)

    def _parts_of_sums(self, t: Expr) -> Stmt:
        def row(r: Expr) -> Stmt:
            return Store(self.parts, (t % self.tile.across, self._row(t, r)), self._at((t, r)))

        return self._registers(["r"], [self.tile.rows], row)

    def _finish(self, t: Expr, b: Expr, h: Expr, first: Expr) -> Stmt:
        """Divide by the sum of all exponentials, and store."""
        tile, origin = self.tile, (IntImm(0),)
        total = buffer("all", (1,), self.dtype, "register")

        def row(r: Expr) -> Stmt:
            def part(j: Expr) -> Stmt:
                partial_sum = Load(self.parts, (j, self._row(t, r)))
                return Store(total, origin, Load(total, origin) + partial_sum)

            inverse = self._number(1) / Load(total, origin)
            if self.keeps_zero:  # a row that sees no key has total 0
                zero = self._number(0)
                inverse = select(zero < Load(total, origin), inverse, zero)
            query = simplify(first + self._row(t, r))
            return seq(
                Store(total, origin, self._number(0)),
                loop("p", tile.across, part, keep=True),
                Store(total, origin, inverse),
                self._registers(["c"], [self.columns], lambda c: store(r, query, c)),
            )

        def store(r: Expr, s: Expr, c: Expr) -> Stmt:
            d = self._column(t, c)
            value = Load(self.weighted, (t, r, c)) * Load(total, origin)
            element = self.group.element(self.group.out_var, {self.var: lambda *_: value})
            result = simplify_value(element(*([IntImm(0)] * self.group.out_type.ndim)), {})
            index = self.group.store_index(self.outer_index(b, h, s, d))
            inside = is_inside(s, self.rows, tile.all_rows)
            inside += is_inside(d, IntImm(self.width), self.columns * tile.across)
            out_store = Store(self.group.out, index, result)
            return If(logical_and(*inside), out_store) if inside else out_store

        return within([total], self._registers(["r"], [tile.rows], row))
