"""Give 3x3 convolutions to Winograd's algorithm where it is estimated to be faster.

    y = conv2d(x, w, b, padding=p)  ->  y = winograd_conv2d(x, u, b, tile=(4, 4), padding=p)

u = G w G^T is computed here, in float64. The direct sums stay where few products are saved or the
transformed weights, up to four times as many, would take longer to read than the direct sums take.
The largest tile is the target's option `winograd` (0: none).

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

# Estimates count vector multiply-adds, and how long other things take compared to them. Products
# of short sums take longer than those of direct ones, fewer than seven at a time wait for their
# weights, and the transforms of a vector take this long.
_PRODUCT, _FEWEST, _INPUT, _OUTPUT = 1.15, 7, 7.6, 3.6
# Direct sums hide the time in which their weights come from memory. Of transformed ones it shows
# this much for a vector: on Cascade Lake (11 GB/s for a core), and where cores get more (28 GB/s).
_READ, _READ_BY_CPU = 22.0, {"znver4": 2.5}
# Winograd must be this much faster: it is a little less precise.
_GAIN = 0.85


@dataclass(frozen=True, slots=True)
class SelectWinograd:
    """Replace conv2d by winograd_conv2d on a target, where that is faster."""

    target: Target

    def __call__(self, mod: IRModule) -> IRModule:
        """Run the pass."""
        sizes = [m for m in POINTS if m <= self.target.winograd]
        costs = Costs.of(self.target)
        return mod.map_graphs(lambda f: _function(f, sizes, costs)) if sizes else mod


@dataclass(frozen=True, slots=True)
class Costs:
    """Lanes of a vector; multiply-adds in the time that reading one vector from memory adds."""

    lanes: int
    read: float

    @staticmethod
    def of(target: Target) -> Costs:
        """Those of a target's processor."""
        return Costs(target.vector_lanes("float32"), _READ_BY_CPU.get(target.mcpu, _READ))


def _function(f: Function, sizes: list[int], costs: Costs) -> Function:
    made: dict[tuple[int, tuple[int, int]], Constant] = {}
    bindings = tuple(
        replace(b, value=_rewritten(b, sizes, costs, made)) if _fits(b) else b for b in f.bindings
    )
    same = all(new.value is old.value for new, old in zip(bindings, f.bindings, strict=True))
    return f if same else replace(f, bindings=bindings)


def _fits(b: Binding) -> bool:
    """Whether the algorithm can do it: 3x3, every pixel, constant weights, known sizes."""
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
    """The output tile with the least estimated time; None for the direct sums."""
    if inputs < costs.lanes or outputs < costs.lanes:
        return None
    of, to = -(-inputs // costs.lanes), -(-outputs // costs.lanes)
    vectors = of * costs.lanes * to  # of weights, per tap or product
    best, least = None, _GAIN * TAPS * TAPS * vectors * height * width
    for tile in itertools.product(sizes, sizes):
        tiles = -(-height // tile[0]) * -(-width // tile[1])
        products = (tile[0] + TAPS - 1) * (tile[1] + TAPS - 1)
        # Weights are read again for each block of tiles.
        blocks = -(-tiles // tiles_at_once(products, of, costs.lanes))
        work = vectors * (_PRODUCT * max(tiles, _FEWEST) + costs.read * blocks)
        cost = products * (work + tiles * (_INPUT * of + _OUTPUT * to))
        if cost < least:
            best, least = tile, cost
    return best
