"""Elementary functions as straight-line float64 programs; `math.py` holds their float32 forms.

Series are cut where the next term is below half a unit in the last place; erfcx is a Chebyshev
interpolant in u = 2 / (1 + z/2) - 1, made in 200-bit arithmetic (error 4e-18). Accuracy in ulp:
exp 1.5, log 2.5, erf 3, tanh 4, sigmoid 4, gelu 8 for x > -1 and 8 + x*x/2 below,
sin and cos 3 for |x| < 1e5, pow 4 + 2|y log x|.
"""

from __future__ import annotations

import math

from tensorkiln.codegen.expand import math_inverse, math_shared
from tensorkiln.codegen.expand.math_builder import Builder, Kit
from tensorkiln.ir.expr import Expr, Unary, binary, maximum, minimum, select

_LN2 = (float.fromhex("0x1.62e42fee00000p-1"), float.fromhex("0x1.a39ef35793c76p-33"))
_HALF_PI = tuple(
    map(float.fromhex, ("0x1.921fb54400000p+0", "0x1.0b4611a600000p-34", "0x1.3198a2e037073p-69"))
)
_ATANH = tuple(2 / (2 * k + 3) for k in range(11))
_ERFCX = (
    0.5770337386164697,
    0.3554369212704985,
    0.06509515882878653,
    0.003671142395836639,
    -0.0011128447433526325,
    -0.0001607582991537808,
    3.278031574173137e-05,
    5.442441645505016e-06,
    -1.5154665553171482e-06,
    -1.4297608181169865e-07,
    8.234608827419493e-08,
    -1.2962846852306563e-09,
    -4.154721631015199e-09,
    6.347058278362811e-10,
    1.4320822712256222e-10,
    -6.160390105204589e-11,
    2.0612138554723754e-12,
    3.5714931488472563e-12,
    -8.586422843255474e-13,
    -6.145600213209118e-14,
    7.418725746827021e-14,
    -1.2895042749274592e-14,
    -2.35872622450541e-15,
    1.572934289985529e-15,
    -2.278290083647894e-16,
    -6.31187352571484e-17,
    3.589317442482914e-17,
    -5.0153452256103896e-18,
    -1.3921440374641605e-18,
)
# Powers with integer exponents below 2**6 are computed by squaring: products of integers are exact.
_SQUARINGS = 6


def _expm1_positive(b: Builder, x: Expr) -> Expr:
    """e**x - 1 for 0 <= x <= 60 without cancellation: 2**k p + (2**k - 1)."""
    t, p = math_shared.reduced_exp(b, x, math_shared.scale_rounder(b))
    scale = math_shared.scale_of(b, t)
    return b.fma(scale, p, b.let(scale - b.num(1.0)))


def _log(b: Builder, x: Expr) -> Expr:
    """k ln 2 + 2 atanh(s), s = (m - 1) / (m + 1), m in [sqrt(1/2), sqrt(2))."""
    m, e, shift = math_shared.mantissa_exponent(b, x)
    # Convert the small integer to float: it is added to the bits of the rounder, then the rounder
    # is subtracted.
    big, bits = math_shared.rounder(b)
    k = b.let(b.from_bits(b.let(e + bits)) - big + shift)
    f = b.let(m - b.num(1.0))
    s = b.let(f / (f + b.num(2.0)))
    z = b.let(s * s)
    half = b.let(f * f * b.num(0.5))
    tail = b.let(s * (half + b.poly(z, _ATANH) * z))
    y = b.fma(k, b.num(_LN2[1]), tail)
    y = b.let(k * b.num(_LN2[0]) - ((half - y) - f))
    return math_shared.log_special(b, x, y)


def _erfcx(b: Builder, z: Expr) -> Expr:
    """exp(z*z) erfc(z) for z >= 0, by Clenshaw's recurrence."""
    t = b.let(b.num(1.0) / b.fma(z, b.num(0.5), b.num(1.0)))
    u2 = b.let(t * b.num(4.0) - b.num(2.0))
    newer, older = b.num(0.0), b.num(0.0)
    for c in reversed(_ERFCX[1:]):
        newer, older = b.let(b.fma(u2, newer, b.num(c)) - older), newer
    total = b.let(b.fma(u2 * b.num(0.5), newer, b.num(_ERFCX[0])) - older)
    return b.let(total * t)


def _tanh(b: Builder, x: Expr) -> Expr:
    """e / (e + 2) with e = expm1(2 |x|)."""
    z = b.let(minimum(b.num(22.0), Unary("abs", x)))
    e = _expm1_positive(b, b.let(z + z))
    y = b.let(e / (e + b.num(2.0)))
    y = b.let(select(x < b.num(0.0), -y, y))
    # Keeps the sign of zero.
    return b.let(select(binary("eq", x, b.num(0.0)), x, y))


def _gelu(b: Builder, x: Expr) -> Expr:
    """max(x, 0) - |x| Phi(-|x|), as in float32: |x| is clamped to 37.5, where Phi is 4e-308."""
    size = b.let(minimum(b.num(37.5), Unary("abs", x)))
    z = b.let(size * b.num(0.7071067811865476))
    tail = b.let(math_shared.erfc_positive(b, z, b.square(size) * b.num(0.5)) * b.num(0.5))
    return b.fma(-size, tail, maximum(b.num(0.0), x))


def _pow_whole(b: Builder, x: Expr, size: Expr) -> Expr:
    """x ** size by squaring, for whole 0 <= size < 2**_SQUARINGS."""
    result: Expr = b.num(1.0)
    square, exponent = x, size
    for step in range(_SQUARINGS):
        half = b.let(Unary("floor", exponent * b.num(0.5)))
        odd = b.num(0.5) < exponent - half * b.num(2.0)
        result = b.let(select(odd, result * square, result))
        exponent = half
        if step < _SQUARINGS - 1:
            square = b.let(square * square)
    return result


def _pow(b: Builder, x: Expr, y: Expr) -> Expr:
    """Small integer exponents, 0 included, by squaring; others as exp(y log |x|)."""
    general, broken = math_shared.general_pow(b, x, y)
    size = b.let(Unary("abs", y))
    product = _pow_whole(b, x, b.let(minimum(size, b.num(2.0**_SQUARINGS - 1))))
    product = b.let(select(y < b.num(0.0), b.num(1.0) / product, product))
    exact = b.let(select(broken, general, product))
    return b.let(select(size < b.num(2.0**_SQUARINGS), exact, general))


KIT = Kit(
    sqrt_half_bits=0x3FE6A09E667F3BCD,
    exp_range=(-708.3964185322641, 710.0),
    ln2=_LN2,
    half_pi=_HALF_PI,
    exp=tuple(1 / math.factorial(k) for k in range(2, 15)),
    exp_short=tuple(1 / math.factorial(k) for k in range(14)),
    sin=tuple((-1) ** k / math.factorial(2 * k + 1) for k in range(1, 9)),
    cos=tuple((-1) ** k / math.factorial(2 * k) for k in range(2, 10)),
    erf=tuple(
        (-1) ** k / (math.factorial(k) * (2 * k + 1)) * 2 / math.sqrt(math.pi) for k in range(20)
    ),
    erfcx=_erfcx,
    log=_log,
)
FUNCTIONS = (
    math_shared.FUNCTIONS
    | math_inverse.FUNCTIONS
    | {
        "gelu": _gelu,
        "tanh": _tanh,
        "pow": _pow,
    }
)
