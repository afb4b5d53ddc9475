"""Matrix product with packed constant weights: x [M, K] times w [N/nr][K][nr].

A panel of nr columns is streamed once while rows go by in register tiles. Rows of x are read in
place: broadcasting from row-major memory costs nothing once the rows are in the first-level cache.
"""

from __future__ import annotations

from tensorkiln.arith import simplify, simplify_stmt
from tensorkiln.ir.buffer import Buffer
from tensorkiln.ir.expr import (
    Broadcast,
    Expr,
    IntImm,
    Load,
    Ramp,
    Var,
    as_expr,
    const,
    int_value,
    intrin,
)
from tensorkiln.ir.relax import Call, RVar, TensorType
from tensorkiln.ir.stmt import Alloc, For, Let, PrimFunc, Stmt, Store, seq
from tensorkiln.schedule.access import simplify_value
from tensorkiln.schedule.accumulate import Pieces, pieces_of, sum_in_pieces
from tensorkiln.schedule.build import PARALLEL_WORK, fused, lane_ramp, loop
from tensorkiln.schedule.group import Group, product, static
from tensorkiln.schedule.loops import inplace_params
from tensorkiln.schedule.tile import max_rows, row_tiles
from tensorkiln.target import Target


def supports_linear(call: Call, out: TensorType) -> bool:
    """Whether the packed schedule applies."""
    w = call.args[1].type
    assert isinstance(w, TensorType)
    return w.layout is not None and out.layout is None


class _Linear:
    """Sizes and buffers of one product."""

    def __init__(self, group: Group, target: Target):
        call, var = group.anchor, group.anchor_var
        assert call is not None and var is not None
        x, w = call.args[0], call.args[1]
        assert isinstance(x, RVar) and isinstance(w, RVar)
        self.group, self.target, self.call, self.var = group, target, call, var
        self.x, self.w = group.buffers[x], group.buffers[w]
        self.lanes = target.vector_lanes(group.out_type.dtype.name)
        self.nr = w.tensor.memory.axes[-1].modulus
        self.k = static(w.tensor.shape[0], "reduction extent of linear")
        self.n = static(w.tensor.shape[1], "columns of linear")
        # The output of the product; the group's output has the same shape.
        self.lead = group.out_type.shape[:-1]
        self.m = product(self.lead)
        self.dtype = group.out_type.dtype

    def rows_of(self, m: Expr) -> tuple[Expr, ...]:
        """Logical leading indices of flattened row m."""
        index: list[Expr] = []
        for extent in reversed(self.lead[1:]):
            index.append(m % extent)
            m = m // extent
        return tuple(reversed([*index, m])) if self.lead else ()


def schedule_linear(group: Group, target: Target) -> PrimFunc:
    """linear with its elementwise epilogue."""
    c = _Linear(group, target)
    whole, rest = divmod(c.n, c.nr)
    work = (int_value(c.m) or 64) * c.n * c.k // 8
    kind = "parallel" if work > PARALLEL_WORK else "serial"
    panels = fused([whole], lambda p: _rows(c, p, c.nr), kind, "panel") if whole else None
    body = seq(panels, _rows(c, as_expr(whole), rest) if rest else None)
    return PrimFunc(
        group.name,
        group.params,
        simplify_stmt(body, {}),
        inplace=inplace_params(group),
        op_class="linear_packed",
    )


def _rows(c: _Linear, p: Expr, columns: int) -> Stmt:
    """Register tiles over all rows of one panel of which `columns` are real."""
    vectors = -(-columns // c.lanes)
    parts = []
    for start, count, size in row_tiles(c.m, max_rows(c.target, vectors)):

        def tile(t: Expr, start: Expr = start, size: int = size) -> Stmt:
            return _tile(c, p, simplify(t * size + start), size, columns, vectors)

        parts.append(loop("t", count, tile))
    return seq(*parts)


def _tile(c: _Linear, p: Expr, row: Expr, rows: int, columns: int, vectors: int) -> Stmt:
    """rows x vectors accumulators over the whole reduction."""
    lanes, dtype = c.lanes, c.dtype
    acc = Buffer("acc", dtype, (as_expr(rows), as_expr(vectors), as_expr(lanes)), "register")
    vec = lane_ramp(lanes)
    wide = dtype.with_lanes(lanes)

    def init(into: Buffer, o: int) -> Stmt:
        value: Expr = const(0, wide)
        start = Var("start", wide)
        if len(c.call.args) > 2:
            bias = c.call.args[2]
            assert isinstance(bias, RVar)
            block = simplify(p * (c.nr // lanes) + o)
            value = Load(c.group.buffers[bias], (block, vec))
        return Let(
            start,
            value,
            loop("r", rows, lambda r: Store(into, (r, as_expr(o), vec), start), "unrolled"),
        )

    def step(k: Expr) -> Stmt:
        weights = [Var(f"w{o}", wide) for o in range(vectors)]

        def one(r: Expr) -> Stmt:
            x = Var("x", wide)
            at = (row + r, k) if len(c.x.shape) == 2 else (k,)
            updates = [
                Store(
                    acc,
                    (r, as_expr(o), vec),
                    intrin("fma", x, weights[o], Load(acc, (r, as_expr(o), vec))),
                )
                for o in range(vectors)
            ]
            return Let(x, Broadcast(Load(c.x, at), lanes), seq(*updates))

        body = loop("r", rows, one, "unrolled")
        for o in reversed(range(vectors)):
            at = (p, k, Ramp(as_expr(o * lanes), IntImm(1), lanes))
            body = Let(weights[o], Load(c.w, at), body)
        return body

    def steps(lo: Expr, count: int) -> Stmt:
        # Four steps a basic block: more and the scheduler hoists loads until it spills.
        main = loop(
            "k4",
            count // 4,
            lambda k4: loop("k1", 4, lambda k1: step(simplify(lo + k4 * 4 + k1)), "unrolled"),
        )
        tail = loop("kt", count % 4, step, "unrolled", lo=simplify(lo + count // 4 * 4))
        return seq(main, tail)

    quads, whole, rest = pieces_of(c.k // 4, 4) if c.k >= 4 else (1, 0, 0)
    size, rest = quads * 4, rest * 4 + c.k % 4
    pieces: Pieces = [
        (whole, lambda i: steps(i * size, size)),
        (1 if rest else 0, lambda i: steps(as_expr(whole * size), rest)),
    ]

    def start(into: Buffer) -> Stmt:
        return seq(*(init(into, o) for o in range(vectors)))

    def finish(totals: Buffer) -> Stmt:
        parts = []
        for o in range(vectors):
            valid = min(lanes, columns - o * lanes)

            def one(r: Expr, o: int = o, valid: int = valid) -> Stmt:
                return _finish(c, totals, p, row + r, r, o, valid)

            parts.append(loop("r", rows, one, "unrolled"))
        return seq(*parts)

    return sum_in_pieces(acc, start, pieces, finish)


def _finish(c: _Linear, acc: Buffer, p: Expr, row: Expr, r: Expr, o: int, valid: int) -> Stmt:
    """Epilogue and store of one accumulator vector, `valid` lanes of it."""
    lanes = c.lanes
    lane = Var("l")
    column = simplify(p * c.nr + o * lanes)

    def at(source: Buffer, index: tuple[Expr, ...]) -> Stmt:
        mine = Load(source, index)
        element = c.group.element(c.group.out_var, {c.var: lambda *_: mine})
        place = (*c.rows_of(row), column + lane)
        value = simplify_value(element(*place), {lane: (0, lanes - 1)})
        return Store(c.group.out, c.group.store_index(place), value)

    if valid == lanes:
        store = at(acc, (r, as_expr(o), lane))
        return For(lane, IntImm(0), IntImm(lanes), "vectorized", store)
    # The last columns of an odd width go through memory, one by one.
    spill = Buffer("spill", c.dtype, (as_expr(lanes),), "local")
    vec = lane_ramp(lanes)
    out = Store(spill, (vec,), Load(acc, (r, as_expr(o), vec)))
    scalars = For(lane, IntImm(0), IntImm(valid), "serial", at(spill, (lane,)))
    return Alloc(spill, seq(out, scalars))
