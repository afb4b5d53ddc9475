"""The knobs of Winograd convolutions: choices of the schedule that tuning may measure, and the
estimates that make them otherwise.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from tensorkiln.ir.expr import int_value
from tensorkiln.ir.relax import Call, TensorType
from tensorkiln.kernels.estimates import expected
from tensorkiln.kernels.knobs import Knob, fetch_knob, knob, steps_knob
from tensorkiln.kernels.layouts import has_float_pairs
from tensorkiln.kernels.tiles import tile_cycles, tiles
from tensorkiln.ops.winograd import TAPS, tiles_at_once
from tensorkiln.target import Target
from tensorkiln.target.registers import highest, max_rows

# Part of the second-level cache that a block of tiles and all weights may take.
_CACHED = 0.75
# Bytes of weights that are prefetched if they come from memory: ResNet-18 takes 4% less time. With
# those of the next product instead, it takes 8% more (Xeon, family 6 model 167).
_FETCHED = 32 << 10
# Threads that the estimate divides blocks or panels among.
_THREADS = 2
# How many times the fewest blocks may be worth a measurement.
_BLOCKS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)


@dataclass(frozen=True, slots=True)
class _Sizes:
    """Tiles of the image, products of a tile, blocks of input channels, panels of output channels
    and vectors of each, and the lanes of a vector."""

    tiles: int
    products: int
    input_blocks: int
    panels: int
    vectors: int
    lanes: int

    @property
    def largest(self) -> int:
        """The most tiles of a block."""
        return tiles_at_once(self.products, self.input_blocks, self.lanes, self.vectors)


def winograd_knobs(call: Call, out: TensorType, target: Target) -> tuple[Knob, ...]:
    """Knobs of a Winograd convolution with packed weights; none for others, which it cannot
    compute."""
    x, u = (a.type for a in call.args[:2])
    assert isinstance(x, TensorType) and isinstance(u, TensorType)
    if out.layout is None or u.layout is None:
        return ()
    pairs = has_float_pairs(u, 1)
    lanes, nr = target.vector_lanes("float32"), u.memory.axes[-2 if pairs else -1].modulus
    outputs, inputs = (int_value(t.shape[1]) or 1 for t in (out, x))
    tile: tuple[int, int] = call.attrs.tile
    grid = [expected((n + m - 1) // m) for n, m in zip(out.shape[2:], tile, strict=True)]
    products = prod(m + TAPS - 1 for m in tile)
    c = _Sizes(prod(grid), products, -(-inputs // lanes), -(-outputs // nr), nr // lanes, lanes)
    sums = c.vectors * (1 + pairs)
    rows = max_rows(target, sums)
    blocks, by_blocks = _fewest_cycles(c, target, rows)
    fewest = -(-c.tiles // c.largest)
    counts = {-(-c.tiles // -(-c.tiles // n)) for k in _BLOCKS if (n := k * fewest) <= c.tiles}
    return (
        knob("rows", range(1, highest(target, sums) + 1), rows, "tiles of a register tile"),
        steps_knob(lanes // (1 + pairs)),
        knob("blocks", counts, blocks, "blocks that the tiles of an image are cut into"),
        knob("by_blocks", (0, 1), int(by_blocks), "1: threads share blocks; 0: panels of each"),
        fetch_knob(nr * 4, 0 if by_blocks else _FETCHED),
    )


def _fewest_cycles(c: _Sizes, target: Target, rows: int) -> tuple[int, bool]:
    """(number of blocks of tiles, whether threads share the blocks and not the panels of each), by
    the least estimated cost."""
    fewest = -(-c.tiles // c.largest)
    tile_bytes = c.products * c.lanes * (c.input_blocks + c.vectors) * 4
    weights = c.products * c.panels * c.vectors * c.input_blocks * c.lanes**2 * 4

    def cost(choice: tuple[int, bool]) -> float:
        blocks, by_blocks = choice
        tasks = blocks if by_blocks else c.panels
        idle = -(-tasks // _THREADS) * _THREADS / tasks
        tiled = sum(
            n * tile_cycles(size, c.vectors) for _, n, size in tiles(-(-c.tiles // blocks), rows)
        )
        return blocks * tiled * (1 + idle)

    choices = [(fewest, False), (fewest, True)]
    # Each block reads all weights: unless they are cached, the fewest blocks are the best choice.
    for size in range(rows // 2 + 1, min(c.largest, 3 * rows, c.tiles) + 1):
        if weights + size * tile_bytes <= target.l2_bytes * _CACHED:
            choices.append((-(-c.tiles // size), True))
    return min(choices, key=cost)
