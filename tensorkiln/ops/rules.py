"""What type rules and tensor programs share: messages, dtype classes, extents, broadcasting."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from tensorkiln.arith import Bounds, prove_equal, simplify
from tensorkiln.base.errors import UserError
from tensorkiln.ir.dtype import DTYPES, INT32, DType
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
)  # fmt: skip
from tensorkiln.ir.relax import TensorType
from tensorkiln.ir.visit import free_vars
from tensorkiln.ops.attribute import bad_attribute, shown

Shape = tuple[Expr, ...]

# Classes of element types an operand may have; the words appear in error messages.
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


def show(e: ExprLike) -> str:
    """An extent as a person writes it: `4`, `N`, `(N + 1)`."""
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
    """`[1, N, 4]`."""
    return f"[{', '.join(map(show, shape))}]"


def show_type(t: TensorType) -> str:
    """`float32[1, N, 4]`."""
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
    """The one sentence of every type rule: which operand, what was expected, what came."""
    return UserError(
        f"operator {op}: operand {operand!r}: expected {expected}, received {received}",
        code=code,
        hint=hint,
    )


def require_dtype(op: str, operand: str, t: TensorType, kinds: str) -> None:
    """UserError `dtype-mismatch` unless the element type is one of the class `kinds`."""
    if DTYPES[t.dtype.name][0] not in KINDS[kinds]:
        raise mismatch(op, operand, f"a {kinds} element type", str(t.dtype), code="dtype-mismatch")


def require_same_dtype(op: str, names: Sequence[str], types: Sequence[TensorType]) -> DType:
    """The element type all operands share; UserError naming the first one that differs."""
    first = types[0].dtype
    for name, t in zip(names[1:], types[1:], strict=False):
        if t.dtype != first:
            expected = f"{first} like operand {names[0]!r}"
            raise mismatch(
                op, name, expected, str(t.dtype), code="dtype-mismatch", hint="cast one of them"
            )
    return first


def product_dtype(op: str, names: Sequence[str], types: Sequence[TensorType]) -> DType:
    """The element type of sums of products, and of the bias that may be the third operand.

    Floats give their own type, int32 too; uint8 times int8 gives int32, which wraps around.
    """
    left, right = types[0].dtype.name, types[1].dtype.name
    if (left, right) == ("uint8", "int8"):
        for name, t in zip(names[2:], types[2:], strict=False):
            if t.dtype != INT32:
                raise mismatch(
                    op, name, "int32, as of the sums", str(t.dtype), code="dtype-mismatch"
                )
        return INT32
    if left != "int32":
        require_dtype(op, names[0], types[0], FLOAT)
    return require_same_dtype(op, names, types)


def product_array(array: np.ndarray, operands: Sequence[np.ndarray]) -> np.ndarray:
    """One of the operands in the type of their products."""
    return array if operands[0].dtype == operands[1].dtype else array.astype(np.int32)


def require_ndim(op: str, operand: str, t: TensorType, ndim: int, meaning: str = "") -> None:
    """UserError `rank-mismatch` unless the operand has `ndim` dimensions."""
    if t.ndim != ndim:
        words = f"{ndim} dimension(s)" + (f" {meaning}" if meaning else "")
        raise mismatch(op, operand, words, show_type(t), code="rank-mismatch")


def require_shape(op: str, operand: str, t: TensorType, shape: Sequence[Expr], why: str) -> None:
    """UserError unless the operand has exactly this shape."""
    if t.ndim != len(shape) or not all(map(same_extent, t.shape, shape)):
        raise mismatch(op, operand, f"shape {show_shape(shape)} ({why})", show_type(t))


def same_extent(a: ExprLike, b: ExprLike) -> bool:
    """Whether two extents are known to be equal. Their symbols are sizes, 1 or more: no graph
    function runs with less."""
    x, y = int_value(a), int_value(b)
    if x is not None and y is not None:
        return x == y
    a, b = as_expr(a), as_expr(b)
    return a == b or prove_equal(a, b, Bounds.dims((*free_vars(a), *free_vars(b)), least=1))


def extents(values: Iterable[ExprLike]) -> Shape:
    """An attribute that is a shape, as expressions."""
    return tuple(map(as_expr, values))


def require_value(op: str, attr: str, value: ExprLike | bool, dtype: DType) -> None:
    """UserError `bad-attribute` unless elements of `dtype` can be this number."""
    if isinstance(value, Expr) or dtype.is_float:
        return
    low, high = (0, 1) if dtype.is_bool else (0, (1 << dtype.bits) - 1)
    if not dtype.is_bool and not dtype.is_unsigned:
        low, high = -(1 << dtype.bits - 1), (1 << dtype.bits - 1) - 1
    if not (low <= value <= high and value == int(value)):
        raise bad_attribute(op, attr, f"a whole number from {low} to {high} for {dtype}", value)


def product(shape: Iterable[Expr]) -> Expr:
    """How many elements a shape has."""
    total: Expr = IntImm(1)
    for d in shape:
        total = total * d
    return simplify(total)


def normal_axis(op: str, axis: int, ndim: int, attr: str = "axis") -> int:
    """A possibly negative axis as 0 .. ndim-1."""
    if not -ndim <= axis < ndim:
        expected = f"an axis from {-ndim} to {ndim - 1}" if ndim else "no axis (rank 0)"
        raise bad_attribute(op, attr, expected, shown(axis))
    return axis % ndim


def normal_axes(op: str, axes: Sequence[int], ndim: int, attr: str = "axes") -> tuple[int, ...]:
    """Possibly negative, distinct axes as 0 .. ndim-1, in increasing order."""
    found = [normal_axis(op, a, ndim, attr) for a in axes]
    if len(set(found)) != len(found):
        raise bad_attribute(op, attr, "distinct axes", shown(axes))
    return tuple(sorted(found))


def broadcast_shapes(op: str, names: Sequence[str], shapes: Sequence[Shape]) -> Shape:
    """NumPy broadcasting. A symbolic extent only meets 1 or an extent proved equal to it."""
    result: list[Expr] = []
    owner: list[str] = []
    for name, shape in zip(names, shapes, strict=True):
        grow = len(shape) - len(result)
        result = [as_expr(1)] * grow + result
        owner = [name] * grow + owner
        for k in range(len(shape)):
            at = len(result) - len(shape) + k
            have, new = result[at], shape[k]
            if int_value(new) == 1 or (int_value(have) != 1 and same_extent(have, new)):
                continue
            if int_value(have) != 1:
                expected = f"an extent of {show(have)} (as in {owner[at]!r}) or 1 in dimension {k}"
                raise mismatch(op, name, expected, show_shape(shape))
            result[at], owner[at] = new, name
    return tuple(result)


def broadcast_index(shape: Shape, index: Sequence[Expr]) -> tuple[Expr, ...]:
    """Where an operand of `shape` is read for an output index of the broadcast shape."""
    tail = index[len(index) - len(shape) :]
    return tuple(IntImm(0) if int_value(n) == 1 else i for n, i in zip(shape, tail, strict=True))


def clamp(i: Expr, extent: ExprLike) -> Expr:
    """The nearest index inside 0 .. extent-1 (0 when the extent is 0)."""
    return maximum(minimum(i, as_expr(extent) - 1), 0)


def inside(i: Expr, extent: ExprLike) -> Expr:
    """0 <= i < extent."""
    return binary("and", i >= 0, i < extent)
