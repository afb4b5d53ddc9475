"""Quantised operators: conversions, and integer products that accumulate in int32.

The sums are exact. Where an ONNX operator has an 8-bit result, its scales are combined into one
float32 factor, a_scale * b_scale / y_scale; each sum is multiplied by it and rounded once.
"""

from __future__ import annotations

from collections.abc import Sequence

from tensorkiln.base.element_types import PRECISIONS
from tensorkiln.frontend.graph.context import Context
from tensorkiln.frontend.graph.issues import malformed, unsupported
from tensorkiln.frontend.graph.values import Val
from tensorkiln.frontend.onnx.dispatch import Int, Ints, Str, Table
from tensorkiln.frontend.onnx.narrow import SCALE, Format, Narrow, decoded, encoded
from tensorkiln.frontend.onnx.ops_window import conv
from tensorkiln.frontend.onnx.tensors import dtype_name, element_type
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
    dimension = g.axis(axis, g.rank(x))
    return g.reshape(v, [g.shape(v)[0] if i == dimension else 1 for i in range(g.rank(x))])


def _require_quantised(dtype: str, choices: tuple[str, ...] = QUANTISED) -> None:
    if dtype not in choices:
        raise unsupported(
            f"quantised type {dtype}", f"supported: {', '.join(choices)}", kind="dtype"
        )


def _spread(g: Context, v: Val, x: Val, axis: int, block: int) -> Val:
    """A parameter so that it broadcasts with `x`: per element of `axis`, or per `block` of them."""
    if not block:
        return _along(g, v, x, axis)
    dimension = g.axis(axis, g.rank(x))
    shape, extent = g.shape(v), g.shape(x)[dimension]
    wide, count = int_value(extent), int_value(shape[dimension]) if g.rank(v) == g.rank(x) else None
    if wide is None or count is None or -(-wide // block) != count or block < 1:
        raise malformed(
            f"block_size={block} for an extent of {extent}: expected a scale for each block, of "
            f"the operand's {g.rank(x)} dimensions"
        )
    column = g.reshape(v, (*shape[: dimension + 1], 1, *shape[dimension + 1 :]))
    many = g.emit(
        "broadcast_to", column, shape=(*shape[: dimension + 1], block, *shape[dimension + 1 :])
    )
    flat = g.reshape(many, (*shape[:dimension], count * block, *shape[dimension + 1 :]))
    begin, final_shape = (0,) * g.rank(x), (*shape[:dimension], extent, *shape[dimension + 1 :])
    if count * block == wide:
        return flat
    return g.emit("slice", flat, begin=begin, strides=(1,) * g.rank(x), shape=final_shape)


def quantize(
    g: Context,
    x: Val,
    scale: Val,
    zero: Val | Narrow | None = None,
    *,
    axis: Int = 1,
    saturate: Int = 1,
    output_dtype: Int = 0,
    block_size: Int = 0,
    precision: Int = 0,
) -> Val | Narrow:
    """saturate(round_half_even(x / scale) + zero), in float32, or of int32, which float32 does not
    hold, in float64; floats are rounded to their type and have no zero point."""
    x, scale = _plain(x, "x"), _plain(scale, "scale")
    if precision and dtype_name(precision, "precision") not in PRECISIONS:
        raise unsupported("precision=float64", "the quotient is computed in float32")
    output_type = element_type(output_dtype, "output_dtype") if output_dtype else "uint8"
    if zero is not None:
        zero_type = zero.format if isinstance(zero, Narrow) else g.dtype(zero)
        if output_dtype and output_type != zero_type:
            raise malformed("output_dtype is not the element type of the zero point")
        output_type = zero_type
    wide_type = "float64" if g.dtype(x) == "int32" else "float32"
    scale = _spread(g, g.cast(g.cast(scale, "float32"), wide_type), x, axis, block_size)
    wide = g.cast(x, wide_type)
    if isinstance(output_type, Format) and (output_type.is_float or output_type is SCALE):
        _require_no_zero(g, zero)
        return encoded(g, g.emit("div", wide, scale), output_type, bool(saturate))
    stored = output_type.row.storage if isinstance(output_type, Format) else output_type
    _require_quantised(stored)
    point = zero.stored if isinstance(zero, Narrow) else zero
    point = g.const(0, stored) if point is None else _spread(g, point, x, axis, block_size)
    if isinstance(output_type, str):
        return g.emit("quantize", wide, scale, point)
    low, high = output_type.row.limits
    whole = g.emit("round", g.emit("div", wide, scale))
    whole = g.emit("add", whole, g.cast(point, wide_type))
    return Narrow(g.cast(g.emit("clip", whole, min=low, max=high), stored), output_type)


def _plain(x: Val | Narrow, subject: str) -> Val:
    if isinstance(x, Narrow):
        raise malformed(
            f"{subject} has element type {x.format.name}, expected a float to compute with"
        )
    return x


def _require_no_zero(g: Context, zero: Val | Narrow | None) -> None:
    """Raise NodeProblem unless the zero point of a quantised float, if given, is 0."""
    if isinstance(zero, Narrow) and g.array(zero.stored, "the zero point of floats").any():
        raise malformed("the zero point of a quantised float is not 0")


def dequantize(
    g: Context,
    x: Val | Narrow,
    scale: Val | Narrow,
    zero: Val | Narrow | None = None,
    *,
    axis: Int = 1,
    block_size: Int = 0,
    output_dtype: Int = 0,
) -> Val:
    """(x - zero) * scale, in float32"""
    if isinstance(zero, Narrow) != isinstance(x, Narrow) and zero is not None:
        raise malformed("x and the zero point have different element types")
    if isinstance(scale, Narrow):
        scale, scale_dtype = decoded(g, scale, "float32"), "float32"
    else:
        scale_dtype = g.dtype(scale)
    result_dtype = dtype_name(output_dtype, "output_dtype") if output_dtype else scale_dtype
    stored = x.stored if isinstance(x, Narrow) else x
    scale = _spread(g, g.cast(scale, "float32"), stored, axis, block_size)
    if isinstance(x, Narrow) and (x.format.is_float or x.format is SCALE):
        _require_no_zero(g, zero)
        return g.cast(g.emit("mul", decoded(g, x, "float32"), scale), result_dtype)
    _require_quantised(g.dtype(stored), (*QUANTISED, "int32"))
    point = zero.stored if isinstance(zero, Narrow) else zero
    if point is None:
        point = g.const(0, g.dtype(stored))
    else:
        point = _spread(g, point, stored, axis, block_size)
    return g.cast(g.emit("dequantize", stored, scale, point), result_dtype)


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
    zero_point = g.emit(
        "round", g.emit("clip", g.emit("div", g.emit("neg", low), scale), min=0.0, max=255.0)
    )
    point = g.cast(zero_point, "uint8")
    codes = quantize(g, x, scale, point)
    assert not isinstance(codes, Narrow)
    return codes, scale, point


TABLE: Table = {
    "QuantizeLinear": {10: quantize},
    "DequantizeLinear": {10: dequantize},
    "DynamicQuantizeLinear": {11: dynamic_quantize},
    "QLinearConv": {10: qlinear_conv},
    "QLinearMatMul": {10: qlinear_matmul},
    "ConvInteger": {10: conv_integer},
    "MatMulInteger": {10: matmul_integer},
}
