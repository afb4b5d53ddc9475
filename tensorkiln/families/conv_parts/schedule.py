"""Convolution in parts on channel blocks: the register tiles of direct convolutions, for the pixels
of each part. The program is in program.py."""

from __future__ import annotations

from tensorkiln.families.conv2d.schedule import register_tiles, share_nests, share_pixels
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
    nests = zip(c.nests(), s.loops(role="row"), s.loops(role="column"), strict=True)
    for (_, rows, columns), row, column in list(nests):
        register_tiles(s, row, column, *spatial_tile(target, c.vectors, rows.count, columns.count))
    for sums in dict.fromkeys(name for name, *_ in c.nests()):
        s.set_scope(sums, "register")
    _fetch(s, c)
    if target.has_threads and c.group_panels:
        share_nests(s, c, s.loops(role="group"))
    elif target.has_threads:
        share_pixels(s, c, rows_are_tasks=True)
    return s


def _fetch(s: Schedule, c: ConvParts) -> None:
    """Prefetch what comes next of the weights and of the image, where it lies in one piece."""
    sets = [x for x in c.sets if x.granules and c.granules >= 2 * x.granules]
    for x, piece in zip(sets, s.loops(role="piece"), strict=True):
        panels = [loop for loop in s.children(piece) if s.role(loop) == "panel"]
        if c.reads_all_weights(x):
            s.prefetch_next(panels[0] if panels else piece, c.w.name)
        if c.images == 1 and c.reads_whole_image(x):
            s.prefetch_next(piece, c.x.name)
