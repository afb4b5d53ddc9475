"""Decision trees: walks of samples through all of them."""

from __future__ import annotations

from tensorkiln.ir.relax import Call, TensorType
from tensorkiln.kernels.family import Family
from tensorkiln.target import Target


def _fits(call: Call, out: TensorType, target: Target) -> bool:
    """Whether operands and output are row-major."""
    types = [a.type for a in call.args]
    return out.layout is None and all(isinstance(t, TensorType) and t.layout is None for t in types)


FOREST = Family(
    op_class="tree_leaves",
    operators=("tree_leaves",),
    schedule="tensorkiln.schedule.forest.schedule:schedule_forest",
    fits=_fits,
)
