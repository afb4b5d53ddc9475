"""Shrink an allocated buffer to what one iteration of a loop uses, and allocate it there."""

from __future__ import annotations

from dataclasses import replace

from tensorkiln.arith import simplify
from tensorkiln.ir.buffer import Buffer
from tensorkiln.ir.expr import Expr, Var, int_value
from tensorkiln.ir.stmt import Alloc, PrimFunc, Store
from tensorkiln.ir.visit import free_vars, substitute, walk_stmt
from tensorkiln.schedule.tree.boxes import Access, Around, box_of, inside, region
from tensorkiln.schedule.tree.errors import ScheduleError
from tensorkiln.schedule.tree.normalise import normal
from tensorkiln.schedule.tree.places import (
    Touch,
    around_of,
    find_local,
    shared_loops,
    touches,
    without_alloc,
)
from tensorkiln.schedule.tree.program import dims_of, open_loop
from tensorkiln.schedule.tree.reindex import less, reindex, require_visible
from tensorkiln.schedule.tree.threads import require_shared_by_block


def compact(f: PrimFunc, buffer: str, loop: str | None = None, check: bool = True) -> PrimFunc:
    """Shrink an allocated buffer to what one iteration of a loop uses, and move it there.

        T_ = T.alloc_buffer((64,))              for i0 in range(4):
        for i0 in range(4):                         T_ = T.alloc_buffer((16,))
            for i1 in range(16):                    for i1 in range(16):
                T_[i0*16 + i1] = A[...]     ->          T_[i1] = A[...]
            for i2 in range(16):                    for i2 in range(16):
                B[...] = T_[i0*16 + i2]                 B[...] = T_[i2]

    Each iteration may read only what it wrote itself. Without `loop`, the innermost loop around all
    uses of the buffer is taken for which that holds.
    """
    f = normal(f)
    call = f"compact({buffer!r})"
    buf = find_local(f, buffer, call, "only buffers that the program allocates can shrink")
    require_visible(f.body, buf, call)
    uses = [t for t in touches(f) if t.access.buffer is buf]
    if not uses:
        raise ScheduleError(f"nothing uses {buffer!r}", where=call, hint="remove its allocation")
    depth = min(shared_loops(uses[0].access.around, t.access.around) for t in uses)
    around = [x.var.name for x in uses[0].access.around.loops[:depth]]
    if loop is not None:
        open_loop(f, loop, "compact")
        if loop not in around:
            outside = next(t for t in uses if loop not in _loop_names(t.access))
            raise ScheduleError(
                f"{buffer!r} is used by block {outside.access.block!r}, outside loop {loop!r}",
                where=call,
                hint=f"loops around all its uses: {', '.join(around) or 'none'}",
            )
        if check:
            require_fresh(uses, around.index(loop) + 1, call)
        return compact_at(f, buf, loop, call)
    for n in reversed(range(depth)):
        if not check or not stale(uses, n + 1):
            return compact_at(f, buf, around[n], call)
    if around:
        require_fresh(uses, depth, call)
    raise ScheduleError(
        f"no loop surrounds all uses of {buffer!r}",
        where=call,
        hint="compute_at moves its producer under the consumer's loop",
    )


def _loop_names(a: Access) -> list[str]:
    return [x.var.name for x in a.around.loops]


def compact_at(f: PrimFunc, buf: Buffer, loop: str, call: str) -> PrimFunc:
    """`f` with `buf` shrunk to one iteration of `loop` and allocated in it. Dependences are not
    checked. Raises ScheduleError for a buffer with explicit strides."""
    place, s = open_loop(f, loop, "compact")
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
    place, s = open_loop(f, loop, "compact")
    f = place.close(replace(s, body=Alloc(buf, s.body)))
    program = replace(f, body=reindex(f.body, around, buf, new, less(lows), call))
    return require_shared_by_block(program, call)


# ---- whether an iteration reads only what it wrote -------------------------------------------


def require_fresh(uses: list[Touch], fixed: int, call: str) -> None:
    """Raise ScheduleError if an iteration may read elements that it did not write itself."""
    stale_read = stale(uses, fixed)
    if stale_read is None:
        return
    a = stale_read.access
    loop = a.around.loops[fixed - 1].var.name
    raise ScheduleError(
        f"block {a.block!r} reads {a.buffer.name!r}, and no earlier write in the same iteration "
        f"of {loop!r} is known to have written all that it reads",
        where=call,
        hint="choose a loop further out, or write the whole region before it is read",
    )


def stale(uses: list[Touch], fixed: int) -> Touch | None:
    """The first read of elements that the same iteration of the outermost `fixed` loops may not
    have written; None if there is no such read."""
    writes = [t for t in uses if t.access.write]
    for r in uses:
        if r.access.write:
            continue
        if not any(_covers(w, r, fixed) for w in writes) and not _started(r.access, fixed):
            return r
    return None


def _covers(w: Touch, r: Touch, fixed: int) -> bool:
    shared = shared_loops(w.access.around, r.access.around)
    if w.order > r.order or shared < fixed:
        return False
    cond_count = 0
    for x, y in zip(w.access.around.conds, r.access.around.conds, strict=False):
        if x != y:
            break
        cond_count += 1
    wrote = box_of(w.access, shared, cond_count)
    return wrote.exact and inside(box_of(r.access, shared), wrote, r.access.around.bounds)


def _started(r: Access, fixed: int) -> bool:
    """Whether a read belongs to a sum that its block's init started in the same iteration."""
    if not r.around.blocks:
        return False
    b = r.around.blocks[-1]
    if b.init is None or not isinstance(b.init, Store) or b.init.buffer is not r.buffer:
        return False
    first: dict[Var, Expr] = {x.var: x.lo for x in r.around.loops[fixed:]}
    for i in b.iters:
        if i.kind != "reduce":
            continue
        value = r.around.expr(i.var)
        moving = all(v in first for v in free_vars(value))
        if not moving or int_value(simplify(substitute(value, first))) != 0:
            return False
    return r.indices == tuple(map(r.around.expr, b.init.indices))


def is_fresh(f: PrimFunc, buf: Buffer, loop: str) -> bool:
    """Whether every use of a buffer is in `loop`, and every read is of elements that the same
    iteration wrote."""
    uses = [t for t in touches(f) if t.access.buffer is buf]
    if not uses or any(loop not in _loop_names(t.access) for t in uses):
        return False
    fixed = _loop_names(uses[0].access).index(loop) + 1
    return stale(uses, fixed) is None


def allocated_in(f: PrimFunc, buf: Buffer) -> bool:
    """Whether the function allocates the buffer itself."""
    return any(isinstance(t, Alloc) and t.buffer is buf for t in walk_stmt(f.body))
