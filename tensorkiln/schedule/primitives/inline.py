"""Inline an elementwise block into its consumers."""

from __future__ import annotations

from dataclasses import replace

from tensorkiln.ir.buffer import Buffer, Load
from tensorkiln.ir.expr import Expr, Var
from tensorkiln.ir.stmt import Block, PrimFunc, Stmt, Store
from tensorkiln.ir.visit import map_children, map_stmt, substitute, walk
from tensorkiln.schedule.tree.places import (
    find_local,
    path_of,
    read_buffers,
    remove,
    require_flat,
    require_in_scope,
    require_inputs_kept,
    require_only_domain,
    touches,
    without_alloc,
)
from tensorkiln.schedule.tree.program import Place, open_block
from tensorkiln.schedule.tree.reindex import refreshed, require_visible


def compute_inline(f: PrimFunc, block: str) -> PrimFunc:
    """Compute the value of an elementwise block again at each place that reads it.

        for i in range(8): T_[i] = A[i] * 2     ->   for i in range(8): B[i] = A[i] * 2 + 1
        for i in range(8): B[i] = T_[i] + 1

    The block writes one element of an allocated buffer; its operands must not change before they
    are read at the new places.
    """
    place, b = open_block(f, block, "compute_inline")
    f = place.func
    store, variables = _element(place, b)
    buf = store.buffer
    find_local(f, buf.name, place.what, "the result of the function must be stored: inline others")
    require_visible(f.body, buf, place.what)
    _only_writer(place, b, buf)
    require_only_domain(f, place.path, place.what)
    require_flat(place.path, place.what)
    inputs = read_buffers(b)
    for t in touches(f):
        a = t.access
        if a.buffer is not buf or a.write:
            continue
        assert a.indices is not None
        if any(e.dtype.lanes > 1 for e in a.indices):
            raise place.fail(f"block {a.block!r} reads {buf.name!r} as vectors", "inline it first")
        reader = path_of(f.body, a.around.blocks[-1])
        require_flat(reader, place.what)
        require_in_scope(b, place.path, reader, place.what)
        loops = tuple(x.var.name for x in a.around.loops)
        hint = f"cache_read the operand, or keep {block!r}"
        require_inputs_kept(f, place.path, inputs, loops, place.what, hint)
    body = without_alloc(remove(place.path), buf)
    return replace(f, body=_Inline(buf, variables, store.value).stmt(body))


class _Inline:
    def __init__(self, buf: Buffer, variables: tuple[Var, ...], value: Expr):
        self.buf, self.variables, self.value = buf, variables, value

    def expr(self, e: Expr) -> Expr:
        e = map_children(e, self.expr)
        if isinstance(e, Load) and e.buffer is self.buf:
            return substitute(self.value, dict(zip(self.variables, e.indices, strict=True)))
        return e

    def stmt(self, s: Stmt) -> Stmt:
        t = map_stmt(s, self.expr, self.stmt)
        return refreshed(t) if isinstance(t, Block) and t is not s else t


# ---- what may be inlined ---------------------------------------------------------------------


def _element(place: Place, b: Block) -> tuple[Store, tuple[Var, ...]]:
    """The store of an elementwise block and its indices, which are plain iteration variables.
    ScheduleError for other blocks."""
    hint = "compute_at moves sums and blocks of several statements"
    if b.init is not None or not isinstance(b.body, Store):
        raise place.fail(f"block {b.name!r} is not one store", hint)
    store = b.body
    if any(a is store.buffer for a in read_buffers(b)):
        raise place.fail(f"block {b.name!r} adds to {store.buffer.name!r}", hint)
    iter_vars = {i.var for i in b.iters}
    variables = tuple(e for e in store.indices if isinstance(e, Var) and e in iter_vars)
    if len(variables) < len(store.indices) or len(set(variables)) != len(variables):
        text = f"block {b.name!r} writes {store.buffer.name!r} at indices other than its variables"
        raise place.fail(text, "it must write the element its variables name, as T[vi, vj]")
    value_vars = {x for x in walk(store.value) if isinstance(x, Var)} & iter_vars
    if value_vars - set(variables):
        raise place.fail(f"the value of block {b.name!r} needs more than its indices", hint)
    return store, variables


def _only_writer(place: Place, b: Block, buf: Buffer) -> None:
    for t in touches(place.func):
        if t.access.buffer is buf and t.access.write and t.access.block != b.name:
            text = f"block {t.access.block!r} writes {buf.name!r} too"
            raise place.fail(text, "only a buffer with one writer has one value")
