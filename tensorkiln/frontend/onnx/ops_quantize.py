"""QuantizeLinear and DequantizeLinear, spelled out in arithmetic."""

from __future__ import annotations

from tensorkiln.frontend.onnx.context import Context
from tensorkiln.frontend.onnx.dispatch import Int, Table
from tensorkiln.frontend.onnx.issues import unsupported
from tensorkiln.frontend.onnx.known import Val
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


TABLE: Table = {
    "QuantizeLinear": {10: quantize},
    "DequantizeLinear": {10: dequantize},
}
