"""The schedule for groups without a schedule of their own: elementwise, injective, reductions.

Vector lanes run over the innermost memory axis of the output when the loads allow it, else over the
innermost axis of a reduction; threads share the outer axes. The program is in loops_program.py.
"""

from __future__ import annotations

from collections.abc import Sequence

from tensorkiln.ir.stmt import Alloc
from tensorkiln.ir.visit import walk_stmt
from tensorkiln.schedule.group import Group
from tensorkiln.schedule.loops_program import Flat, Region, loops_program, regions_of
from tensorkiln.schedule.partial_sums import in_vectors, sum_in_lanes
from tensorkiln.schedule.primitives import Schedule
from tensorkiln.schedule.register_tile import is_role, made
from tensorkiln.target import Target

# Vectors per task of a flat loop: enough work to schedule, and each task's memory is contiguous.
_CHUNK = 64


def schedule_loops(group: Group, target: Target, check: bool = False) -> Schedule:
    """Any group whose operators all have tensor programs."""
    regions = regions_of(group, target)
    s = Schedule(loops_program(group, regions), check=check)
    for r in regions:
        if isinstance(r, Flat):
            _flat(s, r)
        else:
            _nest(s, r)
    for loop in s.loops():
        # Not if the lanes are inside the loop already, nor in the remainder of a vectorized loop,
        # where each result is to be summed in the same order as in the vectors.
        if (
            is_role(loop, "k")
            and s.children(loop)[0] in s.blocks()
            and not _is_rest(s, loop, regions)
        ):
            sum_in_lanes(s, loop, regions[0].lanes)
    in_vectors(s)
    buffers = dict.fromkeys(t.buffer.name for t in walk_stmt(s.func.body) if isinstance(t, Alloc))
    for name in buffers:
        s.set_scope(name, "register")
    return s


def _flat(s: Schedule, r: Flat) -> None:
    """Vectorize the loop, and share it in chunks of vectors when there is work for threads."""
    if not r.vector or not s.reaches(r.vector, r.lanes):
        return
    vectors, lane = _vectors(s, r)
    s.vectorize(lane)
    if r.parallel and s.reaches(vectors, _CHUNK):
        s.parallel(made(s.split(vectors, _CHUNK, tail="peel"))[0])


def _nest(s: Schedule, r: Region) -> None:
    """Vectorize the nest, then share its outer loops among threads."""
    vectors = ""
    if r.vector in s.loops():
        if is_role(r.vector, r.named("c")):
            innermost(s, r.vector)
        elif s.reaches(r.vector, r.lanes):
            vectors, lane = _vectors(s, r)
            innermost(s, lane)
    if r.parallel:
        _tasks(s, r, vectors)


def _is_rest(s: Schedule, loop: str, regions: Sequence[Region]) -> bool:
    """Whether a loop is inside the remainder (`..._tail`) of a region's vectorized loop."""
    rests = {f"{r.vector}_tail" for r in regions}
    around = s.parent(loop)
    while around is not None and around not in rests:
        around = s.parent(around)
    return around is not None


def _vectors(s: Schedule, r: Region) -> tuple[str, str]:
    """Split the loop `r.vector`: (loop over vectors, loop over lanes)."""
    names = (f"{r.vector}_0", f"l{r.number}")
    outer, lane, *_ = made(s.split(r.vector, r.lanes, names, "peel"))
    return outer, lane


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
        parts = (lane, *made(s.fission(lane)))
        loops = set(s.loops())
        for part in parts:
            if part in loops:
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


def _tasks(s: Schedule, r: Region, vectors: str) -> None:
    """Fuse the outer loops into one parallel loop; if each element is a reduction, with the loop
    over vectors or elements."""
    if not r.around:
        return
    nest: list[str] = []
    neighbours = vectors or r.named("j")

    def is_task(loop: str) -> bool:
        return is_role(loop, r.named("i")) or (r.reduces and loop == neighbours)

    inside = [n for n in s.loops() if s.parent(n) is None and is_task(n)][:1]
    while len(inside) == 1 and is_task(inside[0]):
        nest.append(inside[0])
        inside = list(s.children(inside[0]))
    if nest:
        s.parallel(made(s.fuse(*nest))[0] if len(nest) > 1 else nest[0])
