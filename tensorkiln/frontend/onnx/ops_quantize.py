"""QuantizeLinear and DequantizeLinear, spelled out in arithmetic."""

from __future__ import annotations

from tensorkiln.frontend.onnx.context import Context
from tensorkiln.frontend.onnx.dispatch import Int, Ints, Str, Table
from tensorkiln.frontend.onnx.issues import unsupported
from tensorkiln.frontend.onnx.known import Val
from tensorkiln.frontend.onnx.ops_window import conv
from tensorkiln.frontend.onnx.tensors import dtype_name

_RANGES = {"uint8": (0, 255), "int8": (-128, 127), "uint16": (0, 65535), "int16": (-32768, 32767)}


def _along(g: Context, v: Val, x: Val, axis: int) -> Val:
    """A per-axis parameter [n] against the operand; scalars as they are."""
    if g.rank(v) == 0 or g.rank(v) > 1:
        return v
    if g.rank(x) == 0 or g.shape(v) != (g.shape(x)[g.axis(axis, g.rank(x))],):
        return g.reshape(v, ())
    at = g.axis(axis, g.rank(x))
    return g.reshape(v, [g.shape(v)[0] if i == at else 1 for i in range(g.rank(x))])


def quantize(
    g: Context, x: Val, scale: Val, zero: Val | None = None, *, axis: Int = 1, saturate: Int = 1,
    output_dtype: Int = 0, block_size: Int = 0, precision: Int = 0,
) -> Val:  # fmt: skip
    """saturate(round_half_even(x / scale) + zero)"""
    if block_size:
        raise unsupported(f"block_size={block_size}")
    scale = g.cast(scale, "float32")
    dtype = "uint8" if zero is None else g.dtype(zero)
    if zero is None and output_dtype:
        dtype = dtype_name(output_dtype, "output_dtype")
    if dtype not in _RANGES:
        raise unsupported(f"quantised type {dtype}", kind="dtype")
    low, high = _RANGES[dtype]
    y = g.emit("round", g.emit("div", g.cast(x, "float32"), _along(g, scale, x, axis)))
    if zero is not None:
        y = g.emit("add", y, g.cast(_along(g, zero, x, axis), "float32"))
    return g.cast(g.emit("clip", y, min=float(low), max=float(high)), dtype)


def dequantize(
    g: Context, x: Val, scale: Val, zero: Val | None = None, *, axis: Int = 1,
    block_size: Int = 0, output_dtype: Int = 0,
) -> Val:  # fmt: skip
    """(x - zero) * scale"""
    if block_size:
        raise unsupported(f"block_size={block_size}")
    dtype = g.dtype(scale)
    y = g.cast(x, dtype)
    if zero is not None:
        y = g.emit("sub", y, g.cast(_along(g, zero, x, axis), dtype))
    y = g.emit("mul", y, _along(g, scale, x, axis))
    return g.cast(y, dtype_name(output_dtype, "output_dtype")) if output_dtype else y


def qlinear_matmul(
    g: Context, a: Val, a_scale: Val, a_zero: Val, b: Val, b_scale: Val, b_zero: Val,
    y_scale: Val, y_zero: Val,
) -> Val:  # fmt: skip
    """The product of the dequantised operands, quantised."""
    wide = [dequantize(g, a, a_scale, a_zero, axis=-2), dequantize(g, b, b_scale, b_zero, axis=-1)]
    return quantize(g, g.emit("matmul", *wide), y_scale, y_zero)


def qlinear_conv(
    g: Context, x: Val, x_scale: Val, x_zero: Val, w: Val, w_scale: Val, w_zero: Val,
    y_scale: Val, y_zero: Val, b: Val | None = None, *, auto_pad: Str = "NOTSET",
    dilations: Ints | None = None, group: Int = 1, kernel_shape: Ints | None = None,
    pads: Ints | None = None, strides: Ints | None = None,
) -> Val:  # fmt: skip
    """The convolution of the dequantised operands, quantised; the bias is in x_scale*w_scale."""
    bias = None
    if b is not None:
        bias = g.emit("mul", g.cast(b, g.dtype(x_scale)), g.emit("mul", x_scale, w_scale))
    y = conv(
        g, dequantize(g, x, x_scale, x_zero), dequantize(g, w, w_scale, w_zero, axis=0), bias,
        auto_pad=auto_pad, dilations=dilations, group=group, kernel_shape=kernel_shape, pads=pads,
        strides=strides,
    )  # fmt: skip
    return quantize(g, y, y_scale, y_zero)


def dynamic_quantize(g: Context, x: Val) -> tuple[Val, Val, Val]:
    """uint8 with the range of the data, widened to hold 0."""
    axes, zero = tuple(range(g.rank(x))), g.like(0, x)
    high = g.emit("maximum", g.emit("max", x, axes=axes, keepdims=False), zero)
    low = g.emit("minimum", g.emit("min", x, axes=axes, keepdims=False), zero)
    scale = g.emit("div", g.emit("sub", high, low), g.like(255, x))
    at = g.emit("round", g.emit("clip", g.emit("div", g.emit("neg", low), scale), min=0.0,
                                max=255.0))  # fmt: skip
    point = g.cast(at, "uint8")
    return quantize(g, x, scale, point), scale, point


TABLE: Table = {
    "QuantizeLinear": {10: quantize},
    "DequantizeLinear": {10: dequantize},
    "DynamicQuantizeLinear": {11: dynamic_quantize},
    "QLinearConv": {10: qlinear_conv},
    "QLinearMatMul": {10: qlinear_matmul},
}
