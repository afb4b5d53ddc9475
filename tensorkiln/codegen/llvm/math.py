"""Elementary functions as straight-line float32 programs, the same on every target.

Coefficients are minimax fits (iteratively reweighted least squares on Chebyshev points, weighted
by relative error). Accuracy against float64, in units of the last place (tests/codegen measures):
exp 1, log 2, erf 3, tanh 3, sigmoid 3, gelu 8 for x > -1 (below, exp(-x*x/2) amplifies the
rounding of x*x: 8 + x*x/2), sin and cos 2 for |x| < 8192. pow is exp(y log x): 4 + 2|y log x|.
fmod is exact for |x / y| < 2**28. float16 and bfloat16 are computed in float32; `math_double`
holds the float64 forms.
"""

from __future__ import annotations

from collections.abc import Callable

from tensorkiln.base.errors import UnsupportedError
from tensorkiln.codegen.llvm import math_double
from tensorkiln.codegen.llvm.math_builder import Builder, Lets
from tensorkiln.ir.dtype import DType
from tensorkiln.ir.expr import (
    INTRINSICS,
    Expr,
    Unary,
    Var,
    binary,
    cast,
    const,
    intrin,
    maximum,
    minimum,
    select,
)  # fmt: skip

_EXP = (0.49999994, 0.16666521, 0.041668389, 0.0083687156, 0.00138146)
_ERF = (
    1.1283791065216064, -0.3761262595653534, 0.1128358542919159, -0.026853816583752632,
    0.00518833426758647, -0.0008010247256606817, 7.854025170672685e-05,
)  # fmt: skip
_ERFCX = (
    0.2257036715745926, 0.22501525282859802, 0.21439090371131897, 0.132155641913414,
    0.26487624645233154, -0.2709278464317322, 0.5312324166297913, -0.4866328835487366,
    0.19282373785972595, -0.02863716147840023,
)  # fmt: skip
_TANH = (
    -0.3333325982093811, 0.1333083063364029, -0.05368802323937416, 0.02046942338347435,
    -0.005515167023986578,
)  # fmt: skip
_LOG = (
    0.3333333134651184, -0.250008225440979, 0.20001226663589478, -0.16623356938362122,
    0.14201761782169342, -0.131601944565773, 0.12761549651622772, -0.07634429633617401,
)  # fmt: skip
_SIN = (-0.1666666716337204, 0.008333329111337662, -0.00019839312881231308, 2.718121777434135e-06)
_COS = (0.04166664555668831, -0.0013887316454201937, 2.44331567955669e-05)

# Adding and subtracting 1.5 * 2**23 rounds a float32 to the nearest integer, which then stands in
# the low bits of the sum.
_ROUNDER = 12582912.0
_ROUNDER_BITS = 0x4B400000


def _exp(b: Builder, x: Expr) -> Expr:
    """exp(x) = 2**n * exp(r), n = round(x / ln 2), |r| <= ln(2)/2; ln 2 in two pieces."""
    x = b.let(minimum(b.num(89.0), maximum(b.num(-104.0), x)))
    t = b.fma(x, b.num(1.4426950408889634), b.num(_ROUNDER))
    n = b.let(t - b.num(_ROUNDER))
    r = b.fma(n, b.num(-0.693145751953125), x)
    r = b.fma(n, b.num(-1.42860677e-06), r)
    p = b.poly(r, _EXP)
    r2 = b.let(r * r)
    p = b.let(b.fma(p, r2, r) + b.num(1.0))
    k = b.let(intrin("bitcast_i32", t) - b.int32(_ROUNDER_BITS))
    # Two factors, because 2**n alone leaves the range of normal numbers at both ends.
    half = b.let(binary("shr", k, b.int32(1)))
    return b.let(p * b.two_to(half) * b.two_to(b.let(k - half)))


def _log(b: Builder, x: Expr) -> Expr:
    """log(m 2**e) = e ln 2 + log(m), m in [sqrt(1/2), sqrt(2))."""
    tiny = x < b.num(1.17549435e-38)
    scaled = b.let(select(tiny, x * b.num(8388608.0), x))
    bits = b.let(intrin("bitcast_i32", scaled) - b.int32(0x3F3504F3))
    e = b.let(binary("shr", bits, b.int32(23)))
    m = b.let(intrin("bitcast_f32", intrin("bitcast_i32", scaled) - binary("shl", e, b.int32(23))))
    shift = select(tiny, b.num(-23.0), b.num(0.0))
    ef = b.let(cast(e, b.dtype) + shift)
    f = b.let(m - b.num(1.0))
    f2 = b.let(f * f)
    p = b.let(b.poly(f, _LOG) * f2 * f)
    y = b.fma(ef, b.num(-2.12194440e-4), p)
    y = b.fma(f2, b.num(-0.5), y)
    y = b.let(b.let(f + y) + ef * b.num(0.693359375))
    inf = b.num(float("inf"))
    y = b.let(select(x < inf, y, x))
    y = b.let(select(binary("eq", x, b.num(0.0)), b.num(float("-inf")), y))
    return b.let(select(x < b.num(0.0), b.num(float("nan")), y))


def _erfc_positive(b: Builder, z: Expr, square: Expr) -> Expr:
    """erfc(z) for z >= 0, as exp(-z*z) * t * P(t) with t = 1 / (1 + 0.4 z)."""
    t = b.let(b.num(1.0) / b.fma(z, b.num(0.4), b.num(1.0)))
    tail = b.let(b.poly(t, _ERFCX) * t)
    return b.let(tail * _exp(b, b.let(-square)))


def _erf(b: Builder, x: Expr) -> Expr:
    z = b.let(Unary("abs", x))
    x2 = b.let(x * x)
    small = b.let(x * b.poly(x2, _ERF))
    large = b.let(b.num(1.0) - _erfc_positive(b, z, x2))
    signed = select(x < b.num(0.0), -large, large)
    return b.let(select(b.num(1.0) < z, signed, small))


def _gelu(b: Builder, x: Expr) -> Expr:
    """x * Phi(x), Phi from erfc of |x|/sqrt(2) so that the negative tail keeps its precision."""
    z = b.let(Unary("abs", x) * b.num(0.7071067811865476))
    tail = b.let(_erfc_positive(b, z, x * x * b.num(0.5)) * b.num(0.5))
    phi = select(x < b.num(0.0), tail, b.num(1.0) - tail)
    return b.let(x * phi)


def _tanh(b: Builder, x: Expr) -> Expr:
    z = b.let(Unary("abs", x))
    x2 = b.let(x * x)
    small = b.fma(b.let(x * x2), b.poly(x2, _TANH), x)
    e = _exp(b, b.let(z + z))
    large = b.let(b.num(1.0) - b.num(2.0) / (e + b.num(1.0)))
    signed = select(x < b.num(0.0), -large, large)
    return b.let(select(b.num(0.625) < z, signed, small))


def _sigmoid(b: Builder, x: Expr) -> Expr:
    return b.let(b.num(1.0) / (b.num(1.0) + _exp(b, b.let(-x))))


def _sin_cos(b: Builder, x: Expr, quadrant_offset: int) -> Expr:
    """Cody and Waite reduction by pi/2 in three pieces, then one of two polynomials."""
    t = b.fma(x, b.num(0.6366197723675814), b.num(_ROUNDER))
    n = b.let(t - b.num(_ROUNDER))
    r = b.fma(n, b.num(-1.5703125), x)
    r = b.fma(n, b.num(-4.837512969970703e-4), r)
    r = b.fma(n, b.num(-7.549789948768648e-8), r)
    k = b.let(intrin("bitcast_i32", t) + b.int32(quadrant_offset))
    r2 = b.let(r * r)
    sin = b.fma(b.let(r * r2), b.poly(r2, _SIN), r)
    cos = b.fma(b.let(r2 * r2), b.poly(r2, _COS), b.fma(r2, b.num(-0.5), b.num(1.0)))
    odd = binary("ne", binary("bitand", k, b.int32(1)), b.int32(0))
    y = b.let(select(odd, cos, sin))
    negative = binary("ne", binary("bitand", k, b.int32(2)), b.int32(0))
    return b.let(select(negative, -y, y))


def _pow(b: Builder, x: Expr, y: Expr) -> Expr:
    """exp(y log |x|); a negative base needs an integer exponent, else NaN. pow(x, 0) = 1."""
    magnitude = _exp(b, b.let(y * _log(b, b.let(Unary("abs", x)))))
    whole = b.let(Unary("floor", y))
    half = b.let(y * b.num(0.5))
    odd = binary("ne", Unary("floor", half), half)
    signed = b.let(select(odd, -magnitude, magnitude))
    bad = binary("ne", whole, y)
    negative = b.let(select(bad, b.num(float("nan")), signed))
    result = b.let(select(x < b.num(0.0), negative, magnitude))
    return b.let(select(binary("eq", y, b.num(0.0)), b.num(1.0), result))


def _fmod(b: Builder, x: Expr, y: Expr) -> Expr:
    """x - trunc(x / y) y with the sign of x. In float64 the product is exact, the quotient is
    never rounded up to a whole number, for |x / y| < 2**28."""
    wide = DType("float64", b.dtype.lanes)
    a, d = (b.let(cast(b.let(Unary("abs", v)), wide)) for v in (x, y))
    q = b.let(Unary("trunc", b.let(a / d)))
    r = b.let(cast(b.let(a - b.let(q * d)), b.dtype))
    inf = const(float("inf"), wide)
    r = b.let(select(binary("and", binary("eq", d, inf), a < inf), Unary("abs", x), r))
    return b.let(select(x < b.num(0.0), -r, r))


_FUNCTIONS: dict[str, Callable[..., Expr]] = {
    "exp": _exp,
    "log": _log,
    "erf": _erf,
    "gelu": _gelu,
    "tanh": _tanh,
    "sigmoid": _sigmoid,
    "sin": lambda b, x: _sin_cos(b, x, 0),
    "cos": lambda b, x: _sin_cos(b, x, 1),
    "pow": _pow,
    "fmod": _fmod,
}


def expand(name: str, dtype: DType) -> tuple[list[Var], Lets, Expr]:
    """`name` on `dtype` as (parameters, let-bindings in order, result).

    Raises UnsupportedError for integers.
    """
    if dtype.name in ("float16", "bfloat16"):
        wide = DType("float32", dtype.lanes)
        outer = [Var(f"a{i}", dtype) for i in range(INTRINSICS[name])]
        params, lets, result = expand(name, wide)
        casts: Lets = [(p, cast(o, wide)) for p, o in zip(params, outer, strict=True)]
        return outer, casts + lets, cast(result, dtype)
    table = {"float32": _FUNCTIONS, "float64": math_double.FUNCTIONS}.get(dtype.name, {})
    if name not in table:
        raise UnsupportedError(
            f"{name} on {dtype.element} is not implemented", hint="floats are; cast the operand"
        )
    params = [Var(f"a{i}", dtype) for i in range(INTRINSICS[name])]
    b = Builder(dtype)
    result = table[name](b, *params)
    return params, b.lets, result



