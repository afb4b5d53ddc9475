"""Replace blocks by plain statements, and accesses to views by accesses to their source buffers.

    for i, k in T.grid(8, 4):                     for i, k in T.grid(8, 4):
        with T.block("C"):                            if k == 0:
            vi = T.axis.spatial(8, i)                     C[i] = 0
            vk = T.axis.reduce(4, k)         ->       C[i] = C[i] + A[i, k]
            with T.init(): C[vi] = 0
            C[vi] = C[vi] + A[vi, vk]

    V = T.match_buffer(A[i, 0], (8,), "float32"); V[j] = 0   ->   A[i, j] = 0

A view with a stride that its source buffer does not have is not replaced: the code generator makes
it a pointer. For a source in registers, which have no address, that is an UnsupportedError.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from tensorkiln.arith import prove_equal, simplify_stmt
from tensorkiln.base.errors import UnsupportedError
from tensorkiln.ir.buffer import AddressOf, Buffer, Load
from tensorkiln.ir.dtype import INT64
from tensorkiln.ir.expr import Expr, Var, binary, cast, const, int_value, logical_and
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
    """Lower every block, and every view whose accesses can be those of its source.

    Raises UnsupportedError for a view of registers that cannot.
    """
    return mod.map_bodies(lower_function)


def lower_function(f: PrimFunc) -> PrimFunc:
    """Lower one tensor program and simplify its index arithmetic; `f` itself if it has no blocks
    and no views."""
    if not any(isinstance(s, Block | MatchBuffer) for s in walk_stmt(f.body)):
        return f
    sizes = {v for b in f.buffers for d in b.shape for v in free_vars(d)}
    wild = [v for v in f.scalars if v not in sizes]
    return replace(f, body=simplify_stmt(_Lowering(f.name, {}, {}).stmt(f.body), wild=wild))


def _wide(index: Expr) -> Expr:
    """`index` as int64, the dtype of strides."""
    return cast(index, INT64.with_lanes(index.dtype.lanes))


@dataclass(frozen=True, slots=True)
class _View:
    """A view of `source` whose element 0 is at the indices `start`.

    For `steps[k] = (d, count)`, index k of the view adds index * count to index d of the source.
    """

    source: Buffer
    start: tuple[Expr, ...]
    steps: tuple[tuple[int, Expr], ...]

    def at(self, indices: tuple[Expr, ...]) -> tuple[Expr, ...]:
        """The indices in the source of an element of the view."""
        out = list(self.start)
        for (d, count), index in zip(self.steps, indices, strict=True):
            out[d] = _wide(out[d]) + _wide(index) * count
        return tuple(out)


@dataclass(frozen=True, slots=True)
class _Lowering:
    """Lowers statements inside blocks and views: `values` maps the blocks' iteration variables to
    expressions, `views` maps view buffers to their sources."""

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
        """Substitute the values of iteration variables; `init` runs where all reduce axes are 0.

        A value that loads from memory is bound by a Let, so that it is loaded once.
        """
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
        """Turn accesses to a view into accesses to its source; keep the view if that fails.

        A start index that loads from memory is bound by a Let, so that it is loaded once.
        """
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
                f"view {s.buffer.name} has other strides than its source, the register buffer "
                f"{source.name}",
                where=self.func,
                hint=f"registers have no address: give it strides of {source.name}",
            )
        return MatchBuffer(s.buffer, source, start, self.stmt(s.body))


def _steps(view: Buffer, source: Buffer) -> tuple[tuple[int, Expr], ...] | None:
    """For each dimension of the view, the (dimension, count) of `_View.steps`; None if a stride of
    the view is not a stride of the source.

    A 1-D contiguous source has every stride: (0, stride).
    """
    if len(source.shape) == 1 and int_value(source.strides[0]) == 1:
        return tuple((0, stride) for stride in view.strides)
    free = list(range(len(source.shape)))
    steps: dict[int, tuple[int, Expr]] = {}
    for k in reversed(range(len(view.shape))):
        if int_value(view.shape[k]) == 1:
            continue  # its index is always 0
        fits = [d for d in free if prove_equal(view.strides[k], source.strides[d])]
        if not fits:
            return None
        free.remove(fits[-1])
        steps[k] = (fits[-1], const(1))
    if not source.shape:
        return None if steps or view.shape else ()
    return tuple(steps.get(k, (0, const(0))) for k in range(len(view.shape)))


def _shapes_mention(s: Block, var: Var) -> bool:
    """Whether a buffer declared in block `s` has a shape or strides in terms of `var`.

    Then `var` must remain a variable: the pass does not rebuild buffers.
    """
    buffers = [t.buffer for t in walk_stmt(s) if isinstance(t, Alloc | MatchBuffer)]
    return any(var in free_vars(e) for b in buffers for e in (*b.shape, *b.strides))


__all__ = ["lower_blocks", "lower_function"]
