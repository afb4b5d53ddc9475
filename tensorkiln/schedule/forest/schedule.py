"""Walks of samples through trees. Threads share chunks of samples. The program is in program.py."""

from __future__ import annotations

from tensorkiln.ir.expr import int_value
from tensorkiln.schedule.build import PARALLEL_WORK
from tensorkiln.schedule.forest.program import forest_program
from tensorkiln.schedule.group import Group, product
from tensorkiln.schedule.primitives import Schedule
from tensorkiln.target import Target

# Scalar operations of a step.
_STEP = 12


def schedule_forest(group: Group, target: Target, check: bool = False) -> Schedule:
    """`tree_leaves`: the trees of a group side by side, chunks of samples on threads."""
    call = group.anchor
    assert call is not None
    s = Schedule(forest_program(group), check)
    for name in s.loops(role="tree"):
        s.unroll(name)
    walks = int_value(product(group.out_type.shape))
    chunks = s.loops(role="chunk")
    if chunks and (walks is None or walks * int(call.attrs.most) * _STEP > PARALLEL_WORK):
        s.parallel(chunks[0])
    return s
