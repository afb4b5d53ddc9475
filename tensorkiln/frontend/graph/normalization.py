"""Normalization over the last dimensions, over groups of channels, or by given statistics."""

from __future__ import annotations

from tensorkiln.frontend.graph.broadcast import broadcast
from tensorkiln.frontend.graph.context import Context
from tensorkiln.frontend.graph.issues import malformed
from tensorkiln.frontend.graph.values import Val
from tensorkiln.ir.expr import IntImm


def batch_norm(
    g: Context, x: Val, scale: Val, bias: Val, mean: Val, variance: Val, *, epsilon: float
) -> Val:
    """(x - mean) / sqrt(variance + epsilon) * scale + bias, by channels; where the element types
    differ, in the widest one and at least 32 bits, rounded to that of `x`."""
    operands = [x, scale, bias, mean, variance]
    dtypes = {v.tensor.dtype for v in operands}
    if len(dtypes) > 1:
        widest = max((t.sums for t in dtypes), key=lambda t: t.bits)
        operands = [g.cast(v, widest.name) for v in operands]
    return g.cast(g.emit("batch_norm", *operands, eps=epsilon), g.dtype(x))


def layer_norm(
    g: Context, x: Val, scale: Val, bias: Val | None, *, axis: int, epsilon: float
) -> Val:
    """Normalize over the dimensions from `axis` on, then scale and shift."""
    rank = g.rank(x)
    axis = g.axis(axis, rank)
    args = [broadcast(g, v, g.shape(x)[axis:]) for v in (scale, bias) if v is not None]
    return g.emit("layer_norm", x, *args, axis=axis - rank, eps=epsilon)


def layer_statistics(
    g: Context, x: Val, *, axis: int, epsilon: float, dtype: str
) -> tuple[Val, Val]:
    """The mean and 1 / sqrt(variance + epsilon) over the dimensions from `axis` on, which are kept
    with extent 1, computed in an element type."""
    axes = tuple(range(g.axis(axis, g.rank(x)), g.rank(x)))
    wide = g.cast(x, dtype)
    center = g.emit("mean", wide, axes=axes, keepdims=True)
    difference = g.emit("sub", wide, center)
    var = g.emit("mean", g.emit("mul", difference, difference), axes=axes, keepdims=True)
    return center, g.emit("rsqrt", g.emit("add", var, g.like(epsilon, var)))


def group_norm(g: Context, x: Val, scale: Val, bias: Val, *, groups: int, epsilon: float) -> Val:
    """Normalize each of `groups` runs of C / groups neighbouring channels of x [N, C, ...], then
    scale and shift by numbers of each channel [C]."""
    y = _normalized_groups(g, x, groups, epsilon)
    return g.emit("add", g.emit("mul", y, per_channel(g, scale, x)), per_channel(g, bias, x))


def per_channel(g: Context, v: Val, x: Val) -> Val:
    """Reshape `v` from [C] to [C, 1, ...], so that it broadcasts with x [N, C, ...]."""
    return g.reshape(v, (g.shape(x)[1], *(1 for _ in g.shape(x)[2:])))


def _normalized_groups(g: Context, x: Val, groups: int, epsilon: float) -> Val:
    """`x` [N, C, ...] normalized to mean 0 and variance 1 over each of `groups` runs of C / groups
    neighbouring channels."""
    n, c = g.shape(x)[:2]
    channels = g.dims.divide(c, IntImm(groups))
    if channels is None:
        raise malformed(f"{groups} groups do not divide the channels")
    # Of symbolic channels, those of whole groups: the reshape then needs that there are no others.
    group_size = g.dims.product((channels, *g.shape(x)[2:]))
    rows = g.reshape(x, (n, groups, group_size))
    scale = g.emit("full", shape=(group_size,), value=1.0, dtype=g.dtype(x))
    return g.reshape(g.emit("layer_norm", rows, scale, axis=-1, eps=epsilon), g.shape(x))
