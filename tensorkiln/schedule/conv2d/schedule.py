"""Direct convolution on channel blocks, and its depthwise form.

The accumulators of a tile of output pixels times one panel of channels stay in registers over the
whole sum. Threads share the panels, and the rows too when panels are few. The program is in
program.py.
"""

from __future__ import annotations

from typing import Protocol

from tensorkiln.ir.expr import int_value
from tensorkiln.ir.relax import TensorType
from tensorkiln.schedule.build import PARALLEL_WORK, tiles
from tensorkiln.schedule.conv2d.program import Conv, conv2d_program
from tensorkiln.schedule.group import Group
from tensorkiln.schedule.primitives import Schedule
from tensorkiln.schedule.register_tile import fetch_ahead, share, sink
from tensorkiln.schedule.tile import spatial_tile
from tensorkiln.target import Target
from tensorkiln.target.registers import scalar_tile

# With fewer panels than this, an uneven number of them leaves threads waiting.
_FEW_TASKS = 8
# Up to _STREAMED tiles of pixels, loading a panel's weights from memory is a visible part of the
# time, and _FETCHED bytes are prefetched: 1x1 layers of 7 x 7 pixels take 5% to 8% less time, 3x3
# layers the same.
_STREAMED, _FETCHED = 8, 16 << 10

# In small tiles of scalars, a loop over a row of few taps takes as long as its products.
_SMALL_TILE, _FEW_TAPS = 4, 4


def schedule_conv2d(group: Group, target: Target, check: bool = False) -> Schedule:
    """Direct convolution with its elementwise epilogue."""
    c = Conv(group)
    s = Schedule(conv2d_program(c), check=check)
    for loop in s.loops(role="channel"):
        # Four steps per basic block: with more, LLVM's scheduler hoists loads until it spills.
        s.unroll(s.split(loop, 4).inner if c.step // c.together > 4 else loop)
    if 0 < scalar_tile(target, c.dtype.is_int) <= _SMALL_TILE and c.kernel[1] <= _FEW_TAPS:
        for loop in s.loops(role="kernel_column"):
            s.unroll(loop)
    rows, cols = spatial_tile(target, c.vectors, c.height, c.width, c.dtype.is_int)
    (row,), (column,) = s.loops(role="row"), s.loops(role="column")
    register_tiles(s, row, column, rows, cols)
    s.set_scope("part" if "part" in s.blocks() else "total", "register")
    if -(-c.height // rows) * -(-c.width // cols) <= _STREAMED:
        fetch_ahead(s, c.w, _FETCHED)
    if target.has_threads:
        share_pixels(s, c, rows_are_tasks=len(tiles(c.height, rows)) == 1)
    return s


def schedule_depthwise(group: Group, target: Target, check: bool = False) -> Schedule:
    """One filter per channel: its weights stay in registers over a tile of pixels."""
    c = Conv(group)
    s = Schedule(conv2d_program(c), check=check)
    taps = c.kernel[0] * c.kernel[1]
    # Unrolled taps let neighbouring outputs share their loads; large filters keep a loop.
    columns, rows_of_taps = s.loops(role="kernel_column"), s.loops(role="kernel_row")
    for loop in (*columns, *(rows_of_taps if taps <= 9 else ())):
        s.unroll(loop)
    if limit := scalar_tile(target, c.dtype.is_int):
        cols = next(n for n in range(min(limit // 4 + 1, c.width), 0, -1) if c.width % n == 0)
        rows = 1
    else:
        budget = max(4, min(14, target.num_vector_registers - 4 - min(taps, 9)))
        cols = next(n for n in range(min(7, c.width), 0, -1) if c.width % n == 0 or n <= 4)
        # Strided windows share few of their loads, so two rows of them would spill.
        rows = 1 if c.stride[1] > 1 else max(1, min(c.height, budget // cols))
    (row,), (column,) = s.loops(role="row"), s.loops(role="column")
    register_tiles(s, row, column, rows, cols)
    s.set_scope("total", "register")
    if target.has_threads:
        share_pixels(s, c, rows_are_tasks=False)
    return s


def register_tiles(s: Schedule, h: str, w: str, rows: int, cols: int) -> None:
    """Cut loops h and w over the pixels of an image into tiles of at most rows x cols and keep the
    sums of each in registers."""
    s.split_even(w, cols)
    for part in s.split_even(h, rows).parts:
        outer, r = part.loops
        if len(s.children(r)) > 1:  # columns of two sizes
            s.fission(r)
        for r in s.children(outer):
            (w,) = s.children(r)
            (q,) = s.children(w)
            s.reorder(w, r, q)
            sink(s, r, q)


class _Work(Protocol):
    """What a convolution has to share among threads: its output; scalar operations per image."""

    ot: TensorType
    panels: int
    work: int


def share_pixels(s: Schedule, c: _Work, rows_are_tasks: bool) -> None:
    """Share panels, or strips of rows, among threads when there is work for them."""
    batch = int_value(c.ot.shape[0]) or 1
    if batch * c.work <= PARALLEL_WORK:
        return
    outer = [*s.loops(role="batch"), *s.loops(role="panel")]
    if not rows_are_tasks and batch * c.panels >= _FEW_TASKS:
        share(s, outer)
        return
    # separate the halo's stores, phases, and the row tiles of two sizes
    for loop in reversed([*outer, *s.loops(role="phase")]):
        if len(s.children(loop)) > 1:
            s.fission(loop)
    for rows in s.loops(role="row"):
        nest = [rows]
        while (around := s.parent(nest[0])) is not None:
            nest.insert(0, around)
        share(s, nest)
