"""Reductions of whole images in channel blocks."""

from __future__ import annotations

from tensorkiln.ir.dtype import FLOAT32
from tensorkiln.ir.expr import int_value
from tensorkiln.ir.relax import Call, TensorType
from tensorkiln.kernels.family import Family
from tensorkiln.kernels.fusion import any_prologue, elementwise_epilogue
from tensorkiln.target import Target


def _fits(call: Call, out: TensorType, target: Target) -> bool:
    """Whether it reduces height and width of images, in float32, to a row-major result."""
    x = call.args[0].type
    assert isinstance(x, TensorType)
    if x.ndim != 4 or tuple(a % 4 for a in call.attrs.axes) != (2, 3):
        return False
    if out.layout is not None or {out.dtype.sums, x.dtype.sums} != {FLOAT32}:
        return False
    sizes = [int_value(d) for d in x.shape[1:]]
    has_shape = sizes[0] is not None and 0 not in sizes and out.shape[1:2] == x.shape[1:2]
    return has_shape and target.vector_lanes("float32") > 1


GLOBAL_POOL = Family(
    op_class="global_pool_blocked",
    operators=("mean", "sum", "max", "min"),
    fits=_fits,
    epilogue=elementwise_epilogue,
    prologue=any_prologue,
    before=("loops",),
)

ROWS = (GLOBAL_POOL,)
