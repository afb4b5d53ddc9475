"""Convolutions of 1x1 to a few channels, which would leave most lanes of a channel block empty.

    y = conv2d(x, w)      ->   y = conv2d(x, packed w)     x, row-major or in blocks; y, row-major

They read an image once, in the layout that it has: row-major, where vectors lie along pixels, or
in channel blocks, whose lanes are added up. A layout change would read and write all of it.
"""

from __future__ import annotations

from tensorkiln.ir.dtype import FLOAT32
from tensorkiln.ir.expr import int_value
from tensorkiln.ir.relax import Call, Constant, RVar, TensorType
from tensorkiln.kernels.family import AS_IT_IS, Family, Layouts
from tensorkiln.kernels.fusion import elementwise_epilogue
from tensorkiln.kernels.knobs import SUM_TERMS
from tensorkiln.kernels.layouts import channel_blocks, is_float32
from tensorkiln.target import Target


def _takes(call: Call, out: TensorType, target: Target) -> bool:
    """Whether a convolution computes every pixel of float32 from that pixel alone, in so few
    channels that adding up lanes costs less than computing empty ones."""
    x, w, a = call.args[0].type, call.args[1].type, call.attrs
    assert isinstance(x, TensorType) and isinstance(w, TensorType)
    sizes = [int_value(d) for d in (*x.shape[1:], *w.shape)]
    if None in sizes or a.groups != 1 or a.strides != (1, 1) or any(a.padding):
        return False
    channels, height, width, outputs, _, *kernel = (n or 0 for n in sizes)
    lanes = target.vector_lanes("float32")
    few = 0 < outputs < lanes // 2
    # A lane sums a channel of each block in one register.
    many = 1 < channels <= SUM_TERMS * lanes and height * width >= lanes
    return is_float32(call) and out.dtype.sums == FLOAT32 and kernel == [1, 1] and few and many


def _layouts(call: Call, out: TensorType, target: Target) -> Layouts | None:
    x, w = call.args[:2]
    is_constant = isinstance(w, Constant) and isinstance(x, RVar)
    if not is_constant or call.attrs.get("wide") or not _takes(call, out, target):
        return None
    return Layouts((AS_IT_IS, channel_blocks(target), *(None for _ in call.args[2:])))


def _fits(call: Call, out: TensorType, target: Target) -> bool:
    x, w = (a.type for a in call.args[:2])
    assert isinstance(x, TensorType) and isinstance(w, TensorType)
    blocks = channel_blocks(target)
    reads_x = x.layout is None or x.memory.with_halo({}) == blocks
    return w.layout == blocks and reads_x and out.layout is None and _takes(call, out, target)


FEW_OUTPUTS = Family(
    op_class="conv2d_few_outputs",
    operators=("conv2d",),
    fits=_fits,
    layouts=_layouts,
    epilogue=elementwise_epilogue,
    before=("conv2d_depthwise", "conv_parts"),
)

ROWS = (FEW_OUTPUTS,)
