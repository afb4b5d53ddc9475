"""One-pass attention on tensor cores, of float16 and bfloat16.

As `families/attention/gpu.py`, but each warp has 16 queries of the block's tile, and both products
are made of fragments (`schedule/intrin/fragments.py`):

    copy queries
    for a tile of keys:
        copy keys and values
        threads: scores = q k^T * scale + mask;  top = max(top, scores);  rescale own sums
                 weights = exp(scores - top);  own sums += weights v

The result fragments of two products with keys hold the same elements, in the same threads, as the
left fragment of a product with values. So scores become weights without leaving the registers of a
thread. Four threads share a row of scores. Scores, softmax and sums are float32; weights are
rounded to the type of the values before they are multiplied. Results go through the shared memory
of the queries, so that they can be stored as vectors.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial, reduce

from tensorkiln.arith import simplify
from tensorkiln.families.attention.gpu_blocks import AttentionBlocks, bind_blocks, is_inside
from tensorkiln.families.attention.program import LOWEST
from tensorkiln.families.attention_tensor_cores.gpu_row import (
    UNIT,
    WarpAttentionTile,
    tile_of,
    whole,
)
from tensorkiln.families.attention_wgmma.gpu_row import WarpgroupAttentionTile
from tensorkiln.families.tensor_cores.gpu_row import PAD
from tensorkiln.ir.buffer import Buffer, Load, buffer
from tensorkiln.ir.device_instructions import WARP_THREADS
from tensorkiln.ir.dtype import FLOAT32
from tensorkiln.ir.expr import (
    Broadcast,
    Expr,
    ExprLike,
    IntImm,
    Shuffle,
    Var,
    as_expr,
    binary,
    cast,
    const,
    intrin,
    logical_and,
    select,
)
from tensorkiln.ir.stmt import If, Let, PrimFunc, Stmt, Store, seq
from tensorkiln.schedule.access import simplify_value
from tensorkiln.schedule.build import lane_ramp, loop, nest, within
from tensorkiln.schedule.gpu.block import each_thread
from tensorkiln.schedule.gpu.fragments import chosen, joined, loaded, multiplied
from tensorkiln.schedule.gpu.grid import bind_threads
from tensorkiln.schedule.gpu.tiles import adjacent, divides
from tensorkiln.schedule.group import Group, static
from tensorkiln.schedule.intrin.fragments import LEFT_MATRICES, RIGHT_MATRICES, SUMS
from tensorkiln.schedule.primitives import Cooperative, Schedule
from tensorkiln.target import Target
from tensorkiln.target.capability import least_capability

_COPY = "copy {}"  # the roles of nests that fill shared memory
_STORE = "store"  # the role of the nest that stores to the output
ROUND = "round"  # the role of the loop over tiles of keys
REGISTER = "register"  # the role of loops over what a thread has in registers
PAIR = "pair"  # the role of loops over two adjacent keys, for which a thread loads a mask at once
_KEPT = ("weighted", "top", "total")  # what a thread keeps while the block runs
_AT_ONCE = 8  # most loads that a thread waits for together: each needs registers
_FRAGMENT = 8  # elements of a left fragment, and of two right ones
_ROWS = 2  # rows of a thread, 8 apart
_PAIR = 2  # sums of a thread in each row of a product
_QUAD = 4  # threads that share a row


def schedule(group: Group, target: Target, check: bool = False) -> Schedule | None:
    """The schedule of attention of 16-bit floats, with data movement before and after it. None
    where no tile fits."""
    assert group.anchor is not None
    tile = tile_of(group.anchor, target)
    if tile is None:
        return None
    tiles = TensorCoreAttention(group.unviewed, tile, least_capability(target))
    s = Schedule(PrimFunc(group.name, tiles.group.params, tiles.grid(tiles.block)), check)
    bind_blocks(s)
    divide(s, tiles, dict.fromkeys(tiles.lanes, tile.threads))
    for b in (tiles.queries, tiles.key, tiles.values):
        s.storage_align(b.name, 0, static(b.shape[1], "a row"), PAD // b.dtype.bytes)
    bind_registers(s)
    return s


def divide(
    s: Schedule, tiles: TensorCoreAttention, threads: Mapping[str, int], limit: int = _AT_ONCE
) -> None:
    """Divide the nests that fill shared buffers among `threads`, by the name of the buffer, and
    those that store among all. A thread waits for at most `limit` loads together."""
    for name, lanes in tiles.lanes.items():
        for copy in s.loops(role=_COPY.format(name)):
            copies: Cooperative = s.cooperative(copy, threads[name], lanes)
            rounds = static(s.loop(copies.rounds).extent, "rounds of a copy")
            # Unrolled copies load before they store, so each iteration takes registers.
            at_once = next(n for n in range(limit, 0, -1) if rounds % n == 0)
            s.unroll(s.split(copies.rounds, at_once).inner if at_once < rounds else copies.rounds)
    for store in s.loops(role=_STORE):
        s.cooperative(store, tiles.tile.threads, tiles.stored_lanes)


def bind_registers(s: Schedule) -> None:
    """Bind threads, and put into registers what each of them keeps."""
    bind_threads(s)
    for name in s.loops(role=PAIR):
        s.vectorize(name)
    for name in s.loops(role=REGISTER):
        s.unroll(name)
    for name in _KEPT:
        s.set_scope(name, "register")


class TensorCoreAttention(AttentionBlocks):
    """The program of attention on tensor cores."""

    def __init__(
        self, group: Group, tile: WarpAttentionTile | WarpgroupAttentionTile, capability: int
    ):
        super().__init__(group, tile.rows, tile.keys)
        self.tile, self.capability = tile, capability
        self.half, self.dtype = self.dtype, FLOAT32  # of operands, and of scores and sums
        depth, self.columns = whole(self.depth), whole(self.width)
        self.terms = depth
        # Where no mask is added, products are compared as they are, and scaled in the exponents.
        self.unscaled = not self.adds_mask and self.scale > 0
        self.exponent = math.log2(math.e) * (self.scale if self.unscaled else 1)
        # Its rows hold queries first, and results in the end.
        self.queries = self._shared("queries", tile.rows, max(depth, self.columns))
        self.key = self._shared("keys", tile.keys, depth)
        self.values = self._shared("values", tile.keys, self.columns)
        self.weighted = self._weighted_sums()
        self.top = self._own("top", _ROWS)  # the greatest score so far
        self.total = self._own("total", _ROWS)  # of the exponentials of own keys
        indices = (*(Var(n) for n in ("b", "h", "s")), Var("d"))
        operands = (("queries", self.q, self.depth), ("keys", self.k, self.depth))
        self.lanes = {
            name: self._vector(element(*indices), indices[-1], size)
            for name, element, size in (*operands, ("values", self.v, self.width))
        }
        place = Load(group.out, group.store_index(self.outer_index(*indices)))
        self.stored_lanes = self._vector(place, indices[-1], self.width)

    def _vector(self, value: Expr, d: Var, size: int) -> int:
        """How many elements of a head can be accessed at once."""
        return max(1, int(adjacent((value,), ((d, IntImm(size)),), IntImm(size))))

    def _shared(self, name: str, *shape: int) -> Buffer:
        return buffer(name, shape, self.half, "shared")

    def _own(self, name: str, *shape: ExprLike) -> Buffer:
        return buffer(name, (self.tile.threads, *shape), self.dtype, "local")

    def _weighted_sums(self) -> Buffer:
        """The buffer of weighted sums of values: of each thread a vector for eight columns."""
        return self._own("weighted", self.columns // SUMS.columns, SUMS.count)

    def _scratch(self, name: str, *shape: int, dtype: object = FLOAT32) -> Buffer:
        return buffer(name, shape, str(dtype), "register")

    def block(self, b: Expr, first: Expr, h: Expr) -> Stmt:
        """A tile of queries of a head, from `first` on."""
        tile = self.tile

        def step(j: Expr) -> Stmt:
            first_key = simplify(j * tile.keys)
            return within(
                [self.key, self.values],
                self._copy_keys(b, h, first_key),
                self._copy_values(b, h, first_key),
                each_thread(
                    "thread", tile.threads, lambda t: self._look(t, b, h, first, first_key)
                ),
            )

        return within(
            [self.queries, self.weighted, self.top, self.total],
            self._copy(self.queries, first, self.rows, self.depth, lambda s, d: self.q(b, h, s, d)),
            each_thread("thread", tile.threads, self._start),
            loop("j", self.rounds(first), step, ROUND, keep=True),
            each_thread("thread", tile.threads, self._finish),
            nest(
                ["i", "d"],
                [tile.rows, self.columns],
                lambda i, d: self._store(b, h, first, i, d),
                [_STORE, ""],
                True,
            ),
        )

    # ---- global memory -------------------------------------------------------------------------

    def _copy_keys(self, b: Expr, h: Expr, first: Expr) -> Stmt:
        """Copy a tile of keys, from `first` on."""
        return self._copy(self.key, first, self.keys, self.depth, lambda t, d: self.k(b, h, t, d))

    def _copy_values(self, b: Expr, h: Expr, first: Expr) -> Stmt:
        return self._copy(
            self.values, first, self.keys, self.width, lambda t, d: self.v(b, h, t, d)
        )

    def _place(self, b: Buffer, row: Expr, d: Expr) -> tuple[Expr, Expr]:
        """Where element d of a row of a tile is in its shared buffer."""
        return row, d

    def _copy(
        self,
        into: Buffer,
        first: Expr,
        extent: Expr,
        size: int,
        element: Callable[[Expr, Expr], Expr],
        part: tuple[int, int] | None = None,
    ) -> Stmt:
        """Copy rows of `size` elements, from row `first` on, to shared memory, with zeros beyond
        the last row and element. `part`: the first row of the tile, and how many; not given, all of
        them."""
        whole_tile = self.tile.rows if into is self.queries else self.tile.keys
        above, rows = part or (0, whole_tile)
        lanes = self.lanes[into.name]

        def copy(j: Expr, d: Expr) -> Stmt:
            j = simplify(j + above)
            row, place = simplify(first + j), self._place(into, j, d)
            store = Store(into, place, simplify_value(element(row, d), {}))
            conds = is_inside(row, extent, whole_tile) + self._whole(d, size, lanes)
            zero = Store(into, place, const(0, self.half))
            return If(logical_and(*conds), store, zero) if conds else store

        names, role = ["j", "d"], _COPY.format(into.name)
        return nest(names, [rows, whole(size)], copy, [role, ""], True)

    def _whole(self, d: Expr, size: int, lanes: int) -> list[Expr]:
        """The condition that a vector is inside of a head, as a list."""
        return is_inside(d // lanes * lanes if lanes > 1 else d, IntImm(size), whole(size))

    def _store(self, b: Expr, h: Expr, first: Expr, i: Expr, d: Expr) -> Stmt:
        s = simplify(first + i)
        value = Load(self.queries, self._place(self.queries, i, d))
        element = self.group.element(self.group.out_var, {self.var: lambda *_: value})
        result = simplify_value(element(*([IntImm(0)] * self.group.out_type.ndim)), {})
        index = self.group.store_index(self.outer_index(b, h, s, d))
        store = Store(self.group.out, index, result)
        conds = is_inside(s, self.rows, self.tile.rows)
        conds += self._whole(d, self.width, self.stored_lanes)
        return If(logical_and(*conds), store) if conds else store

    # ---- threads -------------------------------------------------------------------------------

    def _first(self, t: Expr) -> Expr:
        """The first row, in the tile, of the warp of thread t."""
        return t // WARP_THREADS * UNIT

    def _each_row(self, body: Callable[[Expr], Stmt]) -> Stmt:
        return loop("r", _ROWS, body, REGISTER)

    def _start(self, t: Expr) -> Stmt:
        def row(r: Expr) -> Stmt:
            # Times the factor of exponents it is still finite.
            lowest = LOWEST / 2 / max(self.exponent, 1) if self.unscaled else LOWEST
            top = Store(self.top, (t, r), const(lowest, self.dtype))
            return seq(top, Store(self.total, (t, r), const(0, self.dtype)))

        def clear(sums: Load, column: Expr) -> Stmt:
            return Store(
                self.weighted, sums.indices, Broadcast(const(0, self.dtype), sums.dtype.lanes)
            )

        return seq(self._each_row(row), self._each_weighted(t, clear))

    def _each_weighted(self, t: Expr, body: Callable[[Load, Expr], Stmt]) -> Stmt:
        """`body` for each vector of weighted sums of a thread, and the first of its columns."""

        def vector(c: Expr) -> Stmt:
            sums = Load(self.weighted, (t, c, lane_ramp(SUMS.count)))
            return body(sums, simplify(c * SUMS.columns))

        return loop("c", self.columns // SUMS.columns, vector, REGISTER)

    def _look(self, t: Expr, b: Expr, h: Expr, first: Expr, first_key: Expr) -> Stmt:
        """Process the tile of keys and values in shared memory."""
        sums = self._sums()
        scores = self._scratch("scores", self.products, SUMS.count)  # the same, one by one
        alpha = self._scratch("alpha", _ROWS)
        best = self._scratch("best", _ROWS)
        return within(
            [sums, scores, alpha, best],
            self._products(t, sums),
            self._apart(sums, scores),
            self._mask(t, b, h, first, first_key, scores, best),
            self._softmax(t, scores, best, alpha),
            self._rescale(t, alpha),
            self._weigh(t, scores),
        )

    @property
    def products(self) -> int:
        """Products of 8 keys in a tile."""
        return self.tile.keys // SUMS.columns

    def _sums(self) -> Buffer:
        """The sums of products with the keys of a tile, in vectors."""
        return self._scratch("sums", self.products, SUMS.count)

    def _apart(self, sums: Buffer, scores: Buffer) -> Stmt:
        def apart(c: Expr) -> Stmt:
            thread_sums = Load(sums, (c, lane_ramp(SUMS.count)))
            elements = range(SUMS.count)
            return seq(
                *(Store(scores, (c, IntImm(e)), chosen(thread_sums, (e,))) for e in elements)
            )

        return loop("c", self.products, apart, REGISTER)

    def _products(self, t: Expr, sums: Buffer) -> Stmt:
        """Multiply the queries of a warp by all keys in shared memory."""
        a = self._scratch("a", _FRAGMENT, dtype=self.half)
        b = self._scratch("b", _FRAGMENT, dtype=self.half)
        zero = Broadcast(const(0, self.dtype), SUMS.count)

        def clear(c: Expr) -> Stmt:
            return Store(sums, (c, lane_ramp(SUMS.count)), zero)

        def term(k: Expr) -> Stmt:
            queries = loaded(self.queries, False, LEFT_MATRICES, t, self._first(t), k * UNIT)

            def keys(c: Expr) -> Stmt:
                fragment = loaded(self.key, False, RIGHT_MATRICES, t, c * UNIT, k * UNIT)
                return self._both(b, fragment, a, lambda half: (sums, (simplify(c * 2 + half),)))

            store = Store(a, (lane_ramp(_FRAGMENT),), queries)
            return seq(store, loop("c", self.tile.keys // UNIT, keys, REGISTER))

        return within(
            [a, b],
            loop("c", self.tile.keys // SUMS.columns, clear, REGISTER),
            loop("k", self.terms // UNIT, term, REGISTER),
        )

    def _both(
        self,
        into: Buffer,
        right_fragment: Expr,
        left_fragment: Buffer,
        place: Callable[[int], tuple[Buffer, tuple[Expr, ...]]],
    ) -> Stmt:
        """Add the products of `left_fragment` with two right factors, loaded together, to the sums
        at `place(0)` and `place(1)`."""
        ramp, half = lane_ramp(_FRAGMENT), _FRAGMENT // 2
        stmts: list[Stmt] = [Store(into, (ramp,), right_fragment)]
        for k in range(2):
            sums, index = place(k)
            sum_index = (*index, lane_ramp(SUMS.count))
            y = chosen(Load(into, (ramp,)), tuple(range(k * half, (k + 1) * half)))
            value = multiplied(
                Load(left_fragment, (ramp,)), y, Load(sums, sum_index), self.capability
            )
            stmts.append(Store(sums, sum_index, value))
        return seq(*stmts)

    def _mask(
        self,
        t: Expr,
        b: Expr,
        h: Expr,
        first: Expr,
        first_key: Expr,
        scores: Buffer,
        best: Buffer,
    ) -> Stmt:
        """Turn products into scores, and find the maximum of each row of a thread."""
        hidden = const(float("-inf"), self.dtype)
        if self.mask is None:
            return self._hide(t, first, first_key, scores, best)

        def one(row: Expr, key: Expr, place: tuple[Expr, Expr], r: Expr) -> Stmt:
            score = Load(scores, place)
            scaled = score if self.unscaled else score * const(self.scale, self.dtype)
            value = simplify_value(self.masked(scaled, b, h, row, key), {})
            conds = is_inside(key, self.keys, self.tile.keys)
            conds += is_inside(row, self.rows, self.tile.rows)
            store = Store(scores, place, value)
            return If(logical_and(*conds), store, Store(scores, place, hidden)) if conds else store

        return seq(
            self._each_score(t, first, first_key, one, PAIR if self.mask_in_pairs else REGISTER),
            self._best(t, first, first_key, scores, best),
        )

    def _best(self, t: Expr, first: Expr, first_key: Expr, scores: Buffer, best: Buffer) -> Stmt:
        """Find the maximum of each row of a thread."""

        def compare(row: Expr, key: Expr, place: tuple[Expr, Expr], r: Expr) -> Stmt:
            return Store(best, (r,), _larger(Load(best, (r,)), Load(scores, place)))

        return seq(
            self._each_row(lambda r: Store(best, (r,), const(LOWEST, self.dtype))),
            self._each_score(t, first, first_key, compare),
        )

    @property
    def mask_in_pairs(self) -> bool:
        """Whether a thread can load a mask for two adjacent keys at once, none of them beyond the
        last tile."""
        assert self.mask is not None
        is_tiled = not is_inside(IntImm(0), self.keys, self.tile.keys)
        is_tiled &= not is_inside(IntImm(0), self.rows, self.tile.rows)
        index = [Var(n) for n in ("b", "h", "s", "t")]
        value = self.masked(const(0, self.dtype), *index)
        return is_tiled and divides(value, ((index[-1], self.keys),), self.keys, _PAIR)

    def _hide(self, t: Expr, first: Expr, first_key: Expr, scores: Buffer, best: Buffer) -> Stmt:
        """The same without a mask: only the last tiles of a warp have scores that do not count."""

        def scale(row: Expr, key: Expr, place: tuple[Expr, Expr], r: Expr) -> Stmt:
            return Store(scores, place, Load(scores, place) * const(self.scale, self.dtype))

        def hide(row: Expr, key: Expr, place: tuple[Expr, Expr], r: Expr) -> Stmt:
            score = self.after_causal(Load(scores, place), row, key)
            inside = is_inside(key, self.keys, self.tile.keys)
            if inside:
                score = select(inside[0], score, const(float("-inf"), self.dtype))
            return Store(scores, place, simplify_value(score, {}))

        last = simplify(first_key + (self.tile.keys - 1))
        beyond = [as_expr(self.keys) <= last for _ in is_inside(last, self.keys, self.tile.keys)]
        if self.causal:
            first_row = simplify(first + self._first(t))
            beyond.append(simplify(first_row + (self.keys - self.rows)) < last)
        hides = self._each_score(t, first, first_key, hide) if beyond else None
        return seq(
            None if self.unscaled else self._each_score(t, first, first_key, scale),
            None if hides is None else If(reduce(partial(binary, "or"), beyond), hides),
            self._best(t, first, first_key, scores, best),
        )

    def _each_score(
        self,
        t: Expr,
        first: Expr,
        first_key: Expr,
        body: Callable[[Expr, Expr, tuple[Expr, Expr], Expr], Stmt],
        role: str = REGISTER,
    ) -> Stmt:
        """`body(query, key, place, row of the thread)` for each score of a thread; adjacent ones in
        loops with this role."""

        def one(c: Expr, r: Expr, e: Expr) -> Stmt:
            place = c, simplify(r * _PAIR + e)
            row, column = SUMS.place(t % WARP_THREADS, place[1])
            row = simplify(first + self._first(t) + row)
            key = simplify(first_key + c * SUMS.columns + column)
            return body(row, key, place, r)

        return nest(["c", "r", "e"], [self.products, _ROWS, _PAIR], one, [REGISTER] * 2 + [role])

    def _softmax(self, t: Expr, scores: Buffer, best: Buffer, alpha: Buffer) -> Stmt:
        """Update maxima and sums of exponentials, and replace scores by weights."""
        shift = self._scratch("shift", _ROWS)  # of exponents
        factor = const(self.exponent, self.dtype)

        def row(r: Expr) -> Stmt:
            row_index, new = (t, r), Var("new", self.dtype)
            top = Load(self.top, row_index)
            # The four threads of a row are neighbours, so they can exchange values without shared
            # memory.
            row_max = _larger(top, intrin("subgroup_max", Load(best, (r,)), IntImm(_QUAD)))
            steps = seq(
                Store(alpha, (r,), intrin("thread_exp2", (top - new) * factor)),
                Store(self.top, row_index, new),
                Store(shift, (r,), new * factor),
                Store(self.total, row_index, Load(self.total, row_index) * Load(alpha, (r,))),
            )
            return Let(new, row_max, steps)

        def power(score: Expr, r: Expr) -> Expr:
            # A finite mask may lower scores so far that they have no finite exponents.
            if self.unscaled:
                return intrin("thread_exp2", score * factor - Load(shift, (r,)))
            return intrin("thread_exp2", (score - Load(self.top, (t, r))) * factor)

        def weights(c: Expr, r: Expr) -> Stmt:
            places = [(c, simplify(r * _PAIR + e)) for e in range(_PAIR)]
            values = [Var(name, self.dtype) for name in ("p", "q")]
            stores = [Store(scores, *pair) for pair in zip(places, values, strict=True)]
            added = Load(self.total, (t, r)) + (values[0] + values[1])
            body = seq(*stores, Store(self.total, (t, r), added))
            for place, value in zip(places, values, strict=True):
                body = Let(value, power(Load(scores, place), r), body)
            return body

        powers = nest(["c", "r"], [self.products, _ROWS], weights, [REGISTER] * 2)
        return within([shift], self._each_row(row), powers)

    def _rescale(self, t: Expr, alpha: Buffer) -> Stmt:
        def rescale(sums: Load, column: Expr) -> Stmt:
            factors = self._by_row(alpha, sums.dtype.lanes)
            return Store(self.weighted, sums.indices, sums * factors)

        return self._each_weighted(t, rescale)

    def _by_row(self, factors: Buffer, count: int = SUMS.count) -> Expr:
        """A vector with a factor for each sum of a thread, from a factor per row."""
        pair = joined([Load(factors, (IntImm(r),)) for r in range(_ROWS)])
        return Shuffle(pair, pair, tuple(e // _PAIR % _ROWS for e in range(count)))

    def _weights(self, scores: Buffer, first: Expr, count: int) -> Expr:
        """The weights of `count` products, of 8 keys each, as a left factor."""
        parts: list[Expr] = [
            Load(scores, (simplify(first + c), IntImm(e)))
            for c in range(count)
            for e in range(SUMS.count)
        ]
        return cast(joined(parts), self.half)

    def _weigh(self, t: Expr, scores: Buffer) -> Stmt:
        """Add the values in shared memory, times their weights."""
        a = self._scratch("w", _FRAGMENT, dtype=self.half)
        b = self._scratch("v", _FRAGMENT, dtype=self.half)

        def keys(k: Expr) -> Stmt:
            weights = Store(a, (lane_ramp(_FRAGMENT),), self._weights(scores, k * 2, 2))

            def values(c: Expr) -> Stmt:
                fragment = loaded(self.values, True, RIGHT_MATRICES, t, c * UNIT, k * UNIT)
                return self._both(
                    b, fragment, a, lambda half: (self.weighted, (t, simplify(c * 2 + half)))
                )

            return seq(weights, loop("c", self.columns // UNIT, values, REGISTER))

        return within([a, b], loop("k", self.tile.keys // UNIT, keys, REGISTER))

    def _finish(self, t: Expr) -> Stmt:
        """Divide by the sums of all exponentials, and store to the shared memory of the queries."""
        inverse = self._scratch("inverse", _ROWS)

        def row(r: Expr) -> Stmt:
            all_ = Var("all", self.dtype)
            value = const(1, self.dtype) / all_
            if self.keeps_zero:  # a row that sees no key has total 0
                zero = const(0, self.dtype)
                value = select(zero < all_, value, zero)
            total = intrin("subgroup_sum", Load(self.total, (t, r)), IntImm(_QUAD))
            return Let(all_, total, Store(inverse, (r,), value))

        def store(sums: Expr, column: Expr) -> Stmt:
            """Of eight columns from `column` on."""
            stores = []
            for k in range(0, SUMS.count, _PAIR):
                row, d = SUMS.place(t % WARP_THREADS, IntImm(k))
                query = simplify(self._first(t) + row)
                factor = Broadcast(Load(inverse, (IntImm(k // _PAIR),)), _PAIR)
                pair = cast(chosen(sums, (k, k + 1)) * factor, self.half)
                query, d = self._place(self.queries, query, simplify(column + d))
                stores.append(Store(self.queries, (query, lane_ramp(_PAIR, d)), pair))
            return seq(*stores)

        return within([inverse], self._each_row(row), self._each_eight(t, store))

    def _each_eight(self, t: Expr, body: Callable[[Expr, Expr], Stmt]) -> Stmt:
        """`body` for each vector of a thread's weighted sums of eight columns, and the first of
        these."""
        return self._each_weighted(t, body)


def _larger(a: Expr, b: Expr) -> Expr:
    """The larger of two scores. Where one is a NaN, so is its weight, and with it the result."""
    return intrin("thread_max", a, b)
