"""Turn the reductions inside an element expression into loops that fill accumulators."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from tensorkiln.ir.buffer import Buffer, Load, buffer
from tensorkiln.ir.dtype import DType
from tensorkiln.ir.expr import (
    REDUCE_BINARY,
    Expr,
    IntImm,
    Reduce,
    Var,
    binary,
    int_value,
    reduce_identity,
)
from tensorkiln.ir.stmt import Stmt, Store, seq
from tensorkiln.ir.visit import free_vars, map_children, substitute, walk
from tensorkiln.schedule.access import lanes_ok
from tensorkiln.schedule.build import around, within

Loops = Sequence[tuple[Var, Expr, str]]
_AT = (IntImm(0),)


def with_reductions(store: Store, lanes: int, inside: Loops = ()) -> Stmt:
    """`store` with each Reduce of its value computed before it. `inside`: (variable, extent, role)
    of loops that go around the store alone.

        out[i] = sum(x[i, k] for k) / 8    ->   acc[0] = 0
                                                for k: acc[0] = x[i, k] + acc[0]
                                                out[i] = acc[0] / 8

    A loop over a contiguous axis of at least `lanes` elements has role "term" and can be
    vectorized; the other loops of a reduction have role "reduction".
    """
    reductions = _Reductions(lanes)
    value = reductions.replaced(store.value)
    final = Store(store.buffer, store.indices, value)
    return within(reductions.buffers, *reductions.statements, around(inside, final))


def reductions_of(value: Expr) -> list[Reduce]:
    """Every Reduce of a value, outer ones first."""
    return [x for x in walk(value) if isinstance(x, Reduce)]


def replaced(e: Expr, old: Expr, new: Expr) -> Expr:
    """`e` with each occurrence of `old` replaced."""
    return new if e == old else map_children(e, lambda x: replaced(x, old, new))


class _Reductions:
    """The loops and accumulators of the reductions of one value; equal ones are computed once."""

    def __init__(self, lanes: int):
        self.lanes = lanes
        self.statements: list[Stmt] = []
        self.buffers: list[Buffer] = []
        self.done: dict[Reduce, Expr] = {}

    def replaced(self, e: Expr, axis_vars: frozenset[Var] = frozenset()) -> Expr:
        """`e` with each Reduce replaced by a load of its accumulator, except those that use a
        variable of `axis_vars`, an axis of a Reduce around them."""
        if isinstance(e, Reduce):
            if not axis_vars & set(free_vars(e)):
                return self.compute(e)
            axis_vars = axis_vars | {v for v, _ in e.axes}
        return map_children(e, lambda x: self.replaced(x, axis_vars))

    def compute(self, r: Reduce) -> Expr:
        """Append the loops of one reduction, and return the load of its accumulator."""
        key = _canonical(r)
        if key not in self.done:
            term = self.replaced(r.value, frozenset(v for v, _ in r.axes))
            self.statements.append(self.terms(Reduce(r.op, r.axes, term)))
            self.done[key] = Load(self.buffers[-1], _AT)
        return self.done[key]

    def terms(self, r: Reduce) -> Stmt:
        """acc = start; for all axes: acc = term op acc."""
        acc = buffer("acc", (1,), r.dtype, "local")
        self.buffers.append(acc)
        heads = [("r", "reduction")] * len(r.axes)
        if _contiguous(r, self.lanes):
            heads[-1] = ("k", "term")
        loops = [
            (Var(name, v.dtype), e, role)
            for (name, role), (v, e) in zip(heads, r.axes, strict=True)
        ]
        renamed: dict[Var, Expr] = {v: w for (v, _), (w, _, _) in zip(r.axes, loops, strict=True)}
        term = binary(REDUCE_BINARY[r.op], substitute(r.value, renamed), Load(acc, _AT))
        body = around(loops, with_reductions(Store(acc, _AT, term), self.lanes))
        return seq(Store(acc, _AT, reduce_identity(r.op, r.dtype)), body)


def _canonical(r: Reduce, depth: int = 0) -> Reduce:
    """The reduction with its axes renamed by position, so that reductions that differ only in the
    names of their axes are equal."""
    axes = tuple((_shared(f"axis{depth}_{k}", v.dtype), e) for k, (v, e) in enumerate(r.axes))
    renamed: dict[Var, Expr] = {v: w for (v, _), (w, _) in zip(r.axes, axes, strict=True)}

    def inner(e: Expr) -> Expr:
        return _canonical(e, depth + 1) if isinstance(e, Reduce) else map_children(e, inner)

    return Reduce(r.op, axes, inner(substitute(r.value, renamed)))


@cache
def _shared(name: str, dtype: DType) -> Var:
    return Var(name, dtype)


def _contiguous(r: Reduce, lanes: int) -> bool:
    """Whether neighbours along the last axis can be lanes of one vector."""
    var, extent = r.axes[-1]
    n = int_value(extent)
    if lanes == 1 or (n is not None and n < lanes) or reductions_of(r.value):
        return False
    step, lane = Var("step"), Var("l")
    return lanes_ok(substitute(r.value, {var: step * lanes + lane}), lane)
