"""Recognise layer normalisation that exporters write as its formula."""

from __future__ import annotations

import numpy as np

from tensorkiln.ir.module import IRModule
from tensorkiln.ir.relax import Constant, TensorType, Value, constant
from tensorkiln.ops.rules import normal_axes
from tensorkiln.transform.rewriting.graph import tensor_type
from tensorkiln.transform.rewriting.pattern import uniform
from tensorkiln.transform.rewriting.rewrite import Match, Rule, rewrite


def match_layer_norm(mod: IRModule) -> IRModule:
    """Replace (x - mean) / sqrt(variance + eps) * gamma + beta over the last axes by layer_norm.

    Before:  d = sub(x, mean(x)); v = mean(mul(d, d))
             y = add(mul(div(d, sqrt(add(v, 1e-5))), G), B)
    After:   y = layer_norm(x, G, B, axis=-1, eps=1e-5)
    Needs:   canonicalize (squares as products).
    """
    return rewrite(mod, RULES)


_OFF = "(d := sub(x, mean(x, axes=a, keepdims=True)))"
_VAR = "add(mean(mul(d, d), axes=b, keepdims=True), E)"


def _normalised(m: Match) -> Value | None:
    """layer_norm for the formula without gamma and beta: gamma is 1 until the next rules replace
    it."""
    x, eps = m.tensor("x"), uniform(m["E"])
    axes = normal_axes("mean", m.attr("a"), x.ndim)
    first = x.ndim - len(axes)
    if eps is None or axes != tuple(range(first, x.ndim)) or not axes:
        return None
    if normal_axes("mean", m.attr("b"), x.ndim) != axes:
        return None
    inner = TensorType(x.shape[first:], x.dtype).static_shape()
    if inner is None or not x.dtype.row.in_numpy:
        return None
    gamma = constant(np.ones(inner, x.dtype.name))
    return m.emit("layer_norm", m["x"], gamma, axis=first - x.ndim, eps=eps)


def _parameter(m: Match, name: str) -> Constant | None:
    """The constant in the shape of the normalised dimensions, without leading extents of 1; None
    if it does not fit them."""
    c = m.constant(name)
    want = tensor_type(m.producer("y").args[1]).static_shape()
    if want is None:
        return None
    extra = c.array.ndim - len(want)
    fits = extra >= 0 and c.array.shape[extra:] == want and set(c.array.shape[:extra]) <= {1}
    return constant(c.array.reshape(want), c.name) if fits else None


def _with_gamma(m: Match) -> Value | None:
    gamma = _parameter(m, "G")
    if gamma is None or not m.once("y"):
        return None
    return m.emit("layer_norm", m["x"], gamma, axis=m.attr("a"), eps=m.attr("e"))


def _with_beta(m: Match) -> Value | None:
    beta = _parameter(m, "B")
    if beta is None or not m.once("y"):
        return None
    return m.emit("layer_norm", m["x"], m["g"], beta, axis=m.attr("a"), eps=m.attr("e"))


RULES: tuple[Rule, ...] = (
    Rule(
        f"div({_OFF}, sqrt({_VAR})) | mul({_OFF}, rsqrt({_VAR}) | reciprocal(sqrt({_VAR})))",
        _normalised,
    ),
    Rule("mul(y := layer_norm(x, 1, axis=a, eps=e), G)", _with_gamma),
    Rule("add(y := layer_norm(x, g, axis=a, eps=e), B)", _with_beta),
)
