"""One register tile of fused attention: scores, running softmax, weighted sum of values."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tensorkiln.arith import simplify
from tensorkiln.ir.buffer import Buffer, buffer
from tensorkiln.ir.expr import (
    Broadcast,
    Expr,
    IntImm,
    Load,
    Var,
    VectorReduce,
    as_expr,
    binary,
    const,
    int_value,
    intrin,
    maximum,
    minimum,
    select,
)
from tensorkiln.ir.relax import RVar, TensorType
from tensorkiln.ir.stmt import Alloc, Let, Stmt, Store, seq
from tensorkiln.schedule.access import simplify_value
from tensorkiln.schedule.build import lane_ramp, loop, nest, over_lanes
from tensorkiln.schedule.group import Group, static
from tensorkiln.schedule.tile import max_rows
from tensorkiln.target import Target

# Keys per block: all of them when they are few, so that the running rescale happens once.
SINGLE_BLOCK = 512
KEY_BLOCK = 128
# Stands for minus infinity where minus infinity minus itself would give NaN.
LOWEST = -3.0e38


class Attention:
    """Sizes, operands and local buffers."""

    def __init__(self, group: Group, target: Target):
        call, var = group.anchor, group.anchor_var
        assert call is not None and var is not None
        self.group, self.call, self.var = group, call, var
        self.qt = call.args[0].type
        kt = call.args[1].type
        assert isinstance(self.qt, TensorType) and isinstance(kt, TensorType)
        self.batch, self.heads, self.rows = self.qt.shape[0], self.qt.shape[1], self.qt.shape[2]
        self.depth = static(self.qt.shape[3], "head size")
        self.keys = kt.shape[2]
        key = call.args[1]
        assert isinstance(key, RVar)
        self.kbuf = group.buffers[key]
        self.q, self.v = group.element(call.args[0]), group.element(call.args[2])
        self.mask = group.element(call.args[3]) if len(call.args) > 3 else None
        self.mask_type = call.args[3].type if len(call.args) > 3 else None
        self.lanes = target.vector_lanes("float32")
        self.dtype = self.qt.dtype
        n = int_value(self.keys)
        whole = n is not None and n <= SINGLE_BLOCK
        self.block = -(-n // self.lanes) * self.lanes if whole and n else KEY_BLOCK
        self.blocks = simplify((self.keys + (self.block - 1)) // self.block)
        self.limit = max_rows(target, 2)
        self.causal = bool(call.attrs.causal)
        self.scale = float(call.attrs.scale)

    def score(self, raw: Expr, b: Expr, h: Expr, s: Expr, t: Expr) -> Expr:
        """scale * raw + mask, or the lowest value where the mask hides it."""
        value = raw * const(self.scale, self.dtype)
        if self.mask is not None:
            assert isinstance(self.mask_type, TensorType)
            shape = self.mask_type.shape
            full = (b, h, s, t)[4 - len(shape) :]
            pairs = zip(full, shape, strict=True)
            index = [IntImm(0) if int_value(e) == 1 else i for i, e in pairs]
            m = self.mask(*index)
            low = const(float("-inf"), self.dtype)
            value = select(m, value, low) if m.dtype.is_bool else value + m
        if self.causal:
            seen = binary("le", t, s + (self.keys - self.rows))
            value = select(seen, value, const(float("-inf"), self.dtype))
        return value

    def outer_index(self, b: Expr, h: Expr, s: Expr, d: Expr) -> tuple[Expr, ...]:
        """Where element (b, h, s, d) of the attention lies in the group's output: epilogues are
        transposes and reshapes, applied forward."""
        index: tuple[Expr, ...] = (b, h, s, d)
        var = self.var
        while var is not self.group.out_var:
            consumer, call = next((v, k) for v, k in self.group.calls.items() if var in k.args)
            if call.op == "transpose":
                index = tuple(index[a] for a in call.attrs.axes)
            else:
                flat: Expr = IntImm(0)
                for i, e in zip(index, var.tensor.shape, strict=True):
                    flat = flat * e + i
                shape = consumer.tensor.shape
                out: list[Expr] = []
                for e in reversed(shape[1:]):
                    out.append(flat % e)
                    flat = flat // e
                index = tuple(reversed([*out, flat]))
            var = consumer
        return tuple(map(simplify, index))


class Tile:
    """`rows` query rows from `s0` of one head against all keys, and their local buffers."""

    def __init__(self, c: Attention, b: Expr, h: Expr, s0: Expr, rows: int):
        self.c, self.b, self.h, self.s0, self.rows = c, b, h, s0, rows
        self.lanes, self.dtype = c.lanes, c.dtype
        self.vec = lane_ramp(c.lanes)
        self.wide = c.dtype.with_lanes(c.lanes)
        self.scores = buffer("scores", (rows, c.block), c.dtype, "local")
        self.out = buffer("o", (rows, c.depth), c.dtype, "local")
        self.top = buffer("top", (rows,), c.dtype, "local")
        self.total = buffer("total", (rows,), c.dtype, "local")

    def stmt(self) -> Stmt:
        """Clear the sums, take the keys block by block, scale and store."""
        body = seq(
            loop("r", self.rows, self.clear),
            loop("kb", self.c.blocks, self.block),
            loop("r", self.rows, self.finish),
        )
        for buf in (self.total, self.top, self.out, self.scores):
            body = Alloc(buf, body)
        return body

    def clear(self, r: Expr) -> Stmt:
        """Start row r: nothing seen, nothing summed."""
        zero = const(0, self.wide)
        return seq(
            Store(self.top, (r,), const(LOWEST, self.dtype)),
            Store(self.total, (r,), const(0, self.dtype)),
            self.over_head(lambda at: Store(self.out, (r, at), zero)),
        )

    def over_head(self, body: Callable[[Expr], Stmt]) -> Stmt:
        """A loop over the head's columns, one vector at a time."""
        lanes = self.lanes
        return loop("d", self.c.depth // lanes, lambda d: body(lane_ramp(lanes, d * lanes)))

    def block(self, kb: Expr) -> Stmt:
        """All that happens with one block of keys."""
        first = simplify(kb * self.c.block)
        count = simplify(minimum(self.c.block, self.c.keys - first))
        return seq(
            self.products(kb, count),
            loop("r", self.rows, lambda r: self.softmax(r, first, count)),
            self.weighted_sum(first, count),
        )

    def finish(self, r: Expr) -> Stmt:
        """out = sum / total, through the group's epilogue to where it lies."""
        c, lanes = self.c, self.lanes
        inv = Var("inv", self.dtype)

        def store(d: Expr) -> Stmt:
            lane = Var("l")
            value = Load(self.out, (r, d * lanes + lane)) * inv
            element = c.group.element(c.group.out_var, {c.var: lambda *_: value})
            at = c.group.store_index(c.outer_index(self.b, self.h, self.s0 + r, d * lanes + lane))
            result = simplify_value(element(*([IntImm(0)] * c.group.out_type.ndim)), {})
            return over_lanes(lane, lanes, Store(c.group.out, at, result))

        # A row that sees no key has the sum zero, and gives zeros.
        total = Load(self.total, (r,))
        zero, one = const(0, self.dtype), const(1, self.dtype)
        value = select(zero < total, one / total, zero)
        return Let(inv, value, loop("d", c.depth // lanes, store))

    # -- scores ----------------------------------------------------------------------------

    def products(self, kb: Expr, count: Expr) -> Stmt:
        """scores[r, t] = q[r] . k[t] for one block, two vectors of keys at a time."""
        vectors = simplify((count + (self.lanes - 1)) // self.lanes)
        even = simplify(vectors // 2)
        pairs = loop("jp", even, lambda j: self.product(kb, j * 2, 2))
        odd = loop(
            "jo", simplify(vectors % 2), lambda j: self.product(kb, j, 1), lo=simplify(even * 2)
        )
        return seq(pairs, odd)

    def product(self, kb: Expr, j: Expr, vectors: int) -> Stmt:
        """The scores of all rows against `vectors` vectors of keys from the j-th of the block."""
        c, lanes, vec = self.c, self.lanes, self.vec
        acc = self.accumulators(vectors)
        first = kb * (c.block // lanes) + j

        def step(d: Expr) -> Stmt:
            keys = [Var(f"k{o}", self.wide) for o in range(vectors)]

            def row(r: Expr) -> Stmt:
                x = Var("x", self.wide)
                q = simplify_value(c.q(self.b, self.h, self.s0 + r, d), {})
                return Let(x, Broadcast(q, lanes), multiply_add(acc, r, x, keys, vec))

            body = loop("r", self.rows, row, "unrolled")
            for o in reversed(range(vectors)):
                at = (self.b, self.h, simplify(first + o), d, vec)
                body = Let(keys[o], Load(c.kbuf, at), body)
            return body

        def clear(r: Expr, o: Expr) -> Stmt:
            return Store(acc, (r, o, vec), const(0, self.wide))

        def save(r: Expr, o: Expr) -> Stmt:
            return Store(
                self.scores, (r, lane_ramp(lanes, (j + o) * lanes)), Load(acc, (r, o, vec))
            )

        def pair(d2: Expr) -> Stmt:
            return loop("d1", 2, lambda d1: step(d2 * 2 + d1), "unrolled")

        return Alloc(
            acc,
            seq(
                self.each(vectors, clear),
                loop("d2", c.depth // 2, pair),
                self.each(vectors, save),
            ),
        )

    def accumulators(self, vectors: int) -> Buffer:
        """A register buffer of rows x vectors."""
        return buffer("acc", (self.rows, vectors, self.lanes), self.dtype, "register")

    def each(self, vectors: int, body: Callable[[Expr, Expr], Stmt]) -> Stmt:
        """`body` for every accumulator vector."""
        return nest(["r", "o"], [self.rows, vectors], body, "unrolled")

    # -- softmax ---------------------------------------------------------------------------

    def softmax(self, r: Expr, first: Expr, count: Expr) -> Stmt:
        """Mask one row of scores, fold it into the running maximum and sum, exponentiate."""
        lanes, zero = self.lanes, IntImm(0)
        acc = buffer("acc", (lanes,), self.dtype, "register")
        one = buffer("one", (1,), self.dtype, "register")
        tail = simplify(count // lanes * lanes)
        padded = simplify((count + (lanes - 1)) // lanes)
        new, alpha = Var("new", self.dtype), Var("alpha", self.dtype)

        def masked(t: Expr, best: Buffer, at: Expr) -> Stmt:
            """One masked score (of each lane) in place, and the best so far."""
            raw = Load(self.scores, (r, t))
            score = self.c.score(raw, self.b, self.h, self.s0 + r, first + t)
            value = Var("s", self.dtype)
            update = Store(best, (at,), maximum(Load(best, (at,)), value))
            body = seq(Store(self.scores, (r, t), value), update)
            return Let(value, simplify_value(score, {}), body)

        def vector(i: Expr) -> Stmt:
            lane = Var("l")
            return over_lanes(lane, lanes, masked(i * lanes + lane, acc, lane))

        def hide(t: Expr) -> Stmt:
            return Store(self.scores, (r, t), const(float("-inf"), self.dtype))

        found = maximum(VectorReduce("max", Load(acc, (self.vec,))), Load(one, (zero,)))
        exponentials = self.exponentials(r, padded, acc, new, alpha)
        factor = intrin("exp", Load(self.top, (r,)) - new)
        body = seq(
            Store(acc, (self.vec,), const(LOWEST, self.wide)),
            Store(one, (zero,), Load(self.top, (r,))),
            loop("i", simplify(count // lanes), vector),
            loop("t", simplify(count - tail), lambda t: masked(t, one, zero), lo=tail),
            loop("t", simplify(padded * lanes - count), hide, lo=count),
            Let(new, found, Let(alpha, factor, exponentials)),
        )
        return Alloc(acc, Alloc(one, body))

    def exponentials(self, r: Expr, vectors: Expr, acc: Buffer, new: Expr, alpha: Expr) -> Stmt:
        """scores = exp(scores - new); what was summed before is scaled by alpha."""
        lanes = self.lanes

        def vector(i: Expr) -> Stmt:
            lane = Var("l")
            value = Var("p", self.dtype)
            at = (r, i * lanes + lane)
            add = Store(acc, (lane,), Load(acc, (lane,)) + value)
            e = intrin("exp", Load(self.scores, at) - new)
            return over_lanes(lane, lanes, Let(value, e, seq(Store(self.scores, at, value), add)))

        def rescale(at: Expr) -> Stmt:
            scaled = Load(self.out, (r, at)) * Broadcast(alpha, lanes)
            return Store(self.out, (r, at), scaled)

        total = Load(self.total, (r,)) * alpha + VectorReduce("sum", Load(acc, (self.vec,)))
        return seq(
            Store(acc, (self.vec,), const(0, self.wide)),
            loop("i", vectors, vector),
            Store(self.total, (r,), total),
            Store(self.top, (r,), new),
            None if int_value(self.c.blocks) == 1 else self.over_head(rescale),
        )

    # -- values ----------------------------------------------------------------------------

    def weighted_sum(self, first: Expr, count: Expr) -> Stmt:
        """out[r] += scores[r] . v over one block of keys, two vectors of the head at a time."""
        width = self.c.depth // self.lanes
        return seq(*(self.columns(d, min(2, width - d), first, count) for d in range(0, width, 2)))

    def columns(self, d0: int, vectors: int, first: Expr, count: Expr) -> Stmt:
        """`vectors` vectors of the head's columns from the d0-th."""
        c, lanes, vec = self.c, self.lanes, self.vec
        acc = self.accumulators(vectors)

        def place(r: Expr, o: Expr) -> tuple[Expr, ...]:
            return (r, lane_ramp(lanes, simplify((o + d0) * lanes)))

        def step(t: Expr) -> Stmt:
            values = [Var(f"v{o}", self.dtype) for o in range(vectors)]
            lane = Var("l")

            def row(r: Expr) -> Stmt:
                p = Var("p", self.dtype)
                return Let(p, Load(self.scores, (r, t)), multiply_add(acc, r, p, values, lane))

            body = loop("r", self.rows, row, "unrolled")
            for o in reversed(range(vectors)):
                v = c.v(self.b, self.h, first + t, as_expr((d0 + o) * lanes) + lane)
                body = Let(values[o], simplify_value(v, {lane: (0, lanes - 1)}), body)
            return over_lanes(lane, lanes, body)

        def begin(r: Expr, o: Expr) -> Stmt:
            return Store(acc, (r, o, vec), Load(self.out, place(r, o)))

        def save(r: Expr, o: Expr) -> Stmt:
            return Store(self.out, place(r, o), Load(acc, (r, o, vec)))

        body = seq(self.each(vectors, begin), loop("t", count, step), self.each(vectors, save))
        return Alloc(acc, body)


def multiply_add(acc: Buffer, r: Expr, x: Expr, ys: Sequence[Expr], lane: Expr) -> Stmt:
    """acc[r, o] += x * ys[o] for every o."""
    stores = []
    for o, y in enumerate(ys):
        at = (r, as_expr(o), lane)
        stores.append(Store(acc, at, intrin("fma", x, y, Load(acc, at))))
    return seq(*stores)
