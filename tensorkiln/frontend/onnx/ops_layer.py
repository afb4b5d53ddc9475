"""Normalization and matrix products."""

from __future__ import annotations

from tensorkiln.base.element_types import HALF_TYPES
from tensorkiln.frontend.graph import normalization, products
from tensorkiln.frontend.graph.broadcast import unidirectional
from tensorkiln.frontend.graph.context import Context
from tensorkiln.frontend.graph.issues import malformed, unsupported
from tensorkiln.frontend.graph.values import Val
from tensorkiln.frontend.onnx.context import OnnxContext
from tensorkiln.frontend.onnx.dispatch import Float, Int, Ints, Table
from tensorkiln.ir.expr import int_value

# -- normalization ----------------------------------------------------------------------------


def batch_norm(
    g: OnnxContext,
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
    """Batch normalization: with mean and variance as operands, or in training mode with those of
    the batch, which the given ones follow by 1 - momentum."""
    if not spatial:
        raise unsupported("spatial=0")
    if not training_mode and any(g.outputs[1:]):
        raise unsupported("the outputs of training (until opset 13)", "export it for inference")
    if not training_mode:
        return (normalization.batch_norm(g, x, scale, bias, mean, var, epsilon=epsilon),)
    axes = tuple(i for i in range(g.rank(x)) if i != 1)
    wide = g.cast(x, "float32") if g.dtype(x) in HALF_TYPES else x
    center = g.emit("mean", wide, axes=axes, keepdims=True)
    difference = g.emit("sub", wide, center)
    spread = g.emit("mean", g.emit("mul", difference, difference), axes=axes, keepdims=True)
    factor = g.emit("rsqrt", g.emit("add", spread, g.like(epsilon, spread)))
    scaled, shift = (
        g.cast(normalization.per_channel(g, v, x), g.dtype(wide)) for v in (scale, bias)
    )
    y = g.emit("add", g.emit("mul", g.emit("mul", difference, factor), scaled), shift)
    running = []
    for old, new in ((mean, center), (var, spread)):
        now = g.cast(g.reshape(new, g.shape(old)), g.dtype(old))
        old_share = g.emit("mul", old, g.like(momentum, old))
        running.append(g.emit("add", old_share, g.emit("mul", now, g.like(1 - momentum, old))))
    return g.cast(y, g.dtype(x)), *running


def layer_norm(
    g: OnnxContext,
    x: Val,
    scale: Val,
    bias: Val | None = None,
    *,
    axis: Int = -1,
    epsilon: Float = 1e-5,
    stash_type: Int = 1,
) -> tuple[Val, ...]:
    """Normalize over the dimensions from `axis` on; compute Mean and InvStdDev only if used."""
    y = normalization.layer_norm(g, x, scale, bias, axis=axis, epsilon=epsilon)
    if not any(g.outputs[1:]):
        return (y,)
    dtype = "float32" if stash_type == 1 else g.dtype(x)
    return y, *normalization.layer_statistics(g, x, axis=axis, epsilon=epsilon, dtype=dtype)


def rms_norm(
    g: Context, x: Val, scale: Val, *, axis: Int = -1, epsilon: Float = 1e-5, stash_type: Int = 1
) -> Val:
    """x / sqrt(mean(x^2) + eps) * scale, of 16 bits in float32, where epsilon is not 0."""
    dimension = g.axis(axis, g.rank(x))
    x, scale = unidirectional(g, x, scale, "scale")
    axes = tuple(range(dimension, g.rank(x)))
    wide = g.cast(x, "float32") if g.dtype(x) in HALF_TYPES else x
    square = g.emit("mean", g.emit("mul", wide, wide), axes=axes, keepdims=True)
    factor = g.emit("rsqrt", g.emit("add", square, g.like(epsilon, square)))
    return g.emit("mul", g.cast(g.emit("mul", wide, factor), g.dtype(x)), scale)


def instance_norm(g: Context, x: Val, scale: Val, bias: Val, *, epsilon: Float = 1e-5) -> Val:
    """Normalize each channel of each image to mean 0 and variance 1, then scale and shift it."""
    channels = int_value(g.shape(x)[1])
    if channels is None:
        raise unsupported("a symbolic number of channels")
    return normalization.group_norm(g, x, scale, bias, groups=channels, epsilon=epsilon)


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
    """Group normalization with scale and bias per channel (from opset 21)."""
    return normalization.group_norm(g, x, scale, bias, groups=num_groups, epsilon=epsilon)


def group_norm_18(
    g: Context, x: Val, scale: Val, bias: Val, *, num_groups: Int, epsilon: Float = 1e-5
) -> Val:
    """Group normalization with scale and bias per group (until opset 20)."""
    c = int_value(g.shape(x)[1])
    if c is None or c % num_groups:
        raise malformed(f"{num_groups} groups do not divide the channels")
    group_size = c // num_groups
    full = [
        g.reshape(
            g.emit("broadcast_to", g.reshape(v, (num_groups, 1)), shape=(num_groups, group_size)),
            (c,),
        )
        for v in (scale, bias)
    ]
    return group_norm(g, x, full[0], full[1], num_groups=num_groups, epsilon=epsilon)


def mean_variance_normalization(g: Context, x: Val, *, axes: Ints = (0, 2, 3)) -> Val:
    """(x - mean(x)) / (standard deviation + 1e-9), over `axes`; of 16 bits in float32."""
    dimensions = g.axes(axes, g.rank(x))
    wide = g.cast(x, "float32") if g.dtype(x) in HALF_TYPES else x
    difference = g.emit("sub", wide, g.emit("mean", wide, axes=dimensions, keepdims=True))
    variance = g.emit("mean", g.emit("mul", difference, difference), axes=dimensions, keepdims=True)
    deviation = g.emit("add", g.emit("sqrt", variance), g.like(1e-9, wide))
    return g.cast(g.emit("div", difference, deviation), g.dtype(x))


def lp_normalization(g: Context, x: Val, *, axis: Int = -1, p: Int = 2) -> Val:
    """Divide by the L1 or L2 norm along a dimension; where the norm is 0, the result is 0."""
    dimensions = (g.axis(axis, g.rank(x)),)
    if p == 1:
        size = g.emit("sum", g.emit("abs", x), axes=dimensions, keepdims=True)
    elif p == 2:
        size = g.emit("sqrt", g.emit("sum", g.emit("mul", x, x), axes=dimensions, keepdims=True))
    else:
        raise malformed(f"p={p}; expected 1 or 2")
    empty = g.emit("equal", size, g.like(0, x))
    return g.emit("div", x, g.emit("where", empty, g.like(1, x), size))


def lrn(
    g: Context, x: Val, *, size: Int, alpha: Float = 1e-4, beta: Float = 0.75, bias: Float = 1.0
) -> Val:
    """Local response normalization across channels."""
    return g.emit("lrn", x, size=size, alpha=alpha, beta=beta, bias=bias)


# -- matrix products --------------------------------------------------------------------------


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
    """alpha * A' B' + beta * C, where A' and B' are A and B, transposed if `transA`, `transB`."""
    return products.gemm(
        g,
        a,
        b,
        c,
        alpha=alpha,
        beta=beta,
        transpose_a=bool(transA),
        transpose_b=bool(transB),
    )


TABLE: Table = {
    "LRN": {1: lrn},
    "BatchNormalization": {7: batch_norm},
    "LayerNormalization": {17: layer_norm},
    "RMSNormalization": {23: rms_norm},
    "InstanceNormalization": {6: instance_norm},
    "GroupNormalization": {18: group_norm_18, 21: group_norm},
    "LpNormalization": {1: lp_normalization},
    "MeanVarianceNormalization": {9: mean_variance_normalization},
    "MatMul": {1: products.matmul},
    "Gemm": {7: gemm},
}
