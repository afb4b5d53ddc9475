"""Replace blocks by the statements they mean, and views by what they view.

    for i, k in T.grid(8, 4):                     for i, k in T.grid(8, 4):
        with T.block("C"):                            if k == 0:
            vi = T.axis.spatial(8, i)                     C[i] = 0
            vk = T.axis.reduce(4, k)         ->       C[i] = C[i] + A[i, k]
            with T.init(): C[vi] = 0
            C[vi] = C[vi] + A[vi, vk]

    V = T.match_buffer(A[i, 0], (8,), "float32"); V[j] = 0   ->   A[i, j] = 0

A view whose strides are not all among its source's stays: the code generator makes a pointer of
it. One of registers cannot stay.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from tensorkiln.arith import prove_equal, simplify_stmt
from tensorkiln.base.errors import UnsupportedError
from tensorkiln.ir.buffer import Buffer
from tensorkiln.ir.dtype import INT64
from tensorkiln.ir.expr import (
    AddressOf,
    Expr,
    Load,
    Var,
    binary,
    cast,
    const,
    int_value,
    logical_and,
)
from tensorkiln.ir.module import IRModule
from tensorkiln.ir.stmt import (
    Alloc,
    Block,
    If,
    Let,
    MatchBuffer,
    Prefetch,
    PrimFunc,
    Stmt,
    Store,
    seq,
)
from tensorkiln.ir.visit import free_vars, has_load, map_children, map_stmt, walk_stmt


def lower_blocks(mod: IRModule) -> IRModule:
    """Lower every block and every view that can be."""
    return mod.map_bodies(lower_function)


def lower_function(f: PrimFunc) -> PrimFunc:
    """Lower one tensor program; blocks leave simplified index arithmetic behind."""
    if not any(isinstance(s, Block | MatchBuffer) for s in walk_stmt(f.body)):
        return f
    sizes = {v for b in f.buffers for d in b.shape for v in free_vars(d)}
    wild = [v for v in f.scalars if v not in sizes]
    return replace(f, body=simplify_stmt(_Lowering(f.name, {}, {}).stmt(f.body), wild=wild))


def _wide(index: Expr) -> Expr:
    """An index of 32 bits as one of 64, which strides are."""
    return cast(index, INT64.with_lanes(index.dtype.lanes))


@dataclass(frozen=True, slots=True)
class _View:
    """A step of index k moves `steps[k]`, (dimension, count), in `source`, from `start`."""

    source: Buffer
    start: tuple[Expr, ...]
    steps: tuple[tuple[int, Expr], ...]

    def at(self, indices: tuple[Expr, ...]) -> tuple[Expr, ...]:
        """The same element of the source."""
        out = list(self.start)
        for (d, count), index in zip(self.steps, indices, strict=True):
            out[d] = _wide(out[d]) + _wide(index) * count
        return tuple(out)


@dataclass(frozen=True, slots=True)
class _Lowering:
    """What iteration variables and views stand for where the walk is."""

    func: str
    values: Mapping[Var, Expr]
    views: Mapping[Buffer, _View]

    def expr(self, e: Expr) -> Expr:
        match e:
            case Var():
                return self.values.get(e, e)
            case Load(buf, indices) if buf in self.views:
                return Load(*self.place(buf, indices))
            case AddressOf(buf, indices) if buf in self.views:
                return AddressOf(*self.place(buf, indices))
        return map_children(e, self.expr)

    def place(self, buf: Buffer, indices: tuple[Expr, ...]) -> tuple[Buffer, tuple[Expr, ...]]:
        new = tuple(map(self.expr, indices))
        view = self.views.get(buf)
        return (buf, new) if view is None else (view.source, view.at(new))

    def stmt(self, s: Stmt) -> Stmt:
        match s:
            case Block():
                return self.block(s)
            case MatchBuffer():
                return self.match(s)
            case Store(buf, indices, value, nt) if buf in self.views:
                return Store(*self.place(buf, indices), self.expr(value), nt)
            case Prefetch(buf, indices, locality, write) if buf in self.views:
                return Prefetch(*self.place(buf, indices), locality, write)
        return map_stmt(s, self.expr, self.stmt)

    def block(self, s: Block) -> Stmt:
        """Iteration variables become their values; a value that reads memory is read once."""
        values, lets, starts = dict(self.values), [], []
        for i in s.iters:
            value = self.expr(i.value)
            if has_load(value) or _shapes_mention(s, i.var):
                lets.append((i.var, value))
                value = i.var
            else:
                values[i.var] = value
            if i.kind == "reduce":
                starts.append(binary("eq", value, const(0, value.dtype)))
        inside = replace(self, values=values)
        first = None if s.init is None else inside.stmt(s.init)
        condition = logical_and(*starts)
        if first is not None and int_value(condition) != 1:
            first = If(condition, first)
        body = seq(first, inside.stmt(s.body))
        for var, value in reversed(lets):
            body = Let(var, value, body)
        return body

    def match(self, s: MatchBuffer) -> Stmt:
        """Accesses of a view become those of its source; a start that reads memory is read once."""
        source, start = self.place(s.source, s.indices)
        steps = _steps(s.buffer, source)
        if steps is not None:
            reads = {k: e for k, e in enumerate(start) if has_load(e)}
            names = {k: Var(f"{s.buffer.name}_start{k}", e.dtype) for k, e in reads.items()}
            start = tuple(names.get(k, e) for k, e in enumerate(start))
            view = _View(source, start, steps)
            body = replace(self, views={**self.views, s.buffer: view}).stmt(s.body)
            for k, e in reads.items():
                body = Let(names[k], e, body)
            return body
        if source.scope == "register":
            raise UnsupportedError(
                f"view {s.buffer.name} of register buffer {source.name} has other strides",
                where=self.func,
                hint=f"registers have no address: give it strides of {source.name}",
            )
        return MatchBuffer(s.buffer, source, start, self.stmt(s.body))


def _steps(view: Buffer, source: Buffer) -> tuple[tuple[int, Expr], ...] | None:
    """What a step along each dimension of the view is in the source; None where it is not along
    one dimension."""
    if len(source.shape) == 1 and int_value(source.strides[0]) == 1:
        return tuple((0, stride) for stride in view.strides)
    free = list(range(len(source.shape)))
    found: dict[int, tuple[int, Expr]] = {}
    for k in reversed(range(len(view.shape))):
        if int_value(view.shape[k]) == 1:
            continue  # never moves
        fits = [d for d in free if prove_equal(view.strides[k], source.strides[d])]
        if not fits:
            return None
        free.remove(fits[-1])
        found[k] = (fits[-1], const(1))
    if not source.shape:
        return None if found or view.shape else ()
    return tuple(found.get(k, (0, const(0))) for k in range(len(view.shape)))


def _shapes_mention(s: Block, var: Var) -> bool:
    """Whether a buffer made inside has a shape in terms of `var` (buffers are not rebuilt)."""
    made = [t.buffer for t in walk_stmt(s) if isinstance(t, Alloc | MatchBuffer)]
    return any(var in free_vars(e) for b in made for e in (*b.shape, *b.strides))


__all__ = ["lower_blocks", "lower_function"]
