"""The elementary functions that float32 and float64 share; `Kit` holds what differs.

Both types share one implementation, so that a fix for one is a fix for the other.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from tensorkiln.codegen.expand.math_builder import Builder
from tensorkiln.ir.expr import Expr, Unary, binary, cast, maximum, minimum, select


def rounder(b: Builder) -> tuple[Expr, Expr]:
    """1.5 * 2**mantissa and its bits: adding and subtracting it rounds to an integer, which is in
    the low bits of the sum. 0 where the language rounds by an operation of its own."""
    row = b.row
    if b.reassociates:
        return b.num(0.0), b.whole(0)
    bits = (row.bias + row.mantissa << row.mantissa) + (1 << row.mantissa - 1)
    return b.num(1.5 * 2.0**row.mantissa), b.whole(bits)


def scale_rounder(b: Builder, power: int = 0) -> Expr:
    """A number that rounds like `rounder`, and whose sum with n has n + power + bias in its low
    bits: `scale_of` the sum is 2**(n + power)."""
    return b.num((0 if b.reassociates else 1.5 * 2.0**b.row.mantissa) + b.row.bias + power)


def nearest(b: Builder, x: Expr, inverse: float, shift: Expr) -> tuple[Expr, Expr]:
    """(n + shift, n) with n the integer nearest to x * inverse; `shift` is a rounder."""
    if b.reassociates:
        n = b.let(Unary("round", b.let(x * b.num(inverse))))
        return b.let(n + shift), n
    t = b.fma(x, b.num(inverse), shift)
    return t, b.let(t - shift)


def low_bits(b: Builder, t: Expr) -> Expr:
    """The integer n + k of t = n + shift, where shift is a rounder with k in its low bits."""
    return b.let(cast(t, b.whole(0).dtype)) if b.reassociates else b.bits(t)


def scale_of(b: Builder, t: Expr) -> Expr:
    """2**k of t = k + scale_rounder; 0 for k = -bias and infinite for k = bias + 1."""
    return b.from_bits(b.let(binary("shl", low_bits(b, t), b.whole(b.row.mantissa))))


def _remainder(
    b: Builder, x: Expr, inverse: float, pieces: Sequence[float], shift: Expr
) -> tuple[Expr, Expr]:
    """(n + shift, x - n u) with n = round(x / u). The unit u is given as `inverse` = 1 / u and as
    a sum of `pieces`; `shift` is a rounder."""
    t, n = nearest(b, x, inverse, shift)
    for piece in pieces:
        x = b.fma(n, b.num(-piece), x)
    return t, x


def reduced_exp(b: Builder, x: Expr, shift: Expr) -> tuple[Expr, Expr]:
    """(k + shift, p): e**x = 2**k (1 + p), k an integer, p = expm1(x - k ln 2)."""
    t, r = _remainder(b, x, 1.4426950408889634, b.kit.ln2, shift)
    return t, b.fma(b.let(b.poly(r, b.kit.exp) * r), r, r)


def exp(b: Builder, x: Expr) -> Expr:
    """2**k (1 + p) with |x - k ln 2| <= ln(2)/2; 0 where that is below the smallest normal number.
    Such a number is never computed: it takes many processors 150 cycles."""
    low, high = b.kit.exp_range
    near = b.let(minimum(b.num(high), maximum(b.num(low), x)))
    t, p = reduced_exp(b, near, scale_rounder(b))
    # k may be one more than the greatest exponent: the result is doubled then.
    exponent = b.let(minimum(scale_rounder(b, b.row.bias), t))
    scale = b.let(select(x < b.num(low), b.num(0.0), scale_of(b, exponent)))
    y = b.let(b.let(p + b.num(1.0)) * scale)
    return b.fma(y, b.let(t - exponent), y)


def exp_nonpositive(b: Builder, x: Expr) -> Expr:
    """The bits of `exp`, for x that is at most 0, or NaN: k is at most 0, so neither is x clamped
    to a greatest number nor the result scaled in two steps."""
    low = b.num(b.kit.exp_range[0])
    t, p = reduced_exp(b, b.let(maximum(low, x)), scale_rounder(b))
    scale = b.let(select(x < low, b.num(0.0), scale_of(b, t)))
    return b.let(b.let(p + b.num(1.0)) * scale)


def exp_plain(b: Builder, x: Expr) -> Expr:
    """exp to 2 units in the last place, where |x| is at most that of a normal number."""
    t, r = _remainder(b, x, 1.4426950408889634, b.kit.ln2, scale_rounder(b))
    return b.let(b.poly(r, b.kit.exp_short) * scale_of(b, t))


def mantissa_exponent(b: Builder, x: Expr) -> tuple[Expr, Expr, Expr]:
    """(m, e, shift): x = m 2**(e + shift), m in [sqrt(1/2), sqrt(2)), e an integer, shift a float
    that is not 0 where x is subnormal."""
    width = b.whole(b.row.mantissa)
    tiny = x < b.num(2.0 ** (1 - b.row.bias))
    bits = b.bits(b.let(select(tiny, x * b.num(2.0**b.row.mantissa), x)))
    e = b.let(binary("shr", bits - b.whole(b.kit.sqrt_half_bits), width))
    m = b.from_bits(bits - binary("shl", e, width))
    return m, e, select(tiny, b.num(-float(b.row.mantissa)), b.num(0.0))


def log_special(b: Builder, x: Expr, y: Expr) -> Expr:
    """y = log(x), corrected for x that is infinite, NaN, zero or negative."""
    y = b.let(select(x < b.num(float("inf")), y, x))
    y = b.let(select(binary("eq", x, b.num(0.0)), b.num(float("-inf")), y))
    return b.let(select(x < b.num(0.0), b.num(float("nan")), y))


def erfc_positive(b: Builder, z: Expr, square: Expr) -> Expr:
    """erfc(z) for z >= 0, given z*z."""
    tail = b.kit.erfcx(b, z)
    return b.let(tail * exp_nonpositive(b, b.let(-square)))


def _erf(b: Builder, x: Expr) -> Expr:
    """1 - erfc(|x|), |x| being so small that erfc is a normal number; near 0 x p(x**2)."""
    z = b.let(minimum(b.num(math.sqrt(-8.0 - b.kit.exp_range[0])), Unary("abs", x)))
    z2 = b.square(z)
    small = b.let(x * b.poly(z2, b.kit.erf))
    large = b.let(b.num(1.0) - erfc_positive(b, z, z2))
    signed = select(x < b.num(0.0), -large, large)
    return b.let(select(b.num(1.0) < z, signed, small))


def _sigmoid(b: Builder, x: Expr) -> Expr:
    """1 / (1 + e**-x); 0 where that is below the smallest normal number."""
    low = b.kit.exp_range[0]
    e = exp_plain(b, b.let(minimum(b.num(-low), maximum(b.num(low), -x))))
    e = b.let(select(x < b.num(low), b.num(float("inf")), e))
    return b.let(b.num(1.0) / (b.num(1.0) + e))


def reduced_angle(b: Builder, x: Expr, offset: int) -> tuple[Expr, Expr, Expr]:
    """(k, sin r, cos r): x = (k - offset) pi/2 + r with |r| <= pi/4 and k an integer."""
    t, r = _remainder(b, x, 0.6366197723675814, b.kit.half_pi, rounder(b)[0])
    k = b.let(low_bits(b, t) + b.whole(offset))
    r2 = b.square(r)
    sin = b.fma(b.let(b.poly(r2, b.kit.sin) * r2), r, r)
    cos = b.fma(b.let(r2 * r2), b.poly(r2, b.kit.cos), b.fma(r2, b.num(-0.5), b.num(1.0)))
    return k, sin, cos


def _bit(b: Builder, k: Expr, bit: int) -> Expr:
    """Whether a bit of k is set."""
    return binary("ne", binary("bitand", k, b.whole(bit)), b.whole(0))


def _sin_cos(b: Builder, x: Expr, quadrant_offset: int) -> Expr:
    """sin(x + quadrant_offset pi/2): reduction by pi/2, then one of two polynomials."""
    k, sin, cos = reduced_angle(b, x, quadrant_offset)
    y = b.let(select(_bit(b, k, 1), cos, sin))
    return b.let(select(_bit(b, k, 2), -y, y))


def _tan(b: Builder, x: Expr) -> Expr:
    """sin r / cos r, or -cos r / sin r in the odd quadrants."""
    k, sin, cos = reduced_angle(b, x, 0)
    odd = _bit(b, k, 1)
    return b.let(b.let(select(odd, -cos, sin)) / b.let(select(odd, sin, cos)))


def general_pow(b: Builder, x: Expr, y: Expr) -> tuple[Expr, Expr]:
    """(x ** y as exp(y log |x|), whether y has a fraction). For negative x the power is negated if
    y is an odd integer, and NaN if y is not an integer."""
    magnitude = exp(b, b.let(y * b.kit.log(b, b.let(Unary("abs", x)))))
    whole = b.let(Unary("floor", y))
    half = b.let(y * b.num(0.5))
    odd = binary("ne", Unary("floor", half), half)
    signed = b.let(select(odd, -magnitude, magnitude))
    broken = binary("ne", whole, y)
    negative = b.let(select(broken, b.num(float("nan")), signed))
    return b.let(select(x < b.num(0.0), negative, magnitude)), broken


FUNCTIONS: dict[str, Callable[..., Expr]] = {
    "exp": exp,
    "exp_nonpositive": exp_nonpositive,
    "log": lambda b, x: b.kit.log(b, x),
    "erf": _erf,
    "sigmoid": _sigmoid,
    "sin": lambda b, x: _sin_cos(b, x, 0),
    "cos": lambda b, x: _sin_cos(b, x, 1),
    "tan": _tan,
}
