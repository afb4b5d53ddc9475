"""Quantised operators: conversions, and integer products that accumulate in int32.

The sums are exact. Where an ONNX operator has an 8-bit result, its scales are combined into one
float32 factor, a_scale * b_scale / y_scale; each sum is multiplied by it and rounded once.
"""

from __future__ import annotations

from collections.abc import Sequence

from tensorkiln.frontend.onnx.context import Context
from tensorkiln.frontend.onnx.dispatch import Int, Ints, Str, Table
from tensorkiln.frontend.onnx.issues import malformed, unsupported
from tensorkiln.frontend.onnx.known import Val
from tensorkiln.frontend.onnx.ops_window import conv
from tensorkiln.frontend.onnx.tensors import dtype_name
from tensorkiln.ir.expr import int_value
from tensorkiln.ops.quantise import QUANTISED


def _along(g: Context, v: Val, x: Val, axis: int) -> Val:
    """Reshape a per-axis parameter [n] so that it broadcasts with `x` along `axis`.

    [1] becomes a scalar; parameters of other ranks are returned as they are.
    """
    if g.rank(v) == 0 or g.rank(v) > 1:
        return v
    if int_value(g.shape(v)[0]) == 1:
        return g.reshape(v, ())  # `axis` is not checked: exporters write one out of range here
    if g.rank(x) == 0:
        raise malformed("a scalar operand needs scalar parameters")
    at = g.axis(axis, g.rank(x))
    return g.reshape(v, [g.shape(v)[0] if i == at else 1 for i in range(g.rank(x))])


def _require_quantised(dtype: str, known: tuple[str, ...] = QUANTISED) -> None:
    if dtype not in known:
        raise unsupported(f"quantised type {dtype}", f"supported: {', '.join(known)}", kind="dtype")


def quantize(
    g: Context,
    x: Val,
    scale: Val,
    zero: Val | None = None,
    *,
    axis: Int = 1,
    saturate: Int = 1,
    output_dtype: Int = 0,
    block_size: Int = 0,
    precision: Int = 0,
) -> Val:
    """saturate(round_half_even(x / scale) + zero), in float32"""
    if block_size:
        raise unsupported(f"block_size={block_size}")
    if zero is None:
        wanted = dtype_name(output_dtype, "output_dtype") if output_dtype else "uint8"
        _require_quantised(wanted)
        zero = g.const(0, wanted)
    _require_quantised(g.dtype(zero))
    scale, zero = (_along(g, v, x, axis) for v in (g.cast(scale, "float32"), zero))
    return g.emit("quantize", g.cast(x, "float32"), scale, zero)


def dequantize(
    g: Context,
    x: Val,
    scale: Val,
    zero: Val | None = None,
    *,
    axis: Int = 1,
    block_size: Int = 0,
    output_dtype: Int = 0,
) -> Val:
    """(x - zero) * scale, in float32"""
    if block_size:
        raise unsupported(f"block_size={block_size}")
    _require_quantised(g.dtype(x), (*QUANTISED, "int32"))
    wanted = dtype_name(output_dtype, "output_dtype") if output_dtype else g.dtype(scale)
    zero = g.const(0, g.dtype(x)) if zero is None else zero
    scale, zero = (_along(g, v, x, axis) for v in (g.cast(scale, "float32"), zero))
    return g.cast(g.emit("dequantize", x, scale, zero), wanted)


def _centred(g: Context, x: Val, zero: Val | None, axis: int) -> Val:
    """x - zero in int32"""
    wide = g.cast(x, "int32")
    return wide if zero is None else g.emit("sub", wide, g.cast(_along(g, zero, x, axis), "int32"))


def matmul_integer(
    g: Context, a: Val, b: Val, a_zero: Val | None = None, b_zero: Val | None = None
) -> Val:
    """(a - a_zero) (b - b_zero) in int32; a zero point is a scalar, or one per row of `a` and one
    per column of `b`."""
    return g.emit("matmul", _centred(g, a, a_zero, -2), _centred(g, b, b_zero, -1))


def conv_integer(
    g: Context,
    x: Val,
    w: Val,
    x_zero: Val | None = None,
    w_zero: Val | None = None,
    *,
    auto_pad: Str = "NOTSET",
    dilations: Ints | None = None,
    group: Int = 1,
    kernel_shape: Ints | None = None,
    pads: Ints | None = None,
    strides: Ints | None = None,
) -> Val:
    """The convolution of x - x_zero with w - w_zero in int32. The zeros of the padding are added
    after the subtraction, so they stand for the zero point."""
    return conv(
        g,
        _centred(g, x, x_zero, 1),
        _centred(g, w, w_zero, 0),
        auto_pad=auto_pad,
        dilations=dilations,
        group=group,
        kernel_shape=kernel_shape,
        pads=pads,
        strides=strides,
    )


def _requantized(g: Context, total: Val, scales: Sequence[Val], zero: Val) -> Val:
    """round(total * (a * b / y)) + zero, saturated, for the scales (a, b, y)"""
    a, b, y = (g.cast(s, "float32") for s in scales)
    scale = g.emit("div", g.emit("mul", a, b), y)
    scaled = g.emit("dequantize", total, scale, g.const(0, "int32"))
    return g.emit("quantize", scaled, g.const(1, "float32"), zero)


def qlinear_matmul(
    g: Context,
    a: Val,
    a_scale: Val,
    a_zero: Val,
    b: Val,
    b_scale: Val,
    b_zero: Val,
    y_scale: Val,
    y_zero: Val,
) -> Val:
    """The matrix product of the integers in int32, rescaled to the type of `y_zero`."""
    total = matmul_integer(g, a, b, a_zero, b_zero)
    scales = [_along(g, a_scale, a, -2), _along(g, b_scale, b, -1), _along(g, y_scale, total, -2)]
    return _requantized(g, total, scales, _along(g, y_zero, total, -2))


def qlinear_conv(
    g: Context,
    x: Val,
    x_scale: Val,
    x_zero: Val,
    w: Val,
    w_scale: Val,
    w_zero: Val,
    y_scale: Val,
    y_zero: Val,
    b: Val | None = None,
    *,
    auto_pad: Str = "NOTSET",
    dilations: Ints | None = None,
    group: Int = 1,
    kernel_shape: Ints | None = None,
    pads: Ints | None = None,
    strides: Ints | None = None,
) -> Val:
    """The convolution of the integers in int32, rescaled to the type of `y_zero`.

    The bias is int32, in units of x_scale * w_scale.
    """
    total = conv(
        g,
        _centred(g, x, x_zero, 1),
        _centred(g, w, w_zero, 0),
        b,
        auto_pad=auto_pad,
        dilations=dilations,
        group=group,
        kernel_shape=kernel_shape,
        pads=pads,
        strides=strides,
    )
    scales = [_along(g, s, total, 1) for s in (x_scale, w_scale, y_scale)]
    return _requantized(g, total, scales, _along(g, y_zero, total, 1))


def dynamic_quantize(g: Context, x: Val) -> tuple[Val, Val, Val]:
    """Quantise to uint8 over the range of the data, widened to include 0: (y, scale, zero point).

    Data that is all zero has an empty range and gets the scale 1.
    """
    axes, zero = tuple(range(g.rank(x))), g.like(0, x)
    high = g.emit("maximum", g.emit("max", x, axes=axes, keepdims=False), zero)
    low = g.emit("minimum", g.emit("min", x, axes=axes, keepdims=False), zero)
    size = g.emit("div", g.emit("sub", high, low), g.like(255, x))
    scale = g.emit("where", g.emit("equal", high, low), g.like(1, x), size)
    at = g.emit(
        "round", g.emit("clip", g.emit("div", g.emit("neg", low), scale), min=0.0, max=255.0)
    )
    point = g.cast(at, "uint8")
    return quantize(g, x, scale, point), scale, point


TABLE: Table = {
    "QuantizeLinear": {10: quantize},
    "DequantizeLinear": {10: dequantize},
    "DynamicQuantizeLinear": {11: dynamic_quantize},
    "QLinearConv": {10: qlinear_conv},
    "QLinearMatMul": {10: qlinear_matmul},
    "ConvInteger": {10: conv_integer},
    "MatMulInteger": {10: matmul_integer},
}
