"""Convolutions on tensor cores as other convolutions with channels last.

Of few channels: of images with further channels, which are zero, so that those of a pixel can be
copied as one vector. In parts of their channels, where a device would be idle otherwise
(`families/contraction/decomposition.py`): sums of the parts are neighbours in each pixel, and are
added in the order of the parts.

    y = conv2d(x, w, b)   ->   p = pad(x); y = conv2d(p, w', b)           3 channels become 4
    y = conv2d(x, w, b)   ->   p = conv2d(x, w', groups=2); y = slice(p) + slice(p) + b
"""

from __future__ import annotations

import numpy as np

from tensorkiln.families.contraction.decomposition import grouped, widened
from tensorkiln.ir.expr import Expr, int_value
from tensorkiln.ir.relax import Binding, Call, Constant, RVar, TensorType, Value, constant
from tensorkiln.kernels.family import Rewriter
from tensorkiln.kernels.layouts import PIXEL
from tensorkiln.ops import call as op_call


def with_channels(b: Binding, count: int, rewriter: Rewriter) -> Call:
    """The convolution that takes the place of one with fewer than `count` channels. Of few
    channels, it has its padding in the image, and a tap more in each row where that makes them
    even: then vectors have the channels of two pixels."""
    call = b.value
    assert isinstance(call, Call)
    x, w, *bias = call.args
    assert isinstance(w, Constant) and isinstance(x.type, TensorType)
    zeros, attrs = count - w.array.shape[1], dict(call.attrs)
    before, after, taps = (0, 0, 0, 0), (0, zeros, 0, 0), 0
    if count <= PIXEL and call.attrs.dilation[1] == 1 and w.array.shape[3] > 1:
        top, first, bottom, last = call.attrs.padding
        taps = w.array.shape[3] % 2
        last += _columns(b, first + last)
        before, after = (0, 0, top, first), (0, zeros, bottom, last)
        attrs["padding"] = (0, 0, 0, 0)
    padded = op_call("pad", x, span=call.span, before=before, after=after)
    image = rewriter.bind(padded, f"{b.var.name}_channels")
    weights = np.pad(w.array, [(0, 0), (0, zeros), (0, 0), (0, taps)])
    return op_call("conv2d", image, constant(weights, w.name), *bias, span=call.span, **attrs)


def _columns(b: Binding, padding: int) -> int:
    """The columns behind the padding of a convolution with which an even number of taps gives as
    many results; an even number of columns in all, where that can be."""
    assert isinstance(b.value, Call)
    width, kernel, results = (
        int_value(t.shape[3]) or 0  # type: ignore[union-attr]
        for t in (b.value.args[0].type, b.value.args[1].type, b.var.type)
    )
    stride, columns = b.value.attrs.strides[1], width + padding
    enough = max(0, (results - 1) * stride + kernel + kernel % 2 - columns)
    fits = range(enough, enough + stride)
    return next((n for n in fits if (columns + n) % 2 == 0), enough)


def in_channel_parts(b: Binding, parts: int, rewriter: Rewriter) -> Call:
    """The call that takes the place of a convolution: the sum of its parts, with the bias if there
    is one, rounded once."""
    call = b.value
    assert isinstance(call, Call)
    sums, count = grouped(b, call, parts, rewriter), int_value(b.var.tensor.shape[1]) or 0
    total: RVar | None = None
    for k in range(parts):
        part = rewriter.bind(_channels_of(sums, k * count, count, call.span), f"{b.var.name}_part")
        total = part if total is None else _added(total, part, b, rewriter)
    assert total is not None
    if len(call.args) > 2:
        bias = _of_pixels(b, widened(b, call.args[2], rewriter), rewriter)
        total = _added(total, bias, b, rewriter)
    return op_call("cast", total, span=call.span, dtype=b.var.tensor.dtype.name)


def _added(x: RVar, y: Value, b: Binding, rewriter: Rewriter) -> RVar:
    assert isinstance(b.value, Call)
    return rewriter.bind(op_call("add", x, y, span=b.value.span), f"{b.var.name}_total")


def _channels_of(x: RVar, first: int, count: int, span: str) -> Call:
    """`count` channels of an image from the first on."""
    n, _, *image = x.tensor.shape
    shape: tuple[Expr | int, ...] = (n, count, *image)
    return op_call("slice", x, span=span, begin=(0, first, 0, 0), strides=(1,) * 4, shape=shape)


def _of_pixels(b: Binding, bias: Value, rewriter: Rewriter) -> Value:
    """A bias as an image of one pixel."""
    shape = (1, int_value(b.var.tensor.shape[1]) or 0, 1, 1)
    if isinstance(bias, Constant):
        return constant(bias.array.reshape(shape), bias.name)
    assert isinstance(b.value, Call)
    return rewriter.bind(
        op_call("reshape", bias, span=b.value.span, shape=shape), f"{b.var.name}_bias"
    )
