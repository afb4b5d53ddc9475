"""What the operators of the language do to numbers, from its written rules alone.

Integers are Python's, bools too, and floats of every width are Python's float holding a number of
that width; NumPy only rounds. Vectors are tuples of these.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import ml_dtypes  # noqa: F401 - registers bfloat16 with NumPy
import numpy as np

from tensorkiln.ir.dtype import DType

Value = Any
# mantissa bits, least exponent of a normal number
_NARROW = {"float16": (11, -14), "bfloat16": (8, -126)}


class Ambiguous(AssertionError):
    """A program whose result the language leaves open, such as by contraction to FMA."""


# ---- rounding and casts ------------------------------------------------------------------------


def rounded(x: float | Fraction | int, dtype: DType) -> float:
    """To the nearest number of a dtype, ties to even; one rounding from the exact value."""
    if isinstance(x, float) and (math.isnan(x) or math.isinf(x) or x == 0):
        return x
    if dtype.name == "float64":
        return float(x)
    if dtype.name == "float32" and isinstance(x, float):
        return ctypes.c_float(x).value
    bits, low = _NARROW.get(dtype.name, (24, -126))
    exact = Fraction(x)
    exponent = math.frexp(float(abs(exact)))[1] - 1
    unit = Fraction(2) ** (max(exponent, low) - bits + 1)
    near = round(exact / unit) * unit  # of Fractions: ties to even
    big = (
        Fraction(float(np.finfo(np.float16).max))
        if dtype.name == "float16"
        else ((2 - Fraction(2) ** (1 - bits)) * Fraction(2) ** 127)
    )
    if abs(near) > big:
        return math.copysign(math.inf, x)
    return math.copysign(float(near), x)


def wrapped(value: int, dtype: DType) -> int:
    """An integer at the width of its dtype."""
    if dtype.is_bool:
        return bool(value & 1)
    value &= (1 << dtype.bits) - 1
    return value - (1 << dtype.bits) if not dtype.is_unsigned and value >> dtype.bits - 1 else value


def cast(x: Value, src: DType, dst: DType) -> Value:
    """To float: nearest; float to integer: truncates, saturates, NaN is 0; to bool: != 0."""
    if dst.is_bool:
        return x != 0
    if dst.is_float:
        return rounded(x, dst) if src.is_float else rounded(Fraction(int(x)), dst) if x else 0.0
    if not src.is_float:
        return wrapped(int(x), dst)
    low = 0 if dst.is_unsigned else -(1 << dst.bits - 1)
    high = low + (1 << dst.bits) - 1
    if math.isnan(x):
        return 0
    return high if x >= high else low if x <= low else int(x)


# ---- integers ----------------------------------------------------------------------------------


def _quotient(a: int, b: int) -> int:
    if b == 0:
        return 0
    return a // b if (a < 0) == (b < 0) else -(-a // b)


def _shift(op: str, a: int, b: int, dtype: DType) -> int:
    count = b if 0 <= b < dtype.bits else dtype.bits
    return a << count if op == "shl" else a >> count


INTEGER: dict[str, Callable[[int, int], int]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "div": _quotient,
    "floordiv": lambda a, b: a // b if b else 0,
    "floormod": lambda a, b: a % b if b else 0,
    "bitand": lambda a, b: a & b,
    "bitor": lambda a, b: a | b,
    "bitxor": lambda a, b: a ^ b,
}
COMPARE: dict[str, Callable[[Value, Value], bool]] = {
    "lt": lambda a, b: a < b,
    "le": lambda a, b: a <= b,
    "gt": lambda a, b: a > b,
    "ge": lambda a, b: a >= b,
    "eq": lambda a, b: a == b,
    "ne": lambda a, b: a != b,
    "and": lambda a, b: a and b,
    "or": lambda a, b: a or b,
}
CHOICE: dict[str, Callable[[Value, Value], Value]] = {
    "min": lambda a, b: a if a < b else b,
    "max": lambda a, b: a if a > b else b,
}


# ---- floats ------------------------------------------------------------------------------------


def divided(a: float, b: float) -> float:
    """IEEE, in double precision: rounding that again to single is rounding once."""
    if b != 0:
        return a / b
    nan = a == 0 or math.isnan(a)
    return math.nan if nan else math.copysign(math.inf, a) * math.copysign(1, b)


def _floor(x: float) -> float:
    return x if not math.isfinite(x) else math.copysign(float(math.floor(x)), x)


def _float(op: str, a: float, b: float, dtype: DType) -> float:
    match op:
        case "add":
            return rounded(a + b, dtype)
        case "sub":
            return rounded(a - b, dtype)
        case "mul":
            return rounded(a * b, dtype)
        case "div":
            return rounded(divided(a, b), dtype)
    if op == "floordiv":
        return _rounding("floor", rounded(divided(a, b), dtype))
    rest = fmod(a, b)
    return rounded(rest + b, dtype) if rest and (rest < 0) != (b < 0) else rest


def fmod(a: float, b: float) -> float:
    """The remainder with the sign of a; it is exact."""
    undefined = math.isinf(a) or b == 0 or math.isnan(a) or math.isnan(b)
    return math.nan if undefined else math.fmod(a, b)


def _rounding(op: str, x: float) -> float:
    if not math.isfinite(x) or x == 0:
        return x
    whole = {"floor": math.floor, "ceil": math.ceil, "round": round, "trunc": math.trunc}[op](x)
    return math.copysign(float(whole), x)


def exact_product(a: float, b: float, dtype: DType) -> bool:
    """Whether a product is a number of the dtype, so that contraction changes nothing."""
    if not (math.isfinite(a) and math.isfinite(b)):
        return True
    found = rounded(a * b, dtype)
    return math.isfinite(found) and Fraction(a) * Fraction(b) == Fraction(found)


SINGLE = DType("float32")


def binary(op: str, a: Value, b: Value, dtype: DType) -> Value:
    """One lane of `a op b`; `dtype` is that of the operands."""
    if op in COMPARE:
        return COMPARE[op](a, b)
    if op in CHOICE:
        return CHOICE[op](a, b)
    if dtype.is_float:
        if dtype.bits == 16:  # in single precision, rounded once more
            return rounded(_float(op, a, b, SINGLE), dtype)
        return _float(op, a, b, dtype)
    if op in ("shl", "shr"):
        return wrapped(_shift(op, a, b, dtype), dtype)
    return wrapped(INTEGER[op](int(a), int(b)), dtype)


def unary(op: str, a: Value, dtype: DType) -> Value:
    """One lane of `op a`."""
    if op == "not":
        return not a
    if op == "neg":
        return -a if dtype.is_float else wrapped(-a, dtype)
    if op == "abs":
        return abs(a) if dtype.is_float else wrapped(abs(a), dtype)
    if not dtype.is_float:
        return a  # integers are round
    if op == "sqrt":
        return rounded(math.sqrt(a), dtype) if a >= 0 else math.nan
    return _rounding(op, a)


# ---- intrinsics --------------------------------------------------------------------------------

APPROXIMATE: dict[str, Callable[..., float]] = {
    "exp": math.exp,
    "log": math.log,
    "erf": math.erf,
    "tanh": math.tanh,
    "sin": math.sin,
    "cos": math.cos,
    **{
        name: getattr(math, name)
        for name in ("tan", "asin", "acos", "atan", "sinh", "cosh", "asinh", "acosh", "atanh")
    },
    "pow": math.pow,
    "sigmoid": lambda x: 1 / (1 + math.exp(-x)),
    "gelu": lambda x: 0.5 * x * (1 + math.erf(x / math.sqrt(2))),
}


def intrinsic(name: str, args: list[Value], dtype: DType) -> Value:
    """One lane; `dtype` is that of the operands. What is approximate is so here too."""
    if name == "isnan":
        return math.isnan(args[0])
    if name == "fma":
        if dtype.bits != 16 and not exact_product(args[0], args[1], dtype):
            raise Ambiguous("fma of an inexact product")
        return binary(
            "add", binary("mul", *args[:2], SINGLE if dtype.bits == 16 else dtype), args[2], dtype
        )
    if name == "fmod":
        return fmod(*args)
    if name.startswith("bitcast"):
        return _same_bits(name, args[0])
    try:
        return rounded(APPROXIMATE[name](*args), dtype)
    except (ValueError, OverflowError) as e:
        raise Ambiguous(str(e)) from None


def _same_bits(name: str, x: Value) -> Value:
    if isinstance(x, float) and math.isnan(x):
        raise Ambiguous("the bits of a NaN")
    whole, real = (np.int32, np.float32) if name.endswith("32") else (np.int64, np.float64)
    if isinstance(x, float):
        return int(real(x).view(whole))
    return float(whole(x).view(real))


def exp2_approximate(x: float) -> float:
    """2 to the power x in float32; 0 or infinity beyond the range of its normal numbers."""
    if math.isnan(x) or x >= 128:
        return math.nan if math.isnan(x) else math.inf
    return float(np.float32(2.0**x)) if x >= -126 else 0.0


def round_tf32(x: float) -> float:
    """The nearest number of 11 significant bits with the exponents of float32, ties away from
    zero."""
    if math.isnan(x) or math.isinf(x) or x == 0:
        return x
    unit = Fraction(2) ** (max(math.frexp(abs(x))[1] - 1, -126) - 10)
    near = float(math.floor(abs(Fraction(x)) / unit + Fraction(1, 2)) * unit)
    return math.copysign(math.inf if near >= 2.0**128 else near, x)
