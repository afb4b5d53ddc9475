"""Reductions inside element expressions: accumulators, loops around them, and the final store."""

from __future__ import annotations

from tensorkiln.arith import simplify
from tensorkiln.ir.buffer import Buffer
from tensorkiln.ir.expr import (
    REDUCE_BINARY,
    Broadcast,
    Expr,
    IntImm,
    Load,
    Reduce,
    Var,
    VectorReduce,
    as_expr,
    binary,
    int_value,
    reduce_identity,
)  # fmt: skip
from tensorkiln.ir.stmt import Alloc, For, Stmt, Store, seq
from tensorkiln.ir.visit import free_vars, map_children, substitute, walk
from tensorkiln.schedule.access import lanes_ok
from tensorkiln.schedule.build import lane_ramp, over_lanes


def with_reductions(
    store: Store, value: Expr, lane: Var | None, lanes: int, reduce_lanes: int = 1
) -> Stmt:
    """`store` with each Reduce of `value` computed into an accumulator before it.

    With `lane`, the accumulators are vectors over it. Without, reductions over a contiguous last
    axis use `reduce_lanes` lanes of their own.
    """
    reduces = [x for x in walk(value) if isinstance(x, Reduce)]
    if not reduces:
        return _lane_loop(store, lane, lanes)
    statements: list[Stmt] = []
    buffers: list[Buffer] = []
    done: dict[Reduce, Expr] = {}

    def compute(r: Reduce) -> Expr:
        """Emit the loops of one reduction (inner ones first) and give the result's load."""
        if r in done:
            return done[r]
        inner = r.value
        axes = {v for v, _ in r.axes}
        for x in list(walk(r.value)):
            if isinstance(x, Reduce) and not axes & set(free_vars(x)):
                inner = _replace(inner, x, compute(x))
        acc = Buffer(f"acc{len(buffers)}", r.dtype, (as_expr(lanes),), "register")
        buffers.append(acc)
        at: tuple[Expr, ...] = (lane,) if lane is not None else (IntImm(0),)
        init = Store(acc, at, reduce_identity(r.op, r.dtype))
        fast = _vector_reduction(Reduce(r.op, r.axes, inner), acc, reduce_lanes)
        if lane is None and fast is not None:
            statements.extend([init, fast])
        else:
            update = Store(acc, at, binary(REDUCE_BINARY[r.op], inner, Load(acc, at)))
            nested: Stmt = _lane_loop(update, lane, lanes)
            if any(isinstance(x, Reduce) for x in walk(inner)):
                nested = with_reductions(update, inner, lane, lanes)
            for var, extent in reversed(r.axes):
                nested = For(var, IntImm(0), extent, "serial", nested)
            statements.extend([_lane_loop(init, lane, lanes), nested])
        done[r] = Load(acc, at)
        return done[r]

    for r in reduces:
        if any(r is not o and _contains(o, r) for o in reduces):
            continue
        value = _replace(value, r, compute(r))
    final = _lane_loop(Store(store.buffer, store.indices, value), lane, lanes)
    body: Stmt = seq(*statements, final)
    for acc in reversed(buffers):
        body = Alloc(acc, body)
    return body


def _vector_reduction(r: Reduce, acc: Buffer, lanes: int) -> Stmt | None:
    """Reduce a contiguous last axis with vector accumulators and a scalar tail, or None."""
    var, extent = r.axes[-1]
    n = int_value(extent)
    if (
        lanes == 1
        or (n is not None and n < lanes)
        or any(isinstance(x, Reduce) for x in walk(r.value))
    ):
        return None
    step, lane = Var("rv"), Var("l")
    value = substitute(r.value, {var: step * lanes + lane})
    if not lanes_ok(value, lane):
        return None
    wide = Buffer(acc.name + "v", r.dtype, (as_expr(lanes),), "register")
    op = REDUCE_BINARY[r.op]
    ramp = lane_ramp(lanes)
    init = Store(wide, (ramp,), Broadcast(reduce_identity(r.op, r.dtype), lanes))
    update = _lane_loop(Store(wide, (lane,), binary(op, value, Load(wide, (lane,)))), lane, lanes)
    main = For(step, IntImm(0), simplify(extent // lanes), "serial", update)
    at = (IntImm(0),)
    tail_update = Store(acc, at, binary(op, r.value, Load(acc, at)))
    done = simplify(extent // lanes * lanes)
    tail = For(var, done, simplify(extent % lanes), "serial", tail_update)
    loops: Stmt = main
    rest: Stmt = tail
    for v, e in reversed(r.axes[:-1]):
        loops = For(v, IntImm(0), e, "serial", loops)
        rest = For(v, IntImm(0), e, "serial", rest)
    total = VectorReduce(r.op, Load(wide, (ramp,)))
    join = Store(acc, at, binary(op, total, Load(acc, at)))
    return Alloc(wide, seq(init, loops, join, rest))


def _lane_loop(s: Stmt, lane: Var | None, lanes: int) -> Stmt:
    return s if lane is None else over_lanes(lane, lanes, s)


def _contains(outer: Expr, inner: Expr) -> bool:
    return outer is not inner and any(x is inner for x in walk(outer))


def _replace(e: Expr, old: Expr, new: Expr) -> Expr:
    if e is old:
        return new
    return map_children(e, lambda c: _replace(c, old, new))
