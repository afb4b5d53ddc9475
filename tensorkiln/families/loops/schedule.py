"""The schedule for groups without a schedule of their own: elementwise, injective, reductions.

Vector lanes run over the innermost memory axis of the output when the loads allow it, else over the
innermost axis of a reduction; threads share the outer axes. The program is in program.py.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import islice

from tensorkiln.families.loops.program import (
    UNKNOWN,
    Blocked,
    Flat,
    Merged,
    OutputRegion,
    RowMajor,
    loops_program,
    regions_of,
)
from tensorkiln.ir.expr import int_value
from tensorkiln.ir.stmt import Alloc
from tensorkiln.ir.visit import walk_stmt
from tensorkiln.kernels.knobs import CHAINS
from tensorkiln.schedule.build import PARALLEL_WORK
from tensorkiln.schedule.group import Group
from tensorkiln.schedule.partial_sums import in_vectors, sum_in_lanes
from tensorkiln.schedule.primitives import Schedule, Split
from tensorkiln.schedule.register_tile import FEW_TASKS, nest_of, share, with_inner
from tensorkiln.target import Target

# Vectors per task of a flat loop: enough work to schedule, and each task's memory is contiguous.
_CHUNK = 64
# With fewer planes than this, threads share each of them, not planes.
_FEW_PLANES = 16
# Rows that are computed at once where their elements are read at the same computed places.
_ROWS = 8
# Iterations of a chunk of an unknown number of rows. Shorter rows stay in one loop: the same loop
# behind chunks, which is all that few rows run, took 0.8 us for argmax of 100 x 3 instead of 0.4.
_MOST_IN_CHUNK = 512


def schedule(group: Group, target: Target, check: bool = False) -> Schedule:
    """Any group whose operators all have tensor programs."""
    regions = regions_of(group, target)
    s = Schedule(loops_program(group, regions), check=check)
    rests = [_flat(s, r) if isinstance(r, Flat) else _nest(s, r) for r in regions]
    for loop in s.loops(role="term"):
        # Not if the lanes are inside the loop already, nor in the remainder of a vectorized loop,
        # where each result is to be summed in the same order as in the vectors.
        if s.children(loop)[0] in s.blocks() and not _is_inside(s, loop, rests):
            sum_in_lanes(s, loop, regions[0].lanes, group.knob("chains", CHAINS))
    in_vectors(s)
    buffers = dict.fromkeys(t.buffer.name for t in walk_stmt(s.func.body) if isinstance(t, Alloc))
    for name in buffers:
        s.set_scope(name, "register")
    return s


def _flat(s: Schedule, r: Flat) -> str | None:
    """Vectorize the loop, and share it in chunks of vectors when there is work for threads. Return
    the loop over the elements that are left over."""
    vectors = _vectors(s, r)
    if vectors is None:
        return None
    s.vectorize(vectors.inner)
    if r.parallel and s.reaches(vectors.outer, _CHUNK):
        s.parallel(s.split(vectors.outer, _CHUNK, tail="peel").outer)
    return vectors.tail


def _nest(s: Schedule, r: OutputRegion) -> str | None:
    """Vectorize the nest, then share its outer loops among threads. Return the loop over the
    elements that are left over."""
    vectors = None
    if r.vector == r.named("channel"):
        innermost(s, *s.loops(role=r.vector))
    else:
        vectors = _vectors(s, r)
        if vectors is not None:
            innermost(s, vectors.inner)
    if isinstance(r, Merged) and r.planes < _FEW_PLANES:
        if vectors is not None and r.parallel and s.reaches(vectors.outer, _CHUNK):
            s.parallel(s.split(vectors.outer, _CHUNK, tail="peel").outer)
    elif isinstance(r, Blocked) and r.parallel and r.blocks < FEW_TASKS:
        _pixels(s, r)
    elif isinstance(r, RowMajor) and r.has_same_places(_ROWS):
        _several_rows(s, r)
    else:
        _tasks(s, r)
    return vectors.tail if vectors is not None else None


def _pixels(s: Schedule, r: Blocked) -> None:
    """Share rows of pixels among threads, of all blocks of channels, which are few; where rows are
    few as well, as in a signal, the columns too."""
    for loop in reversed(s.loops(role=r.named("outer"))):
        if len(s.children(loop)) > 1:  # the halo
            s.fission(loop)
    for loop in s.loops(role=r.named("row")) or s.loops(role=r.named("column")):
        share(s, with_inner(s, nest_of(s, loop)))


def _several_rows(s: Schedule, r: RowMajor) -> None:
    """Compute several rows at once, element by element, whose places are then computed once for all
    of them; where the number of rows is unknown, threads get chunks that are worth a thread."""
    nest = _outermost(s, r.named("outer"))
    is_open = any(int_value(s.loop(n).extent) is None for n in nest)
    rows = s.fuse(*nest) if len(nest) > 1 else nest[0]
    (element,) = s.children(rows)
    tiles = s.split(rows, _ROWS, tail="peel")
    s.reorder(element, tiles.inner)
    s.unroll(tiles.inner)
    chunk = PARALLEL_WORK // max(1, r.row_work * _ROWS) if is_open else 1
    if chunk > 1 and s.reaches(tiles.outer, chunk):
        s.parallel(s.split(tiles.outer, chunk, tail="peel").outer)
    elif r.parallel:
        s.parallel(tiles.outer)


def _is_inside(s: Schedule, loop: str, outer_loops: Sequence[str | None]) -> bool:
    """Whether a loop is nested in one of the others."""
    around = s.parent(loop)
    while around is not None and around not in outer_loops:
        around = s.parent(around)
    return around is not None


def _vectors(s: Schedule, r: OutputRegion) -> Split | None:
    """Split the loop with role `r.vector` into vectors and lanes; None if there is no such loop, or
    it is shorter than a vector."""
    for loop in s.loops(role=r.vector) if r.vector else ():
        if s.reaches(loop, r.lanes):
            names = (f"{loop}_0", f"l{r.number}")
            vectors: Split = s.split(loop, r.lanes, names, "peel", (r.vector, "lane"))
            return vectors
    return None


def innermost(s: Schedule, lane: str) -> None:
    """Move a loop inside all loops that it holds, and vectorize it there.

    for l:                          acc[0:16] = 0
        acc[0] = 0                  for k:
        for k:               ->         acc[0:16] = acc[0:16] + x[k, 0:16]
            acc[0] += x[k, l]       out[0:16] = acc[0:16]
        out[l] = acc[0]
    """
    inside = s.children(lane)
    if len(inside) > 1:
        for part in s.fission(lane).parts:
            innermost(s, part)
        return
    nest: list[str] = []
    while len(inside) == 1 and inside[0] in s.loops():
        nest.append(inside[0])
        inside = s.children(inside[0])
    if nest:
        s.reorder(*nest, lane)
        innermost(s, lane) if len(inside) > 1 else s.vectorize(lane)
        return
    s.vectorize(lane)


def _outermost(s: Schedule, *roles: str) -> list[str]:
    """The first loop at the top with one of these roles, and those that lie alone in each other."""
    nest: list[str] = []
    candidates = {n for role in roles for n in s.loops(role=role)}
    inside = (*islice((n for n in s.loops() if n in candidates and s.parent(n) is None), 1),)
    while len(inside) == 1 and inside[0] in candidates:
        nest.append(inside[0])
        inside = s.children(inside[0])
    return nest


def _tasks(s: Schedule, r: OutputRegion) -> None:
    """Fuse the outer loops into one parallel loop if there is work for several threads; if each
    element is a reduction, with the loop over vectors or elements. Where a dimension of it is
    unknown, threads get chunks of iterations, each of which is worth a thread."""
    if not r.around:
        return
    nest = _outermost(s, r.named("outer"), *([r.named("element")] if r.reduces else []))
    extents = [int_value(s.loop(n).extent) for n in nest]
    if None not in extents or not isinstance(r, RowMajor):
        if r.parallel:
            share(s, nest)
        return
    iteration = r.work // math.prod(n or UNKNOWN for n in extents)
    chunk = PARALLEL_WORK // max(1, iteration)
    if chunk <= 1:
        share(s, nest)
        return
    tasks = s.fuse(*nest) if len(nest) > 1 else nest[0]
    if chunk <= _MOST_IN_CHUNK and s.reaches(tasks, chunk):
        s.parallel(s.split(tasks, chunk, tail="peel").outer)
