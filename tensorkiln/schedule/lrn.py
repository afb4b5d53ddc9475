"""Local response normalisation across channels, on channel blocks.

    out = x / (bias + alpha / size * (squares of `size` neighbouring channels)) ** beta

A vector is one block of channels of a pixel; its neighbours come from shifting it against the
blocks before and after it, whose squares are zero past the first and the last channel.
"""

from __future__ import annotations

from tensorkiln.arith import simplify, simplify_stmt
from tensorkiln.ir.buffer import Buffer
from tensorkiln.ir.expr import (
    Expr,
    IntImm,
    Load,
    Shuffle,
    Var,
    as_expr,
    const,
    int_value,
    maximum,
    minimum,
    select,
)  # fmt: skip
from tensorkiln.ir.relax import TensorType
from tensorkiln.ir.stmt import Alloc, For, Let, PrimFunc, Stmt, Store, seq
from tensorkiln.ops.normalise import power
from tensorkiln.schedule.access import blocked_loads, simplify_value
from tensorkiln.schedule.build import PARALLEL_WORK, fused, lane_ramp, loop, zero_border
from tensorkiln.schedule.group import Group, view_index
from tensorkiln.target import Target


def supports_lrn(group: Group) -> bool:
    """Channel blocks on both sides, and neighbours no further than the next block."""
    call, out = group.anchor, group.out_type
    assert call is not None
    x = call.args[0].type
    assert isinstance(x, TensorType)
    if out.layout is None or x.layout is None or out.ndim != 4 or len(out.layout.axes) != 5:
        return False
    v = out.layout.block(1)
    if x.layout.block(1) != v or v < 4 or call.attrs.size // 2 > v:
        return False
    if int_value(out.shape[1]) is None:
        return False
    lane, zero = Var("l"), IntImm(0)
    value = simplify_value(group.element(call.args[0])(zero, lane, zero, zero), {lane: (0, v - 1)})
    return blocked_loads(value, v, lane)


def schedule_lrn(group: Group, target: Target) -> PrimFunc:
    """lrn and its elementwise neighbours; a task is one channel block of one image."""
    call, var, out = group.anchor, group.anchor_var, group.out_type
    assert call is not None and var is not None
    v, a = out.memory.block(1), call.attrs
    channels = int_value(out.shape[1]) or 0
    blocks = -(-channels // v)
    x = group.element(call.args[0])
    vec, wide = lane_ramp(v), out.dtype.with_lanes(v)
    before = (a.size - 1) // 2

    def pixel(n: Expr, block: Expr, h: Expr, w: Expr) -> Stmt:
        # Squares of the block before, this one, the one after; then the sum of their shifts.
        near = Buffer("near", out.dtype, (as_expr(4), as_expr(v)), "register")
        body: list[Stmt] = []
        for k in range(3):
            where, lane = block + (k - 1), Var("l")
            there = Var("there")
            value = x(n, there * v + lane, h, w)
            value = simplify_value(value * value, {lane: (0, v - 1)})
            if k != 1:
                known = where >= 0 if k == 0 else where < blocks
                value = select(known, value, const(0, value.dtype))
            store = For(lane, IntImm(0), IntImm(v), "vectorized",
                        Store(near, (as_expr(k), lane), value))  # fmt: skip
            body.append(Let(there, maximum(minimum(where, blocks - 1), 0), store))
        squares = [Load(near, (as_expr(k), vec)) for k in range(3)]
        total: Expr = const(0, wide)
        for d in range(-before, a.size - before):
            if d == 0:
                shifted: Expr = squares[1]
            else:
                first = v + d if d < 0 else d
                pair = squares[:2] if d < 0 else squares[1:]
                shifted = Shuffle(pair[0], pair[1], tuple(range(first, first + v)))
            total = total + shifted
        body.append(Store(near, (as_expr(3), vec), total))
        body.append(result(n, block, h, w, near))
        return Alloc(near, seq(*body))

    def result(n: Expr, block: Expr, h: Expr, w: Expr, near: Buffer) -> Stmt:
        lane = Var("l")
        bounds = {lane: (0, v - 1)}
        c = block * v + lane
        base = Load(near, (as_expr(3), lane)) * (a.alpha / a.size) + a.bias
        normal = x(n, c, h, w) / power(base, a.beta)
        value = group.element(group.out_var, {var: lambda *_: normal})(n, c, h, w)
        value = simplify_value(value, bounds)
        if channels % v:
            value = select(c < channels, value, const(0, value.dtype))
        at = tuple(simplify(i, bounds) for i in view_index(out, (n, c, h, w)))
        return For(lane, IntImm(0), IntImm(v), "vectorized", Store(group.out, at, value))

    def plane(n: Expr, block: Expr) -> Stmt:
        rows = loop("h", out.shape[2], lambda h: loop(
            "w", out.shape[3], lambda w: pixel(n, block, h, w)))  # fmt: skip
        return seq(zero_border(group.out, out, (n, block)), rows)

    sizes = [int_value(d) for d in (out.shape[0], *out.shape[2:])]
    work = channels * (sizes[1] or 64) * (sizes[2] or 64) * 16
    kind = "parallel" if sizes[0] is None or work > PARALLEL_WORK else "serial"
    body = fused([out.shape[0], blocks], plane, kind)
    return PrimFunc(group.name, group.params, simplify_stmt(body, {}), op_class="lrn_blocked")
