"""Convolutions with one filter for each channel."""

from __future__ import annotations

from tensorkiln.families.conv2d.row import (
    has_packed_weights,
    is_depthwise,
    packed_weights,
    with_padding,
)
from tensorkiln.families.conv2d_depthwise.knobs import knobs
from tensorkiln.ir.layout import Layout
from tensorkiln.ir.relax import Call, TensorType
from tensorkiln.kernels.family import Family, Layouts
from tensorkiln.kernels.fusion import elementwise_epilogue
from tensorkiln.kernels.halves import of_halves
from tensorkiln.kernels.layouts import by_lanes, channel_blocks
from tensorkiln.target import Target


def _fits(call: Call, out: TensorType, target: Target) -> bool:
    return has_packed_weights(call, out, target) and is_depthwise(call, out)


def _layouts(call: Call, out: TensorType, target: Target) -> Layouts | None:
    if packed_weights(call, target) is None or not is_depthwise(call, out):
        return None
    x, lanes = call.args[0].type, target.vector_lanes("float32")
    assert isinstance(x, TensorType)
    weights = Layout.parse(f"A/{lanes} C D B A%{lanes}")
    bias = [by_lanes(target)] * len(call.args[2:])
    image = with_padding(channel_blocks(target, x), call)
    return Layouts((image, weights, *bias), channel_blocks(target, out))


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
