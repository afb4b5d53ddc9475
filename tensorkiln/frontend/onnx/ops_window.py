"""Convolution and transposed convolution."""

from __future__ import annotations

from tensorkiln.frontend.graph import convolution, transposed_convolution
from tensorkiln.frontend.graph.context import Context
from tensorkiln.frontend.graph.issues import malformed
from tensorkiln.frontend.graph.values import Val
from tensorkiln.frontend.onnx.auto_pad import padding
from tensorkiln.frontend.onnx.dispatch import Int, Ints, Str, Table


def conv(
    g: Context,
    x: Val,
    w: Val,
    b: Val | None = None,
    *,
    auto_pad: Str = "NOTSET",
    dilations: Ints | None = None,
    group: Int = 1,
    kernel_shape: Ints | None = None,
    pads: Ints | None = None,
    strides: Ints | None = None,
) -> Val:
    """Convolution of x [N, C, ...] with w [M, C/group, k, ...] and bias [M]."""
    shape = convolution.kernel_shape(g, x, w)
    if kernel_shape is not None and tuple(kernel_shape) != shape:
        raise malformed(f"kernel_shape={list(kernel_shape)}, but the weights have {list(shape)}")
    around, rule = padding(auto_pad, pads)
    return convolution.conv(
        g,
        x,
        w,
        b,
        strides=strides,
        dilations=dilations,
        pads=around,
        same=rule,
        groups=group,
    )


def conv_transpose(
    g: Context,
    x: Val,
    w: Val,
    b: Val | None = None,
    *,
    auto_pad: Str = "NOTSET",
    dilations: Ints | None = None,
    group: Int = 1,
    kernel_shape: Ints | None = None,
    output_padding: Ints | None = None,
    output_shape: Ints | None = None,
    pads: Ints | None = None,
    strides: Ints | None = None,
) -> Val:
    """Transposed convolution of x [N, C, ...] with w [C, M/group, k, ...]. `output_shape` may begin
    with the numbers of samples and channels."""
    around, rule = padding(auto_pad, pads)
    return transposed_convolution.conv_transpose(
        g,
        x,
        w,
        b,
        strides=strides,
        dilations=dilations,
        pads=around,
        same=rule,
        output_padding=output_padding,
        output_shape=None if output_shape is None else output_shape[2 - g.rank(x) :],
        groups=group,
    )


TABLE: Table = {
    "Conv": {1: conv},
    "ConvTranspose": {1: conv_transpose},
}
