"""Give 3x3 convolutions to Winograd's algorithm where it is estimated to be faster.

    y = conv2d(x, w, b, padding=p)  ->  y = winograd_conv2d(x, u, b, tile=(4, 4), padding=p)

u = G w G^T is computed here, in float64. The direct sums stay where few products are saved or the
transformed weights, up to four times as many, would take longer to read than the direct sums take.
The largest tile is the target's option `winograd` (0: none).

Needs: canonical conv2d with constant weights; run before `assign_layouts`, which packs u.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from tensorkiln.ir.expr import int_value
from tensorkiln.ir.module import IRModule
from tensorkiln.ir.relax import Binding, Call, Constant, Function, TensorType, constant
from tensorkiln.ops import call as op_call
from tensorkiln.ops.winograd import POINTS, TAPS, transformed_filter
from tensorkiln.target import Target

# Where a target says nothing: none, as long as not every model of the conformance rows was checked
# with it.
_LARGEST = 0
# Estimates count vector multiply-adds. Those of short sums take longer than those of direct ones,
# a weight that comes from memory as long as one (per lane), the transforms of one vector eight.
_PRODUCT, _LOAD, _TRANSFORM = 1.12, 1.0, 8.0
# Winograd must be this much faster: it is a little less precise.
_GAIN = 0.85


@dataclass(frozen=True, slots=True)
class SelectWinograd:
    """Replace conv2d by winograd_conv2d on a target, where that is faster."""

    target: Target

    def __call__(self, mod: IRModule) -> IRModule:
        """Run the pass."""
        given = self.target["winograd"]
        largest = _LARGEST if given is None else int(given)  # type: ignore[arg-type]
        sizes = [m for m in POINTS if m <= largest]
        lanes = self.target.vector_lanes("float32")
        return mod.map_graphs(lambda f: _function(f, sizes, lanes)) if sizes else mod


def _function(f: Function, sizes: list[int], lanes: int) -> Function:
    made: dict[tuple[int, tuple[int, int]], Constant] = {}
    bindings = tuple(
        replace(b, value=_rewritten(b, sizes, lanes, made)) if _fits(b) else b for b in f.bindings
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
    lanes: int,
    made: dict[tuple[int, tuple[int, int]], Constant],
) -> Call:
    call = b.value
    assert isinstance(call, Call)
    w = call.args[1]
    assert isinstance(w, Constant)
    outputs, inputs = (int_value(d) or 0 for d in w.type.shape[:2])
    height, width = (int_value(d) or 0 for d in b.var.tensor.shape[2:])
    tile = fastest_tile(inputs, outputs, height, width, sizes, lanes)
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
    inputs: int, outputs: int, height: int, width: int, sizes: list[int], lanes: int
) -> tuple[int, int] | None:
    """The output tile with the least estimated time; None for the direct sums."""
    if inputs < lanes or outputs < lanes:
        return None
    blocks = -(-outputs // lanes)
    best, least = None, _GAIN * height * width * TAPS * TAPS * inputs * blocks
    for rows in sizes:
        for columns in sizes:
            tiles = -(-height // rows) * -(-width // columns)
            products = (rows + TAPS - 1) * (columns + TAPS - 1)
            vectors = products * (-(-inputs // lanes) + blocks)
            weights = products * inputs * blocks
            work = max(_PRODUCT * tiles * weights, _LOAD * lanes * weights)
            cost = work + _TRANSFORM * tiles * vectors
            if cost < least:
                best, least = (rows, columns), cost
    return best
