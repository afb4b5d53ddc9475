"""Local response normalization of images in channel blocks."""

from __future__ import annotations

from tensorkiln.ir.expr import int_value
from tensorkiln.ir.relax import Call, TensorType
from tensorkiln.kernels.family import Family
from tensorkiln.kernels.fusion import any_prologue, elementwise_epilogue
from tensorkiln.kernels.layouts import any_layout, same_blocks
from tensorkiln.target import Target


def _fits(call: Call, out: TensorType, target: Target) -> bool:
    """Whether operand and output have channel blocks of one width, which is at least half the
    window, so that all neighbours are in the next block."""
    x = call.args[0].type
    assert isinstance(x, TensorType)
    if out.ndim != 4 or not same_blocks(x, out) or int_value(out.shape[1]) is None:
        return False
    lanes = out.memory.block(1)
    return lanes >= 4 and call.attrs.size // 2 <= lanes


LRN = Family(
    op_class="lrn_blocked",
    operators=("lrn",),
    fits=_fits,
    in_blocks=any_layout,
    epilogue=elementwise_epilogue,
    prologue=any_prologue,
    before=("loops",),
)

ROWS = (LRN,)
