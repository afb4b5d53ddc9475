"""What fused attention computes, query by query: the plain program that `schedule.py` schedules.

For each block of keys: scores = q k^T in a local buffer, the running maximum and sum of the row
("Online normalizer calculation for softmax", Milakov and Gimelshein, 2018), then scores times v,
added to the row's weighted sum. Blocks are part of the program because they decide the order of the
sums. Keys are packed by lanes, [B][H][T/v][D][v].

Operands of 16 bits are multiplied in pairs, by dot-product instructions: of the products q k^T the
pairs of features, of the weighted sums of values the pairs of keys, for which exponentials are
rounded. Keys are packed as [B][H][T/v][D/2][v][2], values as [B][H][T/2][D][2]. After the last of
an odd number of keys, memory holds a zero, and the exponential of its hidden score is zero. Where
the processor has tiles for these products, tiles.py computes them, and only softmax and epilogue
are those of this file.

Roles of loops: "task", over the heads of the batch; "row" of queries; "block" of keys; "term", over
the terms of a sum; "keys" and "columns", over the vectors of scores and of a row of values;
"vector", "lane" and "dot" as in schedule/register_tile.py.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from tensorkiln.arith import simplify
from tensorkiln.families.attention.operands import AttentionOperands
from tensorkiln.families.attention.row import TILE_KEYS, in_tiles
from tensorkiln.ir.buffer import Buffer, Load, buffer
from tensorkiln.ir.dtype import DType
from tensorkiln.ir.expr import (
    Expr,
    IntImm,
    Var,
    VectorReduce,
    as_expr,
    binary,
    cast,
    const,
    int_value,
    intrin,
    maximum,
    minimum,
    select,
)
from tensorkiln.ir.relax import RVar, TensorType
from tensorkiln.ir.stmt import Let, PrimFunc, Stmt, Store, seq
from tensorkiln.ir.tiles import TILE_ROWS
from tensorkiln.kernels.layouts import together
from tensorkiln.schedule.access import simplify_value
from tensorkiln.schedule.accumulate import add_product
from tensorkiln.schedule.build import lane_ramp, lanes, loop, nest, vectors, within
from tensorkiln.schedule.group import Group
from tensorkiln.target import Target

# Initial value of the running maximum. Minus infinity would give NaN, as (-inf) - (-inf), in a row
# whose scores are all -inf. The lowest finite score is used so that scores lowered to it by a
# finite mask equal the maximum and share the weight, instead of vanishing.
LOWEST = float(np.finfo(np.float32).min)


def tile_rows(rows: Expr, limit: int) -> int:
    """The rows of a tile of queries, at most `limit`: as many in each tile as can be, if their
    number is constant."""
    count = int_value(rows)
    return -(-count // -(-count // limit)) if count else limit


class Attention(AttentionOperands):
    """Fused attention with keys packed by lanes and v as wide as k."""

    def __init__(self, group: Group, target: Target):
        super().__init__(group)
        query, key, value = self.call.args[:3]
        assert isinstance(key, RVar) and isinstance(query.type, TensorType)
        self.narrow = query.type.dtype  # of queries, keys and values
        # Features of a key, or keys of a feature, that one instruction multiplies and sums.
        self.together = together(key.tensor, 3)
        self.kbuf = self._packed(key)
        if self.together > 1:
            assert isinstance(value, RVar)
            self.vbuf = self._packed(value)
        self.lanes = target.vector_lanes("float32")
        self.vectors = self.depth // self.lanes
        self.block = group.knob("keys")  # of a block; may be all keys
        self.blocks = self.blocks_of(self.keys)
        self.single_block = int_value(self.blocks) == 1  # no sums and maxima from block to block
        self.in_tiles = in_tiles(self.call, target)
        limit = TILE_ROWS if self.in_tiles else group.knob("rows")
        self.tile_rows = tile_rows(self.rows, limit)

    def blocks_of(self, keys: Expr) -> Expr:
        """How many blocks hold so many keys."""
        return simplify((keys + (self.block - 1)) // self.block)

    def keys_seen(self, s: Expr) -> Expr:
        """How many keys, from the first on, the queries of the tile of query `s` see at most: with
        `causal` the last query of the tile sees those up to its own place."""
        if not self.causal:
            return self.keys
        end = minimum((s // self.tile_rows + 1) * self.tile_rows, self.rows)
        count = maximum(end + (self.keys - self.rows), 0)
        if self.in_tiles:  # whole tiles, of all but the last keys
            count = minimum((count + (TILE_KEYS - 1)) // TILE_KEYS * TILE_KEYS, self.keys)
        return simplify(count)

    def keys_of(self, index: Expr, keys: Expr) -> tuple[Expr, Expr]:
        """The first key of a block, and how many it has, of so many keys."""
        first = simplify(index * self.block)
        return first, simplify(minimum(self.block, keys - first))

    def _packed(self, x: RVar) -> Buffer:
        """The buffer of packed keys or values, in which pairs are not a dimension of their own."""
        b = self.group.buffers[x]
        if self.together > 1:
            *outer, last, few = x.tensor.physical_shape
            b = self.group.buffers[x] = replace(b, shape=(*outer, simplify(last * few)))
        return b


def attention_program(c: Attention) -> PrimFunc:
    """for batch, head, query: blocks of keys, then the epilogue."""

    def head(b: Expr, h: Expr) -> Stmt:
        return loop("row", c.rows, lambda s: _VectorRow(c, b, h, s).stmt(), "row", keep=True)

    body = nest(["b", "h"], [c.batch, c.heads], head, ["task", "task"])
    return PrimFunc(c.group.name, c.group.params, body)


class QueryBuffers:
    """Local buffers of a query, or of each of the queries of a tile, which has `rows` of them."""

    def __init__(self, c: Attention, *rows: int):
        def local(name: str, size: int, dtype: DType = c.dtype) -> Buffer:
            return buffer(name, (*rows, size), dtype, "local")

        self.scores = local("scores", c.block)
        self.query, self.powers = None, self.scores  # the row of q, exponentials of scores
        if c.together > 1:
            self.query = local("query", c.depth, c.narrow)
            self.powers = local("powers", c.block, c.narrow)
        self.weighted = local("weighted", c.depth)  # the sum of values so far
        self.top = local("top", 1)  # the greatest score so far
        self.total = local("total", c.lanes)  # the sums of exponentials so far, by lane
        self.of_block = list(dict.fromkeys([self.scores, self.powers]))
        self.of_all = [self.weighted, self.total]
        self.of_all += [] if c.single_block else [self.top]
        self.of_all += [] if self.query is None else [self.query]


class QueryRow:
    """What is computed query by query, whatever multiplies: the statements before the blocks of
    keys, the softmax of a block and the epilogue, for query `s` of head `h`, which is row `row` of
    the buffers."""

    def __init__(
        self, c: Attention, position: tuple[Expr, Expr, Expr], buffers: QueryBuffers, *row: Expr
    ):
        self.c, self.row = c, row
        self.b, self.h, self.s = position
        self.scores, self.query, self.powers = buffers.scores, buffers.query, buffers.powers
        self.weighted, self.top, self.total = buffers.weighted, buffers.top, buffers.total

    def local(self, name: str, size: int) -> Buffer:
        """A local buffer of `size` elements."""
        return buffer(name, (size,), self.c.dtype, "local")

    def number(self, value: float) -> Expr:
        """A constant of the attention's type."""
        return const(value, self.c.dtype)

    def get(self, b: Buffer, index: Expr) -> Load:
        """An element of a buffer of this query."""
        return Load(b, (*self.row, index))

    def put(self, b: Buffer, index: Expr, value: Expr) -> Stmt:
        """Store an element of a buffer of this query."""
        return Store(b, (*self.row, index), value)

    def start(self) -> list[Stmt]:
        """Clear the sums and read the query."""
        zero, stmts = self.number(0), list[Stmt]()
        if not self.c.single_block:
            clear = self.columns("clear", lambda d: self.put(self.weighted, d, zero))
            no_sums = lanes("no_sums", self.c.lanes, lambda v: self.put(self.total, v, zero))
            stmts = [self.put(self.top, IntImm(0), self.number(LOWEST)), no_sums, clear]
        if self.query is not None:
            stmts.append(self.read(self.query))
        return stmts

    def read(self, query: Buffer) -> Stmt:
        """query = q[s]: then its features are adjacent, whatever the prologue of q."""

        def feature(d: Expr) -> Stmt:
            return self.put(query, d, simplify_value(self.c.q(self.b, self.h, self.s, d), {}))

        return self.columns("query", feature)

    def columns(self, name: str, body: Callable[[Expr], Stmt]) -> Stmt:
        """`body` for every column of the head."""
        c = self.c
        return vectors(name, [c.vectors, c.lanes], lambda o, lane: body(o * c.lanes + lane))

    def softmax(self, first: Expr, count: Expr, size: Expr) -> Stmt:
        """Mask the scores, fold them into the running maximum and sum, exponentiate."""
        c, zero, whole = self.c, IntImm(0), (lane_ramp(self.c.lanes),)
        best, part = self.local("best", c.lanes), self.local("part", c.lanes)
        new, alpha = self.local("new", 1), self.local("alpha", 1)

        def exponential(i: Expr, lane: Expr) -> Stmt:
            index, value = i * c.lanes + lane, Var("p", c.dtype)
            e = intrin("exp_nonpositive", self.get(self.scores, index) - Load(new, (zero,)))
            # The rounded ones are summed, so that weights add up to 1 as they are multiplied.
            power = cast(value, self.powers.dtype)
            add = Store(part, (lane,), Load(part, (lane,)) + cast(power, self.c.dtype))
            return Let(value, e, seq(self.put(self.powers, index, power), add))

        def rescale(d: Expr) -> Stmt:
            return self.put(self.weighted, d, self.get(self.weighted, d) * Load(alpha, (zero,)))

        def total(lane: Expr) -> Stmt:
            value: Expr = Load(part, (lane,))
            if not c.single_block:
                value = intrin("fma", self.get(self.total, lane), Load(alpha, (zero,)), value)
            return self.put(self.total, lane, value)

        top, greatest = self.get(self.top, zero), Load(new, (zero,))
        before, after = list[Stmt](), list[Stmt]()
        if not c.single_block:
            power = intrin("exp_nonpositive", top - greatest)
            before = [_set(alpha, power), self.put(self.top, zero, greatest)]
            after = [self.columns("rescale", rescale)]
        return within(
            [best, part, new] if c.single_block else [best, part, new, alpha],
            _lanes("best", best, lambda _: self.number(LOWEST)),
            _set(new, self.number(LOWEST) if c.single_block else top),
            *self.masks(first, count, size, best, new),
            _set(new, maximum(VectorReduce("max", Load(best, whole)), greatest)),
            *before,
            _lanes("part", part, lambda _: self.number(0)),
            nest(["i_exp", "l_exp"], [size, c.lanes], exponential, ["", "lane"]),
            lanes("totals", c.lanes, total),
            *after,
        )

    def masks(self, first: Expr, count: Expr, size: Expr, best: Buffer, new: Buffer) -> list[Stmt]:
        """Scale and mask `count` scores, and hide those after them in the last of `size` vectors;
        the greatest of all is in a lane of `best`, or in `new`."""
        c, zero, hidden = self.c, IntImm(0), self.number(float("-inf"))
        tail_start = simplify(count // c.lanes * c.lanes)

        def mask(t: Expr, maxima: Buffer, index: Expr, end: Expr | None = None) -> Stmt:
            value, raw = Var("s", c.dtype), self.get(self.scores, t)
            score = c.score(raw, self.b, self.h, self.s, simplify(first + t))
            if end is not None:
                score = select(binary("lt", t, end), score, hidden)
            greater = maximum(Load(maxima, (index,)), value)
            keep = seq(self.put(self.scores, t, value), Store(maxima, (index,), greater))
            return Let(value, simplify_value(score, {}), keep)

        def vectors_of(extent: Expr, name: str, start: Expr, end: Expr | None = None) -> Stmt:
            def vector(i: Expr, lane: Expr) -> Stmt:
                return mask(simplify(start + i * c.lanes) + lane, best, lane, end)

            return nest([f"i_{name}", f"l_{name}"], [extent, c.lanes], vector, ["", "lane"])

        full = vectors_of(simplify(count // c.lanes), "mask", zero)
        if c.mask is None:  # nothing is read of what lies behind the last key
            return [full, vectors_of(simplify(size - count // c.lanes), "last", tail_start, count)]
        return [
            full,
            loop(
                "t_rest", simplify(count - tail_start), lambda t: mask(t, new, zero), lo=tail_start
            ),
            loop(
                "t_hidden",
                simplify(size * c.lanes - count),
                lambda t: self.put(self.scores, t, hidden),
                lo=count,
            ),
        ]

    def finish(self) -> Stmt:
        """Store weighted / total, with the group's epilogue, in the group's output."""
        c, zero = self.c, (IntImm(0),)
        inv, total = self.local("inv", 1), Var("total", self.c.dtype)

        def store(d: Expr) -> Stmt:
            value = self.get(self.weighted, d) * Load(inv, zero)
            element = c.group.element(c.group.out_var, {c.var: lambda *_: value})
            out_index = c.group.store_index(c.outer_index(self.b, self.h, self.s, d))
            result = simplify_value(element(*([IntImm(0)] * c.group.out_type.ndim)), {})
            return Store(c.group.out, out_index, result)

        zero_total, value = self.number(0), self.number(1) / total
        if c.keeps_zero:  # a row that sees no key has total 0
            value = select(zero_total < total, value, zero_total)
        scale = Let(
            total, VectorReduce("sum", self.get(self.total, lane_ramp(c.lanes))), _set(inv, value)
        )
        return within([inv], scale, self.columns("end", store))


class _VectorRow(QueryRow):
    """All statements for a query, whose products are of vectors."""

    def __init__(self, c: Attention, b: Expr, h: Expr, s: Expr):
        self.buffers = QueryBuffers(c)
        super().__init__(c, (b, h, s), self.buffers)
        self.keys = c.keys_seen(s)
        self.blocks = c.blocks if c.single_block else c.blocks_of(self.keys)

    def stmt(self) -> Stmt:
        """Clear the sums, take the keys block by block, scale and store."""
        blocks = loop("block", self.blocks, self.block, "block")
        return within(self.buffers.of_all, *self.start(), blocks, self.finish())

    def block(self, index: Expr) -> Stmt:
        """Scores, softmax and weighted values of one block of keys."""
        c = self.c
        first, count = c.keys_of(index, self.keys)
        size = simplify((count + (c.lanes - 1)) // c.lanes)
        return within(
            self.buffers.of_block,
            self.products(index, size),
            self.softmax(first, count, size),
            self.values(index, first, count),
        )

    def products(self, index: Expr, size: Expr) -> Stmt:
        """scores[t] = q . k[t], a vector of keys at a time, `size` vectors."""
        c = self.c
        dot = self.local("dot", c.lanes)

        def vector(j: Expr) -> Stmt:
            group = simplify(index * (c.block // c.lanes) + j)

            def term(d: Expr, lane: Expr) -> Stmt:
                q = simplify_value(c.q(self.b, self.h, self.s, d), {})
                k = Load(c.kbuf, (self.b, self.h, group, d, lane))
                return Store(dot, (lane,), intrin("fma", k, q, Load(dot, (lane,))))

            def term_of_pairs(query: Buffer) -> Callable[..., Stmt]:
                def add(d: Expr, lane: Expr, e: Expr) -> Stmt:
                    k = Load(c.kbuf, (self.b, self.h, group, d, lane * c.together + e))
                    return add_product(dot, (lane,), Load(query, (d * c.together + e,)), k)

                return add

            def save(lane: Expr) -> Stmt:
                return Store(self.scores, (j * c.lanes + lane,), Load(dot, (lane,)))

            if self.query is None:
                sums = nest(["d", "l"], [c.depth, c.lanes], term, ["term", "lane"])
            else:
                sums = self.pairs("d", as_expr(c.depth // c.together), term_of_pairs(self.query))
            return within(
                [dot],
                _lanes("zero", dot, lambda _: self.number(0)),
                sums,
                lanes("save", c.lanes, save),
            )

        return loop("j", size, vector, "keys", keep=True)

    def pairs(self, name: str, steps: Expr, body: Callable[..., Stmt]) -> Stmt:
        """The loops of a sum of pairs in each lane around `body`, which gets the step, the lane and
        the element of a pair."""
        c = self.c
        roles = ["term", "lane", "dot"]
        return nest([name, "l", "e"], (steps, c.lanes, c.together), body, roles)

    def values(self, index: Expr, first: Expr, count: Expr) -> Stmt:
        """weighted += scores . v, a vector of the head's columns at a time."""
        c = self.c
        sums = self.local("sums", c.lanes)

        def vector(column: Expr) -> Stmt:
            def place(lane: Expr) -> Expr:
                return column * c.lanes + lane

            def term(t: Expr, lane: Expr) -> Stmt:
                sizes = ((column, c.vectors), (lane, c.lanes))
                bounds = {v: (0, n - 1) for v, n in sizes if isinstance(v, Var)}
                v = c.v(self.b, self.h, simplify(first + t), place(lane))
                value = intrin(
                    "fma", Load(self.scores, (t,)), simplify_value(v, bounds), Load(sums, (lane,))
                )
                return Store(sums, (lane,), value)

            def term_of_pairs(u: Expr, lane: Expr, e: Expr) -> Stmt:
                pair = simplify(index * (c.block // c.together) + u)
                v = Load(c.vbuf, (self.b, self.h, pair, place(lane) * c.together + e))
                return add_product(sums, (lane,), Load(self.powers, (u * c.together + e,)), v)

            def save(lane: Expr) -> Stmt:
                return Store(self.weighted, (place(lane),), Load(sums, (lane,)))

            if c.together == 1:
                total = nest(["t_sum", "l"], [count, c.lanes], term, ["term", "lane"])
            else:
                steps = simplify((count + (c.together - 1)) // c.together)
                total = self.pairs("t_sum", steps, term_of_pairs)

            def so_far(lane: Expr) -> Expr:
                return self.number(0) if c.single_block else Load(self.weighted, (place(lane),))

            return within(
                [sums],
                _lanes("so_far", sums, so_far),
                total,
                lanes("keep", c.lanes, save),
            )

        return loop("column", c.vectors, vector, "columns", keep=True)


def _set(b: Buffer, value: Expr) -> Stmt:
    """b[0] = value, for a one-element buffer."""
    return Store(b, (IntImm(0),), value)


def _lanes(name: str, b: Buffer, value: Callable[[Expr], Expr]) -> Stmt:
    """b[l] = value(l) for every lane."""
    return lanes(name, b.shape[0], lambda lane: Store(b, (lane,), value(lane)))
