"""Reductions of whole image planes: a vector of channels is summed (or maximised) at once.

out[n, c] = mean over h, w of x[n, c, h, w], where x lies in channel blocks and out row by row.
"""

from __future__ import annotations

from tensorkiln.arith import simplify, simplify_stmt
from tensorkiln.ir.buffer import Buffer
from tensorkiln.ir.expr import (
    REDUCE_BINARY,
    Broadcast,
    Expr,
    IntImm,
    Load,
    Var,
    as_expr,
    binary,
    const,
    int_value,
    reduce_identity,
)  # fmt: skip
from tensorkiln.ir.relax import TensorType
from tensorkiln.ir.stmt import Alloc, For, PrimFunc, Stmt, Store, seq
from tensorkiln.schedule.access import blocked_loads, simplify_value
from tensorkiln.schedule.build import PARALLEL_WORK, fused, lane_ramp, loop
from tensorkiln.schedule.group import Group
from tensorkiln.target import Target

_OPS = {"mean": "sum", "sum": "sum", "max": "max", "min": "min"}
# Partial results, so that one sum does not wait for the last.
_CHAINS = 4


def supports_global_pool(group: Group, target: Target) -> bool:
    """Height and width of float32 channel blocks reduced into a row-major result."""
    call, out = group.anchor, group.out_type
    assert call is not None
    x = call.args[0].type
    assert isinstance(x, TensorType)
    if call.op not in _OPS or x.ndim != 4 or tuple(a % 4 for a in call.attrs.axes) != (2, 3):
        return False
    if out.layout is not None or out.dtype.name != "float32" or out.dtype != x.dtype:
        return False
    if None in map(int_value, x.shape[1:]) or 0 in map(int_value, x.shape[1:]):
        return False
    v = target.vector_lanes("float32")
    lane, zero = Var("l"), IntImm(0)
    value = simplify_value(group.element(call.args[0])(zero, lane, zero, zero), {lane: (0, v - 1)})
    return v > 1 and blocked_loads(value, v, lane) and out.shape[1:2] == x.shape[1:2]


def schedule_global_pool(group: Group, target: Target) -> PrimFunc:
    """The reduction and its elementwise neighbours; a task is one channel block of one image."""
    call, var, out = group.anchor, group.anchor_var, group.out_type
    assert call is not None and var is not None
    x = call.args[0].type
    assert isinstance(x, TensorType)
    v = target.vector_lanes("float32")
    channels, height, width = (int_value(d) or 0 for d in x.shape[1:])
    element, op = group.element(call.args[0]), REDUCE_BINARY[_OPS[call.op]]
    vec, wide = lane_ramp(v), out.dtype.with_lanes(v)
    identity = Broadcast(reduce_identity(_OPS[call.op], out.dtype), v)
    rest = (IntImm(0),) * (out.ndim - 2)

    def update(acc: Buffer, n: Expr, block: Expr, h: Expr, w: Expr, chain: Expr) -> Stmt:
        lane = Var("l")
        value = simplify_value(element(n, block * v + lane, h, w), {lane: (0, v - 1)})
        value = binary(op, Load(acc, (chain, lane)), value)
        return For(lane, IntImm(0), IntImm(v), "vectorized", Store(acc, (chain, lane), value))

    def row(acc: Buffer, n: Expr, block: Expr, h: Expr) -> Stmt:
        main = loop("w", width // _CHAINS, lambda w: loop("u", _CHAINS, lambda u: update(
            acc, n, block, h, w * _CHAINS + u, u), "unrolled"))  # fmt: skip
        first = width // _CHAINS * _CHAINS
        tail = loop("u", width - first, lambda u: update(
            acc, n, block, h, u + first, u), "unrolled")  # fmt: skip
        return seq(main, tail)

    def block_task(n: Expr, block: Expr, valid: int) -> Stmt:
        acc = Buffer("acc", out.dtype, (as_expr(_CHAINS), as_expr(v)), "register")
        init = loop("u", _CHAINS, lambda u: Store(acc, (u, vec), identity), "unrolled")
        rows = loop("h", height, lambda h: row(acc, n, block, h))
        total: Expr = Load(acc, (IntImm(0), vec))
        for u in range(1, _CHAINS):
            total = binary(op, total, Load(acc, (as_expr(u), vec)))
        if call.op == "mean":
            total = total / const(height * width, wide)
        join = Store(acc, (IntImm(0), vec), total)
        lane = Var("l")

        def result(source: Buffer, at: tuple[Expr, ...]) -> Stmt:
            mine = Load(source, at)
            index = (n, block * v + lane, *rest)
            value = group.element(group.out_var, {var: lambda *_: mine})(*index)
            value = simplify_value(value, {lane: (0, v - 1)})
            return Store(group.out, group.store_index(tuple(map(simplify, index))), value)

        if valid == v:
            last = For(lane, IntImm(0), IntImm(v), "vectorized", result(acc, (IntImm(0), lane)))
            return Alloc(acc, seq(init, rows, join, last))
        # The last channels of a partial block go through memory, one by one.
        spill = Buffer("spill", out.dtype, (as_expr(v),), "local")
        save = Store(spill, (vec,), Load(acc, (IntImm(0), vec)))
        scalars = For(lane, IntImm(0), IntImm(valid), "serial", result(spill, (lane,)))
        return Alloc(acc, Alloc(spill, seq(init, rows, join, save, scalars)))

    whole, partial = divmod(channels, v)
    work = channels * height * width
    kind = "parallel" if int_value(x.shape[0]) is None or work > PARALLEL_WORK else "serial"
    body = fused([x.shape[0], whole], lambda n, b: block_task(n, b, v), kind) if whole else None
    if partial:
        body = seq(body, loop("n", x.shape[0], lambda n: block_task(n, as_expr(whole), partial)))
    assert body is not None
    return PrimFunc(
        group.name, group.params, simplify_stmt(body, {}), op_class="global_pool_blocked"
    )
