"""Elementwise ONNX operators: arithmetic, comparison, logic, activations, casts."""

from __future__ import annotations

import math

from tensorkiln.frontend.graph import elementwise
from tensorkiln.frontend.graph.context import Context
from tensorkiln.frontend.graph.issues import malformed
from tensorkiln.frontend.graph.values import Val
from tensorkiln.frontend.onnx.dispatch import Float, Importer, Int, Str, Table
from tensorkiln.frontend.onnx.narrow import Format, Narrow, decoded, encoded
from tensorkiln.frontend.onnx.tensors import dtype_name, element_type


def unary(name: str) -> Importer:
    """The importer of a unary ONNX operator that means the same as our operator `name`."""

    def run(g: Context, x: Val) -> Val:
        return g.emit(name, x)

    return run


def binary(name: str) -> Importer:
    """The importer of a broadcasting operator, whose operands must have the same dtype."""

    def run(g: Context, a: Val, b: Val) -> Val:
        _same_dtype(g, a, b)
        return g.emit(name, a, b)

    return run


def _same_dtype(g: Context, *xs: Val) -> None:
    dtypes = list(dict.fromkeys(g.dtype(x) for x in xs))
    if len(dtypes) > 1:
        raise malformed(f"operands have different element types: {', '.join(dtypes)}")


def variadic(name: str) -> Importer:
    """The importer of Sum, Max or Min: `name` over one or more broadcasting operands, from the
    left."""

    def run(g: Context, x: Val, *operands: Val) -> Val:
        _same_dtype(g, x, *operands)
        for y in operands:
            x = g.emit(name, x, y)
        return x

    return run


def mean(g: Context, x: Val, *operands: Val) -> Val:
    """The mean of one or more broadcasting operands."""
    _same_dtype(g, x, *operands)
    total = x
    for y in operands:
        total = g.emit("add", total, y)
    return g.emit("mul", total, g.like(1 / (1 + len(operands)), total)) if operands else x


def mod(g: Context, a: Val, b: Val, *, fmod: Int = 0) -> Val:
    """The remainder of a / b, with the sign of the divisor, or with `fmod` of the dividend."""
    _same_dtype(g, a, b)
    return g.emit("mod", a, b, fmod=fmod) if fmod else elementwise.floor_mod(g, a, b)


def pow_(g: Context, x: Val, y: Val) -> Val:
    """x ** y in the base's dtype; an integer base with a floating exponent is computed in the
    exponent's dtype and cast back."""
    base, exponent = g.type(x).dtype, g.type(y).dtype
    if base.is_float or not exponent.is_float:
        return g.emit("pow", x, g.cast(y, base.name))
    return g.cast(g.emit("pow", g.cast(x, exponent.name), y), base.name)


def where(g: Context, cond: Val, a: Val, b: Val) -> Val:
    """`a` where the condition holds, else `b`; the three operands broadcast."""
    _same_dtype(g, a, b)
    return g.emit("where", cond, a, b)


def cast(
    g: Context, x: Val | Narrow, *, to: Int, saturate: Int = 1, round_mode: Str = "up"
) -> Val | Narrow:
    """Convert to ONNX's element type number `to`; floats become integers by truncation.

    `saturate` and `round_mode` concern floats of 8 bits and less (narrow.py).
    """
    return _cast(g, x, element_type(to, "Cast.to"), bool(saturate), round_mode)


def cast_like(
    g: Context, x: Val | Narrow, like: Val | Narrow, *, saturate: Int = 1, round_mode: Str = "up"
) -> Val | Narrow:
    """Convert to the element type of the second operand."""
    to = like.format if isinstance(like, Narrow) else g.dtype(like)
    return _cast(g, x, to, bool(saturate), round_mode)


def _cast(
    g: Context, x: Val | Narrow, to: str | Format, saturate: bool, rounding: str
) -> Val | Narrow:
    if isinstance(x, Narrow):
        if x.format == to:
            return x
        x = decoded(g, x, to if isinstance(to, str) else "float32")
    return g.cast(x, to) if isinstance(to, str) else encoded(g, x, to, saturate, rounding)


def bit_cast(g: Context, x: Val, *, to: Int) -> Val:
    """The bits of elements as ONNX's element type number `to`, of the same width."""
    return g.emit("bitcast", x, dtype=dtype_name(to, "BitCast.to"))


def bit_shift(g: Context, x: Val, by: Val, *, direction: Str) -> Val:
    """x shifted left, or right with the sign; 0, or all signs, by its width or more."""
    if direction not in ("LEFT", "RIGHT"):
        raise malformed(f"direction={direction!r}; expected 'LEFT' or 'RIGHT'")
    _same_dtype(g, x, by)
    return g.emit("left_shift" if direction == "LEFT" else "right_shift", x, by)


def identity(g: Context, x: Val) -> Val:
    """The operand itself; nothing is emitted."""
    return x


# -- activations ------------------------------------------------------------------------------


def leaky_relu(g: Context, x: Val, *, alpha: Float = 0.01) -> Val:
    """x, or alpha * x where x < 0."""
    return g.emit("leaky_relu", x, alpha=alpha)


def elu(g: Context, x: Val, *, alpha: Float = 1.0) -> Val:
    """x, or alpha * (exp(x) - 1) where x < 0."""
    return g.emit("elu", x, alpha=alpha)


def selu(
    g: Context, x: Val, *, alpha: Float = 1.6732631921768188, gamma: Float = 1.0507010221481323
) -> Val:
    """gamma * elu(x)"""
    return g.emit("mul", g.emit("elu", x, alpha=alpha), g.like(gamma, x))


def celu(g: Context, x: Val, *, alpha: Float = 1.0) -> Val:
    """max(0, x) + min(0, alpha*(exp(x/alpha) - 1)) = alpha * elu(x/alpha)"""
    scaled = g.emit("elu", g.emit("div", x, g.like(alpha, x)), alpha=1.0)
    return g.emit("mul", scaled, g.like(alpha, x))


def hard_sigmoid(g: Context, x: Val, *, alpha: Float = 0.2, beta: Float = 0.5) -> Val:
    """max(0, min(1, alpha*x + beta))"""
    return g.emit("hard_sigmoid", x, alpha=alpha, beta=beta)


def gelu(g: Context, x: Val, *, approximate: Str = "none") -> Val:
    """x * Phi(x), where Phi is the normal distribution function, exact or approximated by tanh."""
    if approximate not in ("none", "tanh"):
        raise malformed(f"approximate={approximate!r}; expected 'none' or 'tanh'")
    return g.emit("gelu", x, approximate=approximate)


def swish(g: Context, x: Val, *, alpha: Float = 1.0) -> Val:
    """x * sigmoid(alpha*x)"""
    if alpha == 1.0:
        return g.emit("silu", x)
    return g.emit("mul", x, g.emit("sigmoid", g.emit("mul", x, g.like(alpha, x))))


def mish(g: Context, x: Val) -> Val:
    """x * tanh(softplus(x))"""
    return g.emit("mul", x, g.emit("tanh", g.emit("softplus", x)))


def thresholded_relu(g: Context, x: Val, *, alpha: Float = 1.0) -> Val:
    """x where x > alpha, else 0."""
    return elementwise.thresholded_relu(g, x, alpha=alpha)


def shrink(g: Context, x: Val, *, bias: Float = 0.0, lambd: Float = 0.5) -> Val:
    """x + bias below -lambd, x - bias above lambd, 0 between."""
    inside = g.like(0, x)
    above = g.emit("sub", x, g.like(bias, x))
    below = g.emit("add", x, g.like(bias, x))
    high = g.emit("where", g.emit("greater", x, g.like(lambd, x)), above, inside)
    return g.emit("where", g.emit("less", x, g.like(-lambd, x)), below, high)


def clip_6(g: Context, x: Val, *, min: Float = -math.inf, max: Float = math.inf) -> Val:
    """Clip with its bounds as attributes; a bound at either end of float32's range is no bound."""
    lowest, highest = 3.4028234663852886e38, 3.4028234663852886e38
    low = None if min <= -lowest else min
    high = None if max >= highest else max
    return x if low is None and high is None else g.emit("clip", x, min=low, max=high)


def clip_11(g: Context, x: Val, low: Val | None = None, high: Val | None = None) -> Val:
    """Clip with its bounds as operands; constant bounds of floats become attributes of `clip`."""
    for limit in (low, high):
        if limit is not None and g.rank(limit) > 1:
            raise malformed("the bounds of Clip must be scalars")
    floats = g.type(x).dtype.is_float
    if floats and all(b is None or hasattr(b, "array") for b in (low, high)):
        values = [None if b is None else float(g.scalar(b, "bound")) for b in (low, high)]
        if values == [None, None]:
            return x
        return g.emit("clip", x, min=values[0], max=values[1])
    for name, limit in (("maximum", low), ("minimum", high)):
        if limit is not None:
            _same_dtype(g, x, limit)
            x = g.emit(name, x, g.reshape(limit, ()))
    return x


# -- composed of other operators --------------------------------------------------------------


def is_inf(g: Context, x: Val, *, detect_negative: Int = 1, detect_positive: Int = 1) -> Val:
    """Whether elements are infinite: +inf if `detect_positive`, -inf if `detect_negative`."""
    if detect_negative and detect_positive:
        return elementwise.is_infinite(g, x)
    if detect_positive or detect_negative:
        return g.emit("equal", x, g.like(math.inf if detect_positive else -math.inf, x))
    return g.emit("full", shape=g.shape(x), value=0.0, dtype="bool")


# ONNX name -> our operator with the same operands and meaning
_UNARY = (
    "Abs Neg Sqrt Exp Log Erf Tanh Sigmoid Relu Floor Ceil Round Sign Reciprocal Sin Cos IsNaN "
    "Softplus"
)
_BINARY = "Add Sub Mul Div Equal Less Greater"
SAME_UNARY = {name: name.lower() for name in _UNARY.split()}
SAME_UNARY |= {"Not": "logical_not", "HardSwish": "hard_swish"}
SAME_BINARY = {name: name.lower() for name in _BINARY.split()}
SAME_BINARY |= {"And": "logical_and", "Or": "logical_or", "Xor": "logical_xor"}
SAME_BINARY |= {"LessOrEqual": "less_equal", "GreaterOrEqual": "greater_equal"}

TABLE: Table = {
    **{name: {1: unary(op)} for name, op in SAME_UNARY.items()},
    **{name: {7: binary(op)} for name, op in SAME_BINARY.items()},
    **{f"Bitwise{name}": {18: binary(f"bitwise_{name.lower()}")} for name in ("And", "Or", "Xor")},
    "BitwiseNot": {18: unary("bitwise_not")},
    "Sum": {6: variadic("add")},
    "Max": {6: variadic("maximum")},
    "Min": {6: variadic("minimum")},
    "Mean": {6: mean},
    "Mod": {10: mod},
    "Pow": {7: pow_},
    "Where": {9: where},
    "Cast": {6: cast},
    "CastLike": {15: cast_like},
    "BitCast": {26: bit_cast},
    "BitShift": {11: bit_shift},
    "Identity": {1: identity},
    "LeakyRelu": {6: leaky_relu},
    "Elu": {6: elu},
    "Selu": {6: selu},
    "Celu": {12: celu},
    "HardSigmoid": {6: hard_sigmoid},
    "PRelu": {7: elementwise.prelu},
    "Gelu": {20: gelu},
    "Swish": {24: swish},
    "Mish": {18: mish},
    "Softsign": {1: elementwise.softsign},
    "ThresholdedRelu": {10: thresholded_relu},
    "Shrink": {9: shrink},
    "Clip": {6: clip_6, 11: clip_11},
    **{name: {7: unary(name.lower())} for name in ("Tan", "Asin", "Acos", "Atan")},
    **{name: {9: unary(name.lower())} for name in ("Sinh", "Cosh", "Asinh", "Acosh", "Atanh")},
    "IsInf": {10: is_inf},
}
