"""Elementwise operators of ATen."""

from __future__ import annotations

import math
from typing import Any

from tensorkiln.frontend.graph import elementwise
from tensorkiln.frontend.graph.values import Val
from tensorkiln.frontend.torch.context import AtenContext, Operand
from tensorkiln.frontend.torch.dispatch import AtenImporter, AtenTable
from tensorkiln.frontend.torch.values import dtype_name


def floating(name: str) -> AtenImporter:
    """A function of floats, to which integers are converted first."""

    def run(g: AtenContext, x: Val) -> Val:
        return g.emit(name, g.floating(x))

    return run


def rounded(name: str) -> AtenImporter:
    """A rounding to whole numbers, which integers are."""

    def run(g: AtenContext, x: Val) -> Val:
        return g.emit(name, x) if g.type(x).dtype.is_float else x

    return run


def promoting(name: str, logical: str = "") -> AtenImporter:
    """An operator of two operands, promoted to one type; of booleans it is `logical`."""

    def run(g: AtenContext, a: Operand, b: Operand) -> Val:
        x, y = g.in_precision(a, b)
        of_bools = logical and g.type(x).dtype.is_bool
        return g.rounded(g.emit(logical if of_bools else name, x, y))

    return run


def compared(name: str) -> AtenImporter:
    """A comparison. Of booleans, false is less than true."""

    def run(g: AtenContext, a: Operand, b: Operand) -> Val:
        x, y = g.promoted(a, b)
        if g.type(x).dtype.is_bool:
            x, y = g.cast(x, "uint8"), g.cast(y, "uint8")
        return g.emit(name, x, y)

    return run


def logical(name: str) -> AtenImporter:
    """A logical operator; a number that is not 0 is true."""

    def run(g: AtenContext, *operands: Operand) -> Val:
        return g.emit(name, *(_truth(g, g.number(x, g.common(x))) for x in operands))

    return run


def _truth(g: AtenContext, x: Val) -> Val:
    return x if g.type(x).dtype.is_bool else g.emit("not_equal", x, g.like(0, x))


# -- arithmetic -------------------------------------------------------------------------------


def _scaled(g: AtenContext, y: Val, alpha: Operand) -> Val:
    if isinstance(alpha, bool | int | float) and alpha == 1:
        return y
    if g.type(y).dtype.is_bool:
        return y if alpha else g.like(0, y)
    return g.emit("mul", y, g.number(alpha, g.dtype(y)))


def add(g: AtenContext, a: Operand, b: Operand, alpha: Operand = 1) -> Val:
    """a + alpha * b; of booleans, whether either is true."""
    x, y = g.in_precision(a, b)
    return g.rounded(
        g.emit("logical_or" if g.out.dtype.is_bool else "add", x, _scaled(g, y, alpha))
    )


def sub(g: AtenContext, a: Operand, b: Operand, alpha: Operand = 1) -> Val:
    """a - alpha * b"""
    x, y = g.in_precision(a, b)
    return g.rounded(g.emit("sub", x, _scaled(g, y, alpha)))


def rsub(g: AtenContext, a: Operand, b: Operand, alpha: Operand = 1) -> Val:
    """b - alpha * a"""
    x, y = g.in_precision(a, b)
    return g.rounded(g.emit("sub", y, _scaled(g, x, alpha)))


def div(g: AtenContext, a: Operand, b: Operand, *, rounding_mode: str | None = None) -> Val:
    """a / b as floats; with `rounding_mode`, rounded toward zero ("trunc") or down ("floor")."""
    if rounding_mode is None:
        x, y = g.in_precision(a, b)
        if not g.type(x).dtype.is_float:
            x, y = g.floating(x), g.floating(y)
        return g.rounded(g.emit("div", x, y))
    x, y = g.promoted(a, b)
    whole = not g.type(x).dtype.is_float
    if rounding_mode == "trunc":
        quotient = g.emit("div", x, y)
        return quotient if whole else trunc(g, quotient)
    return floored(g, x, y) if whole else _floored_floats(g, x, y)


def floor_divide(g: AtenContext, a: Operand, b: Operand) -> Val:
    """a / b rounded down."""
    return div(g, a, b, rounding_mode="floor")


def floored(g: AtenContext, x: Val, y: Val) -> Val:
    """The quotient of integers of one type, rounded down."""
    quotient = g.emit("div", x, y)
    if g.type(x).dtype.is_unsigned:
        return quotient
    zero = g.like(0, x)
    remainder = g.emit("sub", x, g.emit("mul", quotient, y))
    signs = g.emit("logical_xor", g.emit("less", x, zero), g.emit("less", y, zero))
    below = g.emit("logical_and", g.emit("not_equal", remainder, zero), signs)
    return g.emit("sub", quotient, g.cast(below, g.dtype(x)))


def _floored_floats(g: AtenContext, x: Val, y: Val) -> Val:
    """As torch and Python: from the exact remainder, so that 1 / 0.1 rounds down to 9."""
    zero, unit, half = g.like(0, x), g.like(1, x), g.like(0.5, x)
    remainder = g.emit("mod", x, y, fmod=1)
    quotient = g.emit("div", g.emit("sub", x, remainder), y)
    signs = g.emit("logical_xor", g.emit("less", y, zero), g.emit("less", remainder, zero))
    below = g.emit("logical_and", g.emit("not_equal", remainder, zero), signs)
    quotient = g.emit("where", below, g.emit("sub", quotient, unit), quotient)
    down = g.emit("floor", quotient)
    up = g.emit("greater", g.emit("sub", quotient, down), half)
    down = g.emit("where", up, g.emit("add", down, unit), down)
    return g.emit("where", g.emit("equal", y, zero), g.emit("div", x, y), down)


def fmod(g: AtenContext, a: Operand, b: Operand) -> Val:
    """The remainder of a / b with the sign of a."""
    x, y = g.promoted(a, b)
    return g.emit("mod", x, y, fmod=1)


def remainder(g: AtenContext, a: Operand, b: Operand) -> Val:
    """The remainder of a / b with the sign of b."""
    x, y = g.promoted(a, b)
    return elementwise.floor_mod(g, x, y)


def pow_(g: AtenContext, a: Operand, b: Operand) -> Val:
    """a ** b"""
    x, y = g.promoted(a, b)
    if isinstance(b, int | float) and b == 2:
        return g.emit("mul", x, x)
    if isinstance(b, int | float) and b == 1:
        return x
    return g.emit("pow", x, y)


def atan2(g: AtenContext, a: Val, b: Val) -> Val:
    """The angle of the point (b, a), between -pi and pi."""
    y, x = (g.floating(v) for v in g.promoted(a, b))
    zero, pi = g.like(0, x), g.like(math.pi, x)
    both_infinite = g.emit(
        "logical_and",
        *(g.emit("equal", g.emit("abs", v), g.like(math.inf, v)) for v in (x, y)),
    )
    ratio = g.emit("div", y, x)
    ratio = g.emit(
        "where", both_infinite, g.emit("mul", g.emit("sign", y), g.emit("sign", x)), ratio
    )
    right = g.emit("atan", ratio)
    turn = g.emit("where", g.emit("less", y, zero), g.emit("neg", pi), pi)
    angle = g.emit("where", g.emit("less", x, zero), g.emit("add", right, turn), right)
    axis = g.emit("mul", g.emit("sign", y), g.like(math.pi / 2, x))
    return g.emit("where", g.emit("equal", x, zero), axis, angle)


# -- functions of one operand -----------------------------------------------------------------


def relu(g: AtenContext, x: Val) -> Val:
    """max(x, 0)"""
    return g.emit("relu", x)


def trunc(g: AtenContext, x: Val) -> Val:
    """Rounded toward zero."""
    if not g.type(x).dtype.is_float:
        return x
    negative = g.emit("less", x, g.like(0, x))
    return g.emit("where", negative, g.emit("ceil", x), g.emit("floor", x))


def round_decimals(g: AtenContext, x: Val, *, decimals: int = 0) -> Val:
    """Rounded to so many decimals, halves to even; a negative number rounds to tens, hundreds."""
    if not decimals:
        return g.emit("round", x)
    scale = g.like(10.0 ** abs(decimals), x)
    to, back = ("mul", "div") if decimals > 0 else ("div", "mul")
    return g.emit(back, g.emit("round", g.emit(to, x, scale)), scale)


def expm1(g: AtenContext, x: Val) -> Val:
    """exp(x) - 1 = tanh(x / 2) * (exp(x) + 1), which is accurate near 0 too."""
    x = g.floating(x)
    half = g.emit("tanh", g.emit("mul", x, g.like(0.5, x)))
    return g.emit("mul", half, g.emit("add", g.emit("exp", x), g.like(1, x)))


def log1p(g: AtenContext, x: Val) -> Val:
    """log(1 + x); near 0 it is 2 * atanh(x / (2 + x)), which loses nothing."""
    x = g.floating(x)
    near = g.emit("div", x, g.emit("add", x, g.like(2, x)))
    near = g.emit("mul", g.emit("atanh", near), g.like(2, x))
    far = g.emit("log", g.emit("add", x, g.like(1, x)))
    small = g.emit("less", g.emit("abs", x), g.like(0.5, x))
    return g.emit("where", small, near, far)


def logarithm(base: float) -> AtenImporter:
    """The logarithm to a base."""

    def run(g: AtenContext, x: Val) -> Val:
        y = g.emit("log", g.floating(x))
        return g.emit("mul", y, g.like(1 / math.log(base), y))

    return run


def isnan(g: AtenContext, x: Val) -> Val:
    """Whether elements are NaN."""
    if g.type(x).dtype.is_float:
        return g.emit("isnan", x)
    return g.emit("full", shape=g.shape(x), value=0.0, dtype="bool")


def isinf(g: AtenContext, x: Val) -> Val:
    """Whether elements are infinite."""
    return elementwise.is_infinite(g, x) if g.type(x).dtype.is_float else isnan(g, x)


def bitwise_not(g: AtenContext, x: Val) -> Val:
    """All bits inverted; of booleans, their opposite."""
    return g.emit("logical_not" if g.type(x).dtype.is_bool else "bitwise_not", x)


def sign(g: AtenContext, x: Val) -> Val:
    """-1, 0 or 1; of booleans, themselves."""
    return x if g.type(x).dtype.is_bool else g.emit("sign", x)


def absolute(g: AtenContext, x: Val) -> Val:
    """|x|"""
    return x if g.type(x).dtype.is_bool else g.emit("abs", x)


# -- activations ------------------------------------------------------------------------------


def gelu(g: AtenContext, x: Val, *, approximate: str = "none") -> Val:
    """x * Phi(x)"""
    return g.emit("gelu", x, approximate=approximate)


def elu(g: AtenContext, x: Val, alpha: float = 1, scale: float = 1, input_scale: float = 1) -> Val:
    """scale * x, or where x is negative, scale * alpha * (exp(input_scale * x) - 1)."""
    if input_scale == 1:
        y = g.emit("elu", x, alpha=float(alpha))
    else:
        inner = g.emit("elu", g.emit("mul", x, g.like(input_scale, x)), alpha=float(alpha))
        y = g.emit("where", g.emit("greater", x, g.like(0, x)), x, inner)
    return y if scale == 1 else g.emit("mul", y, g.like(scale, y))


def leaky_relu(g: AtenContext, x: Val, negative_slope: float = 0.01) -> Val:
    """x, or negative_slope * x where x < 0."""
    return g.emit("leaky_relu", x, alpha=float(negative_slope))


def softplus(g: AtenContext, x: Val, beta: float = 1, threshold: float = 20) -> Val:
    """log(1 + exp(beta * x)) / beta, and x itself where beta * x is above the threshold."""
    scaled = x if beta == 1 else g.emit("mul", x, g.like(beta, x))
    y = g.emit("softplus", scaled)
    y = y if beta == 1 else g.emit("div", y, g.like(beta, x))
    return g.emit("where", g.emit("greater", scaled, g.like(threshold, x)), x, y)


def prelu(g: AtenContext, x: Val, weight: Val) -> Val:
    """x, or weight * x where x <= 0; the weight broadcasts."""
    return elementwise.prelu(g, x, weight)


def clamp(g: AtenContext, x: Val, low: Operand = None, high: Operand = None) -> Val:
    """Elements within bounds, each a number, a size or a tensor; the upper bound wins."""
    y = g.cast(x, g.out.dtype.name)
    for name, limit in (("maximum", low), ("minimum", high)):
        if limit is not None:
            y = g.emit(name, y, g.number(limit, g.out.dtype.name))
    return y


def hardtanh(g: AtenContext, x: Val, low: float = -1, high: float = 1) -> Val:
    """Elements within two numbers."""
    if not g.type(x).dtype.is_float:
        return clamp(g, x, low, high)
    return g.emit("clip", x, min=float(low), max=float(high))


def where(g: AtenContext, cond: Val, a: Operand, b: Operand) -> Val:
    """`a` where the condition holds, else `b`."""
    x, y = g.promoted(a, b)
    return g.emit("where", _truth(g, cond), x, y)


def masked_fill(g: AtenContext, x: Val, mask: Val, value: Operand) -> Val:
    """`value` where the mask is true, else x."""
    return g.emit("where", mask, g.number(value, g.dtype(x)), x)


def to_copy(g: AtenContext, x: Val, *, dtype: Any = None) -> Val:
    """The operand, of another element type if one is given."""
    return x if dtype is None else g.cast(x, dtype_name(dtype))


def same(g: AtenContext, x: Val) -> Val:
    """The operand itself: a copy or another view of it."""
    return x


def copy(g: AtenContext, x: Val, source: Val) -> Val:
    """`source` in the shape and element type of `x`."""
    return g.spread(g.cast(source, g.dtype(x)), g.shape(x))


_FLOATING = (
    "acos acosh asin asinh atan atanh cos cosh erf exp log reciprocal rsqrt sigmoid sin sinh sqrt "
    "tan tanh"
)
_COMPARED = {
    "eq": "equal",
    "ne": "not_equal",
    "lt": "less",
    "le": "less_equal",
    "gt": "greater",
    "ge": "greater_equal",
}
_OVERLOADS = ("Tensor", "Scalar")

TABLE: AtenTable = {
    **{name: floating(name) for name in _FLOATING.split()},
    **{name: rounded(name) for name in ("ceil", "floor", "round")},
    **{f"{n}.{o}": compared(operator) for n, operator in _COMPARED.items() for o in _OVERLOADS},
    **{f"logical_{n}": logical(f"logical_{n}") for n in ("and", "or", "xor", "not")},
    **{
        f"bitwise_{n}.{o}": promoting(f"bitwise_{n}", f"logical_{n}")
        for n in ("and", "or", "xor")
        for o in _OVERLOADS
    },
    "bitwise_left_shift.Tensor": promoting("left_shift"),
    "bitwise_right_shift.Tensor": promoting("right_shift"),
    **{f"add.{o}": add for o in _OVERLOADS},
    **{f"sub.{o}": sub for o in _OVERLOADS},
    **{f"rsub.{o}": rsub for o in _OVERLOADS},
    **{f"mul.{o}": promoting("mul", "logical_and") for o in _OVERLOADS},
    **{f"div.{o}{mode}": div for o in _OVERLOADS for mode in ("", "_mode")},
    "floor_divide": floor_divide,
    "floor_divide.Scalar": floor_divide,
    **{f"fmod.{o}": fmod for o in _OVERLOADS},
    **{f"remainder.{o}": remainder for o in (*_OVERLOADS, "Scalar_Tensor")},
    **{f"pow.{o}": pow_ for o in ("Tensor_Tensor", "Tensor_Scalar", "Scalar")},
    "maximum": promoting("maximum", "logical_or"),
    "minimum": promoting("minimum", "logical_and"),
    "atan2": atan2,
    "abs": absolute,
    **dict.fromkeys(("neg", "_neg_view"), lambda g, x: g.emit("neg", x)),
    "sign": sign,
    "relu": relu,
    "silu": floating("silu"),
    "hardswish": floating("hard_swish"),
    "hardsigmoid": lambda g, x: g.emit("hard_sigmoid", x, alpha=1 / 6, beta=0.5),
    "trunc": trunc,
    "round.decimals": round_decimals,
    "expm1": expm1,
    "log1p": log1p,
    "log2": logarithm(2),
    "log10": logarithm(10),
    "isnan": isnan,
    "isinf": isinf,
    "bitwise_not": bitwise_not,
    "gelu": gelu,
    "elu": elu,
    "leaky_relu": leaky_relu,
    "softplus": softplus,
    "_prelu_kernel": prelu,
    "clamp": clamp,
    "clamp.Tensor": clamp,
    "clamp_min": clamp,
    "clamp_max": lambda g, x, high: clamp(g, x, None, high),
    "hardtanh": hardtanh,
    "where.self": where,
    "masked_fill.Scalar": masked_fill,
    "masked_fill.Tensor": masked_fill,
    "_to_copy": to_copy,
    "prims::convert_element_type": lambda g, x, dtype: g.cast(x, dtype_name(dtype)),
    "clone": same,
    "alias": same,
    "detach": same,
    "lift_fresh_copy": same,
    "copy": copy,
}
