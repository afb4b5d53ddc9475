"""Operators over rows of the last axis that need the row more than once: softmax, layer norm."""

from __future__ import annotations

from collections.abc import Callable

from tensorkiln.arith import simplify, simplify_stmt
from tensorkiln.ir.buffer import Buffer
from tensorkiln.ir.expr import (
    REDUCE_BINARY,
    Broadcast,
    Expr,
    IntImm,
    Load,
    Unary,
    Var,
    VectorReduce,
    as_expr,
    binary,
    cast,
    const,
    int_value,
    intrin,
    reduce_identity,
)
from tensorkiln.ir.relax import Call, TensorType
from tensorkiln.ir.stmt import Alloc, For, Let, PrimFunc, Stmt, Store, seq
from tensorkiln.schedule.access import simplify_value
from tensorkiln.schedule.build import PARALLEL_WORK, fused, lane_ramp, loop
from tensorkiln.schedule.group import Group, product
from tensorkiln.target import Target

Element = Callable[..., Expr]


def supports_rows(call: Call, out: TensorType) -> bool:
    """Row-major floats, the operator working on the last axis alone."""
    x = call.args[0].type
    assert isinstance(x, TensorType)
    axis = call.attrs.axis
    last = axis in (-1, x.ndim - 1)
    return last and x.ndim >= 1 and out.layout is None and x.layout is None


class _Row:
    """One row: loops over its columns in vectors and a scalar tail."""

    def __init__(self, group: Group, target: Target):
        assert group.anchor is not None
        self.group, self.call = group, group.anchor
        self.shape = group.out_type.shape
        self.columns = self.shape[-1]
        self.dtype = group.out_type.dtype
        self.lanes = target.vector_lanes(self.dtype.name)
        self.main = simplify(self.columns // self.lanes)
        self.tail = simplify(self.columns % self.lanes)
        self.tail_lo = simplify(self.columns // self.lanes * self.lanes)

    def write(self, lead: tuple[Expr, ...], value: Element) -> Stmt:
        """out[lead, j] = value(j) for all columns."""

        def store(j: Expr) -> Stmt:
            at = self.group.store_index((*lead, j))
            return Store(self.group.out, at, value(j))

        lane = Var("l")
        vector = loop(
            "i",
            self.main,
            lambda i: For(
                lane, IntImm(0), IntImm(self.lanes), "vectorized", store(i * self.lanes + lane)
            ),
        )
        return seq(vector, loop("j", self.tail, store, lo=self.tail_lo))

    def reduce(
        self, op: str, value: Element, then: Callable[[Expr], Stmt], chains: int = 4
    ) -> Stmt:
        """`then(op over all columns of value(j))`; `chains` vectors hide the latency."""
        lanes = self.lanes
        bin_op = REDUCE_BINARY[op]
        acc = Buffer("acc", self.dtype, (as_expr(chains), as_expr(lanes)), "register")
        one = Buffer("sum", self.dtype, (IntImm(1),), "register")
        vec, zero = lane_ramp(lanes), IntImm(0)
        identity = reduce_identity(op, self.dtype)
        init = loop(
            "u", chains, lambda u: Store(acc, (u, vec), Broadcast(identity, lanes)), "unrolled"
        )

        def update(i: Expr, u: Expr) -> Stmt:
            lane = Var("l")
            new = binary(bin_op, Load(acc, (u, lane)), value(i * lanes + lane))
            return For(lane, zero, IntImm(lanes), "vectorized", Store(acc, (u, lane), new))

        wide = loop(
            "i",
            simplify(self.main // chains),
            lambda i: loop("u", chains, lambda u: update(i * chains + u, u), "unrolled"),
        )
        short = loop(
            "i",
            simplify(self.main % chains),
            lambda i: update(i, IntImm(0)),
            lo=simplify(self.main // chains * chains),
        )
        total: Expr = Load(acc, (zero, vec))
        for u in range(1, chains):
            total = binary(bin_op, total, Load(acc, (as_expr(u), vec)))
        join = Store(one, (zero,), VectorReduce(op, total))
        tail = loop(
            "j",
            self.tail,
            lambda j: Store(one, (zero,), binary(bin_op, Load(one, (zero,)), value(j))),
            lo=self.tail_lo,
        )
        result = Var(f"row_{op}", self.dtype)
        body = Let(result, Load(one, (zero,)), then(result))
        return Alloc(acc, Alloc(one, seq(init, wide, short, join, tail, body)))

    def function(self, row: Callable[..., Stmt], op_class: str) -> PrimFunc:
        """All rows, in parallel when there is work."""
        lead = self.shape[:-1]
        size = product(self.shape)
        n = int_value(size)
        kind = "parallel" if n is None or n * 8 > PARALLEL_WORK else "serial"
        body = fused(list(lead), row, kind) if lead else row()
        return PrimFunc(
            self.group.name, self.group.params, simplify_stmt(body, {}), op_class=op_class
        )


def schedule_softmax(group: Group, target: Target) -> PrimFunc:
    """softmax or log_softmax: maximum, exponentials and their sum, scale."""
    r = _Row(group, target)
    x = group.element(r.call.args[0])
    log = r.call.op == "log_softmax"

    def row(*lead: Expr) -> Stmt:
        def at(j: Expr) -> Expr:
            return simplify_value(x(*lead, j), {})

        def with_max(top: Expr) -> Stmt:
            # exp is written first and scaled in place: one exponential per element.
            def exp_at(j: Expr) -> Expr:
                return intrin("exp", at(j) - top)

            def saved(j: Expr) -> Expr:
                return Load(group.out, group.store_index((*lead, j)))

            if log:
                total = r.reduce(
                    "sum", exp_at, lambda s: r.write(lead, lambda j: at(j) - top - intrin("log", s))
                )
                return total
            scale = Var("scale", r.dtype)
            return seq(
                r.write(lead, exp_at),
                r.reduce(
                    "sum",
                    saved,
                    lambda s: Let(
                        scale, const(1, r.dtype) / s, r.write(lead, lambda j: saved(j) * scale)
                    ),
                ),
            )

        return r.reduce("max", at, with_max)

    return r.function(row, "softmax_rows")


def schedule_layer_norm(group: Group, target: Target) -> PrimFunc:
    """(x - mean) / sqrt(var + eps) * gamma + beta, variance from deviations (two passes)."""
    r = _Row(group, target)
    assert group.anchor_var is not None
    operands = [group.element(a) for a in r.call.args]
    x, scales = operands[0], operands[1:]
    count = cast(r.columns, r.dtype)
    eps = const(float(r.call.attrs.eps), r.dtype)

    def row(*lead: Expr) -> Stmt:
        def at(j: Expr) -> Expr:
            return simplify_value(x(*lead, j), {})

        def with_sum(s: Expr) -> Stmt:
            mean = Var("mean", r.dtype)

            def deviation(j: Expr) -> Expr:
                return at(j) - mean

            def with_square(q: Expr) -> Stmt:
                inv = Var("inv", r.dtype)
                value = const(1, r.dtype) / Unary("sqrt", q / count + eps)

                def result(j: Expr) -> Expr:
                    y = deviation(j) * inv
                    if scales:
                        y = y * simplify_value(scales[0](j), {})
                    return y + simplify_value(scales[1](j), {}) if len(scales) > 1 else y

                def out(j: Expr) -> Expr:
                    index = (*lead, j)
                    element = group.element(
                        group.out_var,
                        {group.anchor_var: lambda *i: result(i[-1])},  # type: ignore
                    )
                    return simplify_value(element(*index), {})

                return Let(inv, value, r.write(lead, out))

            squares = r.reduce("sum", lambda j: deviation(j) * deviation(j), with_square)
            return Let(mean, s / count, squares)

        return r.reduce("sum", at, with_sum)

    return r.function(row, "layer_norm_rows")
