"""Direct convolutions, on channel blocks.

    y = conv2d(x, w)      ->   x1 = relayout(x, "A B/16 C+1 D+1 B%16")
                               y: layout="A B/16 C D B%16" = conv2d(x1, packed w)

They read channels in blocks of the vector width, from a buffer with a zero halo (C+1: one row above
and below) in place of padding.

A strided 1x1 convolution reads a compact image of only the pixels that it needs:

    y = conv2d(x, w, strides=(2, 2))  ->  s = slice(x, strides=(1, 1, 2, 2)); y = conv2d(s, w)

The shortcut of a residual block reads a quarter of what the block before it has written. Once the
block's first layer has read x, `plan_memory` can put the slice into the memory of x and reuse the
other three quarters: ResNet-50 needs 4.93 MB instead of 5.34. The slice costs 1% of the time of the
convolution, which gains as much from reading contiguous pixels.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import numpy as np

from tensorkiln.families.conv2d.knobs import knobs
from tensorkiln.ir.attrs import Attrs
from tensorkiln.ir.dtype import FLOAT32
from tensorkiln.ir.expr import int_value
from tensorkiln.ir.layout import Layout
from tensorkiln.ir.relax import Binding, Call, Constant, TensorType
from tensorkiln.kernels.family import Algorithm, Family, Layouts, Packed, Rewriter
from tensorkiln.kernels.fusion import elementwise_epilogue
from tensorkiln.kernels.layouts import (
    PIXEL,
    adjacent,
    by_lanes,
    channel_blocks,
    has_kernel,
    wants_float_pairs,
)
from tensorkiln.kernels.small_weights import with_small_weights
from tensorkiln.kernels.tiles import tile_cycles
from tensorkiln.ops import call as op_call
from tensorkiln.ops.channel_window import ChannelWindow
from tensorkiln.target import Target
from tensorkiln.target.dots import multiplies_tiles
from tensorkiln.target.registers import max_rows

# With fewer output channels, the slice (which is single-threaded) takes more than a few percent of
# the convolution's time. Images of fewer bytes do not determine a network's peak memory.
_OUTPUTS, _BYTES = 256, 2 << 20
# What stores under a condition may cost, as a multiple of the estimated time.
_CONDITIONS = 1.05


def packed_weights(call: Call, target: Target) -> Constant | None:
    """The weights of a convolution that kernels on channel blocks can compute: constant, in their
    usual order, of supported types and known channels."""
    x, w = call.args[0].type, call.args[1]
    if not isinstance(x, TensorType) or not isinstance(w, Constant) or not has_kernel(call, target):
        return None
    stored_already = "channel_window" in call.attrs
    return None if stored_already or int_value(x.shape[1]) is None else w


def with_padding(layout: Layout, call: Call) -> Layout:
    """The layout of an image, with the zero halo that a convolution needs in place of padding."""
    top_pad, left_pad, bottom_pad, right_pad = call.attrs.padding
    return layout.with_halo({2: max(top_pad, bottom_pad), 3: max(left_pad, right_pad)})


def panel_vectors(w: TensorType, target: Target) -> list[int]:
    """The possible widths of a panel, in vectors of output channels, the preferred one first."""
    blocks = -(-(int_value(w.shape[0]) or 0) // target.vector_lanes("float32"))
    if target.vector_lanes("float32") == 1:
        vector_limit = 4 if target.num_vector_registers >= 32 else 2
        return [n for n in (4, 2, 1) if n <= vector_limit and blocks % n == 0]
    budget = 4 if target.num_vector_registers >= 32 else 3
    return [n for n in (2, 3, 4)[: budget - 1] if blocks % n == 0] or [1]


def is_depthwise(call: Call, out: TensorType) -> bool:
    """Whether each output channel has one filter, of one input channel."""
    x = call.args[0].type
    assert isinstance(x, TensorType)
    groups = call.attrs.groups
    one_each = groups > 1 and groups == int_value(x.shape[1]) == int_value(out.shape[1])
    return bool(one_each and "channel_window" not in call.attrs)


def panel_of(w: TensorType) -> tuple[int, int]:
    """The panels that packed weights are in: output channels, and input channels of a block."""
    axes = w.memory.axes
    nr, granule = (max(a.divisor for a in axes if a.dim == d) for d in (0, 1))
    return nr, granule


def has_packed_weights(call: Call, out: TensorType, target: Target) -> bool:
    """Whether weights are packed, and the result is in channel blocks."""
    w = call.args[1].type
    assert isinstance(w, TensorType)
    return w.layout is not None and out.layout is not None


def fits(call: Call, out: TensorType, target: Target) -> bool:
    """As `has_packed_weights`; and the weights of groups are stored for the panels in which they
    are packed."""
    w = call.args[1].type
    assert isinstance(w, TensorType)
    stored = call.attrs.get("channel_window") == (None if call.attrs.groups == 1 else panel_of(w))
    return stored and has_packed_weights(call, out, target)


def _layouts(call: Call, out: TensorType, target: Target) -> Layouts | None:
    w = packed_weights(call, target)
    if w is None:
        return None
    x, lanes = call.args[0].type, target.vector_lanes("float32")
    assert isinstance(x, TensorType)
    channels, groups = int_value(x.shape[1]) or 0, call.attrs.groups
    few = adjacent(call, target)
    want, weights = channel_blocks(target, x), _weights(call, w, few, target)
    if groups == 1 and few > 1:
        want = Layout.parse(f"A B/{PIXEL} C D B%{PIXEL}") if channels <= PIXEL else want
    elif groups == 1 and channels < lanes // 2:
        want = Layout.plain(4)
    bias = [by_lanes(target)] * len(call.args[2:])
    weights = with_small_weights(call, target, weights)
    return Layouts((with_padding(want, call), weights, *bias), channel_blocks(target, out))


def _weights(call: Call, w: Constant, few: int, target: Target) -> Layout | Packed:
    """Weights in panels of output channels, `few` input channels next to each other."""
    x, groups, v = call.args[0].type, call.attrs.groups, target.vector_lanes("float32")
    assert isinstance(x, TensorType)
    channels, pairs = int_value(x.shape[1]) or 0, wants_float_pairs(call, target)
    widths = [1] if pairs else panel_vectors(w.type, target)
    if groups > 1:
        small = target.optimize == "size"
        return _grouped_weights(w.type, groups, sorted({1, *widths}), few, v, small)
    nr = v * (widths[0] if pairs or few > 1 else _width(w.type, widths, target))
    if v == 1:  # products are taken one by one, of integers too
        return Layout.parse(f"A/{nr} B C D A%{nr}")
    if few > 1:
        block = PIXEL if channels <= PIXEL else channel_blocks(target, x).block(1)
        if multiplies_tiles(target, w.type.dtype.name):
            nr = v * (2 if 2 in widths else 1)  # tiles of sums
        return Layout.parse(f"A/{nr} B/{block} C D B/{few}%{block // few} A%{nr} B%{few}")
    if channels < v // 2:
        return Layout.parse(f"A/{nr} B C D A%{nr}")
    # Of blocks as wide as a vector, a half or a quarter, the largest with the fewest zeros after
    # the last channel: they are multiplied too. 24 channels in blocks of 8 took 0.75 of the time.
    granules = [v >> k for k in range(3) if v >> k >= min(4, v)]
    b = min(granules, key=lambda n: (-channels % n, -n))
    return Layout.parse(f"A/{nr} B/{b} C D B%{b} A%{nr}")


def _width(w: TensorType, widths: list[int], target: Target) -> int:
    """The vectors of a panel: the first of `widths`, or 2, the last panel of which is not full, if
    panels of 1 vector are estimated to take longer, by more than conditions cost. 1000 channels in
    blocks of 8 took 0.8 of the time in 63 panels of 16 (Zen 3)."""
    blocks = -(-(int_value(w.shape[0]) or 0) // target.vector_lanes("float32"))

    def cycles(vectors: int) -> float:
        rows = max_rows(target, vectors)
        return -(-blocks // vectors) * tile_cycles(rows, vectors) / rows

    narrow = widths[0] == 1 and target.vector_lanes("float32") > 1 and w.dtype.is_float
    return 2 if narrow and blocks > 1 and cycles(2) * _CONDITIONS < cycles(1) else widths[0]


@dataclass(frozen=True, slots=True)
class _Spread:
    """Weights of a grouped convolution, spread over each panel's window of input channels."""

    window: ChannelWindow

    def __call__(self, w: np.ndarray) -> np.ndarray:
        return self.window.spread(w)


def _grouped_weights(
    w: TensorType, groups: int, widths: list[int], few: int, v: int, small: bool
) -> Packed:
    """Weights of a grouped convolution, in the panel width that costs least: time or, if `small`,
    memory."""
    outputs, inputs = (int_value(d) or 0 for d in w.shape[:2])
    granule = v if inputs % v == 0 else min(4, v)
    windows = [ChannelWindow(groups, outputs, inputs, v * n, granule) for n in widths]
    if small:
        best = min(windows, key=lambda c: c.panels * c.nr * c.channels)
    else:  # a broadcast that feeds one vector is about a tenth slower than one that feeds more
        best = min(windows, key=lambda c: c.steps * c.nr * (1.1 if c.nr == v else 1.0))
    layout = f"A/{best.nr} B/{granule} C D B%{granule} A%{best.nr}"
    if v == 1:
        layout = f"A/{best.nr} B C D A%{best.nr}"
    elif few > 1:
        within = f"B/{few}%{granule // few} A%{best.nr} B%{few}"
        layout = f"A/{best.nr} B/{granule} C D {within}"
    attrs = Attrs.of(channel_window=(best.nr, granule))
    return Packed(Layout.parse(layout), _Spread(best), attrs)


def _reads_few_pixels(call: Call, out: TensorType, target: Target) -> bool | None:
    """Whether a call is a strided 1x1 float32 convolution of a large image, with one group and many
    output channels; None, not False, if it is not."""
    if not isinstance(call.args[1], Constant):
        return None
    x, w, a = call.args[0].type, call.args[1].type, call.attrs
    assert isinstance(x, TensorType)
    is_pointwise = all(int_value(d) == 1 for d in w.shape[2:]) and not any(a.padding)
    size = prod(int_value(d) or 0 for d in x.shape[1:]) * x.dtype.bytes
    many = a.groups == 1 and (int_value(w.shape[0]) or 0) >= _OUTPUTS and size >= _BYTES
    strided = a.strides != (1, 1)
    return (is_pointwise and many and x.dtype == FLOAT32 and strided) or None


def _of_few_pixels(b: Binding, choice: bool, rewriter: Rewriter) -> Call:
    """Bind the strided slice of the pixels that a 1x1 convolution reads; the call on them."""
    call = b.value
    assert isinstance(call, Call)
    x = call.args[0].type
    assert isinstance(x, TensorType)
    sizes = (*x.shape[:2], *b.var.tensor.shape[2:])
    shape = tuple(n if int_value(n) is None else int_value(n) for n in sizes)
    strides = (1, 1, *call.attrs.strides)
    slice_call = op_call(
        "slice", call.args[0], span=call.span, begin=(0,) * 4, strides=strides, shape=shape
    )
    pixels = rewriter.bind(slice_call, f"{b.var.name}_pixels")
    attrs = dict(call.attrs) | {"strides": (1, 1)}
    return op_call("conv2d", pixels, *call.args[1:], span=call.span, **attrs)


CONV2D = Family(
    op_class="conv2d_direct",
    operators=("conv2d",),
    fits=fits,
    layouts=_layouts,
    epilogue=elementwise_epilogue,
    inplace=True,
    knobs=knobs,
    weights="zeros between groups",
    algorithm=Algorithm("conv2d", _reads_few_pixels, _of_few_pixels),
    before=("winograd",),
)

ROWS = (CONV2D,)
