"""Operators over rows of the last axis that need the row more than once: softmax, layer norm.

Threads share the rows; a row is processed in vectors. The programs are in program.py.
"""

from __future__ import annotations

from tensorkiln.families.normalization.program import FORMULAS, rows_program
from tensorkiln.ir.expr import int_value
from tensorkiln.schedule.build import PARALLEL_WORK
from tensorkiln.schedule.group import Group, product
from tensorkiln.schedule.partial_sums import in_vectors, store_in_lanes, sum_in_lanes
from tensorkiln.schedule.primitives import Schedule
from tensorkiln.schedule.register_tile import share
from tensorkiln.target import Target


def schedule(group: Group, target: Target, check: bool = False) -> Schedule:
    """Vectorize the loops over columns, and share the rows among threads when there is work."""
    s = Schedule(rows_program(group, FORMULAS[group.main.op]), check)
    lanes = target.vector_lanes(group.out_type.dtype.sums.name)
    for loop in s.loops():
        role = s.role(loop)
        if role == "term":
            sum_in_lanes(s, loop, lanes, group.knob("chains"))
        elif role == "element":
            store_in_lanes(s, loop, lanes)
    in_vectors(s)
    rows = s.loops(role="row")
    size = int_value(product(group.out_type.shape))
    if size is None or size * 8 > PARALLEL_WORK:
        share(s, rows)
    elif len(rows) > 1:
        s.fuse(*rows)
    return s
