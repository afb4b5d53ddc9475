"""Matrix product with packed constant weights: x [M, K] times w [N/nr][K][nr].

A panel of nr columns is multiplied by all rows, in register tiles of rows; threads share the
panels, or an unknown number of rows where there is one panel, or panels are small. Rows of x are
read in place: broadcasting from row-major memory costs nothing once the rows are in the first-level
cache. The program is in program.py.
"""

from __future__ import annotations

from tensorkiln.ir.expr import int_value
from tensorkiln.kernels.layouts import takes_tiles
from tensorkiln.schedule.build import PARALLEL_WORK
from tensorkiln.schedule.group import Group
from tensorkiln.schedule.linear.program import Linear, linear_program
from tensorkiln.schedule.linear.tiles import fits_tiles, schedule_tiles
from tensorkiln.schedule.primitives import Schedule
from tensorkiln.schedule.register_tile import row_tiles, share, sink, steps_of_four
from tensorkiln.target import Target
from tensorkiln.target.registers import max_rows


def schedule_linear(group: Group, target: Target, check: bool = False) -> Schedule:
    """`linear` or `matmul` with its elementwise epilogue."""
    c = Linear(group, target)
    if takes_tiles(c.call, target) and fits_tiles(c):
        return schedule_tiles(c, target.has_threads, check)
    s = Schedule(linear_program(c), check=check)
    for loop in s.loops(role="term"):
        steps_of_four(s, loop)
    small = c.n <= c.nr or c.work <= PARALLEL_WORK
    by_rows = int_value(c.m) is None and small and not c.batch
    last = []  # the loops over row tiles of a partial panel that no loop is around
    for rows in s.loops(role="row"):
        around = s.parent(rows)
        columns = c.nr if around and s.role(around) == "panel" else c.n % c.nr or c.nr
        vectors = -(-columns // c.lanes)
        most = max_rows(target, vectors, c.dtype.is_int)
        kinds = []
        for tile in row_tiles(s, rows, most):
            kinds.append(s.parent(tile))
            last += kinds[-1:] if around is None else []
            sink(s, tile)
        if by_rows and target.has_threads:
            # Where tiles are small, one thread has the rows that are left over, fewer than a tile.
            # Twice the work that is worth a thread: starting one for 70 of 100 rows gained nothing.
            chunk = PARALLEL_WORK * 16 // max(1, most * vectors * c.lanes * c.k)
            if chunk <= 1:
                for tiles in kinds:
                    s.parallel(tiles)
            elif s.reaches(kinds[0], chunk):
                s.parallel(s.split(kinds[0], chunk, tail="guard").outer)
    s.set_scope("part" if "part" in s.blocks() else "total", "register")
    if by_rows or not target.has_threads:
        return s
    outer = [*s.loops(role="batch"), *s.loops(role="panel")]
    if c.work > PARALLEL_WORK:
        share(s, outer[:1] if _several(s, outer) else outer)
    if c.work // c.n * (c.n % c.nr or c.nr) > PARALLEL_WORK:
        for tiles in last:
            s.parallel(tiles)
    return s


def _several(s: Schedule, nest: list[str]) -> bool:
    """Whether the loops are not perfectly nested: one of them holds more than the next loop."""
    return any(len(s.children(loop)) > 1 for loop in nest[:-1])
