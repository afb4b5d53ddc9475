"""Transposed convolution on channel blocks: the register tiles of direct convolutions, for the
pixels of one phase of the output, written `stride` apart. The program is in program.py."""

from __future__ import annotations

from tensorkiln.schedule.conv2d.schedule import register_tiles, share_pixels
from tensorkiln.schedule.group import Group
from tensorkiln.schedule.primitives import Schedule
from tensorkiln.schedule.tile import spatial_tile
from tensorkiln.schedule.transposed.program import Transposed, transposed_program
from tensorkiln.target import Target


def schedule_transposed(group: Group, target: Target, check: bool = False) -> Schedule:
    """conv2d_transpose with its elementwise epilogue."""
    c = Transposed(group)
    s = Schedule(transposed_program(c), check=check)
    for loop in s.loops(role="channel"):
        # Four steps per basic block: with more, LLVM's scheduler hoists loads until it spills.
        s.unroll(s.split(loop, 4).inner if c.step > 4 else loop)
    nests = list(zip(c.parts(), s.loops(role="row"), s.loops(role="column"), strict=True))
    for (number, rows, columns), row, column in nests:
        tile = spatial_tile(target, c.vectors, rows.count, columns.count)
        register_tiles(s, row, column, *tile)
        s.set_scope(c.registers(number, rows, columns), "register")
    if target.has_threads:
        share_pixels(s, c, rows_are_tasks=True)
    return s
