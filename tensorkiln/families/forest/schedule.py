"""Walks of samples through trees. Threads share chunks of samples. The program is in program.py."""

from __future__ import annotations

from tensorkiln.families.forest.program import STEP, forest_program
from tensorkiln.ir.expr import int_value
from tensorkiln.ir.relax import TensorType
from tensorkiln.schedule.build import PARALLEL_WORK
from tensorkiln.schedule.group import Group, product
from tensorkiln.schedule.partial_sums import in_vectors
from tensorkiln.schedule.primitives import Schedule
from tensorkiln.target import Target
from tensorkiln.target.registers import scalar_tile


def schedule(group: Group, target: Target, check: bool = False) -> Schedule:
    """`tree_leaves`: the walks of a group side by side, chunks of samples on threads."""
    call = group.anchor
    assert call is not None
    # Microcontrollers have neither the memory for rows nor the units for several walks at a time.
    s = Schedule(forest_program(group, rows=not scalar_tile(target, True)), check)
    x = call.args[0].type
    assert isinstance(x, TensorType)
    lanes = target.vector_lanes(x.dtype.name)
    while lanes > 1:
        for name in s.loops(role="element"):
            if s.reaches(name, lanes):
                s.split(name, lanes, tail="peel", roles=("vector", "lane"))
        lanes //= 2
    in_vectors(s)
    for name in s.loops(role="walk"):
        s.unroll(name)
    walks = int_value(product(group.out_type.shape))
    chunks = s.loops(role="chunk")
    if chunks and (walks is None or walks * int(call.attrs.most) * STEP > PARALLEL_WORK):
        s.parallel(chunks[0])
    return s
