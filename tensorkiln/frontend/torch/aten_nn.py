"""Layers of ATen: products, convolutions, pooling, normalization, attention."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from tensorkiln.frontend.graph import attention as attentions
from tensorkiln.frontend.graph import grid_sample, normalization, pooling, products
from tensorkiln.frontend.graph.convolution import conv
from tensorkiln.frontend.graph.issues import unsupported
from tensorkiln.frontend.graph.transposed_convolution import conv_transpose
from tensorkiln.frontend.graph.values import Val
from tensorkiln.frontend.graph.windows import Windows
from tensorkiln.frontend.torch.aten_reduce import variance
from tensorkiln.frontend.torch.context import AtenContext, Operand
from tensorkiln.frontend.torch.dispatch import AtenImporter, AtenTable
from tensorkiln.ir.expr import as_expr, int_value
from tensorkiln.ir.relax import Constant

Numbers = Sequence[Operand]


# -- products ---------------------------------------------------------------------------------


def _of_floats(g: AtenContext, a: Val, b: Val) -> Val:
    """A product of two matrices, or of many; weights become those of `linear`."""
    return products.matmul(g, a, b)


def mm(g: AtenContext, a: Val, b: Val) -> Val:
    """The product of two matrices."""
    return _of_floats(g, a, b)


def matmul(g: AtenContext, a: Val, b: Val) -> Val:
    """A product in which a vector is a row on the left and a column on the right."""
    x = g.reshape(a, (1, *g.shape(a))) if g.rank(a) == 1 else a
    y = g.reshape(b, (*g.shape(b), 1)) if g.rank(b) == 1 else b
    return g.reshape(_of_floats(g, x, y), g.out.shape)


def grouped_mm(g: AtenContext, a: Val, b: Val, offs: Val | None = None) -> Val:
    """Rows of a [s, n] times matrices of b [e, n, m]: rows from offs[k - 1] to offs[k] times b[k],
    and 0 for rows behind the last. With few rows each reads its matrix; else every matrix is
    multiplied by all rows, which costs e times the additions but no copies of matrices."""
    if offs is None or g.rank(a) != 2 or g.rank(b) != 3:
        raise unsupported(
            f"groups of an operand of {g.rank(a)} and one of {g.rank(b)} dimensions",
            "torch.bmm multiplies groups of one size",
        )
    rows, groups, width = g.shape(a)[0], g.shape(b)[0], g.shape(b)[2]
    ends = g.reshape(g.cast(offs, "int64"), (as_expr(1), groups))
    ended = g.emit("less_equal", ends, g.iota(rows, 2, 0))
    row_groups = g.emit("sum", g.cast(ended, "int64"), axes=(1,), keepdims=False)
    few, many = int_value(rows), int_value(groups)
    if few is not None and many is not None and few <= many:
        last = g.emit("minimum", row_groups, g.const(many - 1, "int64"))
        matrices = g.emit("take", b, last, axis=0, outside="clamp")
        row_products = g.emit("matmul", g.reshape(a, (rows, 1, g.shape(a)[1])), matrices)
        row_products = g.reshape(row_products, (rows, width))
        inside = g.emit("less", row_groups, g.const(many, "int64"))
        return g.emit("where", g.reshape(inside, (rows, 1)), row_products, g.like(0, row_products))
    all_products = g.emit("matmul", g.reshape(a, (1, *g.shape(a))), b)
    mine = g.emit("equal", g.reshape(row_groups, (as_expr(1), rows)), g.iota(groups, 2, 0))
    group_products = g.emit(
        "where", g.reshape(mine, (groups, rows, 1)), all_products, g.like(0, all_products)
    )
    return g.emit("sum", group_products, axes=(0,), keepdims=False)


def addmm(
    g: AtenContext, bias: Val, a: Val, b: Val, *, beta: Operand = 1, alpha: Operand = 1
) -> Val:
    """beta * bias + alpha * a b"""
    if g.type(a).dtype.is_float:
        product = products.gemm(g, a, b, bias, alpha=float(alpha), beta=float(beta))
        return g.spread(product, g.out.shape)
    product = _scaled(g, g.emit("matmul", a, b), alpha)
    return g.emit("add", product, _scaled(g, bias, beta)) if beta != 0 else product


def baddbmm(
    g: AtenContext, bias: Val, a: Val, b: Val, *, beta: Operand = 1, alpha: Operand = 1
) -> Val:
    """beta * bias + alpha * a b, for many matrices."""
    product = _scaled(g, g.emit("matmul", a, b), alpha)
    return g.emit("add", product, _scaled(g, bias, beta)) if beta != 0 else product


def _scaled(g: AtenContext, x: Val, factor: Operand) -> Val:
    return x if factor == 1 else g.emit("mul", x, g.number(factor, g.dtype(x)))


def linear(g: AtenContext, x: Val, weight: Val, bias: Val | None = None) -> Val:
    """x W^T + b, also of vectors."""
    if g.rank(weight) == 1:
        return g.reshape(matmul(g, x, weight), g.out.shape)
    wide = g.reshape(x, (1, *g.shape(x))) if g.rank(x) == 1 else x
    return g.reshape(linear_of(g, wide, weight, bias), g.out.shape)


def linear_of(g: AtenContext, x: Val, weight: Val, bias: Val | None) -> Val:
    """x W^T + b, of rows and a matrix."""
    if isinstance(weight, Constant):
        args = [x, g.transpose(weight, (1, 0))] + ([bias] if bias is not None else [])
        return g.emit("linear", *args)
    product = g.emit("matmul", x, weight, transpose_b=True)
    return product if bias is None else g.emit("add", product, bias)


def cdist(g: AtenContext, a: Val, b: Val, norm: float, mode: int | None) -> Val:
    """The norm of the differences of all pairs of rows."""
    *lead, n, m = g.shape(a)
    x = g.reshape(a, (*lead, n, 1, m))
    *lead, k, m = g.shape(b)
    y = g.reshape(b, (*lead, 1, k, m))
    difference = g.emit("abs", g.emit("sub", x, y))
    last = (g.rank(difference) - 1,)
    if norm == math.inf:
        return g.emit("max", difference, axes=last, keepdims=False)
    if norm == 0:
        difference = g.cast(
            g.emit("not_equal", difference, g.like(0, difference)), g.dtype(difference)
        )
        return g.emit("sum", difference, axes=last, keepdims=False)
    powers = (
        g.emit("mul", difference, difference)
        if norm == 2
        else difference
        if norm == 1
        else g.emit("pow", difference, g.like(norm, difference))
    )
    total = g.emit("sum", powers, axes=last, keepdims=False)
    if norm in (1, 2):
        return total if norm == 1 else g.emit("sqrt", total)
    return g.emit("pow", total, g.like(1 / norm, total))


# -- convolutions and pooling -----------------------------------------------------------------


def _each(values: Numbers | None, count: int, default: int = 1) -> tuple[int, ...]:
    """A list with an entry for each spatial dimension; one entry counts for all."""
    numbers = [int_value(as_expr(v)) for v in values or ()]
    if None in numbers:
        raise unsupported("a symbolic window")
    entries = [n for n in numbers if n is not None] or [default]
    return tuple(entries * count if len(entries) == 1 else entries)


def convolution(
    g: AtenContext,
    x: Val,
    weight: Val,
    bias: Val | None,
    stride: Numbers,
    padding: Numbers,
    dilation: Numbers,
    transposed: bool,
    output_padding: Numbers,
    groups: int,
) -> Val:
    """Convolution, or its transpose, of [N, C, ...]."""
    n = g.rank(weight) - 2
    pads = _each(padding, n, 0)
    steps, gaps = _each(stride, n), _each(dilation, n)
    if transposed:
        return conv_transpose(
            g,
            x,
            weight,
            bias,
            strides=steps,
            dilations=gaps,
            pads=(*pads, *pads),
            output_padding=_each(output_padding, n, 0),
            groups=groups,
        )
    return conv(
        g, x, weight, bias, strides=steps, dilations=gaps, pads=(*pads, *pads), groups=groups
    )


def _batched(g: AtenContext, x: Val, n: int) -> Val:
    """[C, ...] as [1, C, ...]; a batch as it is."""
    return g.reshape(x, (1, *g.shape(x))) if g.rank(x) == n + 1 else x


def max_pool(n: int, places: bool) -> AtenImporter:
    """The maximum over windows; where `places`, beside the places in each plane."""

    def run(
        g: AtenContext,
        x: Val,
        kernel: Numbers,
        stride: Numbers = (),
        padding: Numbers = (0,),
        dilation: Numbers = (1,),
        ceil_mode: bool = False,
    ) -> Val | list[Val | None]:
        size, pads = _each(kernel, n), _each(padding, n, 0)
        images = _batched(g, x, n)
        shape = Windows(
            size,
            strides=_each(stride, n) if stride else size,
            dilations=_each(dilation, n),
            pads=(*pads, *pads),
            ceil_mode=ceil_mode,
        )
        y, positions = pooling.max_pool(g, images, shape, positions=places and 1 in g.used)
        y = g.reshape(y, g.out.shape)
        if positions is None:
            return [y, None] if places else y
        # Positions are those in the whole tensor, and torch's those in a plane.
        plane = g.shape_value([g.dims.product(g.shape(images)[2:])])
        return [y, g.reshape(g.emit("mod", positions, plane), g.out.shape)]

    return run


def average_pool(n: int) -> AtenImporter:
    """The mean over windows."""

    def run(
        g: AtenContext,
        x: Val,
        kernel: Numbers,
        stride: Numbers = (),
        padding: Numbers = (0,),
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        divisor_override: int | None = None,
    ) -> Val:
        size, pads = _each(kernel, n), _each(padding, n, 0)
        if divisor_override is not None and ceil_mode:
            raise unsupported("divisor_override with ceil_mode")
        shape = Windows(
            size,
            strides=_each(stride, n) if stride else size,
            pads=(*pads, *pads),
            ceil_mode=ceil_mode,
        )
        padded = count_include_pad or divisor_override is not None
        means = pooling.average_pool(g, _batched(g, x, n), shape, count_include_pad=padded)
        if divisor_override is not None:
            means = g.emit("mul", means, g.like(math.prod(size) / divisor_override, means))
        return g.reshape(means, g.out.shape)

    return run


def adaptive_average_pool(n: int) -> AtenImporter:
    """The mean over windows by which each spatial dimension gets a given extent."""

    def run(g: AtenContext, x: Val, sizes: Numbers) -> Val:
        rank = g.rank(x)
        axes = tuple(range(rank - n, rank))
        if all(int_value(g.out.shape[d]) == 1 for d in axes):
            return g.emit("mean", x, axes=axes, keepdims=True)
        for axis in axes:
            x = _adapted(g, x, axis, g.out.shape[axis])
        return x

    return run


def _adapted(g: AtenContext, x: Val, axis: int, extent: Operand) -> Val:
    """One dimension averaged to an extent: element i is the mean of the elements from
    floor(i * n / m) to ceil((i + 1) * n / m) - 1."""
    n, m = int_value(g.shape(x)[axis]), int_value(as_expr(extent))
    if n is None or m is None:
        raise unsupported("adaptive pooling of a symbolic dimension", "freeze={name: size}")
    if n == m:
        return x
    if n % m == 0:
        shape = g.shape(x)
        split = g.reshape(x, (*shape[:axis], m, n // m, *shape[axis + 1 :]))
        return g.emit("mean", split, axes=(axis + 1,), keepdims=False)
    weights = np.zeros((n, m))
    for i in range(m):
        first, end = i * n // m, -(-(i + 1) * n // m)
        weights[first:end, i] = 1 / (end - first)
    return along(g, x, axis, weights)


def along(g: AtenContext, x: Val, axis: int, weights: np.ndarray) -> Val:
    """One dimension multiplied by a constant matrix [n, m]."""
    order = [d for d in range(g.rank(x)) if d != axis] + [axis]
    product = g.emit("linear", g.transpose(x, order), g.const(weights, g.dtype(x)))
    return g.transpose(product, [order.index(d) for d in range(len(order))])


# -- normalization ----------------------------------------------------------------------------


def _ones(g: AtenContext, x: Val, extent: Operand, value: float) -> Val:
    return g.spread(g.like(value, x), (as_expr(extent),))


def batch_norm(
    g: AtenContext,
    x: Val,
    weight: Val | None,
    bias: Val | None,
    mean: Val,
    var: Val,
    momentum: float,
    eps: float,
) -> list[Val | None]:
    """Batch normalization with given statistics."""
    channels = g.shape(x)[1]
    scale = _ones(g, x, channels, 1) if weight is None else weight
    shift = _ones(g, x, channels, 0) if bias is None else bias
    y = normalization.batch_norm(g, x, scale, shift, mean, var, epsilon=float(eps))
    return [y, None, None]


def batch_norm_no_stats(
    g: AtenContext,
    x: Val,
    weight: Val | None,
    bias: Val | None,
    training: bool,
    momentum: float,
    eps: float,
) -> list[Val]:
    """Batch normalization by the statistics of the batch itself, as instance normalization has."""
    axes = [d for d in range(g.rank(x)) if d != 1]
    spread, center = variance(g, x, axes, 0, True)
    return _normalized(g, x, weight, bias, center, spread, eps)


def batch_norm_legit(
    g: AtenContext,
    x: Val,
    weight: Val | None,
    bias: Val | None,
    mean: Val,
    var: Val,
    training: bool,
    momentum: float,
    eps: float,
) -> list[Val | None]:
    """Batch normalization with given statistics; in training they would change."""
    if training:
        raise unsupported("batch normalisation in training mode", "module.eval()", "training")
    return batch_norm(g, x, weight, bias, mean, var, momentum, eps)


def _normalized(
    g: AtenContext,
    x: Val,
    weight: Val | None,
    bias: Val | None,
    center: Val,
    spread: Val,
    eps: float,
) -> list[Val]:
    factor = g.emit("rsqrt", g.emit("add", spread, g.like(eps, spread)))
    output = g.emit("mul", g.emit("sub", x, center), factor)
    for name, v in (("mul", weight), ("add", bias)):
        if v is not None:
            thin = g.reshape(v, (g.shape(x)[1], *(1 for _ in g.shape(x)[2:])))
            output = g.emit(name, output, thin)
    lead = [g.reshape(v, (g.shape(x)[1],)) for v in (center, factor)]
    return [output, *lead]


def layer_norm(
    g: AtenContext,
    x: Val,
    shape: Numbers,
    weight: Val | None,
    bias: Val | None,
    eps: float,
) -> list[Val | None]:
    """Normalization over the last dimensions; mean and 1 / deviation only if they are used."""
    normalized = g.shape(x)[g.rank(x) - len(shape) :]
    scale = g.spread(g.like(1, x), normalized) if weight is None else weight
    options: dict[str, Any] = {"axis": -len(shape), "epsilon": float(eps)}
    y = normalization.layer_norm(g, x, scale, bias, **options)
    if not g.used & {1, 2}:
        return [y, None, None]
    return [y, *normalization.layer_statistics(g, x, dtype=g.dtype(x), **options)]


def group_norm(
    g: AtenContext,
    x: Val,
    weight: Val | None,
    bias: Val | None,
    n: Operand,
    c: Operand,
    hxw: Operand,
    groups: int,
    eps: float,
) -> list[Val | None]:
    """Normalization over groups of channels of each sample."""
    channels = g.shape(x)[1]
    scale = _ones(g, x, channels, 1) if weight is None else weight
    shift = _ones(g, x, channels, 0) if bias is None else bias
    output = normalization.group_norm(g, x, scale, shift, groups=groups, epsilon=float(eps))
    if not g.used & {1, 2}:
        return [output, None, None]
    rows = g.reshape(
        x,
        (
            g.shape(x)[0],
            groups,
            g.dims.divide(g.dims.product(g.shape(x)[1:]), as_expr(groups)) or 1,
        ),
    )
    spread, center = variance(g, rows, [2], 0, False)
    return [output, center, g.emit("rsqrt", g.emit("add", spread, g.like(eps, spread)))]


# -- attention, sampling ----------------------------------------------------------------------


def attention(
    g: AtenContext,
    q: Val,
    k: Val,
    v: Val,
    mask: Val | None = None,
    dropout: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Val:
    """softmax(q k^T * scale + mask) v over [..., S, D]; a query that sees no key gets 0."""
    if dropout:
        raise unsupported("dropout in training mode", "module.eval()", "training")
    y = _attended(g, q, k, v, mask, is_causal, scale)
    return g.reshape(y, g.out.shape)


def _attended(
    g: AtenContext, q: Val, k: Val, v: Val, mask: Val | None, causal: bool, scale: float | None
) -> Val:
    rank = g.rank(q)
    lead = g.out.shape[:-2]
    if rank == 4:
        flat = [q, k, v]
    else:
        many = g.dims.product(lead)
        wide = [g.spread(x, (*lead, *g.shape(x)[-2:])) for x in (q, k, v)]
        flat = [g.reshape(x, (many, 1, *g.shape(x)[-2:])) for x in wide]
        if mask is not None and g.rank(mask) > 2:
            mask = g.spread(mask, (*lead, *g.shape(mask)[-2:]))
            mask = g.reshape(mask, (many, 1, *g.shape(mask)[-2:]))
    if mask is not None and not g.type(mask).dtype.is_bool:
        mask = g.cast(mask, g.dtype(q))
    return attentions.attention(g, flat[0], flat[1], flat[2], mask, scale=scale, causal=causal)[0]


def flash_attention(
    g: AtenContext,
    q: Val,
    k: Val,
    v: Val,
    dropout: float = 0.0,
    is_causal: bool = False,
    *,
    attn_mask: Val | None = None,
    scale: float | None = None,
) -> list[Val | None]:
    """The attention of torch's kernel for CPUs; its logarithms of sums are for gradients only."""
    return [attention(g, q, k, v, attn_mask, dropout, is_causal, scale=scale), None]


def grid_sampler(
    g: AtenContext, x: Val, grid: Val, interpolation: int, padding: int, align_corners: bool
) -> Val:
    """A picture read at computed coordinates."""
    modes, paddings = ("linear", "nearest", "cubic"), ("zeros", "border", "reflection")
    return grid_sample.grid_sample(
        g,
        x,
        grid,
        mode=modes[interpolation],
        padding_mode=paddings[padding],
        align_corners=align_corners,
    )


TABLE: AtenTable = {
    "mm": mm,
    "bmm": mm,
    "_grouped_mm": grouped_mm,
    "transformers::grouped_mm_fallback": grouped_mm,
    "matmul": matmul,
    "mv": matmul,
    "dot": matmul,
    "addmm": addmm,
    "baddbmm": baddbmm,
    "linear": linear,
    "_cdist_forward": cdist,
    "convolution": convolution,
    "max_pool2d_with_indices": max_pool(2, True),
    "max_pool3d_with_indices": max_pool(3, True),
    "max_pool1d": max_pool(1, False),
    "max_pool2d": max_pool(2, False),
    "max_pool3d": max_pool(3, False),
    **{f"avg_pool{n}d": average_pool(n) for n in (1, 2, 3)},
    "adaptive_avg_pool1d": adaptive_average_pool(1),
    **dict.fromkeys(("adaptive_avg_pool2d", "_adaptive_avg_pool2d"), adaptive_average_pool(2)),
    **dict.fromkeys(("adaptive_avg_pool3d", "_adaptive_avg_pool3d"), adaptive_average_pool(3)),
    "_native_batch_norm_legit_no_training": batch_norm,
    "_native_batch_norm_legit": batch_norm_legit,
    "_native_batch_norm_legit.no_stats": batch_norm_no_stats,
    "native_layer_norm": layer_norm,
    "native_group_norm": group_norm,
    "scaled_dot_product_attention": attention,
    "_scaled_dot_product_flash_attention_for_cpu": flash_attention,
    "grid_sampler_2d": grid_sampler,
    "grid_sampler_3d": grid_sampler,
}
