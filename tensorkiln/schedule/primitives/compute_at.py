"""Move a producer into a loop of its consumers, or a consumer into a loop of its producer."""

from __future__ import annotations

from dataclasses import replace

from tensorkiln.ir.buffer import Buffer, Load
from tensorkiln.ir.expr import Expr, Var, const
from tensorkiln.ir.stmt import Alloc, Block, For, PrimFunc, Seq, Stmt, Store, seq
from tensorkiln.ir.visit import walk_stmt
from tensorkiln.schedule.primitives.compact import allocated_in, compact_at, is_fresh
from tensorkiln.schedule.primitives.results import Nest, Primitive
from tensorkiln.schedule.proofs.legality import require_order
from tensorkiln.schedule.tree.boxes import Box, region
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
    require_only_domain,
    require_whole_domain,
    touches,
    written_buffers,
)
from tensorkiln.schedule.tree.program import Place, open_block, open_loop
from tensorkiln.schedule.tree.reindex import require_visible
from tensorkiln.schedule.tree.surgery import expressions, with_child

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
    find_local(f, buf.name, call, "move the block that reads it instead: reverse_compute_at")
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
    return compact_at(out, buf, loop, call), Nest.of(nest)


@Primitive
def reverse_compute_at(
    f: PrimFunc, block: str, loop: str, check: bool = True
) -> tuple[PrimFunc, Nest]:
    """Move a block into a loop of the producer of its operand, after the producer.

        for i0 in range(4):                     for i0 in range(4):
            for i1 in range(16):                    for i1 in range(16):
                T_[i0*16 + i1] = A[...]     ->          T_[i1] = A[...]
        for i in range(64):                         for i in range(16):
            B[i] = T_[i] + 1                            B[i0*16 + i] = T_[i] + 1

    The block gets new loops over the elements that one iteration produces; they must be complete at
    the end of the iteration. An allocated operand that is used in this loop only, each iteration
    reading what it wrote, shrinks to one iteration.
    """
    place, b = open_block(f, block, "reverse_compute_at")
    f, call = place.func, f"reverse_compute_at({block!r}, {loop!r})"
    place.what = call
    target, s = open_loop(f, loop, "reverse_compute_at")
    if b in walk_stmt(s):
        raise place.fail(f"the block is inside {loop!r} already", "name a loop of its producer")
    _require_movable(place, b, target)
    buf = _operand(place, b, target)
    require_visible(f.body, buf, call)
    require_only_domain(f, place.path, call)
    box = region(s.body, around_of(f, (*target.path, s.body)), buf, reads=False)
    assert box is not None
    ranges = _consumer_ranges(place, b, box)
    out = replace(f, body=remove(place.path))
    target, s = open_loop(out, loop, "reverse_compute_at")
    nest = _nest(place, b, ranges, target)
    out = target.close(replace(s, body=seq(s.body, nest)))
    if check:
        require_order(f, out, call)
    if allocated_in(out, buf) and is_fresh(out, buf, loop):
        out = compact_at(out, buf, loop, call)
    return out, Nest.of(nest)


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


def _operand(place: Place, b: Block, target: Place) -> Buffer:
    """The one buffer that the loop writes and the block reads. ScheduleError if there are none or
    several."""
    s = target.stmt
    loop_outputs = [
        t.access.buffer
        for t in touches(place.func)
        if t.access.write and any(x.var is s.var for x in t.access.around.loops)  # type: ignore[attr-defined]
    ]
    operands = [x for x in read_buffers(b) if x in loop_outputs and x not in written_buffers(b)]
    if len(operands) != 1:
        names = ", ".join(repr(x.name) for x in operands) or "none"
        raise place.fail(
            f"the loop makes {names} of the buffers that block {b.name!r} reads",
            "name a loop that makes exactly one of its operands",
        )
    return operands[0]


def _consumer_ranges(place: Place, b: Block, box: Box) -> Ranges:
    """(first, extent) of each iteration variable for one iteration of the producer's loop; None for
    a variable that does not index the operand, which runs over its whole extent."""
    numbers: dict[Expr, int] = {i.var: n for n, i in enumerate(b.iters)}
    ranges: Ranges = [None] * len(b.iters)
    indices: tuple[Expr, ...] | None = None
    for x in expressions(b):
        if isinstance(x, Load) and x.buffer is box.buffer:
            if indices is not None and x.indices != indices:
                raise _irregular(place, b, box.buffer)
            indices = x.indices
    assert indices is not None
    variables = [e for e in indices if isinstance(e, Var)]
    if len(set(variables)) != len(variables):
        raise _irregular(place, b, box.buffer)
    for e, r, size in zip(indices, box.ranges, box.buffer.shape, strict=True):
        n = numbers.get(e)
        if n is not None:
            ranges[n] = r
        elif r != (const(0), size):
            raise _irregular(place, b, box.buffer)
    return ranges


def _irregular(place: Place, b: Block, buf: Buffer) -> ScheduleError:
    hint = "it must read one element per instance, at its own variables, as T[vi, vj]"
    return place.fail(
        f"block {b.name!r} reads {buf.name!r} at indices other than its variables", hint
    )
