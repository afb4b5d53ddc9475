"""Families of last resort: reductions in plain loops, and plain loops for every group that no other
family computes.
"""

from __future__ import annotations

from tensorkiln.ir.relax import Call, TensorType
from tensorkiln.kernels.family import Family, operators_of
from tensorkiln.kernels.fusion import any_prologue, elementwise_epilogue, no_view
from tensorkiln.kernels.knobs import Knob, chains_knob
from tensorkiln.target import Target


def _knobs(call: Call, out: TensorType, target: Target) -> tuple[Knob, ...]:
    return (chains_knob(),)


# Puts indices into memory, where the host checks them.
INDICES = Family(
    op_class="indices",
    operators=("bounds_check",),
    prologue=any_prologue,
    before=("movement",),
)
REDUCTIONS = Family(
    op_class="loops",
    operators=operators_of("reduction"),
    epilogue=elementwise_epilogue,
    prologue=no_view,
    knobs=_knobs,
    any_form=True,
)
LOOPS = Family(op_class="loops", operators=(), any_form=True)

ROWS = (INDICES, REDUCTIONS, LOOPS)
