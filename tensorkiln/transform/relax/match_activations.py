"""Recognise activations that exporters write as their formulas."""

from __future__ import annotations

from tensorkiln.ir.module import IRModule
from tensorkiln.ir.relax import Value
from tensorkiln.ops.rules import normal_axes
from tensorkiln.transform.rewriting.rewrite import Match, Rule, rewrite


def match_activations(mod: IRModule) -> IRModule:
    """Replace the formulas of GELU (both forms), softmax, SiLU, sigmoid, hard-sigmoid and
    hard-swish by one operator each.

    Before:  e = erf(div(x, 1.41421356)); y = mul(mul(x, add(e, 1)), 0.5)
    After:   y = gelu(x, approximate="none")
    Needs:   canonicalize (x*x*x for pow(x, 3), clip for min and max).
    """
    return rewrite(mod, RULES)


_CUBE = "(mul(mul(x, x), x) | pow(x, 3))"
# erf(x / sqrt(2)) + 1
_ERF = "add(erf(div(x, 1.4142135623730951) | mul(x, 0.7071067811865476)), 1)"
# sqrt(2/pi) * (x + 0.044715 x^3), also as x * (1 + 0.044715 x^2)
_INNER = (
    f"mul(add(x, mul({_CUBE}, 0.044715)) | mul(x, add(mul(mul(x, x), 0.044715), 1))"
    " | add(x, mul(mul(x, 0.044715), mul(x, x)))"
    " | add(x, mul(mul(mul(x, 0.044715), x), x)), 0.7978845608028654)"
)
_TANH = f"add(tanh({_INNER}), 1)"


def _half(factor: str) -> str:
    """A pattern for 0.5 * x * factor in any association."""
    return (
        f"mul(mul(x, {factor}), 0.5) | mul(mul(x, 0.5), {factor}) | mul(x, mul({factor}, 0.5))"
        f" | div(mul(x, {factor}), 2) | mul(div(x, 2), {factor})"
    )


def _is_float(m: Match) -> bool:
    return m.type.dtype.is_float


def _softmax(m: Match) -> Value | None:
    """exp(x - max) / sum(exp(x - max)) over one dimension"""
    a, b = (normal_axes("max", m.attr(n), m.type.ndim) for n in "ab")
    return m.emit("softmax", m["x"], axis=a[0]) if a == b and len(a) == 1 else None


_SIXTH = "0.16666666666666666"
RULES: tuple[Rule, ...] = (
    Rule(_half(_ERF), 'gelu(x, approximate="none")', _is_float),
    Rule(_half(_TANH), 'gelu(x, approximate="tanh")', _is_float),
    Rule("mul(x, sigmoid(x)) | div(x, add(exp(neg(x)), 1))", "silu(x)"),
    Rule(
        "div(e := exp(sub(x, max(x, axes=a, keepdims=True))), sum(e, axes=b, keepdims=True))",
        _softmax,
    ),
    Rule("reciprocal(add(exp(neg(x)), 1))", "sigmoid(x)"),
    Rule(
        "mul(x, hard_sigmoid(x, alpha=a, beta=b))",
        "hard_swish(x)",
        lambda m: m.attr("b") == 0.5 and abs(m.attr("a") * 6 - 1) < 1e-6,
    ),
    Rule(
        "div(clip(add(x, 3), min=0.0, max=6.0), 6) "
        f"| mul(clip(add(x, 3), min=0.0, max=6.0), {_SIXTH})",
        f"hard_sigmoid(x, alpha={_SIXTH}, beta=0.5)",
    ),
    Rule(
        "div(mul(x, clip(add(x, 3), min=0.0, max=6.0)), 6) "
        f"| mul(mul(x, clip(add(x, 3), min=0.0, max=6.0)), {_SIXTH})",
        "hard_swish(x)",
    ),
)
