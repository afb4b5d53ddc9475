"""Affine quantization to 8 or 16 bits: the integer q stands for the number (q - zero) * scale.

    quantize(x, scale, zero)      saturate(round_half_even(x / scale) + zero), in the type of zero
    dequantize(q, scale, zero)    (q - zero) * scale, in the type of scale

Scale and zero broadcast to the data: they are one number each, or one per channel, with extents 1
in the other dimensions. As in ONNX's QuantizeLinear and DequantizeLinear, every step is rounded to
the float type by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from tensorkiln.ir.attrs import Attrs
from tensorkiln.ir.dtype import DType
from tensorkiln.ir.expr import (
    Binary,
    Cast,
    Expr,
    FloatImm,
    IntImm,
    Unary,
    cast,
    const,
    intrin,
    maximum,
    minimum,
    select,
    unary,
)
from tensorkiln.ir.relax import TensorType
from tensorkiln.ops.broadcast import elementwise_program
from tensorkiln.ops.elementwise import cast_array
from tensorkiln.ops.op import OpDef, Operands
from tensorkiln.ops.rules import (
    INTEGER,
    broadcast_shapes,
    mismatch,
    require_dtype,
    require_same_dtype,
    same_extent,
    show_shape,
    show_type,
)

_NAMES = ("x", "scale", "zero")
QUANTISED = ("uint8", "int8", "uint16", "int16")
_FLOATS = ("float32", "float64")
# Further types that dequantize accepts: those of integer sums and biases.
_WIDE = ("int32",)


def _require_broadcast(op: str, types: Operands) -> None:
    """Raise UserError unless scale and zero broadcast to the shape of the data."""
    for name, t in zip(_NAMES[1:], types[1:], strict=True):
        shape = broadcast_shapes(op, ("x", name), [types[0].shape, t.shape])
        fits = len(shape) == types[0].ndim and all(map(same_extent, shape, types[0].shape))
        if not fits:
            expected = f"a shape that broadcasts to {show_shape(types[0].shape)}"
            raise mismatch(op, name, expected, show_type(t))


def _require_one_of(op: str, operand: str, t: TensorType, names: Sequence[str]) -> None:
    if t.dtype.name not in names:
        expected = f"an element type of {', '.join(names)}"
        raise mismatch(op, operand, expected, str(t.dtype), code="dtype-mismatch")


def _infer_quantize(types: Operands, a: Attrs) -> TensorType:
    _require_one_of("quantize", "x", types[0], _FLOATS)
    require_same_dtype("quantize", _NAMES[:2], types[:2])
    _require_one_of("quantize", "zero", types[2], QUANTISED)
    _require_broadcast("quantize", types)
    return TensorType(types[0].shape, types[2].dtype)


def _quantize(xs: Sequence[Expr], a: Attrs) -> Expr:
    x, scale, zero = xs
    if not (isinstance(scale, FloatImm) and scale.value == 1):
        x = x / scale
    x = unary("round", x)
    if not (isinstance(zero, IntImm) and zero.value == 0):
        x = x + cast(zero, x.dtype)
    return cast(x, zero.dtype)  # a cast from float to integer saturates


def _np_quantize(arrays: Sequence[np.ndarray], a: Attrs) -> np.ndarray:
    x, scale, zero = arrays
    with np.errstate(all="ignore"):
        whole = np.rint(x / scale) + zero.astype(x.dtype)
    return cast_array(np.asarray(whole), str(zero.dtype))


def _infer_dequantize(types: Operands, a: Attrs) -> TensorType:
    require_dtype("dequantize", "x", types[0], INTEGER)
    _require_one_of("dequantize", "x", types[0], (*QUANTISED, *_WIDE))
    _require_one_of("dequantize", "scale", types[1], _FLOATS)
    require_same_dtype("dequantize", ("x", "zero"), (types[0], types[2]))
    _require_broadcast("dequantize", types)
    return TensorType(types[0].shape, types[1].dtype)


def _dequantize(xs: Sequence[Expr], a: Attrs) -> Expr:
    x, scale, zero = xs
    whole = _before_cast(x)
    value = cast(x, scale.dtype) if whole is None else _saturated(whole, x.dtype)
    if not (isinstance(zero, IntImm) and zero.value == 0):
        value = value - cast(zero, scale.dtype)
    return value * scale


def _before_cast(x: Expr) -> Expr | None:
    """Return the rounded float that `x` casts to an integer, if `x` is an expression as `_quantize`
    makes it, else None."""
    if not isinstance(x, Cast) or not x.a.dtype.is_float:
        return None
    rounded = x.a.a if isinstance(x.a, Binary) and x.a.op == "add" else x.a
    return x.a if isinstance(rounded, Unary) and rounded.op == "round" else None


def _saturated(whole: Expr, dtype: DType) -> Expr:
    """Return `whole` clamped to the range of the integer type `dtype`, with 0 for NaN: the value of
    a cast to `dtype` and back, computed in float alone."""
    low = 0 if dtype.is_unsigned else -(1 << dtype.bits - 1)
    high = low + (1 << dtype.bits) - 1
    if low:
        whole = select(intrin("isnan", whole), const(0, whole.dtype), whole)
    return minimum(maximum(whole, const(low, whole.dtype)), const(high, whole.dtype))


def _np_dequantize(arrays: Sequence[np.ndarray], a: Attrs) -> np.ndarray:
    x, scale, zero = arrays
    return np.asarray((x.astype(scale.dtype) - zero.astype(scale.dtype)) * scale)


def _op(
    name: str,
    infer: Callable[[Operands, Attrs], TensorType],
    numpy: Callable[[Sequence[np.ndarray], Attrs], np.ndarray],
    formula: Callable[[Sequence[Expr], Attrs], Expr],
) -> OpDef:
    return OpDef(name, _NAMES, {}, "broadcast", infer, numpy, elementwise_program(formula))


QUANTISE: dict[str, OpDef] = {
    "quantize": _op("quantize", _infer_quantize, _np_quantize, _quantize),
    "dequantize": _op("dequantize", _infer_dequantize, _np_dequantize, _dequantize),
}
