"""Families of last resort for devices, for operators that no other family computes: one thread per
element.
"""

from __future__ import annotations

from tensorkiln.ir.relax import Call, TensorType
from tensorkiln.kernels.family import GPUS, Family, operators_of
from tensorkiln.kernels.fusion import any_prologue, elementwise_epilogue
from tensorkiln.ops import OPS
from tensorkiln.target import Target

_WINDOWS, _MOVES = ("max_pool2d", "avg_pool2d"), ("concat", "pad", "slice")


def _in_blocks(call: Call, out: TensorType, target: Target) -> bool:
    """Whether elements of images are computed in the order of their operands' memory: elementwise
    operators, windows, and reductions of whole planes. Only a target with tensor cores has images
    in an order of their own (`families/tensor_cores/gpu_row.py`)."""
    if call.op in (*_WINDOWS, *_MOVES) or OPS[call.op].pattern in ("elementwise", "broadcast"):
        return True
    if OPS[call.op].pattern != "reduction" or call.attrs.get("axes") is None:
        return False
    return {axis % 4 for axis in call.attrs.axes} == {2, 3}


REDUCTIONS = Family(
    op_class="gpu_loops",
    operators=operators_of("reduction", "contraction"),
    epilogue=elementwise_epilogue,
    prologue=any_prologue,
    any_form=True,
    devices=GPUS,
)
LOOPS = Family(
    op_class="gpu_loops", operators=(), in_blocks=_in_blocks, any_form=True, devices=GPUS
)

ROWS = (REDUCTIONS, LOOPS)
