"""Matrix product with packed constant weights: x [M, K] times w [N/nr][K][nr].

A panel of nr columns is multiplied by all rows, in register tiles of rows; threads share the
panels, and the tiles of rows too where panels are few, or an unknown number of rows where there is
one panel, or panels are small. Rows of x are
read in place: broadcasting from row-major memory costs nothing once the rows are in the first-level
cache. The program is in program.py.
"""

from __future__ import annotations

from collections.abc import Sequence

from tensorkiln.families.linear.program import Linear, linear_program
from tensorkiln.families.linear.row import in_tiles
from tensorkiln.families.linear.tiles import schedule_tiles
from tensorkiln.ir.expr import int_value
from tensorkiln.kernels.knobs import SUM_TERMS
from tensorkiln.schedule.build import PARALLEL_WORK
from tensorkiln.schedule.group import Group, static
from tensorkiln.schedule.primitives import Schedule
from tensorkiln.schedule.register_tile import (
    FEW_TASKS,
    fetch_ahead,
    nest_of,
    row_tiles,
    share,
    sink,
    steps_of,
)
from tensorkiln.schedule.register_tile import lanes as in_vectors
from tensorkiln.target import Target
from tensorkiln.target.registers import max_rows


def schedule(group: Group, target: Target, check: bool = False) -> Schedule:
    """`linear` or `matmul` with its elementwise epilogue."""
    c = Linear(group, target)
    if in_tiles(c.call, target):
        return schedule_tiles(c, target.has_threads, check)
    pieces_first = bool(group.knob("pieces_first", 0)) and not group.knob("block")
    s = Schedule(linear_program(c, group.knob("piece", SUM_TERMS), pieces_first), check=check)
    for loop in s.loops(role="term"):
        steps_of(s, loop, group.knob("terms"))
    _blocks(s, group.knob("block"))
    for edge in s.loops(role="edge"):
        in_vectors(s, edge)
    small = c.n <= c.nr or c.work <= PARALLEL_WORK
    by_rows = int_value(c.m) is None and small and not c.batch
    last = []  # the loops over row tiles of a partial panel that no loop is around
    for rows in s.loops(role="row"):
        around = s.parent(rows)
        whole = around is not None and s.role(around) in ("panel", "piece")
        columns = c.nr if whole else c.n % c.nr or c.nr
        vectors = -(-columns // c.lanes)
        # A narrower last panel has tiles of its own.
        full = whole or vectors * c.lanes == c.nr
        limit = group.knob("rows") if full else max_rows(target, vectors, c.dtype.is_int)
        kinds = []
        for tile in row_tiles(s, rows, limit):
            kinds.append(s.parent(tile))
            last += kinds[-1:] if around is None else []
            sink(s, tile)
        if by_rows and target.has_threads:
            # Left-over rows, fewer than a tile, go to one thread where tiles are small. Twice the
            # work that is worth a thread: starting one for 70 of 100 rows gained nothing.
            chunk = PARALLEL_WORK * 16 // max(1, limit * vectors * c.lanes * c.k)
            if chunk <= 1:
                for tiles in kinds:
                    s.parallel(tiles)
            elif s.reaches(kinds[0], chunk):
                s.parallel(s.split(kinds[0], chunk, tail="guard").outer)
    fetch_ahead(s, c.w, group.knob("fetch"), "term", s.loops(role="piece"))
    s.set_scope("part" if "part" in s.blocks() else "total", "register")
    if by_rows or not target.has_threads:
        return s
    if c.work > PARALLEL_WORK:
        panels = s.loops(role="panel")
        for panel in panels:
            _share_panels(s, c, panel)
        if not panels:
            share(s, s.loops(role="batch"))
    if c.work // c.n * (c.n % c.nr or c.nr) > PARALLEL_WORK:
        for tiles in last:
            s.parallel(tiles)
    return s


def _share_panels(s: Schedule, c: Linear, panel: str) -> None:
    """Divide the panels among threads, with the loops around them; where they are few, their tiles
    of rows as well."""
    outer = nest_of(s, panel)
    if _several(s, outer):
        share(s, outer[:1])
        return
    rows = s.children(panel)
    few = len(outer) == 1 and (int_value(s.loop(panel).extent) or FEW_TASKS) < FEW_TASKS
    if not few or c.work <= 2 * PARALLEL_WORK or any(s.role(x) != "row" for x in rows):
        share(s, outer)
        return
    for part in s.fission(panel).parts if len(rows) > 1 else (panel,):
        share(s, [part, *s.children(part)])


def _blocks(s: Schedule, size: int) -> None:
    """Cut the rows into blocks of about `size`, each of which goes through all panels while its
    rows are in the cache; nothing for 0.

    for panel, row      ->      for block, panel, row in the block
    """
    for panel in s.loops(role="panel") if size else ():
        (rows,) = s.children(panel)
        count = static(s.loop(rows).extent, "rows of blocks")
        blocks = s.split(rows, -(-count // -(-count // size)), tail="peel", roles=("block", "row"))
        part = s.fission(panel).parts[0] if blocks.tail is not None else panel
        s.reorder(blocks.outer, part)


def _several(s: Schedule, nest: Sequence[str]) -> bool:
    """Whether the loops are not perfectly nested: one of them holds more than the next loop."""
    return any(len(s.children(loop)) > 1 for loop in nest[:-1])
