"""Estimated times of 3x3 convolutions by Winograd's algorithm, and of direct ones."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

from tensorkiln.ops.winograd import TAPS, tiles_at_once
from tensorkiln.target import Target

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
GAIN, GAIN_OVER_PAIRS = 0.85, 0.5
# For images of unknown size: small ones may take at most this many times their least time. Reading
# weights of 512 channels for tiles of (2, 4) takes 1.4 times as long as direct sums of 5 x 4
# pixels, and half as long as those of 7 x 7.
_REGRET = 1.4


@dataclass(frozen=True, slots=True)
class WinogradCosts:
    """The parameters of estimates: lanes of a float32 vector, and the time to read a vector of
    transformed weights from memory, in units of a vector multiply-add."""

    lanes: int
    read: float

    @staticmethod
    def of(target: Target) -> WinogradCosts:
        """The costs on a target's processor."""
        return WinogradCosts(target.vector_lanes("float32"), _READ_BY_CPU.get(target.mcpu, _READ))


Tile = tuple[int, int]


@dataclass(frozen=True, slots=True)
class WinogradLayer:
    """The further parameters of an estimate."""

    costs: WinogradCosts
    gain: float = GAIN
    dilation: tuple[int, int] = (1, 1)


def estimated_times(
    inputs: int, outputs: int, height: int, width: int, tiles: Sequence[Tile], layer: WinogradLayer
) -> dict[Tile | None, float]:
    """Estimated times by output tile (rows, columns), with None for the direct convolution.
    `height` and `width` are those of the output."""
    lanes, read = layer.costs.lanes, layer.costs.read
    of, to = -(-inputs // lanes), -(-outputs // lanes)
    vectors = of * lanes * to  # vectors of weights for each tap or product
    sizes = list(zip((height, width), layer.dilation, strict=True))
    times: dict[Tile | None, float] = {None: vectors * math.prod(_inside(n, d) for n, d in sizes)}
    for tile in tiles:
        count = math.prod(-(-n // (m * d)) * d for (n, d), m in zip(sizes, tile, strict=True))
        products = (tile[0] + TAPS - 1) * (tile[1] + TAPS - 1)
        # The weights are read once for each block of tiles.
        blocks = -(-count // tiles_at_once(products, of, lanes))
        work = vectors * (_PRODUCT * max(count, _FEWEST) + read * blocks)
        times[tile] = products * (work + count * (_INPUT * of + _OUTPUT * to))
    return times


def fastest_tile(
    inputs: int,
    outputs: int,
    images: Sequence[tuple[int, int]],
    sizes: list[int],
    layer: WinogradLayer,
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
    a convolution of a large dilation sums (`families/conv_parts/row.py`)."""
    beside = size if dilation == 1 else max(0, size - dilation)
    return size + (TAPS - 1) * beside
