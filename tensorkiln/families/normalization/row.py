"""Operators that pass several times over each row of the last axis: softmax, layer norm."""

from __future__ import annotations

from tensorkiln.ir.relax import Call, TensorType
from tensorkiln.kernels.family import Family
from tensorkiln.kernels.fusion import elementwise_epilogue, light
from tensorkiln.kernels.knobs import Knob, chains_knob
from tensorkiln.target import Target


def _fits(call: Call, out: TensorType, target: Target) -> bool:
    """Whether operand and output are row-major, and the operator works on the last axis."""
    x = call.args[0].type
    assert isinstance(x, TensorType)
    last = call.attrs.axis in (-1, x.ndim - 1)
    return last and x.ndim >= 1 and out.layout is None and x.layout is None


def _knobs(call: Call, out: TensorType, target: Target) -> tuple[Knob, ...]:
    return (chains_knob(),)


SOFTMAX = Family(
    op_class="softmax_rows",
    operators=("softmax", "log_softmax"),
    fits=_fits,
    prologue=light,
    knobs=_knobs,
)
LAYER_NORM = Family(
    op_class="layer_norm_rows",
    operators=("layer_norm",),
    fits=_fits,
    epilogue=elementwise_epilogue,
    prologue=light,
    knobs=_knobs,
)

ROWS = (SOFTMAX, LAYER_NORM)
