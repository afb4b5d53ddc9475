"""Direct convolution on channel blocks, and its depthwise form.

The accumulators of a tile of output pixels times one panel of channels stay in registers over the
whole sum. Threads share the panels, and the rows too when panels are few. The program is in
program.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from tensorkiln.ir.expr import int_value
from tensorkiln.ir.relax import TensorType
from tensorkiln.kernels.conv2d_knobs import DEPTHWISE
from tensorkiln.kernels.knobs import SUM_TERMS
from tensorkiln.kernels.tiles import tiles
from tensorkiln.schedule.build import PARALLEL_WORK
from tensorkiln.schedule.conv2d.program import Conv, conv2d_program
from tensorkiln.schedule.group import Group, static
from tensorkiln.schedule.primitives import Schedule
from tensorkiln.schedule.register_tile import FEW_TASKS, fetch_ahead, nest_of, share, sink
from tensorkiln.target import Target

# Rows of a patch of an image of unknown size, of a depthwise convolution: few enough that threads
# share small images evenly.
_ROWS = 6


def schedule_conv2d(group: Group, target: Target, check: bool = False) -> Schedule:
    """Direct convolution with its elementwise epilogue."""
    c = Conv(group)
    pixels, terms = group.knob("pixels"), group.knob("terms")
    c.piece = group.knob("piece", SUM_TERMS)
    _set_patch(c, pixels, max(4, min(8, (pixels + 1) // 2)))
    c.tile = pixels if c.is_open else 0
    s = Schedule(conv2d_program(c), check=check)
    for loop in s.loops(role="channel"):
        s.unroll(s.split(loop, terms).inner if c.step // c.together > terms else loop)
    if group.knob("unrolled", 0):
        for loop in s.loops(role="kernel_column"):
            s.unroll(loop)
    rows = min(pixels, group.knob("rows", 1))
    if c.is_open:
        for pixel in s.loops(role="pixel"):
            sink(s, pixel)
    else:
        (row,), (column,) = s.loops(role="row"), s.loops(role="column")
        register_tiles(s, row, column, rows, pixels // rows)
    s.set_scope("part" if "part" in s.blocks() else "total", "register")
    fetch_ahead(s, c.w, group.knob("fetch"))
    first = group.knob("rows_first", 0)
    if first:
        _rows_first(s)
    if target.has_threads:
        if first:
            share_nests(s, c, s.loops(role="panel"))
        else:
            share_pixels(s, c, rows_are_tasks=len(tiles(c.rows, rows)) == 1)
    return s


def schedule_depthwise(group: Group, target: Target, check: bool = False) -> Schedule:
    """One filter per channel: its weights stay in registers over a tile of pixels."""
    c = Conv(group)
    _set_patch(c, DEPTHWISE, _ROWS)
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


def _set_patch(c: Conv, columns: int, rows: int) -> None:
    """Choose the patches of an image of unknown size: whole rows; where there are few rows, pieces
    of rows, each of whole register tiles and with enough work for a thread."""
    known = int_value(c.height)
    if not c.is_open:
        return
    if known is None or known > rows:
        c.patch = (rows, 0)
        return
    tile = known * columns * c.vectors * c.lanes * c.taps // 8
    c.patch = (0, columns * max(1, -(-PARALLEL_WORK // tile)))


def _open_tiles(s: Schedule, cols: int, rows: int) -> None:
    """Cut patches of unknown extents into register tiles of `cols` columns of a row. Left-over
    columns go into narrower tiles, of as many rows as fit the registers then, at most `rows`;
    left-over rows one by one."""
    (h,), (w,) = s.loops(role="row"), s.loops(role="column")
    rest: str | None = w
    for size in dict.fromkeys((cols, max(1, cols // 3), 1)):
        (w,) = s.children(h)
        if not s.reaches(w, size):
            continue
        found = s.split(w, size, tail="peel")
        rest = found.tail
        part, *others = s.fission(h).parts if rest else (h,)
        _tiles_of_rows(s, part, min(rows, max(1, cols // size)))
        if rest is None:
            return
        (h,) = others


def _tiles_of_rows(s: Schedule, h: str, rows: int) -> None:
    """Cut the loop over rows around tiles of columns into tiles of `rows` and of single rows."""
    if rows > 1 and s.reaches(h, rows):
        found = s.split(h, rows, tail="peel")
        (w,) = s.children(found.inner)
        (q,) = s.children(w)
        s.reorder(w, found.inner, q)
        sink(s, found.inner, q)
        if found.tail is None:
            return
        h = found.tail
    (w,) = s.children(h)
    (q,) = s.children(w)
    sink(s, q)


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

    @property
    def is_open(self) -> bool:
        """Whether rows or columns are unknown."""


def share_pixels(s: Schedule, c: _Work, rows_are_tasks: bool) -> None:
    """Divide the work among threads: panels; if there are few panels, strips of rows; if there are
    few rows too, as in a signal, which has one, tiles of columns."""
    batch = int_value(c.ot.shape[0]) or 1
    if batch * c.work <= PARALLEL_WORK:
        return
    outer = [*s.loops(role="batch"), *s.loops(role="panel")]
    if not rows_are_tasks and batch * c.panels >= FEW_TASKS:
        share(s, outer)
        return
    if c.is_open:
        _separate(s)
        share_nests(s, c, s.loops(role="patch"))
        return
    strips = {x: static(s.loop(x).extent, "strips of rows") for x in s.loops(role="row")}
    few = any(batch * c.panels * count < FEW_TASKS for count in strips.values())
    for row in strips if few else ():
        if len(s.children(row)) > 1:
            s.fission(row)
    _separate(s)
    for row in s.loops(role="row"):
        columns = [x for x in s.children(row) if few and s.role(x) == "column"]
        share(s, nest_of(s, columns[0] if columns else row))


def share_nests(s: Schedule, c: _Work, loops: Sequence[str]) -> None:
    """Divide the iterations of each loop, with the loops around it, among threads, if there is work
    for them."""
    if (int_value(c.ot.shape[0]) or 1) * c.work > PARALLEL_WORK:
        for loop in loops:
            share(s, nest_of(s, loop))


def _separate(s: Schedule) -> None:
    """Give the halo's stores, the phases, and row tiles of two sizes loop nests of their own."""
    outer = [*s.loops(role="batch"), *s.loops(role="panel"), *s.loops(role="phase")]
    for loop in reversed(outer):
        if len(s.children(loop)) > 1:
            s.fission(loop)


def _rows_first(s: Schedule) -> None:
    """Compute all panels of a few rows before the next rows, whose pixels then are in the cache.

    for panel: halo; for rows   ->   for panel: halo
                                     for rows, panel
    """
    _separate(s)
    for rows in s.loops(role="row"):
        panel = s.parent(rows)
        if panel is not None and s.role(panel) == "panel":
            s.reorder(rows, panel)
