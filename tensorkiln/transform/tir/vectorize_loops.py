"""Turn vectorized loops into vector operations.

    for i in vectorized(16): B[i] = A[i] + x
    ->  B[Ramp(0, 1, 16)] = A[Ramp(0, 1, 16)] + Broadcast(x, 16)

Needs: constant extents and no blocks. The body may hold stores, lets, allocations and prefetches,
and loops and conditions that do not depend on the vectorized variable. A prefetch is done for the
first lane only, or dropped if its address uses a let that became a vector. Raises
UnsupportedError for a statement or expression that has no vector form.
"""

from __future__ import annotations

from dataclasses import replace

from tensorkiln.arith import Bounds, affine, simplify
from tensorkiln.base.errors import UnsupportedError, UserError
from tensorkiln.ir.buffer import AddressOf, Load
from tensorkiln.ir.device_instructions import THREAD
from tensorkiln.ir.expr import (
    DEVICE_INSTRUCTIONS,
    DOTS,
    TILE_DOTS,
    Broadcast,
    CallExtern,
    Expr,
    Intrin,
    Ramp,
    Reduce,
    Select,
    Shuffle,
    Var,
    VectorReduce,
    as_expr,
    const,
    int_value,
    match_lanes,
    select,
)
from tensorkiln.ir.module import IRModule
from tensorkiln.ir.stmt import Alloc, Block, For, If, Let, Prefetch, PrimFunc, Seq, Stmt, Store, seq
from tensorkiln.ir.visit import children, map_children, map_stmt, substitute, walk

# Of longer vectors LLVM makes code for minutes; registers have 64 lanes at most.
MOST_LANES = 4096


def vectorize_loops(mod: IRModule) -> IRModule:
    """Vectorize every loop of kind `vectorized`.

    Raises UserError if its extent is not constant or too large (code `vectorize`) or its body holds
    a block (code `not-lowered`), UnsupportedError if its body has no vector form.
    """
    return mod.map_bodies(vectorize_function)


def vectorize_function(f: PrimFunc) -> PrimFunc:
    """Vectorize the loops of one tensor program; `f` itself if none is marked."""
    body = _find(f.body)
    return f if body is f.body else replace(f, body=body)


def _find(s: Stmt) -> Stmt:
    if isinstance(s, For) and s.kind == "vectorized":
        lanes = int_value(s.extent)
        if lanes is None:
            raise UserError(
                f"vectorized loop over {s.var} has no constant extent",
                code="vectorize",
                hint="T.serial, or split it by a constant first",
            )
        if lanes < 1:
            return Seq(())
        if lanes > MOST_LANES:
            raise UserError(
                f"vectorized loop over {s.var} has {lanes} iterations, not {MOST_LANES} or less",
                code="vectorize",
                hint="split it, and vectorize the inner part",
            )
        return _Vectorizer(s.var, s.lo, lanes).stmt(s.body)
    return map_stmt(s, lambda e: e, _find)


# Expressions whose value in a lane is not the same operation on their operands' values in it.
_NOT_BY_LANE = (Ramp, Broadcast, Shuffle, VectorReduce, AddressOf, CallExtern, Reduce)


def _is_by_lane(e: Intrin, lanes: int) -> bool:
    """Whether an intrinsic of vectors computes each lane by itself; an intrinsic of a device does
    if it has a row for vectors of this length."""
    row = DEVICE_INSTRUCTIONS.get(e.name)
    if row is None:
        return e.name not in (*DOTS, *TILE_DOTS)
    wide = row.result(tuple(a.dtype.with_lanes(lanes) for a in e.args))
    alone = row.participants == THREAD and not row.memory
    return alone and wide == e.dtype.with_lanes(lanes)


class _Vectorizer:
    """Rewrites the body of one loop; `lets` maps let variables to the vectors they became."""

    def __init__(self, var: Var, lo: Expr, lanes: int):
        self.var, self.lo, self.lanes = var, lo, lanes
        self.bounds = Bounds().with_loop(var, lo, lanes)
        self.lets: dict[Var, Var] = {}
        self.memo: dict[int, tuple[Expr, Expr]] = {}

    def stmt(self, s: Stmt) -> Stmt:
        match s:
            case Store(buf, indices, value, nt):
                idx = self.indices(indices)
                val = self.expr(value)
                if any(i.dtype.lanes > 1 for i in idx) and val.dtype.lanes == 1:
                    val = Broadcast(val, self.lanes)
                elif val.dtype.lanes > 1 and all(i.dtype.lanes == 1 for i in idx):
                    raise self.unsupported(f"a store of all lanes to one element of {buf.name}")
                return Store(buf, idx, val, nt)
            case Let(var, value, body):
                val = self.expr(value)
                if val.dtype.lanes == var.dtype.lanes:
                    return Let(var, val, self.stmt(body))
                wide = Var(var.name, val.dtype)
                self.lets[var] = wide
                return Let(wide, val, self.stmt(body))
            case Seq(stmts):
                return seq(*map(self.stmt, stmts))
            case For(var, lo, extent, kind, body, attrs) if not self.uses(lo + extent):
                return For(var, lo, extent, kind, self.stmt(body), attrs)
            case Alloc(buf, body):
                return Alloc(buf, self.stmt(body))
            case If(cond, then_body, orelse) if not self.uses(cond):
                else_body = None if orelse is None else self.stmt(orelse)
                return If(cond, self.stmt(then_body), else_body)
            case Prefetch(buf, indices, locality, write):
                if any(isinstance(x, Var) and x in self.lets for i in indices for x in walk(i)):
                    return seq()
                first = {self.var: self.lo}
                return Prefetch(buf, tuple(substitute(i, first) for i in indices), locality, write)
        if isinstance(s, Block):
            raise UserError(
                f"block {s.name} in a vectorized loop: run lower_blocks before vectorize_loops",
                code="not-lowered",
                hint="pipeline.tir_passes lists the passes in order",
            )
        raise self.unsupported(f"a statement {type(s).__name__}")

    def unsupported(self, construct: str) -> UnsupportedError:
        return UnsupportedError(
            f"{construct} cannot be vectorized over {self.var}",
            hint="make this loop serial, or `fission` it so that vectors have a loop of their own",
        )

    def uses(self, e: Expr) -> bool:
        return any(x is self.var or (isinstance(x, Var) and x in self.lets) for x in walk(e))

    def indices(self, indices: tuple[Expr, ...]) -> tuple[Expr, ...]:
        new = tuple(map(self.index, indices))
        if sum(i.dtype.lanes > 1 for i in new) > 1:
            raise self.unsupported("an access with lanes in several indices")
        return new

    def index(self, e: Expr) -> Expr:
        """The index for all lanes: a Ramp if it is affine in the loop variable."""
        if not self.uses(e):
            return e
        if any(isinstance(x, Var) and x in self.lets for x in walk(e)):
            return self.expr(e)  # in general a vector of arbitrary indices: a gather
        linear = affine(e, (self.var,), self.bounds)
        if linear is None:
            return self.expr(e)
        coefficients, offset = linear
        step = as_expr(coefficients.get(self.var, 0))
        base = simplify(offset + step * self.lo)
        if int_value(step) == 0:
            return base
        return Ramp(base, step, self.lanes)

    def expr(self, e: Expr) -> Expr:
        entry = self.memo.get(id(e))
        if entry is None:
            entry = self.memo[id(e)] = (e, self.rewrite(e))
        return entry[1]

    def rewrite(self, e: Expr) -> Expr:
        if e.dtype.lanes > 1 and self.uses(e):
            raise self.unsupported("an expression that is a vector already")
        match e:
            case Var():
                if e is self.var:
                    return Ramp(self.lo, const(1, e.dtype), self.lanes)
                return self.lets.get(e, e)
            case Load(buf, indices):
                return Load(buf, self.indices(indices))
            case Select(c, a, b):
                cond, x, y = self.expr(c), self.expr(a), self.expr(b)
                if cond.dtype.lanes > 1:
                    x, _ = match_lanes(x, cond)
                    y, _ = match_lanes(y, cond)
                return select(cond, x, y)
            case Ramp() | Broadcast() | Shuffle() | VectorReduce() if not self.uses(e):
                return e
        lanes = max((self.expr(x).dtype.lanes for x in children(e)), default=1)
        if isinstance(e, _NOT_BY_LANE) or (isinstance(e, Intrin) and not _is_by_lane(e, lanes)):
            raise self.unsupported(f"an expression {type(e).__name__}")
        return map_children(e, lambda x: self.widened(x, lanes))

    def widened(self, e: Expr, lanes: int) -> Expr:
        """`e` for all lanes; a scalar beside vectors of `lanes` lanes is broadcast."""
        new = self.expr(e)
        return Broadcast(new, lanes) if new.dtype.lanes < lanes else new
