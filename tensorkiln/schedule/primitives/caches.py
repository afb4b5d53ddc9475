"""Primitives that let a block work on a copy of a buffer, filled before or written back after."""

from __future__ import annotations

from dataclasses import replace

from tensorkiln.ir.attrs import NO_ATTRS
from tensorkiln.ir.buffer import Buffer
from tensorkiln.ir.expr import Var
from tensorkiln.ir.stmt import Alloc, Block, For, PrimFunc, Stmt, seq
from tensorkiln.ir.visit import map_stmt, replace_buffers, walk_stmt
from tensorkiln.schedule.primitives.compact import stale
from tensorkiln.schedule.primitives.results import CacheWrite, Nest, Primitive
from tensorkiln.schedule.proofs.legality import require_order
from tensorkiln.schedule.proofs.steps import UNORDERED
from tensorkiln.schedule.tree.boxes import Around, Box, accesses, region, same_memory
from tensorkiln.schedule.tree.places import (
    Touch,
    around_of,
    below,
    copy_block,
    find_buffer,
    nest_over,
    new_buffer,
    path_of,
    written_buffers,
)
from tensorkiln.schedule.tree.program import Place, bounds_of, dims_of, open_block, open_loop
from tensorkiln.schedule.tree.reindex import less, reindex, require_visible
from tensorkiln.schedule.tree.surgery import put
from tensorkiln.schedule.tree.threads import require_shared_by_block


@Primitive
def cache_read(
    f: PrimFunc, block: str, buffer: str, scope: str = "local", at: str | None = None
) -> tuple[PrimFunc, Nest]:
    """Copy what a block reads into a new buffer, and read it there.

        for i in range(4):                      for i in range(4):
            for j in range(8):                      A_local = T.alloc_buffer((8,), scope="local")
                B[i, j] = A[i, j] + 1   ->          for ax1 in range(8):
                                                        A_local[ax1] = A[i, ax1]
                                                    for j in range(8):
                                                        B[i, j] = A_local[j] + 1

    The copy is made by a block named after the new buffer, at the start of loop `at` (before all
    loops when None), and has all elements that the block reads in there. Nothing in the loop may
    write the buffer.
    """
    place, b = open_block(f, block, "cache_read")
    f = place.func
    buf = _cached(place, buffer)
    step, root = _cut_at(place, at, buf)
    for a in accesses(root, around_of(f, place.path[: step + 1])):
        if a.write and same_memory(f, a.buffer, buf):
            raise place.fail(
                f"block {a.block!r} writes {a.buffer.name!r} after the copy",
                "cache_write copies both ways; or choose `at` further in",
            )
    box = region(root, around_of(f, place.path[: step + 1]), buf, writes=False, only=b)
    if box is None:
        names = ", ".join(sorted({x.buffer.name for x in accesses(b) if not x.write}))
        raise place.fail(f"block {block!r} does not read {buffer!r}", f"it reads {names}")
    new = _like(place, buf, box, scope)
    program, (nest,) = _cache(place, step, buf, new, box, [_copy(place, new, buf)], [], b)
    return program, nest


@Primitive
def cache_write(
    f: PrimFunc,
    block: str,
    buffer: str,
    scope: str = "local",
    at: str | None = None,
    check: bool = True,
) -> tuple[PrimFunc, CacheWrite]:
    """Work on a copy of what a block writes, and write it back at the end.

        for i in range(4):                      for i in range(4):
            for j in range(8):                      B_local = T.alloc_buffer((8,), scope="local")
                B[i, j] = A[i, j] + 1   ->          for j in range(8):
                                                        B_local[j] = A[i, j] + 1
                                                    for ax1 in range(8):
                                                        B[i, ax1] = B_local[ax1]

    Every block in loop `at` (in the whole nest when None) that uses the buffer uses the copy. If
    elements may be read before they are written (a sum that was begun elsewhere), or not all are
    written, the block `<buffer>_<scope>_load` first copies them in; `<buffer>_<scope>_store` writes
    back. In a parallel loop, no other iteration may use what an iteration writes back.
    """
    place, b = open_block(f, block, "cache_write")
    f = place.func
    buf = _cached(place, buffer)
    if buf not in written_buffers(b):
        names = ", ".join(x.name for x in written_buffers(b))
        raise place.fail(f"block {block!r} does not write {buffer!r}", f"it writes {names}")
    step, root = _cut_at(place, at, buf)
    context = around_of(f, place.path[: step + 1])
    require_visible(root, buf, place.what)
    root_accesses = accesses(root, context)
    for a in root_accesses:
        if a.buffer is not buf and same_memory(f, a.buffer, buf):
            raise place.fail(
                f"{a.buffer.name!r} may be the same memory as {buffer!r}",
                "cache a function without inplace parameters",
            )
    box, wrote = region(root, context, buf), region(root, context, buf, reads=False)
    assert box is not None and wrote is not None
    uses = [Touch(n, a) for n, a in enumerate(root_accesses) if a.buffer is buf]
    partial = not wrote.exact or wrote.ranges != box.ranges
    load = partial or stale(uses, len(context.loops)) is not None
    new = _like(place, buf, box, scope)
    before = [_copy(place, new, buf, "_load")] if load else []
    after = [_copy(place, new, buf, "_store", back=True)]
    program, nests = _cache(place, step, buf, new, box, before, after, None)
    if check and any(isinstance(s, For) and s.kind in UNORDERED for s in place.path[:step]):
        # The box may contain more than is written: elements that other iterations write at once.
        around = tuple(s.var for s in place.path[:step] if isinstance(s, For))
        require_order(_in_order(program, around), program, place.what)
    return program, CacheWrite(nests[-1], nests[0] if load else None)


# ---- parts -----------------------------------------------------------------------------------


def _cached(place: Place, buffer: str) -> Buffer:
    buf = find_buffer(place.func, buffer, place.what)
    require_visible(place.func.body, buf, place.what)
    return buf


def _cut_at(place: Place, loop: str | None, buf: Buffer) -> tuple[int, Stmt]:
    """(index in the path of the statement around which the copies are put, that statement)."""
    path = place.path
    if loop is not None:
        open_loop(place.func, loop, place.what.partition("(")[0])
        around = [s.var.name for s in path if isinstance(s, For)]
        if loop not in around:
            listed = ", ".join(around) or "none"
            raise place.fail(f"loop {loop!r} is not around the block", f"loops around it: {listed}")
    step = below(path, loop)
    allocs = [n for n, s in enumerate(path) if isinstance(s, Alloc) and s.buffer is buf]
    if allocs and allocs[0] > step:
        if loop is not None:
            inner = [s.var.name for s in path[: allocs[0]] if isinstance(s, For)]
            raise place.fail(
                f"{buf.name!r} is allocated inside loop {loop!r}",
                f"its allocation is in loop {inner[-1]!r}",
            )
        step = below(path, None, buf)
    if any(isinstance(s, Alloc) and s.buffer is buf for s in walk_stmt(path[step])):
        block = next(s.name for s in reversed(path) if isinstance(s, Block))
        raise place.fail(
            f"{buf.name!r} is allocated inside block {block!r}",
            "name a block inside its allocation",
        )
    lanes = [s.var.name for s in path[:step] if isinstance(s, For) and s.kind == "vectorized"]
    if lanes:
        raise place.fail(
            f"the copy would be in loop {lanes[0]!r}, which is vectorized",
            "name a loop around that one, or vectorize it afterwards",
        )
    return step, path[step]


def _like(place: Place, buf: Buffer, box: Box, scope: str) -> Buffer:
    return new_buffer(place, f"{buf.name}_{scope}", buf, box.shape, scope)


def _in_order(f: PrimFunc, loops: tuple[Var, ...]) -> PrimFunc:
    """`f` with these loops serial."""

    def go(s: Stmt) -> Stmt:
        new = map_stmt(s, lambda e: e, go)
        if isinstance(new, For) and new.var in loops and new.kind in UNORDERED:
            return replace(new, kind="serial", attrs=NO_ATTRS)
        return new

    return replace(f, body=go(f.body))


def _copy(place: Place, new: Buffer, buf: Buffer, suffix: str = "", back: bool = False) -> Block:
    """A block that copies a whole buffer of the shape of `buf`; `_cache` restricts it to a box."""
    stand_in = replace(new, shape=buf.shape)
    into, source = (buf, stand_in) if back else (stand_in, buf)
    return copy_block(place.name(new.name + suffix), into, source)


def _cache(
    place: Place,
    step: int,
    buf: Buffer,
    new: Buffer,
    box: Box,
    before: list[Block],
    after: list[Block],
    only: Block | None,
) -> tuple[PrimFunc, list[Nest]]:
    """Put copies before and after the statement at `step` of the path, and let it use `new` in
    place of `buf`, with the first indices of `box` subtracted. `only`: the block that uses it, all
    when None. Returns the nests of the copies as well."""
    f, path = place.func, place.path
    root = path[step]
    middle = replace(buf, name=new.name)  # `new` with the shape of `buf`, until `reindex` below
    bounds = bounds_of(f, path[: step + 1])

    def nest(block: Block) -> Stmt:
        stand_in = next(a.buffer for a in accesses(block) if a.buffer is not buf)
        s = nest_over(block, box.ranges, bounds, place.name)
        return replace_buffers(s, {stand_in: middle})

    block = root if only is None else only
    new_root = put(path_of(root, block), replace_buffers(block, {buf: middle}))
    copies, back = list(map(nest, before)), list(map(nest, after))
    whole = put(path[: step + 1], Alloc(new, seq(*copies, new_root, *back)))
    lows = {d: lo for d, (lo, _) in enumerate(box.ranges)}
    context = Around(known=place.bounds.dims(dims_of(f)))
    body = reindex(whole, context, middle, new, less(lows), place.what)
    program = require_shared_by_block(replace(f, body=body), place.what)
    return program, [Nest.of(s) for s in (*copies, *back)]
