"""Fused attention: scores never leave the first-level cache.

For a tile of query rows and a block of keys: scores = q k^T into a local buffer, running maximum
and sum per row (Milakov and Gimelshein, 2018), then scores times v added to the local output.
Keys come packed by lanes, [B][H][T/v][D][v], so that the product runs over lanes of keys.
"""

from __future__ import annotations

from tensorkiln.arith import simplify, simplify_stmt
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
from tensorkiln.ir.relax import Call, RVar, TensorType
from tensorkiln.ir.stmt import Alloc, For, Let, PrimFunc, Stmt, Store, seq
from tensorkiln.schedule.build import fused, lane_ramp, loop, nest
from tensorkiln.schedule.group import Group, static
from tensorkiln.schedule.loops import simplify_value
from tensorkiln.schedule.tile import max_rows, row_tiles
from tensorkiln.target import Target

# Keys per block: all of them when they are few, so that the running rescale happens once.
SINGLE_BLOCK = 512
KEY_BLOCK = 128
# Stands for minus infinity where minus infinity minus itself would give NaN.
LOWEST = -3.0e38


def supports_attention(call: Call, target: Target) -> bool:
    """float32, and heads that are whole vectors wide with keys packed by lanes."""
    q, k = call.args[0].type, call.args[1].type
    assert isinstance(q, TensorType) and isinstance(k, TensorType)
    depth = int_value(q.shape[3])
    lanes = target.vector_lanes("float32")
    return (
        q.dtype.name == "float32"
        and depth is not None
        and depth % lanes == 0
        and k.layout is not None
    )


class _Attention:
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


def schedule_attention(group: Group, target: Target) -> PrimFunc:
    """attention with injective prologues (split heads) and epilogues (merge heads)."""
    c = _Attention(group, target)

    def head(b: Expr, h: Expr) -> Stmt:
        parts = []
        for start, count, size in row_tiles(c.rows, c.limit):

            def tile(t: Expr, start: Expr = start, size: int = size) -> Stmt:
                return _tile(c, b, h, simplify(start + t * size), size)

            parts.append(loop("t", count, tile))
        return seq(*parts)

    body = fused([c.batch, c.heads], head)
    return PrimFunc(group.name, group.params, simplify_stmt(body, {}), op_class="attention_fused")


def _local(name: str, dtype: str, *shape: int) -> Buffer:
    return buffer(name, shape, dtype, "local")


def _tile(c: _Attention, b: Expr, h: Expr, s0: Expr, rows: int) -> Stmt:
    """`rows` query rows against all keys."""
    lanes = c.lanes
    scores = _local("scores", "float32", rows, c.block)
    out = _local("o", "float32", rows, c.depth)
    top, total = _local("top", "float32", rows), _local("total", "float32", rows)
    vec_d = c.depth // lanes
    wide_zero = const(0, c.dtype.with_lanes(lanes))

    def clear(r: Expr) -> Stmt:
        return seq(
            Store(top, (r,), const(LOWEST, c.dtype)),
            Store(total, (r,), const(0, c.dtype)),
            loop("d", vec_d, lambda d: Store(out, (r, lane_ramp(lanes, d * lanes)), wide_zero)),
        )

    def block(kb: Expr) -> Stmt:
        first = simplify(kb * c.block)
        count = simplify(minimum(c.block, c.keys - first))
        return seq(
            _scores(c, scores, b, h, s0, rows, kb, count),
            loop(
                "r",
                rows,
                lambda r: _softmax_row(c, scores, out, top, total, b, h, s0, r, first, count),
            ),
            _values(c, scores, out, b, h, rows, first, count),
        )

    def finish(r: Expr) -> Stmt:
        inv = Var("inv", c.dtype)

        def store(d: Expr) -> Stmt:
            lane = Var("l")
            value = Load(out, (r, d * lanes + lane)) * inv
            element = c.group.element(c.group.out_var, {c.var: lambda *_: value})
            at = c.group.store_index(_outer_index(c, b, h, s0 + r, d * lanes + lane))
            place = simplify_value(element(*([IntImm(0)] * c.group.out_type.ndim)), {})
            return For(lane, IntImm(0), IntImm(lanes), "vectorized", Store(c.group.out, at, place))

        # A row that sees no key has the sum zero, and gives zeros.
        seen = const(0, c.dtype) < Load(total, (r,))
        value = select(seen, const(1, c.dtype) / Load(total, (r,)), const(0, c.dtype))
        return Let(inv, value, loop("d", vec_d, store))

    body = seq(loop("r", rows, clear), loop("kb", c.blocks, block), loop("r", rows, finish))
    for buf in (total, top, out, scores):
        body = Alloc(buf, body)
    return body


def _outer_index(c: _Attention, b: Expr, h: Expr, s: Expr, d: Expr) -> tuple[Expr, ...]:
    """Where element (b, h, s, d) of the attention lies in the group's output: epilogues are
    transposes and reshapes, applied forward."""
    index: tuple[Expr, ...] = (b, h, s, d)
    var = c.var
    while var is not c.group.out_var:
        consumer, call = next((v, k) for v, k in c.group.calls.items() if var in k.args)
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


def _scores(
    c: _Attention, scores: Buffer, b: Expr, h: Expr, s0: Expr, rows: int, kb: Expr, count: Expr
) -> Stmt:
    """scores[r, t] = q[r] . k[t] for one block of keys, two vectors of keys at a time."""
    lanes = c.lanes
    vec = lane_ramp(lanes)
    per_block = c.block // lanes

    def columns(j: Expr, vectors: int) -> Stmt:
        acc = Buffer("acc", c.dtype, (as_expr(rows), as_expr(vectors), as_expr(lanes)), "register")
        zero = const(0, c.dtype.with_lanes(lanes))
        init = nest(
            ["r", "o"], [rows, vectors], lambda r, o: Store(acc, (r, o, vec), zero), "unrolled"
        )

        def step(d: Expr) -> Stmt:
            keys = [Var(f"k{o}", c.dtype.with_lanes(lanes)) for o in range(vectors)]

            def row(r: Expr) -> Stmt:
                x = Var("x", c.dtype.with_lanes(lanes))
                updates = [
                    Store(
                        acc,
                        (r, as_expr(o), vec),
                        intrin("fma", x, keys[o], Load(acc, (r, as_expr(o), vec))),
                    )
                    for o in range(vectors)
                ]
                q = simplify_value(c.q(b, h, s0 + r, d), {})
                return Let(x, Broadcast(q, lanes), seq(*updates))

            body = loop("r", rows, row, "unrolled")
            for o in reversed(range(vectors)):
                at = (b, h, simplify(kb * per_block + j + o), d, vec)
                body = Let(keys[o], Load(c.kbuf, at), body)
            return body

        dot = loop(
            "d2", c.depth // 2, lambda d2: loop("d1", 2, lambda d1: step(d2 * 2 + d1), "unrolled")
        )
        save = nest(
            ["r", "o"],
            [rows, vectors],
            lambda r, o: Store(
                scores, (r, lane_ramp(lanes, (j + o) * lanes)), Load(acc, (r, o, vec))
            ),
            "unrolled",
        )
        return Alloc(acc, seq(init, dot, save))

    vectors = simplify((count + (lanes - 1)) // lanes)
    pairs = loop("jp", simplify(vectors // 2), lambda jp: columns(jp * 2, 2))
    odd = loop("jo", simplify(vectors % 2), lambda j: columns(j, 1), lo=simplify(vectors // 2 * 2))
    return seq(pairs, odd)


def _softmax_row(
    c: _Attention,
    scores: Buffer,
    out: Buffer,
    top: Buffer,
    total: Buffer,
    b: Expr,
    h: Expr,
    s0: Expr,
    r: Expr,
    first: Expr,
    count: Expr,
) -> Stmt:
    """Mask one row of scores, fold it into the running maximum and sum, exponentiate."""
    lanes, dtype = c.lanes, c.dtype
    vec, zero = lane_ramp(lanes), IntImm(0)
    acc = Buffer("acc", dtype, (as_expr(lanes),), "register")
    one = Buffer("one", dtype, (IntImm(1),), "register")
    whole = simplify(count // lanes)
    tail_lo = simplify(count // lanes * lanes)
    padded = simplify((count + (lanes - 1)) // lanes)

    def masked(t: Expr) -> Expr:
        return simplify_value(c.score(Load(scores, (r, t)), b, h, s0 + r, first + t), {})

    def mask_vector(i: Expr) -> Stmt:
        lane = Var("l")
        value = Var("s", dtype)
        t = i * lanes + lane
        return For(
            lane,
            zero,
            IntImm(lanes),
            "vectorized",
            Let(
                value,
                masked(t),
                seq(
                    Store(scores, (r, t), value),
                    Store(acc, (lane,), maximum(Load(acc, (lane,)), value)),
                ),
            ),
        )

    def mask_one(t: Expr) -> Stmt:
        value = Var("s", dtype)
        return Let(
            value,
            masked(t),
            seq(
                Store(scores, (r, t), value),
                Store(one, (zero,), maximum(Load(one, (zero,)), value)),
            ),
        )

    def hide(t: Expr) -> Stmt:
        return Store(scores, (r, t), const(float("-inf"), dtype))

    def exponentials(new: Expr, alpha: Expr) -> Stmt:
        def exp_vector(i: Expr) -> Stmt:
            lane = Var("l")
            value = Var("p", dtype)
            t = i * lanes + lane
            return For(
                lane,
                zero,
                IntImm(lanes),
                "vectorized",
                Let(
                    value,
                    intrin("exp", Load(scores, (r, t)) - new),
                    seq(
                        Store(scores, (r, t), value),
                        Store(acc, (lane,), Load(acc, (lane,)) + value),
                    ),
                ),
            )

        def rescale(d: Expr) -> Stmt:
            at = (r, lane_ramp(lanes, d * lanes))
            return Store(out, at, Load(out, at) * Broadcast(alpha, lanes))

        started = None if int_value(c.blocks) == 1 else loop("d", c.depth // lanes, rescale)
        return seq(
            Store(acc, (vec,), const(0, dtype.with_lanes(lanes))),
            loop("i", padded, exp_vector),
            Store(total, (r,), Load(total, (r,)) * alpha + VectorReduce("sum", Load(acc, (vec,)))),
            Store(top, (r,), new),
            started,
        )

    new, alpha = Var("new", dtype), Var("alpha", dtype)
    found = maximum(VectorReduce("max", Load(acc, (vec,))), Load(one, (zero,)))
    update = Let(
        new, found, Let(alpha, intrin("exp", Load(top, (r,)) - new), exponentials(new, alpha))
    )
    body = seq(
        Store(acc, (vec,), const(LOWEST, dtype.with_lanes(lanes))),
        Store(one, (zero,), Load(top, (r,))),
        loop("i", whole, mask_vector),
        loop("t", simplify(count - tail_lo), mask_one, lo=tail_lo),
        loop("t", simplify(padded * lanes - count), hide, lo=count),
        update,
    )
    return Alloc(acc, Alloc(one, body))


def _values(
    c: _Attention,
    scores: Buffer,
    out: Buffer,
    b: Expr,
    h: Expr,
    rows: int,
    first: Expr,
    count: Expr,
) -> Stmt:
    """out[r] += scores[r] . v over one block of keys, two vectors of the head at a time."""
    lanes = c.lanes
    vec = lane_ramp(lanes)

    def columns(d0: int, vectors: int) -> Stmt:
        acc = Buffer("acc", c.dtype, (as_expr(rows), as_expr(vectors), as_expr(lanes)), "register")

        def place(r: Expr, o: Expr) -> tuple[Expr, ...]:
            return (r, lane_ramp(lanes, simplify((o + d0) * lanes)))

        init = nest(
            ["r", "o"],
            [rows, vectors],
            lambda r, o: Store(acc, (r, o, vec), Load(out, place(r, o))),
            "unrolled",
        )
        save = nest(
            ["r", "o"],
            [rows, vectors],
            lambda r, o: Store(out, place(r, o), Load(acc, (r, o, vec))),
            "unrolled",
        )

        def step(t: Expr) -> Stmt:
            values = [Var(f"v{o}", c.dtype) for o in range(vectors)]
            lane = Var("l")

            def row(r: Expr) -> Stmt:
                p = Var("p", c.dtype)
                updates = [
                    Store(
                        acc,
                        (r, as_expr(o), lane),
                        intrin("fma", p, values[o], Load(acc, (r, as_expr(o), lane))),
                    )
                    for o in range(vectors)
                ]
                return Let(p, Load(scores, (r, t)), seq(*updates))

            body = loop("r", rows, row, "unrolled")
            for o in reversed(range(vectors)):
                v = simplify_value(
                    c.v(b, h, first + t, as_expr((d0 + o) * lanes) + lane), {lane: (0, lanes - 1)}
                )
                body = Let(values[o], v, body)
            return For(lane, IntImm(0), IntImm(lanes), "vectorized", body)

        return Alloc(acc, seq(init, loop("t", count, step), save))

    parts = []
    width = c.depth // lanes
    for d0 in range(0, width, 2):
        parts.append(columns(d0, min(2, width - d0)))
    return seq(*parts)
