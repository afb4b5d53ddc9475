"""Move a producer into a loop of its consumers."""

from __future__ import annotations

from dataclasses import replace

from tensorkiln.ir.buffer import Buffer, Load
from tensorkiln.ir.expr import Expr
from tensorkiln.ir.stmt import Alloc, Block, For, PrimFunc, Seq, Stmt, Store, seq
from tensorkiln.ir.visit import walk_stmt
from tensorkiln.schedule.primitives.results import Nest, Primitive
from tensorkiln.schedule.tree.boxes import Around, region
from tensorkiln.schedule.tree.errors import ScheduleError
from tensorkiln.schedule.tree.places import (
    around_of,
    find_local,
    nest_over,
    read_buffers,
    remove,
    require_flat,
    require_in_scope,
    require_inputs_kept,
    require_whole_domain,
    touches,
    without_alloc,
    written_buffers,
)
from tensorkiln.schedule.tree.program import Place, dims_of, open_block, open_loop
from tensorkiln.schedule.tree.reindex import less, reindex, require_visible
from tensorkiln.schedule.tree.surgery import expressions, with_child
from tensorkiln.schedule.tree.threads import require_shared_by_block

Ranges = list[tuple[Expr, Expr] | None]


@Primitive
def compute_at(f: PrimFunc, block: str, loop: str) -> tuple[PrimFunc, Nest]:
    """Move a block into a loop that contains all readers of its result.

        T_ = T.alloc_buffer((64,))              for i0 in range(4):
        for i in range(64):                         T_ = T.alloc_buffer((16,))
            T_[i] = A[i] * 2                        for i in range(16):
        for i0 in range(4):                 ->          T_[i] = A[i0*16 + i] * 2
            for i1 in range(16):                    for i1 in range(16):
                B[...] = T_[i0*16 + i1]                 B[...] = T_[i1]

    The block gets new loops over the elements that one iteration reads, spatial ones outside, and
    its buffer shrinks to these. The block's operands must not change between its old place and the
    new one. Elements that several iterations read are computed several times.
    """
    place, b = open_block(f, block, "compute_at")
    f, call = place.func, f"compute_at({block!r}, {loop!r})"
    place.what = call
    target, s = open_loop(f, loop, "compute_at")
    _require_movable(place, b, target)
    buf = _one_written(place, b)
    find_local(f, buf.name, call, "only what the program allocates can move")
    require_visible(f.body, buf, call)
    dims = _plain_dims(place, b, buf)
    _require_whole(place, b, buf)
    _require_readers_inside(place, target, buf)
    require_whole_domain(f, place.path, call)
    names = tuple(x.var.name for x in target.path if isinstance(x, For))
    inputs = [x for x in read_buffers(b) if x is not buf]
    require_inputs_kept(f, place.path, inputs, names, call, "compute it before that block")
    around = around_of(f, (*target.path, s.body))
    box = region(s.body, around, buf, writes=False)
    assert box is not None
    ranges: Ranges = [None] * len(b.iters)
    for d, n in enumerate(dims):
        ranges[n] = box.ranges[d]
    out = replace(f, body=remove(place.path))
    target, s = open_loop(out, loop, "compute_at")
    nest = _nest(place, b, ranges, target)
    out = target.close(replace(s, body=_before_users(s.body, nest, buf)))
    return _compacted(out, buf, loop, call), Nest.of(nest)


def _require_movable(place: Place, b: Block, target: Place) -> None:
    """Raise ScheduleError if block or loop is inside another block, a loop at the new place is
    vectorized, or a buffer of the block is not allocated there."""
    require_flat(place.path, place.what)
    require_flat(target.path, place.what)
    lanes = [s.var.name for s in target.path if isinstance(s, For) and s.kind == "vectorized"]
    if lanes:
        raise place.fail(
            f"loop {lanes[0]!r} is vectorized",
            "name a loop around that one, or vectorize it afterwards",
        )
    require_in_scope(b, place.path, target.path, place.what)


# ---- parts -----------------------------------------------------------------------------------


def _nest(place: Place, b: Block, ranges: Ranges, target: Place) -> Stmt:
    s = target.stmt
    assert isinstance(s, For)
    bounds = target.bounds.with_loop(s.var, s.lo, s.extent)
    return nest_over(b, ranges, bounds, place.name, around=place.path)


def _one_written(place: Place, b: Block) -> Buffer:
    buffers = written_buffers(b)
    if len(buffers) != 1:
        names = ", ".join(repr(x.name) for x in buffers) or "nothing"
        raise place.fail(
            f"block {b.name!r} writes {names}", "a block that writes one buffer can move"
        )
    return buffers[0]


def _plain_dims(place: Place, b: Block, buf: Buffer) -> list[int]:
    """For each dimension of `buf`, the number of the iteration variable that runs along it."""
    variable_of_dim: list[int] | None = None
    numbers: dict[Expr, int] = {i.var: n for n, i in enumerate(b.iters) if i.kind == "spatial"}
    for t in walk_stmt(b):
        if not isinstance(t, Store):
            continue
        dims = [numbers.get(e, -1) for e in t.indices]
        if -1 in dims or len(set(dims)) != len(dims) or variable_of_dim not in (None, dims):
            hint = "it must write the element that its spatial variables name, as T[vi, vj]"
            raise place.fail(
                f"block {b.name!r} writes {buf.name!r} at indices other than its variables", hint
            )
        variable_of_dim = dims
    if variable_of_dim is None or set(numbers.values()) != set(variable_of_dim):
        hint = "it must write the element that its spatial variables name, as T[vi, vj]"
        raise place.fail(f"not every spatial variable of {b.name!r} is an index of its write", hint)
    return variable_of_dim


def _require_whole(place: Place, b: Block, buf: Buffer) -> None:
    """Raise ScheduleError unless the block alone writes its buffer, and does not depend on what was
    in it before."""
    for t in touches(place.func):
        if t.access.buffer is buf and t.access.write and b not in t.access.around.blocks:
            hint = "compose_reduction makes one block of a sum and its start"
            raise place.fail(f"block {t.access.block!r} writes {buf.name!r} too", hint)
    updates = any(a is buf for a in read_buffers(b))
    if updates and b.init is None:
        hint = "a sum needs its init: compose_reduction"
        raise place.fail(f"block {b.name!r} reads {buf.name!r} before it writes it", hint)
    if updates and any(i.kind == "opaque" for i in b.iters):
        raise place.fail(f"block {b.name!r} has opaque iterations", "only sums can be recomputed")


def _require_readers_inside(place: Place, target: Place, buf: Buffer) -> None:
    s = target.stmt
    inside = False
    assert isinstance(s, For) and isinstance(place.stmt, Block)
    if place.stmt in walk_stmt(s):
        raise place.fail(f"the block is inside {s.var.name!r} already", "name a loop of its reader")
    for t in touches(place.func):
        a = t.access
        if a.buffer is not buf or a.write or place.stmt in a.around.blocks:
            continue
        if all(x.var is not s.var for x in a.around.loops):
            loops = ", ".join(x.var.name for x in a.around.loops)
            raise place.fail(
                f"block {a.block!r} reads {buf.name!r} outside loop {s.var.name!r}",
                f"choose a loop around all readers; around {a.block!r}: {loops or 'none'}",
            )
        inside = True
    if not inside:
        raise place.fail(
            f"nothing in loop {s.var.name!r} reads {buf.name!r}", "name a reader's loop"
        )


def _before_users(body: Stmt, nest: Stmt, buf: Buffer) -> Stmt:
    """`body` with `nest` before the first part that uses `buf`; allocations stay around both."""
    if isinstance(body, Alloc):
        return replace(body, body=_before_users(body.body, nest, buf))
    if isinstance(body, Seq):
        for part in body.stmts:
            if _uses(part, buf):
                if isinstance(part, Alloc):
                    return with_child(body, part, _before_users(part, nest, buf))
                return with_child(body, part, seq(nest, part))
    return seq(nest, body)


def _uses(s: Stmt, buf: Buffer) -> bool:
    stored = any(isinstance(t, Store) and t.buffer is buf for t in walk_stmt(s))
    return stored or any(isinstance(x, Load) and x.buffer is buf for x in expressions(s))


def _compacted(f: PrimFunc, buf: Buffer, loop: str, call: str) -> PrimFunc:
    """`f` with `buf` shrunk to one iteration of `loop` and allocated in it. Dependences are not
    checked. Raises ScheduleError for a buffer with explicit strides."""
    place, s = open_loop(f, loop, "compute_at")
    box = region(s.body, around_of(f, (*place.path, s.body)), buf)
    assert box is not None
    lows = {d: lo for d, (lo, _) in enumerate(box.ranges)}
    if buf.strides_given is not None and box.shape != buf.shape:
        raise ScheduleError(
            f"{buf.name!r} has strides of its own",
            where=call,
            hint="use storage_align after its size is final",
        )
    new = replace(buf, shape=box.shape)
    around = Around(known=place.bounds.dims(dims_of(f)))
    f = replace(f, body=without_alloc(f.body, buf))
    place, s = open_loop(f, loop, "compute_at")
    f = place.close(replace(s, body=Alloc(buf, s.body)))
    program = replace(f, body=reindex(f.body, around, buf, new, less(lows), call))
    return require_shared_by_block(program, call)
