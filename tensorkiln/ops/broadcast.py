"""Operators of several inputs that follow NumPy's broadcasting.

Integers: `div` truncates towards zero, and x / 0 is 0. The result of `mod` has the sign of the
divisor (with `fmod=1`, that of the dividend), and x mod 0 is 0. `pow` is computed in float64 and
converted back. No result is specified for a divisor that is the most negative value of its type.
`minimum` and `maximum` return NaN when either operand is NaN, as in ONNX Runtime. `right_shift`
shifts in the sign. A shift by the type's width or more, or by less than 0, gives 0, or -1 for
`right_shift` of a negative number.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from tensorkiln.ir.attrs import Attrs
from tensorkiln.ir.dtype import BOOL, DType
from tensorkiln.ir.expr import Expr, FloatImm, binary, cast, const, intrin, select
from tensorkiln.ir.relax import TensorType
from tensorkiln.ops.attribute import Attribute, choice
from tensorkiln.ops.elementwise import cast_array
from tensorkiln.ops.op import Element, OpDef, Operands, TensorIn
from tensorkiln.ops.rules import (
    ANY,
    BOOLEAN,
    INTEGER,
    NUMERIC,
    broadcast_index,
    broadcast_shapes,
    mismatch,
    require_dtype,
    require_same_dtype,
)

Formula = Callable[..., Expr]
Reference = Callable[..., np.ndarray]


def elementwise_program(formula: Callable[[Sequence[Expr], Attrs], Expr]) -> Callable[..., Element]:
    """Return a program whose output element is `formula(elements, attrs)`, where `elements` holds
    the element of each operand at the broadcast index."""

    def program(ins: Sequence[TensorIn], a: Attrs, out: TensorType) -> Element:
        def element(*index: Expr) -> Expr:
            return formula([x(*broadcast_index(x.type.shape, index)) for x in ins], a)

        return element

    return program


def _binary(
    name: str,
    kinds: str,
    formula: Formula,
    reference: Reference,
    *,
    result: DType | None = None,
    check: Callable[[DType, Attrs], None] | None = None,
    **attrs: Attribute,
) -> OpDef:
    def infer(types: Operands, a: Attrs) -> TensorType:
        for operand, t in zip("ab", types, strict=True):
            require_dtype(name, operand, t, kinds)
        dtype = require_same_dtype(name, "ab", types)
        if check is not None:
            check(dtype, a)
        shape = broadcast_shapes(name, "ab", [t.shape for t in types])
        return TensorType(shape, result or dtype)

    def numpy(arrays: Sequence[np.ndarray], a: Attrs) -> np.ndarray:
        with np.errstate(all="ignore"):
            return np.asarray(reference(*arrays, a))

    program = elementwise_program(lambda xs, a: formula(*xs, a))
    return OpDef(name, ("a", "b"), attrs, "broadcast", infer, numpy, program)


def _plain_formula(op: str) -> Formula:
    return lambda x, y, a: binary(op, x, y)


def _ufunc(f: Callable[..., np.ndarray]) -> Reference:
    return lambda x, y, a: f(x, y)


def _mod(x: Expr, y: Expr, a: Attrs) -> Expr:
    if x.dtype.is_float:
        return intrin("fmod", x, y)
    if not a.fmod:
        return x % y
    zero = const(0, y.dtype)
    return select(binary("eq", y, zero), zero, x - x / y * y)


def _check_mod(dtype: DType, a: Attrs) -> None:
    if dtype.is_float and not a.fmod:
        raise mismatch(
            "mod",
            "a",
            "an integer element type when fmod=0",
            str(dtype),
            code="dtype-mismatch",
            hint="fmod=1 takes floats",
        )


def _pow(x: Expr, y: Expr, a: Attrs) -> Expr:
    if not x.dtype.is_float:
        return cast(intrin("pow", cast(x, "float64"), cast(y, "float64")), x.dtype)
    if isinstance(y, FloatImm) and y.value in (1.0, 2.0, 3.0):
        return {1.0: x, 2.0: x * x, 3.0: x * x * x}[y.value]
    return intrin("pow", x, y)


def extreme(op: str) -> Formula:
    """Return what `minimum` or `maximum` computes, for op "min" or "max"."""

    def formula(x: Expr, y: Expr, a: Attrs) -> Expr:
        if not x.dtype.is_float:
            return binary(op, x, y)
        # The IR's `max(x, y)` is y when either is NaN, so only a NaN in x needs a select. Where one
        # operand is a literal other than NaN, it goes first and no select is needed.
        for literal, data in ((x, y), (y, x)):
            if isinstance(literal, FloatImm) and literal.value == literal.value:
                return binary(op, literal, data)
        return select(intrin("isnan", x), x, binary(op, x, y))

    return formula


def _np_div(x: np.ndarray, y: np.ndarray, a: Attrs) -> np.ndarray:
    if x.dtype.kind == "f":
        return np.asarray(x / y)
    safe = np.where(y == 0, 1, y).astype(x.dtype)
    q = x // safe
    inexact = (x - q * safe != 0) & ((x < 0) != (safe < 0))
    return np.where(y == 0, 0, q + inexact).astype(x.dtype)


def _np_mod(x: np.ndarray, y: np.ndarray, a: Attrs) -> np.ndarray:
    return np.asarray(np.fmod(x, y) if a.fmod else np.mod(x, y))


def _np_pow(x: np.ndarray, y: np.ndarray, a: Attrs) -> np.ndarray:
    if x.dtype.kind == "f":
        return np.asarray(np.power(x, y))
    return cast_array(np.power(x.astype(np.float64), y.astype(np.float64)), str(x.dtype))


def _np_shift(shift: Callable[..., np.ndarray]) -> Reference:
    """A shift in two steps of half the width or less, since NumPy leaves larger ones open."""

    def reference(x: np.ndarray, y: np.ndarray, a: Attrs) -> np.ndarray:
        width = x.dtype.itemsize * 8
        steps = np.where((y < 0) | (y >= width), width, y)
        first = (steps // 2).astype(x.dtype)
        return np.asarray(shift(shift(x, first), steps.astype(x.dtype) - first))

    return reference


def _infer_where(types: Operands, a: Attrs) -> TensorType:
    require_dtype("where", "cond", types[0], BOOLEAN)
    dtype = require_same_dtype("where", "ab", types[1:])
    shapes = [t.shape for t in types]
    return TensorType(broadcast_shapes("where", ("cond", "a", "b"), shapes), dtype)


_ALL = (
    _binary("add", NUMERIC, _plain_formula("add"), _ufunc(np.add)),
    _binary("sub", NUMERIC, _plain_formula("sub"), _ufunc(np.subtract)),
    _binary("mul", NUMERIC, _plain_formula("mul"), _ufunc(np.multiply)),
    _binary("div", NUMERIC, _plain_formula("div"), _np_div),
    _binary("mod", NUMERIC, _mod, _np_mod, check=_check_mod, fmod=choice(0, 1, default=0)),
    _binary("pow", NUMERIC, _pow, _np_pow),
    _binary("minimum", NUMERIC, extreme("min"), _ufunc(np.minimum)),
    _binary("maximum", NUMERIC, extreme("max"), _ufunc(np.maximum)),
    _binary("equal", ANY, _plain_formula("eq"), _ufunc(np.equal), result=BOOL),
    _binary("not_equal", ANY, _plain_formula("ne"), _ufunc(np.not_equal), result=BOOL),
    _binary("less", NUMERIC, _plain_formula("lt"), _ufunc(np.less), result=BOOL),
    _binary("less_equal", NUMERIC, _plain_formula("le"), _ufunc(np.less_equal), result=BOOL),
    _binary("greater", NUMERIC, _plain_formula("gt"), _ufunc(np.greater), result=BOOL),
    _binary("greater_equal", NUMERIC, _plain_formula("ge"), _ufunc(np.greater_equal), result=BOOL),
    _binary("logical_and", BOOLEAN, _plain_formula("and"), _ufunc(np.logical_and)),
    _binary("logical_or", BOOLEAN, _plain_formula("or"), _ufunc(np.logical_or)),
    _binary("logical_xor", BOOLEAN, _plain_formula("ne"), _ufunc(np.logical_xor)),
    _binary("bitwise_and", INTEGER, _plain_formula("bitand"), _ufunc(np.bitwise_and)),
    _binary("bitwise_or", INTEGER, _plain_formula("bitor"), _ufunc(np.bitwise_or)),
    _binary("bitwise_xor", INTEGER, _plain_formula("bitxor"), _ufunc(np.bitwise_xor)),
    _binary("left_shift", INTEGER, _plain_formula("shl"), _np_shift(np.left_shift)),
    _binary("right_shift", INTEGER, _plain_formula("shr"), _np_shift(np.right_shift)),
    OpDef(
        "where",
        ("cond", "a", "b"),
        {},
        "broadcast",
        _infer_where,
        lambda arrays, a: np.where(*arrays),
        elementwise_program(lambda xs, a: select(*xs)),
    ),
)

BROADCAST: dict[str, OpDef] = {op.name: op for op in _ALL}
