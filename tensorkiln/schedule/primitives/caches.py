"""Primitives that let a block work on a copy of a buffer, filled before or written back after."""

from __future__ import annotations

from dataclasses import replace

from tensorkiln.ir.buffer import Buffer
from tensorkiln.ir.stmt import Alloc, Block, For, PrimFunc, Stmt, seq
from tensorkiln.ir.visit import replace_buffers, walk_stmt
from tensorkiln.schedule.primitives.results import Nest, Primitive
from tensorkiln.schedule.tree.boxes import Around, Box, accesses, region, same_memory
from tensorkiln.schedule.tree.places import (
    around_of,
    below,
    copy_block,
    find_buffer,
    nest_over,
    new_buffer,
    path_of,
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
                "choose `at` further in",
            )
    box = region(root, around_of(f, place.path[: step + 1]), buf, writes=False, only=b)
    if box is None:
        names = ", ".join(sorted({x.buffer.name for x in accesses(b) if not x.write}))
        raise place.fail(f"block {block!r} does not read {buffer!r}", f"it reads {names}")
    new = _like(place, buf, box, scope)
    return _cache(place, step, buf, new, box, b)


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


def _cache(
    place: Place, step: int, buf: Buffer, new: Buffer, box: Box, reader: Block
) -> tuple[PrimFunc, Nest]:
    """Put a copy of `box` before the statement at `step` of the path, and let `reader` use `new`
    in place of `buf`, with the first indices of `box` subtracted."""
    f, path = place.func, place.path
    root = path[step]
    middle = replace(buf, name=new.name)  # `new` with the shape of `buf`, until `reindex` below
    stand_in = replace(new, shape=buf.shape)
    copy_nest = nest_over(
        copy_block(place.name(new.name), stand_in, buf),
        box.ranges,
        bounds_of(f, path[: step + 1]),
        place.name,
    )
    copy = replace_buffers(copy_nest, {stand_in: middle})
    new_root = put(path_of(root, reader), replace_buffers(reader, {buf: middle}))
    whole = put(path[: step + 1], Alloc(new, seq(copy, new_root)))
    lows = {d: lo for d, (lo, _) in enumerate(box.ranges)}
    context = Around(known=place.bounds.dims(dims_of(f)))
    body = reindex(whole, context, middle, new, less(lows), place.what)
    return require_shared_by_block(replace(f, body=body), place.what), Nest.of(copy)
