"""Helpers of type rules and tensor programs: errors, dtype classes, extents, broadcasting."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from tensorkiln.arith import Bounds, prove_equal, simplify
from tensorkiln.base.element_types import HALF_TYPES
from tensorkiln.base.errors import UserError
from tensorkiln.ir.attrs import Attrs
from tensorkiln.ir.dtype import FLOAT32, INT8, INT32, UINT8, DType
from tensorkiln.ir.expr import (
    BINARY,
    Binary,
    Expr,
    ExprLike,
    IntImm,
    Unary,
    Var,
    as_expr,
    binary,
    int_value,
    maximum,
    minimum,
)
from tensorkiln.ir.relax import TensorType
from tensorkiln.ir.visit import free_vars, walk
from tensorkiln.ops.attribute import ADDRESSES, bad_attribute, shown

Shape = tuple[Expr, ...]

# Classes of element types that an operand may have; the values appear in error messages.
FLOAT = "float"
INTEGER = "integer"
SIGNED = "signed numeric"
NUMERIC = "numeric"
BOOLEAN = "bool"
ANY = "any"
KINDS: dict[str, frozenset[str]] = {
    FLOAT: frozenset({"float"}),
    INTEGER: frozenset({"int", "uint"}),
    SIGNED: frozenset({"float", "int"}),
    NUMERIC: frozenset({"float", "int", "uint"}),
    BOOLEAN: frozenset({"bool"}),
    ANY: frozenset({"float", "int", "uint", "bool"}),
}
_WIDE = "wide=True multiplies floats of 16 bits and sums them in float32"


def show(e: ExprLike) -> str:
    """Return an extent as text: `4`, `N`, `(N + 1)`. Expressions that are not arithmetic on
    variables and numbers are shown as the name of their class."""
    if not isinstance(e, Expr):
        return str(e)
    if isinstance(e, IntImm):
        return str(e.value)
    if isinstance(e, Var):
        return e.name
    if isinstance(e, Binary):
        word = BINARY[e.op][0]
        a, b = show(e.a), show(e.b)
        return f"({a} {word} {b})" if word else f"{e.op}({a}, {b})"
    if isinstance(e, Unary):
        return f"{e.op}({show(e.a)})"
    return type(e).__name__


def show_shape(shape: Iterable[ExprLike]) -> str:
    """Return a shape as text, e.g. `[1, N, 4]`."""
    return f"[{', '.join(map(show, shape))}]"


def show_type(t: TensorType) -> str:
    """Return a tensor type as text, e.g. `float32[1, N, 4]`; its layout is not shown."""
    return f"{t.dtype}{show_shape(t.shape)}"


def mismatch(
    op: str,
    operand: str,
    expected: str,
    received: str,
    *,
    code: str = "shape-mismatch",
    hint: str = "",
) -> UserError:
    """Return the UserError of type rules: which operand, what was expected, what was received."""
    return UserError(
        f"operator {op}: operand {operand!r}: expected {expected}, received {received}",
        code=code,
        hint=hint,
    )


def require_dtype(op: str, operand: str, t: TensorType, kinds: str) -> None:
    """Raise UserError `dtype-mismatch` unless the element type is in the class `kinds`, a key of
    `KINDS`."""
    if t.dtype.row.kind not in KINDS[kinds]:
        raise mismatch(op, operand, f"a {kinds} element type", str(t.dtype), code="dtype-mismatch")


def require_same_dtype(op: str, names: Sequence[str], types: Sequence[TensorType]) -> DType:
    """Return the element type that all operands share; raise UserError `dtype-mismatch`, naming the
    first operand that differs from operand 0."""
    first = types[0].dtype
    for name, t in zip(names[1:], types[1:], strict=False):
        if t.dtype != first:
            expected = f"{first} like operand {names[0]!r}"
            raise mismatch(
                op, name, expected, str(t.dtype), code="dtype-mismatch", hint="cast one of them"
            )
    return first


def product_dtype(
    op: str, names: Sequence[str], types: Sequence[TensorType], wide: bool = False
) -> DType:
    """Return the element type of sums of products, for operands (data, weights, bias?).

    All operands are of the same float type, or all int32, which is then the result's type; or
    data is uint8, weights int8, and bias and result int32. int32 sums wrap around. If they are
    `wide`, weights are floats of 16 bits, data is of their type or float32, and bias and result are
    float32. Raise UserError `dtype-mismatch` for other combinations.
    """
    x_type, w_type = types[0].dtype, types[1].dtype
    if wide:
        descriptions = [f"{w_type} or float32", " or ".join(HALF_TYPES), FLOAT32.name]
        type_sets = [(w_type.name, FLOAT32.name), HALF_TYPES, (FLOAT32.name,)]
        for name, t, expected, allowed in zip(names, types, descriptions, type_sets, strict=False):
            if t.dtype.name not in allowed:
                raise mismatch(op, name, expected, str(t.dtype), code="dtype-mismatch", hint=_WIDE)
        return FLOAT32
    if (x_type, w_type) == (UINT8, INT8):
        for name, t in zip(names[2:], types[2:], strict=False):
            if t.dtype != INT32:
                raise mismatch(
                    op, name, "int32, as of the sums", str(t.dtype), code="dtype-mismatch"
                )
        return INT32
    if x_type != INT32:
        require_dtype(op, names[0], types[0], FLOAT)
    return require_same_dtype(op, names, types)


def require_small_weights(op: str, types: Sequence[TensorType], a: Attrs) -> None:
    """Check the attribute `small_weights` of a product, which says that its weights are int8 of at
    most 64 in magnitude: two of their products with uint8 add up to 16 bits. Raise UserError
    `bad-attribute` for other types."""
    pair = types[0].dtype, types[1].dtype
    if a.get("small_weights") and pair != (UINT8, INT8):
        expected = f"False for {pair[0]} by {pair[1]}, True for uint8 by int8"
        raise bad_attribute(op, "small_weights", expected, "True")


def product_array(array: np.ndarray, operands: Sequence[np.ndarray]) -> np.ndarray:
    """Return `array`, one of `operands`, converted to the type of their products."""
    if operands[0].dtype == operands[1].dtype:
        return array
    return array.astype(np.int32 if operands[0].dtype.kind in "iu" else np.float32)


def require_ndim(op: str, operand: str, t: TensorType, ndim: int, meaning: str = "") -> None:
    """Raise UserError `rank-mismatch` unless the operand has `ndim` dimensions; `meaning` is what
    they are, for the message, e.g. "(NCHW)"."""
    if t.ndim != ndim:
        words = f"{ndim} dimension(s)" + (f" {meaning}" if meaning else "")
        raise mismatch(op, operand, words, show_type(t), code="rank-mismatch")


def require_shape(op: str, operand: str, t: TensorType, shape: Sequence[Expr], reason: str) -> None:
    """Raise UserError `shape-mismatch` unless the operand provably has this shape; `reason` goes
    into the message."""
    if t.ndim != len(shape) or not all(map(same_extent, t.shape, shape)):
        raise mismatch(op, operand, f"shape {show_shape(shape)} ({reason})", show_type(t))


def same_extent(a: ExprLike, b: ExprLike) -> bool:
    """Whether two extents are provably equal for all sizes, 0 included."""
    x, y = int_value(a), int_value(b)
    if x is not None and y is not None:
        return x == y
    a, b = as_expr(a), as_expr(b)
    return a == b or prove_equal(a, b, Bounds.dims((*free_vars(a), *free_vars(b))))


def extents(values: Iterable[ExprLike]) -> Shape:
    """Return the value of a shape attribute, ints and expressions, as expressions."""
    return tuple(map(as_expr, values))


def require_int64(shape: Shape) -> None:
    """Raise UserError (code `too-large`) for a symbolic extent with a factor beyond int64."""
    for extent in shape:
        for x in () if isinstance(extent, IntImm | Var) else walk(extent):
            if isinstance(x, IntImm) and not -(1 << 63) <= x.value < 1 << 63:
                raise UserError(
                    f"an extent has the factor {x.value}, which does not fit int64",
                    code="too-large",
                )


def require_addressable(op: str, noun: str, sizes: Iterable[Expr | int]) -> None:
    """Raise UserError (code `too-large`) for a size that no process can address. Sums of others,
    and their products where one is small, fit int64."""
    for size in sizes:
        number = int_value(size)
        if number is not None and abs(number) > ADDRESSES:
            raise UserError(
                f"operator {op}: {noun} {number} is more than can be addressed, 2^47 bytes",
                code="too-large",
            )


def require_value(op: str, attr: str, value: ExprLike | bool, dtype: DType) -> None:
    """Raise UserError `bad-attribute` unless `value` is in the range of `dtype`, and whole if
    `dtype` is not a float. Float dtypes and symbolic values are not checked."""
    if isinstance(value, Expr) or dtype.is_float:
        return
    low, high = (0, 1) if dtype.is_bool else (0, (1 << dtype.bits) - 1)
    if not dtype.is_bool and not dtype.is_unsigned:
        low, high = -(1 << dtype.bits - 1), (1 << dtype.bits - 1) - 1
    if not (low <= value <= high and value == int(value)):
        raise bad_attribute(op, attr, f"a whole number from {low} to {high} for {dtype}", value)


def product(shape: Iterable[Expr]) -> Expr:
    """Return the number of elements of a shape, simplified; 1 for rank 0."""
    total: Expr = IntImm(1)
    for d in shape:
        total = total * d
    return simplify(total)


def normal_axis(op: str, axis: int, ndim: int, attr: str = "axis") -> int:
    """Return an axis, which may be negative, as 0 .. ndim-1; raise UserError `bad-attribute` if it
    is out of range."""
    if not -ndim <= axis < ndim:
        expected = f"an axis from {-ndim} to {ndim - 1}" if ndim else "no axis (rank 0)"
        raise bad_attribute(op, attr, expected, shown(axis))
    return axis % ndim


def normal_axes(op: str, axes: Sequence[int], ndim: int, attr: str = "axes") -> tuple[int, ...]:
    """Return axes, which may be negative, as 0 .. ndim-1 in increasing order; raise UserError
    `bad-attribute` if one is out of range or given twice."""
    numbers = [normal_axis(op, a, ndim, attr) for a in axes]
    if len(set(numbers)) != len(numbers):
        raise bad_attribute(op, attr, "distinct axes", shown(axes))
    return tuple(sorted(numbers))


def broadcast_shapes(op: str, names: Sequence[str], shapes: Sequence[Shape]) -> Shape:
    """Return the broadcast shape by NumPy's rules; raise UserError `shape-mismatch` if there is
    none. A symbolic extent broadcasts only with 1 or an extent provably equal to it."""
    result: list[Expr] = []
    owner: list[str] = []
    for name, shape in zip(names, shapes, strict=True):
        grow = len(shape) - len(result)
        result = [as_expr(1)] * grow + result
        owner = [name] * grow + owner
        for k in range(len(shape)):
            position = len(result) - len(shape) + k
            have, new = result[position], shape[k]
            if int_value(new) == 1 or (int_value(have) != 1 and same_extent(have, new)):
                continue
            if int_value(have) != 1:
                expected = (
                    f"an extent of {show(have)} (as in {owner[position]!r}) or 1 in dimension {k}"
                )
                raise mismatch(op, name, expected, show_shape(shape))
            result[position], owner[position] = new, name
    return tuple(result)


def broadcast_index(shape: Shape, index: Sequence[Expr]) -> tuple[Expr, ...]:
    """Return the index at which an operand of `shape` is read for the output element `index`."""
    tail = index[len(index) - len(shape) :]
    return tuple(IntImm(0) if int_value(n) == 1 else i for n, i in zip(shape, tail, strict=True))


def clamp(i: Expr, extent: ExprLike) -> Expr:
    """Return i clamped to 0 .. extent-1; 0 if the extent is 0."""
    return maximum(minimum(i, as_expr(extent) - 1), 0)


def inside(i: Expr, extent: ExprLike) -> Expr:
    """Return the condition 0 <= i < extent."""
    return binary("and", i >= 0, i < extent)
