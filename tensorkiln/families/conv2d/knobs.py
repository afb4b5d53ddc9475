"""The knobs of direct convolutions: choices of the schedule that tuning may measure."""

from __future__ import annotations

from tensorkiln.ir.expr import int_value
from tensorkiln.ir.relax import Call, TensorType
from tensorkiln.kernels.estimates import expected
from tensorkiln.kernels.knobs import Knob, fetch_knob, knob, piece_knobs, steps_knob, streamed
from tensorkiln.kernels.layouts import has_float_pairs, together
from tensorkiln.kernels.tiles import spatial_tile
from tensorkiln.target import Target
from tensorkiln.target.registers import highest, max_rows, scalar_tile

# Where there is no next panel to fetch: up to _STREAMED tiles of pixels, loading a panel's weights
# from memory is a visible part of the time, and _FETCHED bytes are prefetched: 1x1 layers of 7 x 7
# pixels take 5% to 8% less time, 3x3 layers the same.
_STREAMED, _FETCHED = 8, 16 << 10
# In small tiles of scalars, a loop over a row of few taps takes as long as its products, and where
# a block has two pairs of channels a third more.
_SMALL_TILE, _FEW_TAPS = 4, 4


def knobs(call: Call, out: TensorType, target: Target) -> tuple[Knob, ...]:
    """Knobs of a convolution with packed weights. A register tile has `pixels` pixels, in `rows`
    rows of the image if its size is known."""
    w = call.args[1].type
    assert isinstance(w, TensorType)
    nr, step, few = _packing(w)
    vectors, integers = nr // target.vector_lanes("float32"), w.dtype.is_int
    taps = [int_value(n) or 1 for n in w.shape[2:]]
    few_taps = 1 < taps[1] <= _FEW_TAPS
    pairs = has_float_pairs(w, 1)
    vectors *= 1 + pairs  # of sums
    # Of pairs LLVM loads the weights of several taps early.
    largest = max_rows(target, vectors, integers) - (pairs and few_taps)
    height, width = map(expected, out.shape[2:])
    is_open = None in map(int_value, out.shape[2:])
    pixel_limit = highest(target, vectors, integers)
    rows, columns = spatial_tile(target, vectors, height, width, integers, largest)
    tiles = -(-height // rows) * -(-width // columns)
    pixels = largest if is_open else rows * columns
    # What is left over of a row of unknown length is half of a tile.
    of_pixels = range(1 + is_open, min(pixel_limit, height * width) + 1)
    choices = [knob("pixels", of_pixels, pixels, "pixels of a register tile")]
    if not is_open:
        of_rows = range(1, min(height, pixel_limit) + 1)
        choices.append(knob("rows", of_rows, rows, "rows of the image that a register tile is of"))
    channels = int_value(w.shape[1]) or 1
    choices.append(steps_knob(step // few))
    if few_taps:
        unrolled = int(pairs or 0 < scalar_tile(target, integers) <= _SMALL_TILE)
        choices.append(knob("unrolled", (0, 1), unrolled, "1: the taps of a row are unrolled"))
    choices += piece_knobs(0 if integers or call.attrs.groups > 1 else channels * taps[0] * taps[1])
    panels = -(-(int_value(out.shape[1]) or 1) // nr)
    size = panels * nr * channels * taps[0] * taps[1] * w.dtype.bytes
    fetched = streamed(size, panels, tiles, target) or (_FETCHED if tiles <= _STREAMED else 0)
    choices.append(fetch_knob(nr * few * w.dtype.bytes, fetched))
    if not is_open and panels > 1 and height > 1:
        choices.append(knob("rows_first", (0, 1), 0, "1: all panels of channels for a few rows"))
    return tuple(choices)


def _packing(w: TensorType) -> tuple[int, int, int]:
    """The output channels of a panel of packed weights, the input channels of a block, and how many
    of those are adjacent."""
    few = together(w, 1)
    axes = w.memory.axes[:-1] if few > 1 else w.memory.axes
    return axes[-1].modulus, (axes[-2].modulus or 1) * few, few
