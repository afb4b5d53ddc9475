"""Operators that only scalar programs compute: the first elements in order, elements put to
computed places, probabilities of classes from those of pairs; and indices that are checked."""

from __future__ import annotations

from tensorkiln.ir.relax import Call, TensorType
from tensorkiln.kernels.family import Family
from tensorkiln.kernels.fusion import any_prologue
from tensorkiln.target import Target


def row_major(call: Call, out: TensorType, target: Target) -> bool:
    """Whether operands and result are row-major."""
    types = [a.type for a in call.args]
    return out.layout is None and all(isinstance(t, TensorType) and t.layout is None for t in types)


TOP_K = Family(
    op_class="top_k",
    operators=("top_k",),
    schedule="tensorkiln.schedule.places.top_k:schedule_top_k",
    fits=row_major,
)
SCATTER = Family(
    op_class="scatter",
    operators=("scatter",),
    schedule="tensorkiln.schedule.places.scatter:schedule_scatter",
    fits=row_major,
)
# Puts indices into memory, where the host checks them.
INDICES = Family(
    op_class="indices",
    operators=("bounds_check",),
    schedule="tensorkiln.schedule.loops.schedule:schedule_loops",
    prologue=any_prologue,
)
COUPLED = Family(
    op_class="coupled",
    operators=("coupled",),
    schedule="tensorkiln.schedule.coupling:schedule_coupled",
    fits=row_major,
)
