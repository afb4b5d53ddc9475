"""Operators over rows of the last axis that need the row more than once: softmax, layer norm.

Threads share the rows; a row is processed in vectors. The programs are in program.py.
"""

from __future__ import annotations

from collections.abc import Callable

from tensorkiln.ir.expr import int_value
from tensorkiln.ir.stmt import Stmt
from tensorkiln.schedule.build import PARALLEL_WORK
from tensorkiln.schedule.group import Group, product
from tensorkiln.schedule.partial_sums import in_vectors, store_in_lanes, sum_in_lanes
from tensorkiln.schedule.primitives import Schedule
from tensorkiln.schedule.register_tile import share
from tensorkiln.schedule.rows.program import Row, layer_norm, log_softmax, rows_program, softmax
from tensorkiln.target import Target


def schedule_softmax(group: Group, target: Target, check: bool = False) -> Schedule:
    """softmax or log_softmax: maximum, exponentials and their sum, scale."""
    assert group.anchor is not None
    row = log_softmax if group.anchor.op == "log_softmax" else softmax
    return _scheduled(group, target, row, check)


def schedule_layer_norm(group: Group, target: Target, check: bool = False) -> Schedule:
    """layer_norm with its elementwise epilogue: mean, variance, scale."""
    return _scheduled(group, target, layer_norm, check)


def _scheduled(group: Group, target: Target, row: Callable[[Row], Stmt], check: bool) -> Schedule:
    """Vectorize the loops over columns, and share the rows among threads when there is work."""
    s = Schedule(rows_program(group, row), check)
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
