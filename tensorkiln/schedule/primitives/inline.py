"""Inline an elementwise block into its consumers, or into its producer."""

from __future__ import annotations

from dataclasses import replace

from tensorkiln.ir.buffer import Buffer, Load
from tensorkiln.ir.expr import Expr, Var
from tensorkiln.ir.stmt import Block, For, PrimFunc, Stmt, Store
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
    require_whole_domain,
    touches,
    without_alloc,
)
from tensorkiln.schedule.tree.program import Place, open_block
from tensorkiln.schedule.tree.reindex import refreshed, require_visible
from tensorkiln.schedule.tree.surgery import expressions, put


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


def reverse_compute_inline(f: PrimFunc, block: str) -> PrimFunc:
    """Compute an elementwise block where its operand is produced; the operand is then not stored.

        for i in range(8): T_[i] = A[i] * 2     ->   for i in range(8): B[i] = A[i] * 2 + 1
        for i in range(8): B[i] = T_[i] + 1

    The block reads T_[vi] at its own variables, each of them once, and is the only reader.
    """
    place, b = open_block(f, block, "reverse_compute_inline")
    f = place.func
    if b.init is not None or not isinstance(b.body, Store):
        raise place.fail(f"block {block!r} is not one store", "reverse_compute_at moves any block")
    buf, variables = _operand(place, b)
    require_visible(f.body, buf, place.what)
    require_whole_domain(f, place.path, place.what)
    producer = _producer(place, b, buf)
    path = path_of(f.body, producer)
    require_whole_domain(f, path, place.what)
    sizes = dict(zip(variables, buf.shape, strict=True))
    for i in b.iters:
        if i.extent != sizes[i.var]:
            raise place.fail(
                f"block {block!r} does not run over all of {buf.name!r}",
                "reverse_compute_at moves any block",
            )
    require_flat(place.path, place.what)
    require_flat(path, place.what)
    require_in_scope(b, place.path, path, place.what)
    _require_early(place, b, producer, path, buf)
    store = producer.body
    assert isinstance(store, Store)
    values = dict(zip(variables, store.indices, strict=True))

    def expr(e: Expr) -> Expr:
        if isinstance(e, Load) and e.buffer is buf:
            return store.value
        return values.get(e, e) if isinstance(e, Var) else map_children(e, expr)

    body = Store(b.body.buffer, tuple(map(expr, b.body.indices)), expr(b.body.value))
    merged = refreshed(replace(producer, name=b.name, body=body, attrs=b.attrs))
    new = put(path_of(remove(place.path), producer), merged)
    return replace(f, body=without_alloc(new, buf))


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


def _operand(place: Place, b: Block) -> tuple[Buffer, tuple[Var, ...]]:
    """The allocated buffer that the block reads at exactly its own variables, each once.
    ScheduleError if there is none."""
    iter_vars = [i.var for i in b.iters]
    hint = "it must read an allocated buffer at its own variables, as T[vi, vj]"
    for buf in read_buffers(b):
        if buf in place.func.params:
            continue
        index_tuples = {
            x.indices for x in expressions(b) if isinstance(x, Load) and x.buffer is buf
        }
        indices = next(iter(index_tuples))
        variables = tuple(e for e in indices if isinstance(e, Var))
        plain = len(index_tuples) == 1 and len(variables) == len(indices)
        if plain and sorted(map(id, variables)) == sorted(map(id, iter_vars)):
            return buf, variables
    raise place.fail(f"block {b.name!r} reads no allocated buffer element by element", hint)


def _producer(place: Place, b: Block, buf: Buffer) -> Block:
    """The elementwise block that is the only writer of `buf`. ScheduleError if it is not
    elementwise, or there are other writers, or readers other than `b`."""
    makers: dict[str, Block] = {}
    for t in touches(place.func):
        a = t.access
        if a.buffer is not buf or a.block == b.name:
            continue
        if not a.write:
            if not makers or a.block not in makers:
                raise place.fail(
                    f"block {a.block!r} reads {buf.name!r} too", "compute_inline instead"
                )
            continue
        makers[a.block] = a.around.blocks[-1]
    if len(makers) != 1:
        raise place.fail(f"{len(makers)} blocks write {buf.name!r}", "it needs one producer")
    (producer,) = makers.values()
    body = producer.body
    if producer.init is not None or any(i.kind == "reduce" for i in producer.iters):
        raise place.fail(
            f"block {producer.name!r} is a sum, whose value is complete only at its end",
            f"reverse_compute_at({b.name!r}, ...) under a loop outside the sum",
        )
    if not isinstance(body, Store) or any(x is buf for x in read_buffers(producer)):
        raise place.fail(f"block {producer.name!r} is not one store", "reverse_compute_at instead")
    return producer


def _require_early(
    place: Place, b: Block, producer: Block, path: tuple[Stmt, ...], buf: Buffer
) -> None:
    """Raise ScheduleError unless the other operands of `b` are complete at the producer, and
    nothing uses the result of `b` between the producer and `b`."""
    loops = tuple(s.var.name for s in path if isinstance(s, For))
    out = b.body.buffer if isinstance(b.body, Store) else buf
    operands = [x for x in read_buffers(b) if x is not buf]
    order = {t.access.block: t.order for t in touches(place.func)}
    mine = [s.var.name for s in place.path if isinstance(s, For)]
    for t in touches(place.func):
        a = t.access
        if a.block in (b.name, producer.name) and not (
            a.block == producer.name and a.buffer is out
        ):
            continue
        late = t.order > order[producer.name] or any(
            x.var.name in mine and x.var.name not in loops for x in a.around.loops
        )
        between = t.order < order[b.name]
        if a.write and a.buffer in operands and late:
            raise place.fail(
                f"block {a.block!r} writes {a.buffer.name!r}, which it reads, after "
                f"{producer.name!r}",
                "move that block first",
            )
        if a.buffer is out and ((between and late) or a.block == producer.name):
            raise place.fail(
                f"block {a.block!r} uses {out.name!r} in between", "move that block first"
            )
