"""Pooling of images in channel blocks."""

from __future__ import annotations

from tensorkiln.ir.expr import int_value
from tensorkiln.ir.relax import Call, TensorType
from tensorkiln.kernels.family import Family
from tensorkiln.kernels.fusion import elementwise_epilogue, no_view
from tensorkiln.kernels.knobs import Knob, knob
from tensorkiln.kernels.layouts import any_layout, same_blocks
from tensorkiln.ops.nn import pool_windows
from tensorkiln.target import Target


def _fits(call: Call, out: TensorType, target: Target) -> bool:
    """Whether operand and output have channel blocks of one width, and windows are undilated and of
    at most 64 taps."""
    x = call.args[0].type
    assert isinstance(x, TensorType)
    if not same_blocks(x, out) or int_value(x.shape[1]) is None:
        return False
    pair = pool_windows(call.attrs)
    undilated = all(w.dilation == 1 for w in pair)
    return undilated and pair[0].kernel * pair[1].kernel <= 64


# Column values of one tile, each a vector that lives in a register; and of larger ones.
_COLUMNS, _MOST_COLUMNS = 12, 16


def _knobs(call: Call, out: TensorType, target: Target) -> tuple[Knob, ...]:
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
    fits=_fits,
    in_blocks=any_layout,
    knobs=_knobs,
    epilogue=elementwise_epilogue,
    prologue=no_view,
    before=("pool_rows",),
)

ROWS = (POOL,)
