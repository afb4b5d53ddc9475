"""Convolution in parts on channel blocks: the register tiles of direct convolutions, for the pixels
of each part. The program is in program.py."""

from __future__ import annotations

from itertools import islice

from tensorkiln.families.conv2d.schedule import register_tiles, share_pixels
from tensorkiln.families.conv_parts.program import ConvParts, conv_parts_program
from tensorkiln.kernels.tiles import spatial_tile
from tensorkiln.schedule.group import Group
from tensorkiln.schedule.primitives import Schedule
from tensorkiln.schedule.register_tile import lanes
from tensorkiln.target import Target


def schedule(group: Group, target: Target, check: bool = False) -> Schedule:
    """conv2d_transpose, or conv2d of a large dilation, with its elementwise epilogue."""
    c = ConvParts(group)
    s = Schedule(conv_parts_program(c), check=check)
    for loop in s.loops(role="channel"):
        # Four steps per basic block: with more, LLVM's scheduler hoists loads until it spills.
        s.unroll(s.split(loop, 4).inner if c.step > 4 else loop)
    for loop in s.loops(role="total_column"):
        lanes(s, loop)
    nests = iter(list(zip(s.loops(role="row"), s.loops(role="column"), strict=True)))
    for number, rows, columns in c.parts():
        tile = spatial_tile(target, c.vectors, rows.count, columns.count)
        for row, column in islice(nests, c.nests(rows, columns)):
            register_tiles(s, row, column, *tile)
        s.set_scope(c.registers(number, rows, columns), "register")
    if target.has_threads:
        outer = any(c.has_outer_pieces(*part[1:]) for part in c.parts())
        share_pixels(s, c, rows_are_tasks=not outer)
    return s
