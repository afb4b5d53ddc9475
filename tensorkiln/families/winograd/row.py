"""Winograd's algorithm for 3x3 convolutions, where it is estimated to be faster.

    y = conv2d(x, w, b, padding=p)  ->  y = winograd_conv2d(x, u, b, tile=(4, 4), padding=p)

With a dilation d, that is d * d convolutions of every d-th row and column.

The transformed weights u = G w G^T are computed here, in float64. A convolution stays direct if few
products are saved, or if reading u, which is up to four times as large as w, takes longer than the
direct convolution. The target option `winograd` gives the largest tile (0: none).
"""

from __future__ import annotations

from dataclasses import replace

from tensorkiln.families.conv2d.row import packed_weights, panel_vectors, with_padding
from tensorkiln.families.winograd.costs import (
    GAIN,
    GAIN_OVER_PAIRS,
    Tile,
    WinogradCosts,
    WinogradLayer,
    fastest_tile,
)
from tensorkiln.families.winograd.knobs import winograd_knobs
from tensorkiln.ir.dtype import FLOAT32, DType
from tensorkiln.ir.expr import int_value
from tensorkiln.ir.layout import Layout
from tensorkiln.ir.relax import Binding, Call, Constant, RVar, TensorType, constant
from tensorkiln.kernels.estimates import SMALL, USUAL, expected
from tensorkiln.kernels.family import Algorithm, Family, Layouts, Rewriter
from tensorkiln.kernels.fusion import elementwise_epilogue
from tensorkiln.kernels.layouts import by_lanes, channel_blocks, takes_tiles, wants_float_pairs
from tensorkiln.ops import call as op_call
from tensorkiln.ops.winograd import POINTS, TAPS, transformed_filter
from tensorkiln.target import Target
from tensorkiln.target.dots import multiplies_pairs
from tensorkiln.target.rates import has_fast_pairs


def _choose(call: Call, out: TensorType, target: Target) -> Tile | None:
    """The tile for a 3x3 float32 convolution with strides and groups of 1, constant weights, and
    known channels."""
    w, a = call.args[1], call.attrs
    plain = a.strides == (1, 1) and a.groups == 1
    sizes = [m for m in POINTS if m <= target.winograd]
    if not sizes or not plain or not isinstance(w, Constant) or w.type.dtype != FLOAT32:
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
    gain = GAIN_OVER_PAIRS if pairs else GAIN
    layer = WinogradLayer(WinogradCosts.of(target), gain, a.dilation)
    return fastest_tile(inputs, outputs, images, sizes, layer)


def _in_tiles(call: Call, target: Target) -> bool:
    """Whether a float32 convolution is multiplied in AMX tiles, because the target asks for that
    precision."""
    if not target.has_narrow_operands:
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
    if wants_float_pairs(call, target):
        weights = Layout.parse(f"A/{lanes} C D B/{lanes} B/2%{lanes // 2} A%{lanes} B%2")
    bias = [by_lanes(target)] * len(call.args[2:])
    return Layouts((with_padding(blocks, call), weights, *bias), blocks)


WINOGRAD = Family(
    op_class="conv2d_winograd",
    operators=("winograd_conv2d",),
    layouts=_layouts,
    epilogue=elementwise_epilogue,
    inplace=True,
    knobs=winograd_knobs,
    weights="transformed by Winograd",
    algorithm=Algorithm("conv2d", _choose, _rewrite),
)

ROWS = (WINOGRAD,)
