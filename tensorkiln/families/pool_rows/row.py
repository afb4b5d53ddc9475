"""Pooling along rows of row-major images."""

from __future__ import annotations

from tensorkiln.ir.expr import int_value
from tensorkiln.ir.relax import Call, TensorType
from tensorkiln.kernels.family import Family
from tensorkiln.kernels.fusion import elementwise_epilogue, no_view
from tensorkiln.ops.nn import pool_windows
from tensorkiln.target import Target

# Taps of a window in one dimension, which are written out; the fewest
# outputs of a row; bytes of a row, of which several stay in a first-level cache.
_TAPS, _SHORT, _ROW_BYTES = 16, 4, 16384


def _fits(call: Call, out: TensorType, target: Target) -> bool:
    """Whether images and result are row-major, of static sizes; a window has several columns, and
    at most _TAPS in a dimension; a row of outputs has at least a short vector; and a row of the
    image is a part of a first-level cache. (For windows of one column, plain loops read whole
    planes in vectors.)"""
    x = call.args[0].type
    assert isinstance(x, TensorType)
    if x.layout is not None or out.layout is not None or x.dtype != out.dtype:
        return False
    if call.op == "avg_pool2d" and x.dtype.sums != x.dtype:
        return False  # sums of a row's columns would be rounded
    sizes = [int_value(d) for d in (*x.shape[2:], *out.shape[2:])]
    if None in sizes or 0 in sizes or target.vector_lanes("float32") < _SHORT:
        return False
    rows, cols = pool_windows(call.attrs)
    columns = max(sizes[1] or 0, ((sizes[3] or 0) - 1) * cols.stride + cols.span)
    taps = 1 < cols.kernel <= _TAPS and rows.kernel <= _TAPS
    return taps and (sizes[3] or 0) >= _SHORT and columns * x.dtype.bytes <= _ROW_BYTES


POOL_ROWS = Family(
    op_class="pool_rows",
    operators=("max_pool2d", "avg_pool2d"),
    fits=_fits,
    epilogue=elementwise_epilogue,
    prologue=no_view,
    before=("loops",),
)

ROWS = (POOL_ROWS,)
