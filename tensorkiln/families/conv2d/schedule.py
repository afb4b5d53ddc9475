"""Direct convolution on channel blocks.

The accumulators of a tile of output pixels times one panel of channels stay in registers over the
whole sum, or a piece of it. Large images are computed in strips of rows, each for all panels while
its pixels are in the second-level cache (`_orders` in knobs.py). Threads share the strips and
panels, or the panels, and the rows too when panels are few. The program is in program.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from tensorkiln.families.conv2d.program import Conv, conv2d_program
from tensorkiln.ir.expr import int_value
from tensorkiln.ir.relax import TensorType
from tensorkiln.kernels.knobs import SUM_TERMS
from tensorkiln.kernels.tiles import tiles
from tensorkiln.schedule.build import PARALLEL_WORK
from tensorkiln.schedule.group import Group, static
from tensorkiln.schedule.primitives import Schedule
from tensorkiln.schedule.register_tile import FEW_TASKS, fetch_ahead, nest_of, share, sink
from tensorkiln.target import Target


def schedule(group: Group, target: Target, check: bool = False) -> Schedule:
    """Direct convolution with its elementwise epilogue."""
    c = Conv(group)
    pixels, terms = group.knob("pixels"), group.knob("terms")
    c.piece = group.knob("piece", SUM_TERMS)
    set_patch(c, pixels, max(4, min(8, (pixels + 1) // 2)))
    c.tile = pixels if c.is_open else 0
    c.pieces_first = c.has_pieces and bool(group.knob("pieces_first", 0))
    s = Schedule(conv2d_program(c), check=check)
    _rounds(s, c, terms, bool(group.knob("unrolled", 0)))
    rows = min(pixels, group.knob("rows", 1))
    if c.is_open:
        for pixel in s.loops(role="pixel"):
            sink(s, pixel)
    else:
        for row in _strips(s, group.knob("strip", 0)):
            for part in _pieces_first(s, row) if c.pieces_first else (row,):
                (column,) = s.children(part)
                register_tiles(s, part, column, rows, pixels // rows)
    s.set_scope("part" if "part" in s.blocks() else "total", "register")
    strips = _strips_first(s)
    fetch_ahead(s, c.w, group.knob("fetch"), "granule" if c.in_pairs else "channel")
    if target.has_threads:
        if strips or c.pieces_first:
            share_nests(s, c, _panels(s))
        else:
            share_pixels(s, c, rows_are_tasks=len(tiles(c.rows, rows)) == 1)
    return s


def _rounds(s: Schedule, c: Conv, terms: int, taps: bool) -> None:
    """Unroll sums by a number of terms, and the taps of a row if `taps`. A block of channels has
    fewer pairs than that, so without taps a round has several blocks."""
    for loop in s.loops(role="channel"):
        s.unroll(s.split(loop, terms).inner if c.step // c.together > terms else loop)
    blocks = terms * c.together // c.step if c.in_pairs and c.kernel == (1, 1) else 1
    for loop in s.loops(role="granule") if blocks > 1 else ():
        if s.reaches(loop, blocks):
            s.unroll(s.split(loop, blocks, tail="peel").inner)
    for loop in s.loops(role="kernel_column") if taps else ():
        s.unroll(loop)


def set_patch(c: Conv, columns: int, rows: int) -> None:
    """Choose the patches of an image of unknown size: whole rows; where there are few rows, pieces
    of rows, each of whole register tiles and with enough work for a thread."""
    height = int_value(c.height)
    if not c.is_open:
        return
    if height is None or height > rows:
        c.patch = (rows, 0)
        return
    tile = height * columns * c.vectors * c.lanes * c.taps // 8
    c.patch = (0, columns * max(1, -(-PARALLEL_WORK // tile)))


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


def _strips(s: Schedule, size: int) -> list[str]:
    """Cut the rows of an image into strips of `size` rows, and a last one of fewer; nothing for 0.
    The loops over rows, of each kind of strip."""
    rows: list[str] = s.loops(role="row")
    if not size:
        return rows
    parts = [s.split(row, size, tail="peel", roles=("strip", "row")) for row in rows]
    return [x for p in parts for x in (p.inner, p.tail) if x is not None]


def _pieces_first(s: Schedule, row: str) -> list[str]:
    """Move the loops over pieces of sums outside of pixels: the weights of a piece stay in the
    first-level cache. The loops over rows, which now are several.

    for row, column: start; for piece: add; finish   ->   for row, column: start
                                                          for piece: for row, column: add
                                                          for row, column: finish
    """
    (column,) = s.children(row)
    s.fission(column)
    parts = list(s.fission(row).parts)
    for part in parts:
        (column,) = s.children(part)
        inside = s.children(column)[0]
        if s.role(inside) == "piece":
            s.reorder(inside, part, column)
    return parts


def _strips_first(s: Schedule) -> bool:
    """Compute all panels of a strip of rows before the next strip, whose pixels then are in the
    second-level cache. Whether there are strips.

    for panel: halo; for strip   ->   for panel: halo
                                      for strip, panel
    """
    strips = s.loops(role="strip")
    if not strips:
        return False
    _separate(s)
    for strip in s.loops(role="strip"):
        panel = s.parent(strip)
        if panel is not None and s.role(panel) == "panel":
            s.reorder(strip, panel)
    return True


def _panels(s: Schedule) -> list[str]:
    """The loops over panels with sums: not those that write the halo."""
    around = {loop for x in s.loops(role="vector") for loop in nest_of(s, x)}
    return [panel for panel in s.loops(role="panel") if panel in around]
