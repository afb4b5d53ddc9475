"""Operators of one input where out[i] depends on in[i] alone.

NaN gives NaN wherever the result is a float, as in ONNX Runtime. So where a program uses `max` or
`min` with a literal, the data is the second operand: the IR's `max(a, b)` is `b` if either is NaN.

`gelu` of minus infinity is its limit 0, to within 3e-37 (float64: 2e-306), as of any x below -12.9
(-37.5), though its formula has NaN there; its tanh form, `silu` and the others have what their
formulas give.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tensorkiln.ir.attrs import Attrs
from tensorkiln.ir.dtype import BOOL, DType
from tensorkiln.ir.expr import (
    Expr,
    FloatImm,
    binary,
    cast,
    const,
    intrin,
    maximum,
    minimum,
    select,
    unary,
)
from tensorkiln.ir.relax import TensorType
from tensorkiln.ops.attribute import Attribute, bound, choice, number
from tensorkiln.ops.attribute import dtype as dtype_attribute
from tensorkiln.ops.op import Element, OpDef, Operands, TensorIn
from tensorkiln.ops.rules import (
    ANY,
    BOOLEAN,
    FLOAT,
    INTEGER,
    NUMERIC,
    SIGNED,
    mismatch,
    require_dtype,
    require_value,
)

Formula = Callable[[Expr, Attrs], Expr]
# Any: NumPy's stubs type arithmetic of arrays with Python numbers as `Any`.
Reference = Callable[[np.ndarray, Attrs], Any]
Check = Callable[[TensorType, Attrs], None]

# The tanh form of gelu, x / 2 * (1 + tanh(u)) with u = sqrt(2 / pi) * (x + 0.044715 * x**3), equals
# x * sigmoid(2 * u): these are the coefficients of x and x**3 in 2 * u.
_TANH_GELU = (2 * math.sqrt(2 / math.pi), 2 * math.sqrt(2 / math.pi) * 0.044715)


def _unary(
    name: str,
    kinds: str,
    formula: Formula,
    reference: Reference,
    *,
    result: DType | None = None,
    check: Check | None = None,
    **attrs: Attribute,
) -> OpDef:
    """Return an operator whose result has the operand's shape, and its dtype unless `result` is
    given. `kinds` is the class of accepted dtypes; `check` may refuse more."""

    def infer(types: Operands, a: Attrs) -> TensorType:
        require_dtype(name, "x", types[0], kinds)
        if check is not None:
            check(types[0], a)
        return TensorType(types[0].shape, result or types[0].dtype)

    def program(ins: Sequence[TensorIn], a: Attrs, out: TensorType) -> Element:
        return lambda *index: formula(ins[0](*index), a)

    def numpy(arrays: Sequence[np.ndarray], a: Attrs) -> np.ndarray:
        with np.errstate(all="ignore"):
            return np.asarray(reference(arrays[0], a))

    return OpDef(name, ("x",), attrs, "elementwise", infer, numpy, program)


def _intrin(name: str) -> Formula:
    return lambda x, a: intrin(name, x)


def _plain(name: str) -> Formula:
    return lambda x, a: unary(name, x)


def _abs(x: Expr, a: Attrs) -> Expr:
    return x if x.dtype.is_unsigned else unary("abs", x)


def _ones(dtype: DType) -> int:
    """The number all of whose bits are set."""
    return (1 << dtype.bits) - 1 if dtype.is_unsigned else -1


def _relu(x: Expr, a: Attrs) -> Expr:
    return maximum(const(0, x.dtype), x)


def _sign(x: Expr, a: Attrs) -> Expr:
    zero = const(0, x.dtype)
    negative = select(x < zero, const(-1, x.dtype), x) if not x.dtype.is_unsigned else x
    return select(x > zero, const(1, x.dtype), negative)


def _gelu(x: Expr, a: Attrs) -> Expr:
    if a.approximate == "none":
        return intrin("gelu", x)
    linear, cubic = _TANH_GELU
    return x * intrin("sigmoid", x * (x * x * cubic + linear))


def _leaky_relu(x: Expr, a: Attrs) -> Expr:
    return select(x < const(0, x.dtype), x * a.alpha, x)


def _elu(x: Expr, a: Attrs) -> Expr:
    # Both sides of a select are evaluated: for large x, exp(x) would overflow, and exp(min(0, x))
    # does not.
    low = intrin("exp", minimum(const(0, x.dtype), x)) - 1.0
    return select(x > const(0, x.dtype), x, low * a.alpha)


def _hard_sigmoid(x: Expr, alpha: float, beta: float) -> Expr:
    return maximum(const(0, x.dtype), minimum(const(1, x.dtype), x * alpha + beta))


def _softplus(x: Expr, a: Attrs) -> Expr:
    # max(x, 0) + log(1 + exp(-|x|)) never overflows.
    return maximum(const(0, x.dtype), x) + intrin("log", intrin("exp", -unary("abs", x)) + 1.0)


def _clip(x: Expr, a: Attrs) -> Expr:
    low, high = a.min, a.max
    if low is not None:
        x = maximum(const(low, x.dtype), x)
    return x if high is None else minimum(const(high, x.dtype), x)


def _check_clip(t: TensorType, a: Attrs) -> None:
    for key in ("min", "max"):
        limit = a[key]
        if limit is not None:
            require_value("clip", key, limit, t.dtype)


def _cast_program(ins: Sequence[TensorIn], a: Attrs, out: TensorType) -> Element:
    def element(*index: Expr) -> Expr:
        x = ins[0](*index)
        if out.dtype.is_bool and not x.dtype.is_bool:
            return binary("ne", x, const(0, x.dtype))
        if isinstance(x, FloatImm) and out.dtype.is_float:
            return FloatImm(x.value, out.dtype)
        return cast(x, out.dtype)

    return element


def _bitcast(x: Expr, to: DType) -> Expr:
    """The bits of `x`, of the same width, as the type `to`."""
    if x.dtype.is_float == to.is_float:
        return cast(x, to)  # integers keep their bits; floats are of the same type
    if to.is_float:
        return intrin(f"bitcast_f{to.bits}", cast(x, f"int{to.bits}"))
    return cast(intrin(f"bitcast_i{to.bits}", x), to)


def _bitcast_program(ins: Sequence[TensorIn], a: Attrs, out: TensorType) -> Element:
    return lambda *index: _bitcast(ins[0](*index), out.dtype)


def _infer_bitcast(types: Operands, a: Attrs) -> TensorType:
    old, new = types[0].dtype, DType(a.dtype)
    widths = [8 if t.is_bool else t.bits for t in (old, new)]
    if widths[0] != widths[1]:
        expected = f"an element type of {widths[1]} bits, as {new} has"
        raise mismatch("bitcast", "x", expected, str(old), code="dtype-mismatch")
    if new.is_bool and not old.is_bool:
        raise mismatch(
            "bitcast", "x", "bool, since other bits may be no bool", str(old), code="dtype-mismatch"
        )
    if old != new and (old.is_float or new.is_float) and widths[0] == 16:
        raise mismatch(
            "bitcast",
            "x",
            f"{new}, since bits of floats are had of float32 and float64 only",
            str(old),
            code="dtype-mismatch",
        )
    return TensorType(types[0].shape, new)


def _infer_cast(types: Operands, a: Attrs) -> TensorType:
    return TensorType(types[0].shape, DType(a.dtype))


# --- NumPy meaning -----------------------------------------------------------------------------

_ERF = np.vectorize(math.erf, otypes=[np.float64])
_ERFC = np.vectorize(math.erfc, otypes=[np.float64])


def cast_array(x: np.ndarray, dtype: str) -> np.ndarray:
    """Return `x` converted as the `cast` operator does: float to integer truncates towards zero and
    saturates, with 0 for NaN; integer to integer wraps; to bool is `x != 0`."""
    target = np.dtype(dtype)
    if target.kind == "b":
        return np.asarray(x != 0)
    if x.dtype.kind != "f" or target.kind not in "iu":
        return x.astype(target)
    info = np.iinfo(target)
    whole = np.trunc(x.astype(np.float64))
    high, low = whole >= float(info.max), whole <= float(info.min)
    out = np.where(high | low | np.isnan(whole), 0.0, whole).astype(target)
    out[high], out[low] = info.max, info.min
    return out


def sigmoid_array(x: np.ndarray) -> np.ndarray:
    """Return 1 / (1 + exp(-x)) in the dtype of `x`; no intermediate value overflows."""
    e = np.exp(-np.abs(x))
    return np.asarray(np.where(x >= 0, 1.0, e) / (1.0 + e), x.dtype)


def _np_gelu(x: np.ndarray, a: Attrs) -> Any:
    if a.approximate == "none":
        return (0.5 * x * _ERFC(-x.astype(np.float64) / math.sqrt(2))).astype(x.dtype)
    linear, cubic = _TANH_GELU
    return x * sigmoid_array(x * (linear + cubic * x * x))


def _np_clip(x: np.ndarray, a: Attrs) -> Any:
    number = float if x.dtype.kind == "f" else int
    if a.min is not None:
        x = np.maximum(x, x.dtype.type(number(a.min)))
    return x if a.max is None else np.minimum(x, x.dtype.type(number(a.max)))


def _np_elu(x: np.ndarray, a: Attrs) -> Any:
    return np.where(x > 0, x, a.alpha * np.expm1(np.minimum(x, 0)))


def _np_hard_sigmoid(x: np.ndarray, alpha: float, beta: float) -> Any:
    return np.clip(x * alpha + beta, 0, 1)


def _np_softplus(x: np.ndarray, a: Attrs) -> Any:
    return np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x)))


def _ufunc(f: Callable[[np.ndarray], Any]) -> Reference:
    return lambda x, a: f(x)


def _np_erf(x: np.ndarray, a: Attrs) -> Any:
    return _ERF(x.astype(np.float64)).astype(x.dtype)


def _np_leaky(x: np.ndarray, a: Attrs) -> Any:
    return np.where(x < 0, x * x.dtype.type(a.alpha), x)


_ALL = (
    _unary("identity", ANY, lambda x, a: x, _ufunc(np.copy)),
    _unary("abs", NUMERIC, _abs, _ufunc(np.abs)),
    _unary("neg", SIGNED, lambda x, a: -x, _ufunc(np.negative)),
    _unary("relu", NUMERIC, _relu, lambda x, a: np.maximum(x, x.dtype.type(0))),
    _unary("sign", NUMERIC, _sign, _ufunc(np.sign)),
    _unary("sqrt", FLOAT, _plain("sqrt"), _ufunc(np.sqrt)),
    _unary("rsqrt", FLOAT, lambda x, a: 1.0 / unary("sqrt", x), lambda x, a: 1 / np.sqrt(x)),
    _unary("reciprocal", FLOAT, lambda x, a: 1.0 / x, lambda x, a: 1 / x),
    _unary("exp", FLOAT, _intrin("exp"), _ufunc(np.exp)),
    _unary("log", FLOAT, _intrin("log"), _ufunc(np.log)),
    _unary("erf", FLOAT, _intrin("erf"), _np_erf),
    _unary("tanh", FLOAT, _intrin("tanh"), _ufunc(np.tanh)),
    _unary("sigmoid", FLOAT, _intrin("sigmoid"), _ufunc(sigmoid_array)),
    _unary("sin", FLOAT, _intrin("sin"), _ufunc(np.sin)),
    _unary("cos", FLOAT, _intrin("cos"), _ufunc(np.cos)),
    *(
        _unary(name, FLOAT, _intrin(name), _ufunc(reference))
        for name, reference in (
            ("tan", np.tan),
            ("asin", np.arcsin),
            ("acos", np.arccos),
            ("atan", np.arctan),
            ("sinh", np.sinh),
            ("cosh", np.cosh),
            ("asinh", np.arcsinh),
            ("acosh", np.arccosh),
            ("atanh", np.arctanh),
        )
    ),
    _unary("floor", FLOAT, _plain("floor"), _ufunc(np.floor)),
    _unary("ceil", FLOAT, _plain("ceil"), _ufunc(np.ceil)),
    _unary("round", FLOAT, _plain("round"), _ufunc(np.rint)),  # half to even
    _unary("isnan", FLOAT, _intrin("isnan"), _ufunc(np.isnan), result=BOOL),
    _unary(
        "bitwise_not",
        INTEGER,
        lambda x, a: binary("bitxor", x, const(_ones(x.dtype), x.dtype)),
        _ufunc(np.invert),
    ),
    _unary("logical_not", BOOLEAN, _plain("not"), _ufunc(np.logical_not)),
    _unary("gelu", FLOAT, _gelu, _np_gelu, approximate=choice("none", "tanh", default="none")),
    _unary("leaky_relu", FLOAT, _leaky_relu, _np_leaky, alpha=number(0.01)),
    _unary("elu", FLOAT, _elu, _np_elu, alpha=number(1.0)),
    _unary(
        "hard_sigmoid",
        FLOAT,
        lambda x, a: _hard_sigmoid(x, a.alpha, a.beta),
        lambda x, a: _np_hard_sigmoid(x, a.alpha, a.beta),
        alpha=number(0.2),
        beta=number(0.5),
    ),
    _unary(
        "hard_swish",
        FLOAT,
        lambda x, a: x * _hard_sigmoid(x, 1 / 6, 0.5),
        lambda x, a: x * _np_hard_sigmoid(x, 1 / 6, 0.5),
    ),
    _unary("silu", FLOAT, lambda x, a: x * intrin("sigmoid", x), lambda x, a: x * sigmoid_array(x)),
    _unary("softplus", FLOAT, _softplus, _np_softplus),
    _unary(
        "clip",
        NUMERIC,
        _clip,
        _np_clip,
        check=_check_clip,
        min=bound().or_none(),
        max=bound().or_none(),
    ),
    OpDef(
        "cast",
        ("x",),
        {"dtype": dtype_attribute()},
        "elementwise",
        _infer_cast,
        lambda arrays, a: cast_array(arrays[0], str(a.dtype)),
        _cast_program,
    ),
    OpDef(
        "bitcast",
        ("x",),
        {"dtype": dtype_attribute()},
        "elementwise",
        _infer_bitcast,
        lambda arrays, a: arrays[0].view(str(a.dtype)),
        _bitcast_program,
    ),
)

ELEMENTWISE: dict[str, OpDef] = {op.name: op for op in _ALL}
