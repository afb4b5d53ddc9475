"""The knobs of direct convolutions: choices of the schedule that tuning may measure."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from tensorkiln.ir.expr import int_value
from tensorkiln.ir.relax import Call, TensorType
from tensorkiln.kernels.estimates import expected
from tensorkiln.kernels.knobs import (
    MOST_ON_STACK,
    SUM_TERMS,
    Knob,
    fetch_knob,
    knob,
    piece_knobs,
    steps_knob,
    streamed,
)
from tensorkiln.kernels.layouts import has_float_pairs, together
from tensorkiln.kernels.tiles import spatial_tile
from tensorkiln.target import Target
from tensorkiln.target.registers import has_few_registers, highest, max_rows, scalar_tile

# Where there is no next panel to fetch: up to _STREAMED tiles of pixels, loading a panel's weights
# from memory is a visible part of the time, and _FETCHED bytes are prefetched: 1x1 layers of 7 x 7
# pixels take 5% to 8% less time, 3x3 layers the same.
_STREAMED, _FETCHED = 8, 16 << 10
# In small tiles of scalars, a loop over a row of few taps takes as long as its products, and where
# a block has two pairs of channels a third more.
_SMALL_TILE, _FEW_TAPS = 4, 4
# Where tiles are small for want of registers, images that fill more than half of the second-level
# cache are computed in strips of a quarter of it; and weights of a panel that fill more than half
# of the first-level cache are read in pieces, which go through all pixels. Layers of 1x1 filters
# take 0.65 to 0.8 of the time, of 3x3 filters on 7 x 7 pixels 0.9: ResNet-50 0.88 (EPYC, Zen 3, one
# thread).
# The bytes on the stack that totals of pixels take at most without a record; the least number of
# tasks, of a strip and a panel each, that threads share.
_TOTALS, _TASKS = 64 << 10, 8


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
    return (*choices, *(() if is_open or integers else _orders(call, out, target, rows, nr)))


def _orders(call: Call, out: TensorType, target: Target, rows: int, nr: int) -> Iterator[Knob]:
    """Knobs for the order in which panels, rows and pieces of sums of an image of known size are
    computed, in tiles of `rows` rows and panels of `nr` channels."""
    w = call.args[1].type
    assert isinstance(w, TensorType)
    (filters, *terms), (height, width) = map(expected, w.shape), map(expected, out.shape[2:])
    panels, panel = -(-filters // nr), prod(terms) * nr * w.dtype.bytes
    waits = has_few_registers(target)
    strip = 0
    if panels > 1 and height > rows:
        strip = _strip(call, height, rows, panel, target) if waits else 0
        sizes = (0, *(n for k in range(4) if (n := rows << k) < height))
        doc = "rows of the image that go through all panels in turn; 0: all of them"
        yield knob("strip", sizes, strip, doc)
    totals = width * nr * 4
    if call.attrs.groups == 1 and prod(terms) > SUM_TERMS and height * totals <= MOST_ON_STACK:
        shared = panels * (-(-height // strip) if strip else 1) >= _TASKS
        small = (strip or height) * totals <= _TOTALS and panel >= target.l1d_bytes // 2
        doc = "1: each piece of the sums goes through all pixels in turn"
        yield knob("pieces_first", (0, 1), int(waits and shared and small), doc)


def _strip(call: Call, height: int, rows: int, panel: int, target: Target) -> int:
    """The rows of a strip, in tiles of `rows` rows, where a panel of weights has `panel` bytes; 0
    for the whole image."""
    x, w, a = call.args[0].type, call.args[1].type, call.attrs
    assert isinstance(x, TensorType) and isinstance(w, TensorType)
    image = prod(map(expected, x.physical_shape[1:])) * x.dtype.bytes
    if a.groups > 1 or image <= target.l2_bytes // 2:
        return 0
    input_rows = target.l2_bytes // 4 * expected(x.shape[2]) // image
    beyond = (expected(w.shape[2]) - 1) * a.dilation[0]
    size: int = max(1, ((input_rows - beyond - 1) // a.strides[0] + 1) // rows) * rows
    strips = -(-height // size)
    # Weights are read once for each strip, instead of the image once for each panel.
    if strips == 1 or strips * panel >= image:
        return 0
    return -(-height // (strips * rows)) * rows


def _packing(w: TensorType) -> tuple[int, int, int]:
    """The output channels of a panel of packed weights, the input channels of a block, and how many
    of those are adjacent."""
    few = together(w, 1)
    axes = w.memory.axes[:-1] if few > 1 else w.memory.axes
    return axes[-1].modulus, (axes[-2].modulus or 1) * few, few
