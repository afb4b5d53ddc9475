"""Depthwise convolution on channel blocks: the program is that of `families/conv2d/program.py`."""

from __future__ import annotations

from tensorkiln.families.conv2d.program import Conv, conv2d_program
from tensorkiln.families.conv2d.schedule import register_tiles, set_patch, share_pixels
from tensorkiln.families.conv2d_depthwise.dots import dots_program
from tensorkiln.families.conv2d_depthwise.knobs import DEPTHWISE, UNIT, has_fours
from tensorkiln.ir.buffer import Load
from tensorkiln.ir.stmt import Store
from tensorkiln.ir.visit import walk_stmt
from tensorkiln.schedule.group import Group
from tensorkiln.schedule.intrin.dot import dot_name
from tensorkiln.schedule.intrin.transpose import columns_name
from tensorkiln.schedule.primitives import Schedule
from tensorkiln.schedule.register_tile import sink
from tensorkiln.target import Target

# Rows of a patch of an image of unknown size, of a depthwise convolution: few enough that threads
# share small images evenly.
_ROWS = 6


def schedule(group: Group, target: Target, check: bool = False) -> Schedule:
    """One filter per channel: its weights stay in registers over a tile of pixels."""
    c = Conv(group)
    if has_fours(c.wt):
        return _of_fours(c, target, check)
    set_patch(c, DEPTHWISE, _ROWS)
    s = Schedule(conv2d_program(c), check=check)
    # Unrolled taps let neighbouring outputs share their loads; large filters keep a loop.
    columns, rows_of_taps = s.loops(role="kernel_column"), s.loops(role="kernel_row")
    for loop in (*columns, *(rows_of_taps if group.knob("unrolled", 0) else ())):
        s.unroll(loop)
    cols, rows = group.knob("columns"), group.knob("rows")
    if c.is_open:
        _open_tiles(s, cols, rows)
    else:
        (row,), (column,) = s.loops(role="row"), s.loops(role="column")
        register_tiles(s, row, column, rows, cols)
    s.set_scope("total", "register")
    if target.has_threads:
        share_pixels(s, c, rows_are_tasks=False)
    return s


def _of_fours(c: Conv, target: Target, check: bool) -> Schedule:
    """The columns of a tile in registers, and one dot product for each of a pixel's filter."""
    s = Schedule(dots_program(c, c.group.knob("columns")), check=check)
    for role in ("unit", "pixel", "kernel_row", "kernel_column"):
        for x in s.loops(role=role):
            s.unroll(x)
    for x in s.loops(role="interleave"):
        stores = (t for t in walk_stmt(s.loop(x)) if isinstance(t, Store))
        rows = sum(isinstance(t.value, Load) for t in stores)
        s.tensorize(x, columns_name(rows, c.lanes))
    small = bool(c.call.attrs.get("small_weights"))
    for x in s.loops(role="dot"):
        s.tensorize(x, dot_name("uint8", c.lanes, UNIT, small, by_lane=True))
    for x in s.loops(role="lane"):
        s.vectorize(x)
    s.set_scope("columns", "register")
    s.set_scope("total", "register")
    if target.has_threads:
        share_pixels(s, c, rows_are_tasks=False)
    return s


def _open_tiles(s: Schedule, cols: int, rows: int) -> None:
    """Cut patches of unknown extents into register tiles of `cols` columns of a row. Left-over
    columns go into narrower tiles, of as many rows as fit the registers then, at most `rows`;
    left-over rows one by one."""
    (h,), (w,) = s.loops(role="row"), s.loops(role="column")
    tail_loop: str | None = w
    for size in dict.fromkeys((cols, max(1, cols // 3), 1)):
        (w,) = s.children(h)
        if not s.reaches(w, size):
            continue
        pieces = s.split(w, size, tail="peel")
        tail_loop = pieces.tail
        part, *tails = s.fission(h).parts if tail_loop else (h,)
        _tiles_of_rows(s, part, min(rows, max(1, cols // size)))
        if tail_loop is None:
            return
        (h,) = tails


def _tiles_of_rows(s: Schedule, h: str, rows: int) -> None:
    """Cut the loop over rows around tiles of columns into tiles of `rows` and of single rows."""
    if rows > 1 and s.reaches(h, rows):
        pieces = s.split(h, rows, tail="peel")
        (w,) = s.children(pieces.inner)
        (q,) = s.children(w)
        s.reorder(w, pieces.inner, q)
        sink(s, pieces.inner, q)
        if pieces.tail is None:
            return
        h = pieces.tail
    (w,) = s.children(h)
    (q,) = s.children(w)
    sink(s, q)
