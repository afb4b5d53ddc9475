"""What the schedule of depthwise convolutions leaves to measurements."""

from __future__ import annotations

from tensorkiln.ir.expr import int_value
from tensorkiln.ir.relax import Call, TensorType
from tensorkiln.kernels.estimates import expected
from tensorkiln.kernels.knobs import Knob, knob
from tensorkiln.target import Target
from tensorkiln.target.registers import scalar_tile

# Taps of the filters of a depthwise convolution that may be unrolled, and that are.
_MOST_TAPS, _UNROLLED_TAPS = 25, 9
# Columns and rows of a tile of a depthwise convolution, at most, that may be worth a measurement;
# and the columns of an untuned one.
_COLUMNS, _ROWS, DEPTHWISE = 8, 4, 7
# Rows of a filter whose products with bytes one instruction sums, and columns of the image that are
# interleaved at once (`dots.py`); the columns of a tile of such products.
UNIT, _INTERLEAVED = 4, 16


def has_fours(weights: TensorType) -> bool:
    """Whether weights are packed for dot products of four rows."""
    last = weights.memory.axes[-1]
    return last.dim == 2 and last.modulus == UNIT


def least_columns(taps: int, stride: int) -> int:
    """The least columns of a tile that reads the columns of a unit of the image, for a filter of
    `taps` columns."""
    return max(0, -(-(UNIT - taps) // stride)) + 1


def knobs(call: Call, out: TensorType, target: Target) -> tuple[Knob, ...]:
    """Knobs of a depthwise convolution. A register tile has `columns` x `rows` pixels."""
    w = call.args[1].type
    assert isinstance(w, TensorType)
    height, width = map(expected, out.shape[2:])
    if has_fours(w):
        stride, taps = call.attrs.strides[1], int_value(w.shape[3]) or 1
        limit = min(width, max(1, (_INTERLEAVED - taps) // stride + 1))
        lowest = least_columns(taps, stride)
        sizes = range(lowest, max(limit, lowest) + 1)
        return (knob("columns", sizes, sizes[-1], "columns of a tile"),)
    kernel = [int_value(n) or 1 for n in w.shape[2:]]
    taps = kernel[0] * kernel[1]
    if limit := scalar_tile(target, w.dtype.is_int):
        largest = min(limit // 4 + 1, width)
        columns = next(n for n in range(largest, 0, -1) if width % n == 0)
        rows = 1
    else:
        budget = max(4, min(14, target.num_vector_registers - 4 - min(taps, _UNROLLED_TAPS)))
        largest = min(DEPTHWISE, width)
        columns = next(n for n in range(largest, 0, -1) if width % n == 0 or n <= 4)
        # Strided windows share few of their loads, so two rows of them would spill.
        rows = 1 if call.attrs.strides[1] > 1 else max(1, min(height, budget // columns))
    choices = [
        knob("columns", range(1, min(width, _COLUMNS) + 1), columns, "columns of a register tile"),
        knob("rows", range(1, min(height, _ROWS) + 1), rows, "rows of a register tile"),
    ]
    if kernel[0] > 1 and taps <= _MOST_TAPS:
        unrolled = int(taps <= _UNROLLED_TAPS)
        choices.append(knob("unrolled", (0, 1), unrolled, "1: the rows of a filter are unrolled"))
    return tuple(choices)
