"""Windows and planes of images in channel blocks: pooling, reductions of whole images, LRN."""

from __future__ import annotations

from tensorkiln.ir.expr import int_value
from tensorkiln.ir.relax import Call, TensorType
from tensorkiln.kernels.family import Family
from tensorkiln.kernels.fusion import any_prologue, elementwise_epilogue, no_view
from tensorkiln.kernels.knobs import Knob, knob
from tensorkiln.ops.nn import pool_windows
from tensorkiln.target import Target

# Of pooling along rows: taps of a window in one dimension, which are written out; the fewest
# outputs of a row; bytes of a row, of which several stay in a first-level cache.
_TAPS, _SHORT, _ROW_BYTES = 16, 4, 16384


def any_layout(call: Call, out: TensorType, target: Target) -> bool:
    """For operators that compute in whatever layout their operand has."""
    return True


def _pool_fits(call: Call, out: TensorType, target: Target) -> bool:
    """Whether operand and output have channel blocks of one width, and windows are undilated and of
    at most 64 taps."""
    x = call.args[0].type
    assert isinstance(x, TensorType)
    if not _same_blocks(x, out) or int_value(x.shape[1]) is None:
        return False
    pair = pool_windows(call.attrs)
    undilated = all(w.dilation == 1 for w in pair)
    return undilated and pair[0].kernel * pair[1].kernel <= 64


def _pool_rows_fits(call: Call, out: TensorType, target: Target) -> bool:
    """Whether `schedule/pool/rows.py` computes a pooling. Images and result are row-major, of
    static sizes; a window has several columns, and at most _TAPS in a dimension; a row of outputs
    has at least a short vector; and a row of the image is a part of a first-level cache. (For
    windows of one column, plain loops read whole planes in vectors.)"""
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


def _global_pool_fits(call: Call, out: TensorType, target: Target) -> bool:
    """Whether it reduces height and width of images, in float32, to a row-major result."""
    x = call.args[0].type
    assert isinstance(x, TensorType)
    if x.ndim != 4 or tuple(a % 4 for a in call.attrs.axes) != (2, 3):
        return False
    if out.layout is not None or {out.dtype.sums.name, x.dtype.sums.name} != {"float32"}:
        return False
    sizes = [int_value(d) for d in x.shape[1:]]
    known = sizes[0] is not None and 0 not in sizes and out.shape[1:2] == x.shape[1:2]
    return known and target.vector_lanes("float32") > 1


def _lrn_fits(call: Call, out: TensorType, target: Target) -> bool:
    """Whether operand and output have channel blocks of one width, which is at least half the
    window, so that all neighbours are in the next block."""
    x = call.args[0].type
    assert isinstance(x, TensorType)
    if out.ndim != 4 or not _same_blocks(x, out) or int_value(out.shape[1]) is None:
        return False
    lanes = out.memory.block(1)
    return lanes >= 4 and call.attrs.size // 2 <= lanes


def _same_blocks(x: TensorType, out: TensorType) -> bool:
    if out.layout is None or x.layout is None or len(out.layout.axes) != 5:
        return False
    return x.layout.block(1) == out.layout.block(1)


# Column values of one tile, each a vector that lives in a register; and of larger ones.
_COLUMNS, _MOST_COLUMNS = 12, 16


def _pool_knobs(call: Call, out: TensorType, target: Target) -> tuple[Knob, ...]:
    """How many outputs of a row share columns: as many as fit their columns into _COLUMNS
    registers, in tiles as equal as possible."""
    cols, width = pool_windows(call.attrs)[1], int_value(out.shape[3])

    def most(columns: int) -> int:
        return max(1, (columns - cols.kernel) // cols.stride + 1)

    size = most(_COLUMNS)
    if width:
        size = -(-width // -(-width // size))
    return (
        knob(
            "columns",
            range(1, min(most(_MOST_COLUMNS), width or 64) + 1),
            size,
            "outputs of a tile",
        ),
    )


POOL = Family(
    op_class="pool_blocked",
    operators=("max_pool2d", "avg_pool2d"),
    schedule="tensorkiln.schedule.pool.schedule:schedule_pool",
    fits=_pool_fits,
    in_blocks=any_layout,
    knobs=_pool_knobs,
    epilogue=elementwise_epilogue,
    prologue=no_view,
)
POOL_ROWS = Family(
    op_class="pool_rows",
    operators=("max_pool2d", "avg_pool2d"),
    schedule="tensorkiln.schedule.pool.rows:schedule_pool_rows",
    fits=_pool_rows_fits,
    epilogue=elementwise_epilogue,
    prologue=no_view,
)
GLOBAL_POOL = Family(
    op_class="global_pool_blocked",
    operators=("mean", "sum", "max", "min"),
    schedule="tensorkiln.schedule.global_pool:schedule_global_pool",
    fits=_global_pool_fits,
    epilogue=elementwise_epilogue,
    prologue=any_prologue,
)
LRN = Family(
    op_class="lrn_blocked",
    operators=("lrn",),
    schedule="tensorkiln.schedule.lrn:schedule_lrn",
    fits=_lrn_fits,
    in_blocks=any_layout,
    epilogue=elementwise_epilogue,
    prologue=any_prologue,
)
