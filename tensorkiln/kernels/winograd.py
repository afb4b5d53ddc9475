"""Winograd's algorithm for 3x3 convolutions, where it is estimated to be faster.

    y = conv2d(x, w, b, padding=p)  ->  y = winograd_conv2d(x, u, b, tile=(4, 4), padding=p)

With a dilation d, that is d * d convolutions of every d-th row and column.

The transformed weights u = G w G^T are computed here, in float64. A convolution stays direct if few
products are saved, or if reading u, which is up to four times as large as w, takes longer than the
direct convolution. The target option `winograd` gives the largest tile (0: none).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from tensorkiln.ir.dtype import DType
from tensorkiln.ir.expr import int_value
from tensorkiln.ir.layout import Layout
from tensorkiln.ir.relax import Binding, Call, Constant, RVar, TensorType, constant
from tensorkiln.kernels.conv2d import packed_weights, panel_vectors, with_padding
from tensorkiln.kernels.estimates import SMALL, USUAL, expected
from tensorkiln.kernels.family import Algorithm, Family, Layouts, Rewriter
from tensorkiln.kernels.fusion import elementwise_epilogue
from tensorkiln.kernels.layouts import by_lanes, channel_blocks, takes_tiles
from tensorkiln.kernels.winograd_knobs import winograd_knobs
from tensorkiln.ops import call as op_call
from tensorkiln.ops.winograd import POINTS, TAPS, tiles_at_once, transformed_filter
from tensorkiln.target import Target
from tensorkiln.target.dots import multiplies_pairs
from tensorkiln.target.rates import has_fast_pairs

# Times in the estimates are in vector multiply-adds of a direct convolution. _PRODUCT: a
# multiply-add on transformed values, whose sums are shorter. _FEWEST: fewer tiles than this take as
# long, since they wait for their weights. _INPUT, _OUTPUT: the transform of one vector.
_PRODUCT, _FEWEST, _INPUT, _OUTPUT = 1.15, 7, 7.6, 3.6
# The time of reading one vector of transformed weights from memory. (A direct convolution hides
# it.) Measured on Cascade Lake, with 11 GB/s per core; Zen 4 has 28 GB/s.
_READ, _READ_BY_CPU = 22.0, {"znver4": 2.5, "znver5": 2.5}
# Winograd is chosen if it takes less than this fraction of the direct time: it is less precise.
# Where the direct convolution would multiply pairs of 16 bits, that is half as long, and less
# precise still.
_GAIN, _GAIN_OVER_PAIRS = 0.85, 0.5
# For images of unknown size: small ones may take at most this many times their least time. Reading
# weights of 512 channels for tiles of (2, 4) takes 1.4 times as long as direct sums of 5 x 4
# pixels, and half as long as those of 7 x 7.
_REGRET = 1.4


@dataclass(frozen=True, slots=True)
class Costs:
    """What estimates depend on: lanes of a vector of float32, and the time to read a vector of
    transformed weights from memory, in units of a vector multiply-add."""

    lanes: int
    read: float

    @staticmethod
    def of(target: Target) -> Costs:
        """The costs on a target's processor."""
        return Costs(target.vector_lanes("float32"), _READ_BY_CPU.get(target.mcpu, _READ))


Tile = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Layer:
    """What else a choice depends on."""

    costs: Costs
    gain: float = _GAIN
    dilation: tuple[int, int] = (1, 1)


def estimated_times(
    inputs: int, outputs: int, height: int, width: int, tiles: Sequence[Tile], layer: Layer
) -> dict[Tile | None, float]:
    """Estimated times by output tile (rows, columns), with None for the direct convolution.
    `height` and `width` are those of the output."""
    lanes, read = layer.costs.lanes, layer.costs.read
    of, to = -(-inputs // lanes), -(-outputs // lanes)
    vectors = of * lanes * to  # vectors of weights for each tap or product
    sizes = list(zip((height, width), layer.dilation, strict=True))
    found: dict[Tile | None, float] = {None: vectors * math.prod(_inside(n, d) for n, d in sizes)}
    for tile in tiles:
        count = math.prod(-(-n // (m * d)) * d for (n, d), m in zip(sizes, tile, strict=True))
        products = (tile[0] + TAPS - 1) * (tile[1] + TAPS - 1)
        # The weights are read once for each block of tiles.
        blocks = -(-count // tiles_at_once(products, of, lanes))
        work = vectors * (_PRODUCT * max(count, _FEWEST) + read * blocks)
        found[tile] = products * (work + count * (_INPUT * of + _OUTPUT * to))
    return found


def fastest_tile(
    inputs: int, outputs: int, images: Sequence[tuple[int, int]], sizes: list[int], layer: Layer
) -> Tile | None:
    """The output tile (rows, columns) with the least estimated time. None if that is not less than
    `layer.gain` times the direct convolution's, or if the processor has no vectors, where weights
    should not grow.

    `images` are the height and width of the output, and of smaller outputs, for which the tile must
    not take much longer than their best. `sizes` are the tile sizes to try.
    """
    lanes = layer.costs.lanes
    if lanes == 1 or inputs < lanes or outputs < lanes:
        return None
    tiles = [*itertools.product(sizes, sizes)]
    (height, width), *smaller = images
    for small in smaller:
        times = estimated_times(inputs, outputs, *small, tiles, layer)
        tiles = [tile for tile in tiles if times[tile] <= _REGRET * min(times.values())]
    times = estimated_times(inputs, outputs, height, width, tiles, layer)
    best = min(tiles, key=lambda tile: times[tile], default=None)
    return best if best is not None and times[best] < layer.gain * times[None] else None


def _inside(size: int, dilation: int) -> int:
    """Products of a row of outputs with those taps of a filter that are within the image: all that
    a convolution of a large dilation sums (`kernels/conv_parts.py`)."""
    beside = size if dilation == 1 else max(0, size - dilation)
    return size + (TAPS - 1) * beside


def _choose(call: Call, out: TensorType, target: Target) -> Tile | None:
    """The tile for a 3x3 float32 convolution with strides and groups of 1, constant weights, and
    known channels."""
    w, a = call.args[1], call.attrs
    plain = a.strides == (1, 1) and a.groups == 1
    sizes = [m for m in POINTS if m <= target.winograd]
    if not sizes or not plain or not isinstance(w, Constant) or w.type.dtype.name != "float32":
        return None
    x = call.args[0].type
    if not isinstance(x, TensorType) or any(int_value(d) != TAPS for d in w.type.shape[2:]):
        return None
    if int_value(x.shape[1]) is None or _in_tiles(call, target):
        return None
    outputs, inputs = (int_value(d) or 0 for d in w.type.shape[:2])
    is_open = any(int_value(d) is None for d in out.shape[2:])
    pictures = (USUAL, SMALL) if is_open else (USUAL,)
    height, width = out.shape[2:]
    images = [(expected(height, size), expected(width, size)) for size in pictures]
    pairs = multiplies_pairs(target, target.precision) and has_fast_pairs(target)
    gain = _GAIN_OVER_PAIRS if pairs else _GAIN
    layer = Layer(Costs.of(target), gain, a.dilation)
    return fastest_tile(inputs, outputs, images, sizes, layer)


def _in_tiles(call: Call, target: Target) -> bool:
    """Whether a float32 convolution is multiplied in AMX tiles, because the target asks for that
    precision."""
    if target.precision == "float32":
        return False
    narrow = DType(target.precision)
    types = (replace(a.type, dtype=narrow) for a in call.args[:2] if isinstance(a.type, TensorType))
    args = (*(RVar("x", t) for t in types), *call.args[2:])
    return takes_tiles(replace(call, args=args), target)


def _rewrite(b: Binding, tile: tuple[int, int], rewriter: Rewriter) -> Call:
    call = b.value
    assert isinstance(call, Call)
    w = call.args[1]
    assert isinstance(w, Constant)
    u = rewriter.once(
        (id(w), tile), lambda: replace(constant(transformed_filter(w.array, tile)), name=w.name)
    )
    attrs = {"tile": tile, **{k: call.attrs[k] for k in ("padding", "dilation")}}
    return op_call("winograd_conv2d", call.args[0], u, *call.args[2:], span=call.span, **attrs)


def _layouts(call: Call, out: TensorType, target: Target) -> Layouts | None:
    u = packed_weights(call, target)
    if u is None:
        return None
    lanes, blocks = target.vector_lanes("float32"), channel_blocks(target)
    nr = lanes * panel_vectors(u.type, target)[0]
    weights = Layout.parse(f"A/{nr} C D B/{lanes} B%{lanes} A%{nr}")
    bias = [by_lanes(target)] * len(call.args[2:])
    return Layouts((with_padding(blocks, call), weights, *bias), blocks)


WINOGRAD = Family(
    op_class="conv2d_winograd",
    operators=("winograd_conv2d",),
    schedule="tensorkiln.schedule.winograd.schedule:schedule_winograd",
    layouts=_layouts,
    epilogue=elementwise_epilogue,
    inplace=True,
    knobs=winograd_knobs,
    weights="transformed by Winograd",
    algorithm=Algorithm("conv2d", _choose, _rewrite),
)
