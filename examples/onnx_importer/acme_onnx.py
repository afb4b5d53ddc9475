"""Importers of the operators of com.acme."""

from tensorkiln.frontend.graph.context import Context
from tensorkiln.frontend.graph.issues import unsupported
from tensorkiln.frontend.graph.values import Val
from tensorkiln.ir.expr import int_value


def gated(
    g: Context, x: Val, bias: Val | None = None, *, axis: int = -1, slope: float = 1.0
) -> Val:
    """One half of x + bias along an axis, times sigmoid(slope * the other half)."""
    if bias is not None:
        x = g.emit("add", x, bias)
    axis, rank = g.axis(axis, g.rank(x)), g.rank(x)
    length = int_value(g.shape(x)[axis])
    if length is None or length % 2:
        raise unsupported(f"axis {axis} has no halves", "its size must be even, and known")
    half = length // 2
    shape = tuple(half if k == axis else n for k, n in enumerate(g.shape(x)))
    starts = [tuple(first if k == axis else 0 for k in range(rank)) for first in (0, half)]
    a, b = (g.emit("slice", x, begin=s, strides=(1,) * rank, shape=shape) for s in starts)
    return g.emit("mul", a, g.emit("sigmoid", g.emit("mul", b, g.like(slope, x))))


IMPORTERS = {"Gated": {1: gated}}
