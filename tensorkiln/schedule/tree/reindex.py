"""Redirect the accesses of one buffer to another, at other indices.

    with T.block("C"):                          with T.block("C"):
        vi = T.axis.spatial(64, i0*16 + i1)         vi = T.axis.spatial(64, i0*16 + i1)
        T_[vi] = A[vi]                   ->         vi1 = T.axis.spatial(16, i1)
                                                    U[vi1] = A[vi]

The body of a block uses its iteration variables, not the loops outside. If a new index depends on
such a loop, the block gets an iteration variable for it, as `vi1` above.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from tensorkiln.arith import Bounds, bound, simplify
from tensorkiln.arith.regions import regions_of
from tensorkiln.ir.buffer import AddressOf, Buffer, Load
from tensorkiln.ir.expr import Expr, Ramp, Var, const, int_value
from tensorkiln.ir.stmt import (
    Alloc,
    Block,
    BlockIter,
    For,
    Let,
    MatchBuffer,
    Prefetch,
    PrimFunc,
    Seq,
    Stmt,
    Store,
)
from tensorkiln.ir.visit import free_vars, map_children, map_stmt, substitute, walk_stmt
from tensorkiln.schedule.tree.boxes import Around, loop_bounds
from tensorkiln.schedule.tree.errors import ScheduleError
from tensorkiln.schedule.tree.program import bounds_of
from tensorkiln.schedule.tree.surgery import expressions

Indices = tuple[Expr, ...]
Move = Callable[[Indices, Bounds], Indices]


def require_visible(s: Stmt, buf: Buffer, call: str) -> None:
    """Raise ScheduleError if a buffer is accessed through a view or a pointer, so that not all of
    its accesses are known."""
    for t in walk_stmt(s):
        if isinstance(t, MatchBuffer) and t.source is buf:
            hint = "use the buffer itself instead of the view"
            raise ScheduleError(
                f"{buf.name!r} has the view {t.buffer.name!r}", where=call, hint=hint
            )
    for e in expressions(s):
        if isinstance(e, AddressOf) and e.buffer is buf:
            hint = "C functions take buffers as they are"
            raise ScheduleError(f"the address of {buf.name!r} is taken", where=call, hint=hint)


def map_accesses(f: PrimFunc, s: Stmt, old: Buffer, new: Buffer, move: Move) -> Stmt:
    """`s` with each access old[i] replaced by new[move(i)], and the allocation of `old` by that of
    `new`. `move` is given indices as they are written, in blocks in terms of their variables."""
    return _Raw(old, new, move, f).stmt(s, bounds_of(f, (s,)))


@dataclass(frozen=True, slots=True)
class _Raw:
    old: Buffer
    new: Buffer
    move: Move
    func: PrimFunc

    def stmt(self, s: Stmt, bounds: Bounds) -> Stmt:
        inner = bounds
        if isinstance(s, For):
            inner = bounds.with_loop(s.var, s.lo, s.extent)
        elif isinstance(s, Block):
            for i in s.iters:
                inner = inner.with_loop(i.var, 0, i.extent)

        def ex(e: Expr) -> Expr:
            e = map_children(e, ex)
            if isinstance(e, Load) and e.buffer is self.old:
                return Load(self.new, self.move(e.indices, inner))
            return e

        t = map_stmt(s, ex, lambda x: self.stmt(x, inner))
        if isinstance(t, Store | Prefetch) and t.buffer is self.old:
            return replace(t, buffer=self.new, indices=self.move(t.indices, inner))
        if isinstance(t, Alloc) and t.buffer is self.old:
            return replace(t, buffer=self.new)
        return refreshed(t) if isinstance(t, Block) and t is not s else t


def refreshed(b: Block) -> Block:
    """A block whose body changed, with its read and write regions recomputed."""
    parts = b.body if b.init is None else Seq((b.init, b.body))
    reads, writes = regions_of(parts)
    if b.init is not None:
        # a buffer that init sets and the body updates is not an input
        reads = tuple(r for r in reads if all(r.buffer is not w.buffer for w in writes))
    return replace(b, reads=reads, writes=writes)


# ---- in terms of loops -----------------------------------------------------------------------


@dataclass(slots=True)
class _Frame:
    """A block that the walk is in: the variables bound in it, and the iteration variables it
    gets."""

    block: Block
    inner: set[Var]
    new: list[BlockIter] = field(default_factory=list)


def reindex(s: Stmt, around: Around, old: Buffer, new: Buffer, move: Move, call: str) -> Stmt:
    """`s`, the body of a function, with each access old[i] replaced by new[move(i)], and the
    allocation of `old` by that of `new`. `move` takes and returns indices in terms of loops."""
    return _Reindex(old, new, move, call).stmt(s, around)


class _Reindex:
    def __init__(self, old: Buffer, new: Buffer, move: Move, call: str):
        self.old, self.new, self.move, self.where = old, new, move, call
        self.frames: list[_Frame] = []
        self.loops: dict[Var, For] = {}

    def stmt(self, s: Stmt, around: Around) -> Stmt:
        match s:
            case Block():
                return self.block(s, around)
            case For(var):
                self.loops[var] = s
                self.bind(var)
            case Let(var):
                self.bind(var)
        t = map_stmt(s, lambda e: self.expr(e, around), lambda x: self.stmt(x, around.enter(s, x)))
        if isinstance(t, Store | Prefetch) and t.buffer is self.old:
            assert isinstance(s, Store | Prefetch)
            return replace(t, buffer=self.new, indices=self.indices(s.indices, around))
        if isinstance(t, Alloc) and t.buffer is self.old:
            return replace(t, buffer=self.new)
        return t

    def bind(self, var: Var) -> None:
        if self.frames:
            self.frames[-1].inner.add(var)

    def block(self, s: Block, around: Around) -> Block:
        """Walk the body first, as it may need new iteration variables; then the values of the
        iteration variables, which are expressions outside the block."""
        frame = _Frame(s, {i.var for i in s.iters})
        self.frames.append(frame)
        init = None if s.init is None else self.stmt(s.init, around.enter(s, s.init))
        body = self.stmt(s.body, around.enter(s, s.body))
        self.frames.pop()
        iters = tuple(replace(i, value=self.expr(i.value, around)) for i in s.iters)
        body_unchanged = body is s.body and init is s.init
        if body_unchanged and all(a.value is b.value for a, b in zip(iters, s.iters, strict=True)):
            return s
        t = replace(s, iters=(*iters, *frame.new), body=body, init=init)
        return t if body_unchanged else refreshed(t)

    def expr(self, e: Expr, around: Around) -> Expr:
        if isinstance(e, Load) and e.buffer is self.old:
            return Load(self.new, self.indices(e.indices, around))
        return map_children(e, lambda c: self.expr(c, around))

    def indices(self, indices: Indices, around: Around) -> Indices:
        outer = tuple(around.expr(self.expr(i, around)) for i in indices)
        return tuple(self.close(e) for e in self.move(outer, around.bounds))

    def close(self, e: Expr) -> Expr:
        """An index in terms of loops, in terms of the variables that are visible at this place."""
        if self.frames:
            block = self.frames[-1].block
            for i in block.iters:
                if i.value == e and len(self.frames) == 1:
                    return i.var
        return substitute(e, {v: self.bring(v, len(self.frames)) for v in free_vars(e)})

    def bring(self, var: Var, depth: int) -> Expr:
        """The variable, or new iteration variable, that stands for `var` inside the outermost
        `depth` blocks of the walk."""
        if depth == 0 or not self.is_bound(var):
            return var
        frame = self.frames[depth - 1]
        if any(var in f.inner for f in self.frames[depth - 1 :]):
            return var
        outer = self.bring(var, depth - 1)
        for i in (*frame.block.iters, *frame.new):
            if i.value == outer:
                return i.var
        return self.iteration(frame, var, outer)

    def is_bound(self, var: Var) -> bool:
        return var in self.loops or any(var in f.inner for f in self.frames)

    def iteration(self, frame: _Frame, var: Var, outer: Expr) -> Expr:
        """Add an iteration variable to a block, for the loop of `var` outside it, which has value
        `outer` there. ScheduleError if `var` is not a loop variable."""
        loop = self.loops.get(var)
        if loop is None:
            raise ScheduleError(
                f"block {frame.block.name!r} cannot name {var.name!r}: it is not a loop variable",
                where=self.where,
                hint="replace lets by their values first",
            )
        users = [i.kind for i in frame.block.iters if var in free_vars(i.value)]
        kind = "reduce" if users and all(k == "reduce" for k in users) else "spatial"
        mine = Var(f"v{var.name}", var.dtype)
        zero = int_value(loop.lo) == 0
        extent = loop.extent if zero else simplify(loop.lo + loop.extent)
        if any(v in self.loops for v in free_vars(extent)):
            upper = bound(extent, loop_bounds(tuple(self.loops.values()), Bounds()))[1]
            if upper is not None:
                extent = const(upper, var.dtype)
        frame.new.append(BlockIter(mine, extent, kind, outer))
        return mine


def less(lows: Mapping[int, Expr]) -> Move:
    """A `Move` that subtracts the first index of a box, `lows` by dimension."""

    def move(indices: Indices, bounds: Bounds) -> Indices:
        return tuple(_less(e, lows.get(d, const(0)), bounds) for d, e in enumerate(indices))

    return move


def _less(e: Expr, low: Expr, bounds: Bounds) -> Expr:
    if int_value(low) == 0:
        return e if isinstance(e, Ramp) else simplify(e, bounds)
    if isinstance(e, Ramp):
        return replace(e, base=simplify(e.base - low, bounds))
    return simplify(e - low, bounds)
