"""Hyperbolic sine and cosine, and the inverse functions, for float32 and float64.

Near 0 the odd functions are x + x**3 q(x**2), so that they keep the relative precision; `_CUBIC`
has the polynomials q, fits at Chebyshev points. They keep the sign of zero. Accuracy in units of
the last place (tests/codegen measures): 3 in float32, 4 in float64.
"""

from __future__ import annotations

import math

from tensorkiln.codegen.expand import math_shared
from tensorkiln.codegen.expand.math_builder import Builder
from tensorkiln.ir.expr import Expr, Unary, binary, minimum, select

# function -> bits of the type -> coefficients of q, lowest power of x**2 first. asin, asinh and
# atanh are for |x| <= 1/2, sinh for |x| <= 1, atan for |x| <= tan(pi/8).
_CUBIC: dict[str, dict[int, tuple[float, ...]]] = {
    "asin": {
        32: (
            0.1666666567325592,
            0.07500094175338745,
            0.04459940269589424,
            0.031100662425160408,
            0.017149237915873528,
            0.03369084745645523,
        ),
        64: (
            0.16666666666666669,
            0.07499999999998433,
            0.04464285714635543,
            0.030381944138531247,
            0.02237217294214989,
            0.017352392720869973,
            0.013971212973552933,
            0.011479177415184906,
            0.01032281435018578,
            0.005457506718640358,
            0.01740087944269402,
            -0.014851887071247204,
            0.028757851367421566,
        ),
    },
    "atan": {
        32: (
            -0.3333333134651184,
            0.19999538362026215,
            -0.14263896644115448,
            0.10743099451065063,
            -0.06449835002422333,
        ),
        64: (
            -0.3333333333333333,
            0.1999999999999548,
            -0.14285714284657894,
            0.11111111014561013,
            -0.09090904549884611,
            0.07692182535116648,
            -0.06664502215671447,
            0.058580687568615106,
            -0.05085030492810941,
            0.03921955253255129,
            -0.019162068915902577,
        ),
    },
    "asinh": {
        32: (
            -0.1666666716337204,
            0.07499972730875015,
            -0.0446300208568573,
            0.030156178399920464,
            -0.020526792854070663,
            0.009936504065990448,
        ),
        64: (
            -0.16666666666666666,
            0.0749999999999864,
            -0.044642857140252436,
            0.030381944248546365,
            -0.022372151449922602,
            0.01735258771519257,
            -0.013962235682232349,
            0.011526210169675569,
            -0.009591452221673173,
            0.007622309427481728,
            -0.004992717198142511,
            0.0018854117655039003,
        ),
    },
    "atanh": {
        32: (
            0.3333333432674408,
            0.19999960064888,
            0.14288285374641418,
            0.11050830036401749,
            0.0975194051861763,
            0.04091623052954674,
            0.1562916487455368,
        ),
        64: (
            0.3333333333333333,
            0.20000000000000864,
            0.14285714285490106,
            0.11111111133938968,
            0.09090907881509189,
            0.07692345940270638,
            0.06665886352701884,
            0.05893099692590042,
            0.05160769881147162,
            0.05441915418234587,
            0.012292448728540531,
            0.13557903913692299,
            -0.14450491183414468,
            0.21098097885975797,
        ),
    },
    "sinh": {
        32: (0.1666666716337204, 0.008333339355885983, 0.00019838102161884308, 2.8062802e-06),
        64: tuple(1 / math.factorial(2 * k + 1) for k in range(1, 9)),
    },
}
# pi/2 as the nearest number and what is left.
_HALF_PI = {
    32: (1.57079637050628662109375, -4.371139000186241e-08),
    64: (1.5707963267948966, 6.123233995736766e-17),
}
_LN2 = 0.6931471805599453


def _q(b: Builder, name: str, x2: Expr) -> Expr:
    return b.poly(x2, _CUBIC[name][b.dtype.bits])


def _near_zero(b: Builder, name: str, x: Expr) -> Expr:
    """x + x**3 q(x**2); x itself if it is 0, to which a negative q would add the other zero."""
    x2 = b.square(x)
    y = b.fma(b.let(_q(b, name, x2) * x2), x, x)
    return b.let(select(binary("eq", x, b.num(0.0)), x, y))


def _size(b: Builder, x: Expr) -> Expr:
    return b.let(Unary("abs", x))


def _signed(b: Builder, x: Expr, y: Expr) -> Expr:
    """`y`, negated where x is negative."""
    return b.let(select(x < b.num(0.0), -y, y))


def _arc(b: Builder, x: Expr) -> tuple[Expr, Expr, Expr]:
    """(large, r, rest). Where |x| <= 1/2, asin(x) = r + rest. Elsewhere (`large`), for positive x,
    asin(x) = pi/2 - 2 (r + rest), by asin(x) = pi/2 - 2 asin(sqrt((1 - x) / 2))."""
    z = _size(b, x)
    large = z > b.num(0.5)
    t = b.let(select(large, (b.num(1.0) - z) * b.num(0.5), x * x))
    r = b.let(select(large, Unary("sqrt", t), x))
    return large, r, b.let(b.let(r * t) * _q(b, "asin", t))


def asin(b: Builder, x: Expr) -> Expr:
    """NaN where |x| > 1, as the root is of a negative number there."""
    large, r, tail = _arc(b, x)
    high, low = _HALF_PI[b.dtype.bits]
    far = b.let(b.let(b.num(high) - (r + r)) + b.let(b.num(low) - (tail + tail)))
    return b.let(select(large, _signed(b, x, far), r + tail))


def acos(b: Builder, x: Expr) -> Expr:
    """pi/2 - asin(x); near 1, where that cancels, twice the arc of the root."""
    large, r, tail = _arc(b, x)
    high, low = _HALF_PI[b.dtype.bits]
    turned = b.let(b.num(high) - b.let(r + b.let(tail - b.num(low))))
    arc = b.let(r + tail)
    far = b.let(select(x < b.num(0.0), turned + turned, arc + arc))
    return b.let(select(large, far, turned))


def atan(b: Builder, x: Expr) -> Expr:
    """Of 1/x instead of x > 1, and of (w - 1) / (w + 1) instead of w > tan(pi/8)."""
    z = _size(b, x)
    high, low = _HALF_PI[b.dtype.bits]
    inverted = z > b.num(1.0)
    w = b.let(select(inverted, b.num(1.0) / z, z))
    turned = w > b.num(math.tan(math.pi / 8))
    v = b.let(select(turned, (w - b.num(1.0)) / (w + b.num(1.0)), w))
    y = _near_zero(b, "atan", v)
    y = b.let(select(turned, b.num(high / 2) + b.let(y + b.num(low / 2)), y))
    y = b.let(select(inverted, b.num(high) - b.let(y - b.num(low)), y))
    return b.let(select(binary("eq", x, b.num(0.0)), x, _signed(b, x, y)))


def _exp_of_size(b: Builder, x: Expr) -> tuple[Expr, Expr]:
    """(near, e): e = exp(|x|) where |x| is `near`; elsewhere that could overflow, or its reciprocal
    be below the normal numbers, and e = exp(|x| / 2)."""
    z = b.let(minimum(b.num(b.kit.exp_range[1] + 1.0), _size(b, x)))
    near = z < b.num(-b.kit.exp_range[0] - 1.0)
    e = math_shared.exp(b, b.let(select(near, z, z * b.num(0.5))))
    return near, e


def sinh(b: Builder, x: Expr) -> Expr:
    """(e - 1/e) / 2 with e = exp(|x|), where |x| >= 1."""
    near, e = _exp_of_size(b, x)
    half = b.let(e * b.num(0.5))
    y = b.let(select(near, half - b.num(0.5) / e, half * e))
    return b.let(select(_size(b, x) < b.num(1.0), _near_zero(b, "sinh", x), _signed(b, x, y)))


def cosh(b: Builder, x: Expr) -> Expr:
    """(e + 1/e) / 2 with e = exp(|x|)."""
    near, e = _exp_of_size(b, x)
    half = b.let(e * b.num(0.5))
    return b.let(select(near, half + b.num(0.5) / e, half * e))


def _log_of_sum(b: Builder, u: Expr, size: Expr) -> Expr:
    """log(1 + u) for u >= 0. For u <= 2 it is computed as 2 atanh(u / (u + 2)). Where `size` is so
    large that its square would overflow, or swallow the other term, it is log(2 size)."""
    large = size > b.num(2.0 ** (b.row.mantissa // 2 + 2))
    small = _near_zero(b, "atanh", b.let(u / (u + b.num(2.0))))
    y = b.kit.log(b, b.let(select(large, size, b.num(1.0) + u)))
    y = b.let(y + select(large, b.num(_LN2), b.num(0.0)))
    return b.let(select(u <= b.num(2.0), small + small, y))


def asinh(b: Builder, x: Expr) -> Expr:
    """log(1 + u) with u = |x| + x**2 / (1 + sqrt(1 + x**2)), where |x| > 1/2."""
    z = _size(b, x)
    x2 = b.square(x)
    root = b.let(Unary("sqrt", b.let(x2 + b.num(1.0))))
    u = b.let(z + b.let(x2 / (root + b.num(1.0))))
    far = _signed(b, x, _log_of_sum(b, u, z))
    return b.let(select(z <= b.num(0.5), _near_zero(b, "asinh", x), far))


def acosh(b: Builder, x: Expr) -> Expr:
    """log(1 + v) with v = u + sqrt(u (u + 2)) and u = x - 1; NaN where x < 1."""
    u = b.let(x - b.num(1.0))
    root = b.let(Unary("sqrt", b.let(u * (u + b.num(2.0)))))
    y = _log_of_sum(b, b.let(u + root), x)
    return b.let(select(x < b.num(1.0), b.num(float("nan")), y))


def atanh(b: Builder, x: Expr) -> Expr:
    """log((1 + |x|) / (1 - |x|)) / 2, where |x| > 1/2; NaN where |x| > 1."""
    z = _size(b, x)
    quotient = b.let((b.num(1.0) + z) / (b.num(1.0) - z))
    far = _signed(b, x, b.let(b.kit.log(b, quotient) * b.num(0.5)))
    return b.let(select(z <= b.num(0.5), _near_zero(b, "atanh", x), far))


FUNCTIONS = {
    "asin": asin,
    "acos": acos,
    "atan": atan,
    "sinh": sinh,
    "cosh": cosh,
    "asinh": asinh,
    "acosh": acosh,
    "atanh": atanh,
}
