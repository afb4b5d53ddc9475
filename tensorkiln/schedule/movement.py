"""Data movement: layout changes, transposes and slices, with elementwise work on the way.

Vectors along the axis of unit stride; where operands and output have different ones, squares of
lanes x lanes elements are turned over in registers. The last vector, or square, begins earlier
where it would be short. The programs are in movement_program.py.
"""

from __future__ import annotations

from itertools import accumulate
from operator import mul

from tensorkiln.schedule.build import PARALLEL_WORK
from tensorkiln.schedule.group import Group, static
from tensorkiln.schedule.intrin.transpose import transpose_name
from tensorkiln.schedule.movement_boxes import Box, plan_movement
from tensorkiln.schedule.movement_program import compacts, movement_program
from tensorkiln.schedule.primitives import Schedule
from tensorkiln.schedule.register_tile import is_role, made
from tensorkiln.target import Target

# Rows and columns of a square: as many vectors are half of the registers of the largest processors.
_LARGEST = 16
# So many can be shared among threads evenly.
_TASKS = 64


def supports_movement(group: Group, target: Target) -> bool:
    """32 bits wide elements of known shapes, from places that are affine in the output's."""
    return _plan(group, target) is not None


def schedule_movement(group: Group, target: Target, check: bool = False) -> Schedule:
    """Any group that `supports_movement` accepts."""
    boxes = _plan(group, target)
    assert boxes is not None
    s = Schedule(movement_program(group, boxes), check)
    if compacts(group, boxes):
        s.vectorize("r")
        s.vectorize("q")
        s.set_scope("row", "register")
        return s
    for box in boxes:
        forms = {"copy": _copy, "turn": _turn}
        steps = forms[box.form](s, box) if box.form in forms else ""
        if _is_shared(box):
            _tasks(s, box, steps)
    if any(map(_is_shared, boxes)):
        _share(s, [name for name in s.loops() if is_role(name, "z")])
    _transpose(s)
    return s


def _plan(group: Group, target: Target) -> list[Box] | None:
    return plan_movement(group, target.vector_lanes("float32"))


def _is_shared(box: Box) -> bool:
    """Whether there is work for several threads."""
    return box.elements * 2 > PARALLEL_WORK


def _copy(s: Schedule, box: Box) -> str:
    """Vectors along q. Gives the loop over them, without the last if that overlaps."""
    size = min(box.lanes, _power_of_two(box.q.extent))
    steps, lane = made(s.split(box.named("q"), size, tail="overlap"))
    s.vectorize(lane)
    _end_apart(s, box, steps, size)
    return steps


def _turn(s: Schedule, box: Box) -> str:
    """Squares, read along p and written along q. Gives the loop over those along q."""
    largest = min(box.lanes, _LARGEST)
    width = min(largest, _power_of_two(box.q.extent))
    wide = box.p.extent < largest and box.reaches(largest)
    height = largest if wide else min(largest, _power_of_two(box.p.extent))
    steps, lane = made(s.split(box.named("q"), width, tail="overlap"))
    square, p = steps, box.named("p")
    if wide:
        s.reorder(p, lane)
    else:
        square, p = made(s.split(p, height, tail="overlap"))
        s.reorder(square, p, lane)
    for rows, columns in box.turned():
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
    if height < largest:  # then there are one or two
        s.unroll(square)
    if not box.others and _is_shared(box):
        _end_apart(s, box, steps, width)
    return steps


def _end_apart(s: Schedule, box: Box, steps: str, size: int) -> None:
    """Give the last piece along q a loop of its own where it overlaps the one before."""
    if box.q.extent % size:
        s.partition(steps, box.q.extent // size)


def _widen(s: Schedule, box: Box, rows: str, columns: str, size: int) -> None:
    """Read and turn over whole vectors, of which not all elements are used."""
    around = (1,) * len(box.others)
    s.pad(rows, (*around, 1, size), None)
    s.pad(columns, (*around, size, 1), None)
    s.pad_loop(s.loops_of(rows)[-1], size)
    s.pad_loop(s.loops_of(columns)[-2], size)


def _tasks(s: Schedule, box: Box, steps: str) -> None:
    """Share the loops around among threads, no more of them than make enough tasks: what is in one
    loop costs divisions to find its place. The vectors or squares along q where there are none."""
    around = [name for name in s.loops() if is_role(name, box.named("i"))]
    tasks = list(accumulate((static(s.loop(name).extent, name) for name in around), mul))
    around = around[: 1 + sum(n < _TASKS for n in tasks)]
    _share(s, around or ([steps] if steps else []))


def _share(s: Schedule, nest: list[str]) -> None:
    """Let threads share a nest of loops."""
    if len(nest) > 1:
        nest = [*made(s.fuse(*nest))]
    if nest:
        s.parallel(nest[0])


def _transpose(s: Schedule) -> None:
    """Turn over all squares in registers: last, as what that takes is long."""
    dtype = s.func.buffers[-1].dtype.name
    for name in s.blocks():
        if name.startswith("columns"):
            p, q = s.loops_of(name)[-2:]
            rows, columns = (static(s.loop(x).extent, x) for x in (q, p))
            s.tensorize(p, transpose_name(rows, columns, dtype))


def _power_of_two(n: int) -> int:
    return 1 << (n.bit_length() - 1)
