"""Max and average pooling on channel blocks.

The reduction of a column over the window's rows is held in a register, and shared by neighbouring
outputs of a row. Tiles whose windows reach into the padding get loops of their own, so that the
conditions on taps fold to constants. The program is in program.py.
"""

from __future__ import annotations

from tensorkiln.families.pool.program import Pooling, pool_program
from tensorkiln.ir.expr import int_value
from tensorkiln.kernels.estimates import expected
from tensorkiln.schedule.access import reads_blocks
from tensorkiln.schedule.build import PARALLEL_WORK
from tensorkiln.schedule.group import Group
from tensorkiln.schedule.primitives import Schedule
from tensorkiln.schedule.register_tile import share
from tensorkiln.target import Target


def schedule(group: Group, target: Target, check: bool = False) -> Schedule | None:
    """max_pool2d or avg_pool2d with its elementwise prologue and epilogue."""
    if not reads_blocks(group, group.out_type.memory.block(1)):
        return None
    p = Pooling(group)
    s = Schedule(pool_program(p), check=check)
    size = group.knob("columns")
    start, columns = s.blocks()[:2]
    s.compose_reduction(start, columns)
    (row,), (column,) = s.loops(role="row"), s.loops(role="column")
    tiles = s.split(column, size, tail="guard")
    s.compute_at(columns, tiles.outer)
    if target.has_threads:
        _tasks(s, p)
    for loop in s.loops(role="kernel_row"):
        s.reorder(loop, s.parent(loop))
    for loop in s.loops(role="lane"):
        s.vectorize(loop)
    s.unroll(tiles.inner)
    for role in ("image_column", "kernel_row", "kernel_column"):
        for loop in s.loops(role=role):
            s.unroll(loop)
    s.set_scope("column", "register")
    s.set_scope("total", "register")
    height, width = map(int_value, (p.height, p.width))
    if width is not None:
        _cut(s, tiles.outer, [p.are_inner(w, w + size - 1) for w in range(0, width, size)])
    if height is not None:
        _cut(s, row, [p.is_inner(h) for h in range(height)])
    return s


def _cut(s: Schedule, loop: str, inner: list[bool]) -> None:
    """Partition a loop so that each iteration whose windows reach into the padding (`inner` is
    false) has a loop of its own, in which the conditions on taps fold."""
    start = 0
    for i in range(1, len(inner)):
        if not (inner[i - 1] and inner[i]):
            loop, start = s.partition(loop, i - start).rest, i


def _tasks(s: Schedule, p: Pooling) -> None:
    """Share the planes among threads when there is work for them."""
    work = p.blocks * p.lanes * expected(p.height) * expected(p.width) * 4
    if int_value(p.out.shape[0]) is None or work > PARALLEL_WORK:
        share(s, s.loops(role="task"))
