"""Vectors as their lanes, for languages that have none in memory.

    Y[Ramp(i * 4, 1, 2)] = max(X[Ramp(i * 4, 1, 2)], Broadcast(0, 2))
    ->  Y[i * 4] = max(X[i * 4], 0)
        Y[i * 4 + 1] = max(X[i * 4 + 1], 0)

Each lane is computed as the lane of the vector would be, and sums of lanes keep their order. Where
a lane that is stored might be read by a later one, all are computed first. Runs after
`unroll_function`.
"""

from __future__ import annotations

from dataclasses import replace

from tensorkiln.base.errors import InternalError
from tensorkiln.ir.buffer import Buffer, Load
from tensorkiln.ir.expr import (
    REDUCE_BINARY,
    Binary,
    Broadcast,
    Cast,
    Expr,
    Intrin,
    Ramp,
    Select,
    Shuffle,
    Unary,
    Var,
    VectorReduce,
    binary,
    cast,
    intrin,
)
from tensorkiln.ir.operators import DOTS
from tensorkiln.ir.stmt import Evaluate, Let, MatchBuffer, PrimFunc, Seq, Stmt, Store, seq
from tensorkiln.ir.visit import has_load, loads, map_children, map_stmt, walk_stmt


def scalarize(f: PrimFunc) -> PrimFunc:
    """`f` without vectors; the same object if it has none."""
    views = {s.buffer: s.source for s in walk_stmt(f.body) if isinstance(s, MatchBuffer)}
    body = _Scalarizer(views).stmt(f.body)
    return f if body is f.body else replace(f, body=body)


class _Scalarizer:
    """Rewrites one program. `vars` has the variables of the lanes of one that was a vector."""

    def __init__(self, views: dict[Buffer, Buffer]):
        self.views = views
        self.vars: dict[Var, tuple[Var, ...]] = {}
        self.memo: dict[tuple[int, int], tuple[Expr, Expr]] = {}  # of the current statement

    def stmt(self, s: Stmt) -> Stmt:
        self.memo = {}
        match s:
            case Store(_, _, value) if value.dtype.lanes > 1:
                return self._store(s)
            case Let(var, value, body) if value.dtype.lanes > 1:
                element, lanes = var.dtype.element, range(var.dtype.lanes)
                values = [self.lane(value, k) for k in lanes]
                lane_vars = self.vars[var] = tuple(Var(f"{var.name}_{k}", element) for k in lanes)
                body = self.stmt(body)
                for v, x in zip(reversed(lane_vars), reversed(values), strict=True):
                    body = Let(v, x, body)
                return body
            case Evaluate(value) if value.dtype.lanes > 1:
                return Seq(())  # no call: those of vectors do not exist
        return map_stmt(s, self.scalar, self.stmt)

    def _store(self, s: Store) -> Stmt:
        lanes = range(s.value.dtype.lanes)
        places = [tuple(self.lane(i, k) for i in s.indices) for k in lanes]
        values = [self.lane(s.value, k) for k in lanes]
        read = [x.buffer for e in (s.value, *s.indices) for x in loads(e)]
        lets: list[tuple[Var, Expr]] = []

        def held(e: Expr, name: str) -> Expr:
            lets.append((Var(name, e.dtype), e))
            return lets[-1][0]

        if self._root(s.buffer) in map(self._root, read):
            values = [held(x, f"lane_{k}") for k, x in enumerate(values)]
            places = [
                tuple(held(i, f"place_{k}") if has_load(i) else i for i in lane_indices)
                for k, lane_indices in enumerate(places)
            ]
        rows = zip(places, values, strict=True)
        body: Stmt = seq(*(replace(s, indices=lane_indices, value=x) for lane_indices, x in rows))
        for var, x in reversed(lets):
            body = Let(var, x, body)
        return body

    def _root(self, b: Buffer) -> Buffer:
        while b in self.views:
            b = self.views[b]
        return b

    def scalar(self, e: Expr) -> Expr:
        """A scalar expression, whose operands may be vectors."""
        return self.lane(e, 0)

    def lane(self, e: Expr, k: int) -> Expr:
        """Lane k of a vector; of a scalar, itself. Shared subexpressions stay shared."""
        k = k if e.dtype.lanes > 1 else 0
        entry = self.memo.get((id(e), k))
        if entry is None:
            entry = self.memo[id(e), k] = (e, self._lane(e, k))
        return entry[1]

    def _lane(self, e: Expr, k: int) -> Expr:
        if isinstance(e, VectorReduce):
            return self._reduced(e)
        if isinstance(e, Intrin) and e.name in DOTS:
            return self._dot(e, k)
        if e.dtype.lanes == 1 and not isinstance(e, Shuffle):
            return map_children(e, self.scalar)
        match e:
            case Var():
                return self.vars[e][k]
            case Ramp(base, stride, _):
                return self.scalar(base) + self.scalar(stride) * k
            case Broadcast(a, _):
                return self.scalar(a)
            case Shuffle(a, b, lanes):
                position, wide = lanes[k], a.dtype.lanes
                return self.lane(a, position) if position < wide else self.lane(b, position - wide)
            case Load(buffer, indices):
                return Load(buffer, tuple(self.lane(i, k) for i in indices))
            case Cast(a, dtype):
                return cast(self.lane(a, k), dtype.element)
            case Binary() | Unary() | Select() | Intrin():
                return map_children(e, lambda x: self.lane(x, k))
        raise InternalError(f"no lanes of {type(e).__name__}")

    def _reduced(self, e: VectorReduce) -> Expr:
        """The upper half onto the lower half, until one lane is left."""
        op = REDUCE_BINARY.get(e.op, e.op)
        lanes = [self.lane(e.a, k) for k in range(e.a.dtype.lanes)]
        while len(lanes) > 1:
            half = len(lanes) // 2
            lanes = [binary(op, lanes[k], lanes[half + k]) for k in range(half)]
        return lanes[0]

    def _dot(self, e: Intrin, k: int) -> Expr:
        """A sum of products of narrow numbers, one by one."""
        total, (_, count) = self.lane(e.args[0], k), DOTS[e.name][1]
        for j in range(count):
            a, b = (cast(self.lane(x, k * count + j), total.dtype) for x in e.args[1:])
            total = intrin("fma", a, b, total) if total.dtype.is_float else total + a * b
        return total


__all__ = ["scalarize"]
