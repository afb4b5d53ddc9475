"""Elementwise functions that are composed of operators."""

from __future__ import annotations

import math

from tensorkiln.frontend.graph.context import Context
from tensorkiln.frontend.graph.values import Val


def floor_mod(g: Context, a: Val, b: Val) -> Val:
    """The remainder of a / b, with the sign of the divisor."""
    if not g.type(a).dtype.is_float:
        return g.emit("mod", a, b, fmod=0)
    remainder, zero = g.emit("mod", a, b, fmod=1), g.like(0, a)
    signs_differ = g.emit("less", g.emit("mul", g.emit("sign", remainder), g.emit("sign", b)), zero)
    return g.emit("where", signs_differ, g.emit("add", remainder, b), remainder)


def prelu(g: Context, x: Val, slope: Val) -> Val:
    """max(x, 0) + slope * min(x, 0)"""
    zero = g.like(0, x)
    low = g.emit("mul", g.emit("minimum", x, zero), slope)
    return g.emit("add", g.emit("maximum", x, zero), low)


def softsign(g: Context, x: Val) -> Val:
    """x / (1 + |x|)"""
    return g.emit("div", x, g.emit("add", g.emit("abs", x), g.like(1, x)))


def thresholded_relu(g: Context, x: Val, *, alpha: float) -> Val:
    """x where x > alpha, else 0."""
    return g.emit("where", g.emit("greater", x, g.like(alpha, x)), x, g.like(0, x))


def is_infinite(g: Context, x: Val) -> Val:
    """Whether elements are infinite, of either sign."""
    return g.emit("equal", g.emit("abs", x), g.like(math.inf, x))
