"""Use Winograd's algorithm for 3x3 convolutions where it is estimated to be faster.

    y = conv2d(x, w, b, padding=p)  ->  y = winograd_conv2d(x, u, b, tile=(4, 4), padding=p)

The transformed weights u = G w G^T are computed here, in float64. A convolution stays direct if few
products are saved, or if reading u, which is up to four times as large as w, takes longer than the
direct convolution. The target option `winograd` gives the largest tile (0: none).

Needs: canonical conv2d with constant weights; run before `assign_layouts`, which packs u.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace

from tensorkiln.ir.expr import int_value
from tensorkiln.ir.module import IRModule
from tensorkiln.ir.relax import Binding, Call, Constant, Function, TensorType, constant
from tensorkiln.ops import call as op_call
from tensorkiln.ops.winograd import POINTS, TAPS, tiles_at_once, transformed_filter
from tensorkiln.target import Target

# Times in the estimates are in vector multiply-adds of a direct convolution. _PRODUCT: a
# multiply-add on transformed values, whose sums are shorter. _FEWEST: fewer tiles than this take as
# long, since they wait for their weights. _INPUT, _OUTPUT: the transform of one vector.
_PRODUCT, _FEWEST, _INPUT, _OUTPUT = 1.15, 7, 7.6, 3.6
# The time of reading one vector of transformed weights from memory. (A direct convolution hides
# it.) Measured on Cascade Lake, with 11 GB/s per core; Zen 4 has 28 GB/s.
_READ, _READ_BY_CPU = 22.0, {"znver4": 2.5}
# Winograd is chosen if it takes less than this fraction of the direct time: it is less precise.
_GAIN = 0.85


@dataclass(frozen=True, slots=True)
class SelectWinograd:
    """Replace conv2d by winograd_conv2d where that is estimated to be faster on a target."""

    target: Target

    def __call__(self, mod: IRModule) -> IRModule:
        """Return the rewritten module; `mod` itself if no convolution is replaced."""
        sizes = [m for m in POINTS if m <= self.target.winograd]
        costs = Costs.of(self.target)
        return mod.map_graphs(lambda f: _function(f, sizes, costs)) if sizes else mod


@dataclass(frozen=True, slots=True)
class Costs:
    """What estimates depend on: float32 lanes of a vector, and the time of reading a vector of
    transformed weights from memory, in vector multiply-adds."""

    lanes: int
    read: float

    @staticmethod
    def of(target: Target) -> Costs:
        """The costs on a target's processor."""
        return Costs(target.vector_lanes("float32"), _READ_BY_CPU.get(target.mcpu, _READ))


def _function(f: Function, sizes: list[int], costs: Costs) -> Function:
    made: dict[tuple[int, tuple[int, int]], Constant] = {}
    bindings = tuple(
        replace(b, value=_rewritten(b, sizes, costs, made)) if _fits(b) else b for b in f.bindings
    )
    same = all(new.value is old.value for new, old in zip(bindings, f.bindings, strict=True))
    return f if same else replace(f, bindings=bindings)


def _fits(b: Binding) -> bool:
    """Whether the algorithm can compute a binding: a 3x3 float32 convolution with strides,
    dilations and groups of 1, constant weights, and known sizes."""
    call = b.value
    if not isinstance(call, Call) or call.op != "conv2d":
        return False
    w, a = call.args[1], call.attrs
    plain = a.strides == (1, 1) and a.dilation == (1, 1) and a.groups == 1
    if not plain or not isinstance(w, Constant) or w.type.dtype.name != "float32":
        return False
    taps = all(int_value(d) == TAPS for d in w.type.shape[2:])
    types = [b.var.type, call.args[0].type]
    return taps and all(
        isinstance(t, TensorType) and None not in map(int_value, t.shape[1:]) for t in types
    )


def _rewritten(
    b: Binding,
    sizes: list[int],
    costs: Costs,
    made: dict[tuple[int, tuple[int, int]], Constant],
) -> Call:
    call = b.value
    assert isinstance(call, Call)
    w = call.args[1]
    assert isinstance(w, Constant)
    outputs, inputs = (int_value(d) or 0 for d in w.type.shape[:2])
    height, width = (int_value(d) or 0 for d in b.var.tensor.shape[2:])
    tile = fastest_tile(inputs, outputs, height, width, sizes, costs)
    if tile is None:
        return call
    key = (id(w), tile)
    if key not in made:
        made[key] = replace(constant(transformed_filter(w.array, tile)), name=w.name)
    return op_call(
        "winograd_conv2d", call.args[0], made[key], *call.args[2:],
        span=call.span, tile=tile, padding=call.attrs.padding,
    )  # fmt: skip


def fastest_tile(
    inputs: int, outputs: int, height: int, width: int, sizes: list[int], costs: Costs
) -> tuple[int, int] | None:
    """The output tile (rows, columns) with the least estimated time; None if the direct convolution
    is faster. `height` and `width` are those of the output, `sizes` the tile sizes to try."""
    if inputs < costs.lanes or outputs < costs.lanes:
        return None
    of, to = -(-inputs // costs.lanes), -(-outputs // costs.lanes)
    vectors = of * costs.lanes * to  # vectors of weights for each tap or product
    best, least = None, _GAIN * TAPS * TAPS * vectors * height * width
    for tile in itertools.product(sizes, sizes):
        tiles = -(-height // tile[0]) * -(-width // tile[1])
        products = (tile[0] + TAPS - 1) * (tile[1] + TAPS - 1)
        # The weights are read once for each block of tiles.
        blocks = -(-tiles // tiles_at_once(products, of, costs.lanes))
        work = vectors * (_PRODUCT * max(tiles, _FEWEST) + costs.read * blocks)
        cost = products * (work + tiles * (_INPUT * of + _OUTPUT * to))
        if cost < least:
            best, least = tile, cost
    return best
