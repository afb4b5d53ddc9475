"""Instructions that `tensorize` knows by name."""

from __future__ import annotations

from functools import cache

from tensorkiln.schedule.intrin.dot import DOT4_I8, DOT4_ROW_I8, DOT_LANES
from tensorkiln.schedule.intrin.fma import FMA_ROWS
from tensorkiln.schedule.intrin.reduce import reduce_named
from tensorkiln.schedule.intrin.shift import shift_named
from tensorkiln.schedule.intrin.transpose import transpose_named
from tensorkiln.schedule.primitives.tensorize import Instruction

INSTRUCTIONS: dict[str, Instruction] = {
    i.name: i for i in (*FMA_ROWS, DOT4_I8, DOT4_ROW_I8, *DOT_LANES)
}
# Of families with a member for every number of lanes: what hints show.
EXAMPLES = ("sum_16", "max_16", "min_16", "sum_8_float64", "shift_1_16", "transpose_16x16")


@cache
def instruction(name: str) -> Instruction | None:
    """The instruction of this name, if there is one."""
    families = (reduce_named, shift_named, transpose_named)
    found = (family(name) for family in families)
    return INSTRUCTIONS.get(name) or next((i for i in found if i is not None), None)
