"""Convolutions with one filter for each channel."""

from __future__ import annotations

from tensorkiln.families.conv2d.row import (
    has_packed_weights,
    is_depthwise,
    packed_weights,
    with_padding,
)
from tensorkiln.families.conv2d_depthwise.knobs import UNIT, knobs, least_columns
from tensorkiln.ir.dtype import INT8
from tensorkiln.ir.expr import int_value
from tensorkiln.ir.layout import Layout
from tensorkiln.ir.relax import Call, TensorType
from tensorkiln.kernels.family import Family, Layouts, Packed
from tensorkiln.kernels.fusion import elementwise_epilogue
from tensorkiln.kernels.halves import of_halves
from tensorkiln.kernels.layouts import by_lanes, channel_blocks
from tensorkiln.kernels.small_weights import with_small_weights
from tensorkiln.target import Target
from tensorkiln.target.dots import integer_dot, sums_word_pairs

# Instructions for a vector of products: of a tap that is multiplied by itself (widened, multiplied,
# added), and of four by a dot product: one instruction, one that sums pairs, or several.
_TAP, _DOT, _SMALL, _WORDS = 3, 1, 3, 6


def _fits(call: Call, out: TensorType, target: Target) -> bool:
    return has_packed_weights(call, out, target) and is_depthwise(call, out)


def _layouts(call: Call, out: TensorType, target: Target) -> Layouts | None:
    if packed_weights(call, target) is None or not is_depthwise(call, out):
        return None
    x, lanes = call.args[0].type, target.vector_lanes("float32")
    assert isinstance(x, TensorType)
    weights: Layout | Packed = Layout.parse(f"A/{lanes} C D B A%{lanes}")
    fours = Layout.parse(f"A/{lanes} C/{UNIT} D B A%{lanes} C%{UNIT}")
    in_fours = with_small_weights(call, target, fours)
    if _takes_fours(call, out, target, isinstance(in_fours, Packed)):
        weights = in_fours
    bias = [by_lanes(target)] * len(call.args[2:])
    image = with_padding(channel_blocks(target, x), call)
    return Layouts((image, weights, *bias), channel_blocks(target, out))


def _takes_fours(call: Call, out: TensorType, target: Target, small: bool) -> bool:
    """Whether dot products of four rows of a filter take fewer instructions than products of single
    taps, with weights that are `small` or not."""
    w = call.args[1].type
    assert isinstance(w, TensorType)
    lanes, stride = target.vector_lanes("float32"), call.attrs.strides[1]
    if not sums_word_pairs(target, 32 * lanes) or not _has_columns(call, out, target):
        return False
    rows, columns = (int_value(n) or 0 for n in w.shape[2:])
    product = _DOT if integer_dot(target, 32 * lanes) else _SMALL if small else _WORDS
    groups = -(-rows // UNIT)
    # Of a unit of four columns: loads, two rounds of four shuffles, more where vectors have several
    # parts of 128 bits.
    interleaved = (rows + 8 + (0, 4, 8)[lanes // 8]) / UNIT * min(stride, columns)
    return bool(groups * (columns * product + interleaved) < rows * columns * _TAP)


def _has_columns(call: Call, out: TensorType, target: Target) -> bool:
    """Whether an image of bytes has columns that `dots.py` can interleave: of known sizes, enough
    of them, next to each other, in blocks of a vector."""
    x, w = (a.type for a in call.args[:2])
    assert isinstance(x, TensorType) and isinstance(w, TensorType)
    sizes = [int_value(n) or 0 for n in (*x.shape[2:], *out.shape[2:], *w.shape[2:])]
    if w.dtype != INT8 or 0 in sizes or target.optimize == "size":
        return False
    blocks = {channel_blocks(target, t).block(1) for t in (x, out)}
    adjacent = call.attrs.dilation == (1, 1) and blocks == {target.vector_lanes("float32")}
    return adjacent and sizes[3] >= least_columns(sizes[5], call.attrs.strides[1])


DEPTHWISE = Family(
    op_class="conv2d_depthwise",
    operators=("conv2d",),
    fits=_fits,
    layouts=_layouts,
    epilogue=elementwise_epilogue,
    inplace=True,
    knobs=knobs,
    algorithm=of_halves("conv2d"),
    before=("conv_parts",),
)

ROWS = (DEPTHWISE,)
