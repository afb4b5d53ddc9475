"""Data movement: layout changes, transposes and slices, with elementwise work on the way.

Vectors run along the axis of unit stride. Where operands and output have different axes of unit
stride, tiles of up to lanes x lanes elements are transposed in registers. A last vector or tile
that would be partial begins earlier, and overlaps the one before. The programs are in
program.py, where q is the write axis and p the read axis of a `CopyBox`.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from operator import mul

from tensorkiln.families.movement.boxes import (
    LARGEST,
    UNKNOWN,
    CopyBox,
    number,
    plan_movement,
    power_of_two,
)
from tensorkiln.families.movement.program import compacts, movement_program
from tensorkiln.ir.expr import Expr, int_value
from tensorkiln.schedule.build import PARALLEL_WORK
from tensorkiln.schedule.group import Group, static
from tensorkiln.schedule.intrin.transpose import interleave_name, transpose_name
from tensorkiln.schedule.primitives import Schedule, Split
from tensorkiln.schedule.register_tile import share, with_inner
from tensorkiln.target import Target

# Most tiles that are written one after the other along the rows of an output.
_ALONG = 16
# A cache of 64 sets of lines of 64 bytes uses the same set every 4 KiB; a quarter of that.
_RECURS = 1024
# Enough tasks to be divided evenly among threads.
_TASKS = 64


def schedule(group: Group, target: Target, check: bool = False) -> Schedule | None:
    """A group of elements of 32 bits with static shapes, or of 16, where the offsets of all loads
    are affine in the output's axes."""
    boxes = plan_movement(group, target)
    if boxes is None:
        return None
    s = Schedule(movement_program(group, boxes), check)
    if compacts(group, boxes):
        for lane in s.loops(role="lane"):
            s.vectorize(lane)
        s.set_scope("row", "register")
        return s
    for box in boxes:
        forms = {"copy": _copy, "transpose": _transposed, "tiles": _tiles}
        steps = forms[box.form](s, box) if box.form in forms else ""
        if _is_shared(box):
            _tasks(s, box, steps)
    if any(map(_is_shared, boxes)):
        share(s, s.loops(role="halo"))
    _transpose(s, boxes)
    return s


def _is_shared(box: CopyBox) -> bool:
    """Whether there is work for several threads."""
    return box.elements * 2 > PARALLEL_WORK


def _copy(s: Schedule, box: CopyBox) -> str:
    """Vectorize along the write axis. Return the loop over the vectors, without an overlapping
    last one."""
    size = min(box.lanes, power_of_two(box.write_axis.size))
    (q,) = s.loops(role=box.named("q"))
    vectors: Split = s.split(q, size, tail="overlap")
    s.vectorize(vectors.inner)
    _end_apart(s, box, vectors.outer, size)
    return vectors.outer


def _transposed(s: Schedule, box: CopyBox) -> str:
    """Cut into tiles that are read along the read axis, transposed, and written along the write
    axis. Return the loop over the tiles along the write axis."""
    largest = min(box.lanes, LARGEST)
    width = min(largest, power_of_two(box.write_axis.size))
    wide = box.read_axis.size < largest and box.reaches(largest)
    height = largest if wide else min(largest, power_of_two(box.read_axis.size))
    (p,), (q,) = s.loops(role=box.named("p")), s.loops(role=box.named("q"))
    vectors: Split = s.split(q, width, tail="overlap")
    steps, lane = vectors.loops
    square = steps
    if wide:
        s.reorder(p, lane)
    else:
        square, p = s.split(p, height, tail="overlap").loops
        s.reorder(square, p, lane)
    for rows, columns in box.tiles():
        s.compute_at(columns, square)
        s.compute_at(rows, square)
        if wide:
            _widen(s, box, rows, columns, height)
        row, element = s.loops_of(rows)[-2:]
        s.unroll(row)
        s.vectorize(element)
        s.set_scope(rows, "register")
        s.set_scope(columns, "register")
    s.unroll(p)
    s.vectorize(lane)
    if height < largest:  # p is so short that it has one or two tiles
        s.unroll(square)
    shared = not box.others and _is_shared(box)
    if shared:
        _end_apart(s, box, steps, width)
    if not wide and height == largest and _crowds(box):
        return _along_rows(s, steps, square, shared)
    return steps


def _tiles(s: Schedule, box: CopyBox) -> str:
    """Keep each tile in registers, as vectors. Return the outermost loop over tiles."""
    loops_by_role = (s.loops(role=box.named(role)) for role in ("q", "p"))
    steps: str = next((loops[0] for loops in loops_by_role if loops), "")
    for row in s.loops(role=box.named("row")):
        s.unroll(row)
    for lane in s.loops(role=box.named("lane")):
        s.vectorize(lane)
    for rows, columns in box.tiles():
        s.set_scope(rows, "register")
        s.set_scope(columns, "register")
    return steps


def _crowds(box: CopyBox) -> bool:
    """Whether the rows of a tile, which are farther apart in the output than in the operands, fall
    into few sets of a cache: addresses 4 KiB apart share a set of a cache with 64 sets of lines of
    64 bytes."""
    apart, read = box.read_axis.out, [box.write_axis.loads[k] for k in box.across]
    if isinstance(apart, Expr) or any(isinstance(n, Expr) for n in read):
        return False
    return apart % (_RECURS // box.loads[0].dtype.bytes) == 0 and apart > max(map(number, read))


def _along_rows(s: Schedule, steps: str, square: str, shared: bool) -> str:
    """Write tiles in the order of the write axis, so that what is written next is near: 4096 x 64
    take 0.4 of the time. If the loop over tiles is `shared`, it is cut into tasks first. Return the
    loop of tasks."""
    if not shared:
        s.reorder(square, steps)
        return square
    count = static(s.loop(steps).extent, steps)
    size = max(n for n in range(1, _ALONG + 1) if count % n == 0)
    tasks = s.split(steps, size)
    s.reorder(square, tasks.inner)
    return str(tasks.outer)


def _end_apart(s: Schedule, box: CopyBox, steps: str, size: int) -> None:
    """Give the last piece along the write axis a loop of its own if it overlaps the one before."""
    if box.write_axis.size % size:
        s.partition(steps, box.write_axis.size // size)


def _widen(s: Schedule, box: CopyBox, rows: str, columns: str, size: int) -> None:
    """Read and transpose whole vectors of `size`, although the read axis is shorter: the rest is
    not used."""
    around = (1,) * len(box.others)
    s.pad(rows, (*around, 1, size), None)
    s.pad(columns, (*around, size, 1), None)
    s.pad_loop(s.loops_of(rows)[-1], size)
    s.pad_loop(s.loops_of(columns)[-2], size)


def _tasks(s: Schedule, box: CopyBox, steps: str) -> None:
    """Divide the outer loops among threads, but fuse only as many as give _TASKS tasks, because the
    indices of a fused loop cost divisions. If tasks are few, divide the loops inside too, from
    `steps` along the write axis inwards, unless pieces overlap."""
    around = s.loops(role=box.named("outer"))
    extents = (int_value(s.loop(name).extent) or UNKNOWN for name in around)
    tasks = list(accumulate(extents, mul))
    around = around[: 1 + sum(n < _TASKS for n in tasks)]
    nest = around or ([steps] if steps else [])
    share(s, with_inner(s, nest) if _is_even(box) else nest)


def _is_even(box: CopyBox) -> bool:
    """Whether whole vectors and tiles make up the box."""
    if box.form not in ("copy", "transpose"):
        return False
    axes = [box.write_axis, *([box.read_axis] if box.form == "transpose" else [])]
    return all(axis.size % min(box.lanes, LARGEST) == 0 for axis in axes)


def _transpose(s: Schedule, boxes: Sequence[CopyBox]) -> None:
    """Replace the transposing loops of all tiles by instructions. Last, because their code is long
    and every step of a schedule walks it."""
    transposed = {
        columns: box.loads[k].dtype.name
        for box in boxes
        if box.form == "transpose"
        for k, (_, columns) in zip(box.across, box.tiles(), strict=True)
    }
    for name in s.blocks():
        dtype = transposed.get(s.block(name).attrs.get("origin", name))
        if dtype is not None:
            p, q = s.loops_of(name)[-2:]
            rows, columns = (static(s.loop(x).extent, x) for x in (q, p))
            s.tensorize(p, transpose_name(rows, columns, dtype))
    for box in boxes:
        turns = s.loops(role=box.named("turn")) if box.form == "tiles" else ()
        for turn, x in zip(turns, box.loads, strict=bool(turns)):
            if box.unit > 1:
                s.tensorize(turn, transpose_name(*box.tile, x.dtype.name, box.unit))
            else:
                s.tensorize(turn, interleave_name(*box.tile, x.dtype.name))
