"""Normalisation and matrix products."""

from __future__ import annotations

from tensorkiln.frontend.graph.agreement import stretched
from tensorkiln.frontend.graph.context import Context
from tensorkiln.frontend.graph.issues import malformed, unsupported
from tensorkiln.frontend.graph.values import Val
from tensorkiln.frontend.onnx.dispatch import Float, Int, Ints, Table
from tensorkiln.frontend.onnx.ops_shape import broadcast
from tensorkiln.ir.expr import IntImm, int_value
from tensorkiln.ir.relax import Constant

# -- normalisation ----------------------------------------------------------------------------


def batch_norm(
    g: Context,
    x: Val,
    scale: Val,
    bias: Val,
    mean: Val,
    var: Val,
    *,
    epsilon: Float = 1e-5,
    momentum: Float = 0.9,
    spatial: Int = 1,
    training_mode: Int = 0,
) -> tuple[Val, ...]:
    """Batch normalisation: with mean and variance as operands, or in training mode with those of
    the batch, which the given ones follow by 1 - momentum."""
    if not spatial:
        raise unsupported("spatial=0")
    if not training_mode and any(g.outputs[1:]):
        raise unsupported("the outputs of training (until opset 13)", "export it for inference")
    if not training_mode:
        return (g.emit("batch_norm", x, scale, bias, mean, var, eps=epsilon),)
    axes = tuple(i for i in range(g.rank(x)) if i != 1)
    wide = g.cast(x, "float32") if g.dtype(x) in ("float16", "bfloat16") else x
    center = g.emit("mean", wide, axes=axes, keepdims=True)
    off = g.emit("sub", wide, center)
    spread = g.emit("mean", g.emit("mul", off, off), axes=axes, keepdims=True)
    factor = g.emit("rsqrt", g.emit("add", spread, g.like(epsilon, spread)))
    scaled, shift = (g.cast(_per_channel(g, v, x), g.dtype(wide)) for v in (scale, bias))
    y = g.emit("add", g.emit("mul", g.emit("mul", off, factor), scaled), shift)
    running = []
    for old, new in ((mean, center), (var, spread)):
        now = g.cast(g.reshape(new, g.shape(old)), g.dtype(old))
        kept = g.emit("mul", old, g.like(momentum, old))
        running.append(g.emit("add", kept, g.emit("mul", now, g.like(1 - momentum, old))))
    return g.cast(y, g.dtype(x)), *running


def layer_norm(
    g: Context,
    x: Val,
    scale: Val,
    bias: Val | None = None,
    *,
    axis: Int = -1,
    epsilon: Float = 1e-5,
    stash_type: Int = 1,
) -> tuple[Val, ...]:
    """Normalise over the dimensions from `axis` on; compute Mean and InvStdDev only if used."""
    rank = g.rank(x)
    at = g.axis(axis, rank)
    normalised = g.shape(x)[at:]
    args = [broadcast(g, v, normalised) for v in (scale, bias) if v is not None]
    y = g.emit("layer_norm", x, *args, axis=at - rank, eps=epsilon)
    if not any(g.outputs[1:]):
        return (y,)
    axes = tuple(range(at, rank))
    wide = g.cast(x, "float32") if stash_type == 1 else x
    center = g.emit("mean", wide, axes=axes, keepdims=True)
    off = g.emit("sub", wide, center)
    var = g.emit("mean", g.emit("mul", off, off), axes=axes, keepdims=True)
    return y, center, g.emit("rsqrt", g.emit("add", var, g.like(epsilon, var)))


def rms_norm(
    g: Context, x: Val, scale: Val, *, axis: Int = -1, epsilon: Float = 1e-5, stash_type: Int = 1
) -> Val:
    """x / sqrt(mean(x^2) + eps) * scale"""
    at = g.axis(axis, g.rank(x))
    x, scale = _one_way(g, x, scale, "scale")
    axes = tuple(range(at, g.rank(x)))
    square = g.emit("mean", g.emit("mul", x, x), axes=axes, keepdims=True)
    factor = g.emit("rsqrt", g.emit("add", square, g.like(epsilon, x)))
    return g.emit("mul", g.emit("mul", x, factor), scale)


def _one_way(g: Context, x: Val, other: Val, name: str) -> tuple[Val, Val]:
    """x, and an operand that broadcasts to it, while x does not to the operand."""
    own, lead = g.shape(other), g.rank(x) - g.rank(other)
    if lead < 0:
        raise malformed(f"{name} has {len(own)} dimensions, expected {g.rank(x)} or less")
    pairs = list(zip(g.shape(x)[lead:], own, strict=True))
    numbers = [d if int_value(e) in (None, 1) else e for d, e in pairs]
    x = g.fitted(x, (*g.shape(x)[:lead], *numbers))
    wide = zip(g.shape(x)[lead:], own, strict=True)
    return x, stretched(g, other, tuple(e if int_value(e) == 1 else d for d, e in wide))


def _per_channel(g: Context, v: Val, x: Val) -> Val:
    """Reshape `v` from [C] to [C, 1, ...], so that it broadcasts with x [N, C, ...]."""
    return g.reshape(v, (g.shape(x)[1], *(1 for _ in g.shape(x)[2:])))


def _normalised_groups(g: Context, x: Val, groups: int, epsilon: float) -> Val:
    """`x` [N, C, ...] normalised to mean 0 and variance 1 over each of `groups` runs of C / groups
    neighbouring channels."""
    n, c = g.shape(x)[:2]
    each = g.dims.divide(g.dims.product(g.shape(x)[1:]), IntImm(groups))
    if each is None or (int_value(c) or 0) % groups:
        raise malformed(f"{groups} groups do not divide the channels")
    rows = g.reshape(x, (n, groups, each))
    one = g.emit("full", shape=(each,), value=1.0, dtype=g.dtype(x))
    return g.reshape(g.emit("layer_norm", rows, one, axis=-1, eps=epsilon), g.shape(x))


def instance_norm(g: Context, x: Val, scale: Val, bias: Val, *, epsilon: Float = 1e-5) -> Val:
    """Normalise each channel of each image to mean 0 and variance 1, then scale and shift it."""
    channels = int_value(g.shape(x)[1])
    if channels is None:
        raise unsupported("a symbolic number of channels")
    y = _normalised_groups(g, x, channels, epsilon)
    return g.emit("add", g.emit("mul", y, _per_channel(g, scale, x)), _per_channel(g, bias, x))


def group_norm(
    g: Context,
    x: Val,
    scale: Val,
    bias: Val,
    *,
    num_groups: Int,
    epsilon: Float = 1e-5,
    stash_type: Int = 1,
) -> Val:
    """Group normalisation with scale and bias per channel (from opset 21)."""
    y = _normalised_groups(g, x, num_groups, epsilon)
    return g.emit("add", g.emit("mul", y, _per_channel(g, scale, x)), _per_channel(g, bias, x))


def group_norm_18(
    g: Context, x: Val, scale: Val, bias: Val, *, num_groups: Int, epsilon: Float = 1e-5
) -> Val:
    """Group normalisation with scale and bias per group (until opset 20)."""
    c = int_value(g.shape(x)[1])
    if c is None or c % num_groups:
        raise malformed(f"{num_groups} groups do not divide the channels")
    each = c // num_groups
    full = [
        g.reshape(
            g.emit("broadcast_to", g.reshape(v, (num_groups, 1)), shape=(num_groups, each)), (c,)
        )
        for v in (scale, bias)
    ]
    return group_norm(g, x, full[0], full[1], num_groups=num_groups, epsilon=epsilon)


def mean_variance_normalization(g: Context, x: Val, *, axes: Ints = (0, 2, 3)) -> Val:
    """(x - mean(x)) / (standard deviation + 1e-9), over `axes`"""
    at = g.axes(axes, g.rank(x))
    off = g.emit("sub", x, g.emit("mean", x, axes=at, keepdims=True))
    variance = g.emit("mean", g.emit("mul", off, off), axes=at, keepdims=True)
    deviation = g.emit("add", g.emit("sqrt", variance), g.like(1e-9, x))
    return g.emit("div", off, deviation)


def lp_normalization(g: Context, x: Val, *, axis: Int = -1, p: Int = 2) -> Val:
    """Divide by the L1 or L2 norm along a dimension; where the norm is 0, the result is 0."""
    at = (g.axis(axis, g.rank(x)),)
    if p == 1:
        size = g.emit("sum", g.emit("abs", x), axes=at, keepdims=True)
    elif p == 2:
        size = g.emit("sqrt", g.emit("sum", g.emit("mul", x, x), axes=at, keepdims=True))
    else:
        raise malformed(f"p={p}; expected 1 or 2")
    empty = g.emit("equal", size, g.like(0, x))
    return g.emit("div", x, g.emit("where", empty, g.like(1, x), size))


def lrn(
    g: Context, x: Val, *, size: Int, alpha: Float = 1e-4, beta: Float = 0.75, bias: Float = 1.0
) -> Val:
    """Local response normalisation across channels."""
    return g.emit("lrn", x, size=size, alpha=alpha, beta=beta, bias=bias)


# -- matrix products --------------------------------------------------------------------------


def matmul(g: Context, a: Val, b: Val) -> Val:
    """Matrix product; a constant 2-D right operand makes it `linear`, whose weights are packed."""
    if isinstance(b, Constant) and g.rank(b) == 2 and g.rank(a) >= 2:
        return g.emit("linear", a, b)
    return g.emit("matmul", a, b)


def gemm(
    g: Context,
    a: Val,
    b: Val,
    c: Val | None = None,
    *,
    alpha: Float = 1.0,
    beta: Float = 1.0,
    transA: Int = 0,
    transB: Int = 0,
) -> Val:
    """alpha * A' B' + beta * C, where A' and B' are A and B, transposed if `transA`, `transB`.

    A constant B becomes the weights of `linear`, and C its bias where alpha = beta = 1.
    """
    if g.rank(a) != 2 or g.rank(b) != 2:
        raise malformed(f"operands of {g.rank(a)} and {g.rank(b)} dimensions; expected 2 and 2")
    use_bias = c is not None and beta != 0
    if isinstance(b, Constant):
        x = g.transpose(a, (1, 0)) if transA else a
        w = g.transpose(b, (1, 0)) if transB else b
        if c is not None and use_bias and alpha == 1 and beta == 1 and _is_row(g, c, w):
            return g.emit("linear", x, w, g.reshape(c, (g.shape(w)[1],)))
        y = g.emit("linear", x, w)
    else:
        y = g.emit("matmul", a, b, transpose_a=bool(transA), transpose_b=bool(transB))
    if alpha != 1:
        y = g.emit("mul", y, g.like(alpha, y))
    if c is not None and use_bias:
        y, c = _one_way(g, y, c, "C")
        y = g.emit("add", y, c if beta == 1 else g.emit("mul", c, g.like(beta, c)))
    return y


def _is_row(g: Context, c: Val, w: Val) -> bool:
    """Whether the bias is [N] or [1, N] for weights [K, N]."""
    *lead, last = g.shape(c) or (None,)
    return last == g.shape(w)[1] and all(int_value(d) == 1 for d in lead if d is not None)


TABLE: Table = {
    "LRN": {1: lrn},
    "BatchNormalization": {7: batch_norm},
    "LayerNormalization": {17: layer_norm},
    "RMSNormalization": {23: rms_norm},
    "InstanceNormalization": {6: instance_norm},
    "GroupNormalization": {18: group_norm_18, 21: group_norm},
    "LpNormalization": {1: lp_normalization},
    "MeanVarianceNormalization": {9: mean_variance_normalization},
    "MatMul": {1: matmul},
    "Gemm": {7: gemm},
}
