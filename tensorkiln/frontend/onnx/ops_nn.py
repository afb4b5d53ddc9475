"""Convolution, pooling, normalisation, matrix products."""

from __future__ import annotations

from collections.abc import Sequence

from tensorkiln.frontend.onnx.context import Context
from tensorkiln.frontend.onnx.dispatch import Float, Int, Ints, Str, Table
from tensorkiln.frontend.onnx.issues import malformed, unsupported
from tensorkiln.frontend.onnx.known import Val
from tensorkiln.frontend.onnx.ops_index import pad
from tensorkiln.frontend.onnx.ops_shape import broadcast
from tensorkiln.ir.expr import Expr, IntImm, int_value
from tensorkiln.ir.relax import Constant

# -- windows ----------------------------------------------------------------------------------


def _spatial(g: Context, x: Val) -> int:
    """Spatial dimensions of [N, C, ...]; one is handled as two with a unit height."""
    n = g.rank(x) - 2
    if n < 1:
        raise malformed(f"expected [N, C, ...], got an operand of {g.rank(x)} dimensions")
    if n > 2:
        raise unsupported(f"{n} spatial dimensions", "1 and 2 are supported")
    return n


def _pair(values: Sequence[int] | None, n: int, what: str, least: int = 1) -> tuple[int, int]:
    """A checked attribute of n entries as (vertical, horizontal)."""
    if values is None:
        return (1, 1)
    if len(values) != n or any(v < least for v in values):
        raise malformed(f"{what}={list(values)} for {n} spatial dimension(s)")
    return (values[0], values[1]) if n == 2 else (1, values[0])


def _padding(
    g: Context, x: Val, auto_pad: str, pads: Sequence[int] | None, kernel: tuple[int, int],
    strides: tuple[int, int], dilation: tuple[int, int],
) -> tuple[int, int, int, int]:  # fmt: skip
    """(top, left, bottom, right)."""
    n = _spatial(g, x)
    if auto_pad in ("NOTSET", ""):
        given = (0,) * (2 * n) if pads is None else tuple(pads)
        if len(given) != 2 * n or any(p < 0 for p in given):
            raise malformed(f"pads={list(given)} for {n} spatial dimension(s)")
        return given if n == 2 else (0, given[0], 0, given[1])  # type: ignore[return-value]
    if auto_pad == "VALID":
        return (0, 0, 0, 0)
    if auto_pad not in ("SAME_UPPER", "SAME_LOWER"):
        raise malformed(f"auto_pad={auto_pad!r}")
    extents = g.shape(x)[2:] if n == 2 else (IntImm(1), g.shape(x)[2])
    out = [
        _same(e, k, s, d, auto_pad == "SAME_UPPER")
        for e, k, s, d in zip(extents, kernel, strides, dilation, strict=True)
    ]
    return (out[0][0], out[1][0], out[0][1], out[1][1])


def _same(extent: Expr, kernel: int, stride: int, dilation: int, upper: bool) -> tuple[int, int]:
    """(before, after) such that the result has ceil(extent / stride) elements."""
    size, window = int_value(extent), (kernel - 1) * dilation + 1
    if size is None and stride != 1:
        raise unsupported(
            "auto_pad=SAME with a stride over a symbolic dimension", "freeze it, or use pads"
        )
    total = window - 1
    if size is not None:
        total = max((-(-size // stride) - 1) * stride + window - size, 0)
    small = total // 2
    return (small, total - small) if upper else (total - small, small)


def _image(g: Context, x: Val) -> Val:
    """[N, C, L] as [N, C, 1, L]; [N, C, H, W] as it is."""
    if g.rank(x) == 4:
        return x
    n, c, width = g.shape(x)
    return g.reshape(x, (n, c, 1, width))


def _back(g: Context, y: Val, n: int) -> Val:
    dims = g.shape(y)
    return y if n == 2 else g.reshape(y, (dims[0], dims[1], dims[3]))


def conv(
    g: Context, x: Val, w: Val, b: Val | None = None, *, auto_pad: Str = "NOTSET",
    dilations: Ints | None = None, group: Int = 1, kernel_shape: Ints | None = None,
    pads: Ints | None = None, strides: Ints | None = None,
) -> Val:  # fmt: skip
    """Convolution in one or two spatial dimensions."""
    n = _spatial(g, x)
    if g.rank(w) != n + 2:
        raise malformed(f"the weights have {g.rank(w)} dimensions, the operand {n + 2}")
    extents = [int_value(d) for d in g.shape(w)[2:]]
    if None in extents:
        raise unsupported("the kernel's extent is symbolic")
    shape = tuple(e for e in extents if e is not None)
    if kernel_shape is not None and tuple(kernel_shape) != shape:
        raise malformed(f"kernel_shape={list(kernel_shape)}, but the weights have {list(shape)}")
    kernel = _pair(shape, n, "kernel")
    step, dilation = _pair(strides, n, "strides"), _pair(dilations, n, "dilations")
    padding = _padding(g, x, auto_pad, pads, kernel, step, dilation)
    args = [_image(g, x), _image(g, w)] + ([b] if b is not None else [])
    y = g.emit("conv2d", *args, strides=step, padding=padding, dilation=dilation, groups=group)
    return _back(g, y, n)


def conv_transpose(
    g: Context, x: Val, w: Val, b: Val | None = None, *, auto_pad: Str = "NOTSET",
    dilations: Ints | None = None, group: Int = 1, kernel_shape: Ints | None = None,
    output_padding: Ints | None = None, output_shape: Ints | None = None,
    pads: Ints | None = None, strides: Ints | None = None,
) -> Val:  # fmt: skip
    """A convolution of the operand with zeros between its elements, by the mirrored kernel."""
    n = _spatial(g, x)
    if g.rank(w) != n + 2:
        raise malformed(f"the weights have {g.rank(w)} dimensions, the operand {n + 2}")
    image, kernel_w = _image(g, x), _mirrored(g, _image(g, w), group)
    kernel = tuple(int_value(d) or 1 for d in g.shape(kernel_w)[2:])
    step, dilation = _pair(strides, n, "strides"), _pair(dilations, n, "dilations")
    extra = (0, 0) if output_padding is None else _pair(output_padding, n, "output_padding", 0)
    extra = (0, extra[1]) if n == 1 else extra
    window = [(k - 1) * d + 1 for k, d in zip(kernel, dilation, strict=True)]
    if output_shape is not None or auto_pad not in ("NOTSET", "", "VALID"):
        cut = _transposed_same(g, image, step, window, extra, n, output_shape, auto_pad)
    else:
        given = None if auto_pad == "VALID" else pads
        cut = _padding(g, x, "NOTSET", given, (1, 1), (1, 1), (1, 1))
    # The stuffed image carries (stride - 1) zeros behind each element, the last ones too many.
    before = [window[i] - 1 - cut[i] for i in (0, 1)]
    after = [window[i] - 1 - cut[i + 2] + extra[i] - (step[i] - 1) for i in (0, 1)]
    stuffed = _padded(g, _stuffed(g, image, step), before, after)
    args = [stuffed, kernel_w] + ([b] if b is not None else [])
    y = g.emit("conv2d", *args, dilation=dilation, groups=group)
    return _back(g, y, n)


def _mirrored(g: Context, w: Val, groups: int) -> Val:
    """[C, M/g, kh, kw] as the weights [M, C/g, kh, kw] of a plain convolution."""
    c, m, kh, kw = (int_value(d) for d in g.shape(w))
    if c is None or m is None or kh is None or kw is None:
        raise unsupported("the weights have symbolic dimensions")
    if groups < 1 or c % groups:
        raise malformed(f"group={groups} does not divide {c} channels")
    turned = g.emit(
        "slice", w, begin=(0, 0, kh - 1, kw - 1), strides=(1, 1, -1, -1), shape=(c, m, kh, kw)
    )
    split = g.reshape(turned, (groups, c // groups, m, kh, kw))
    return g.reshape(g.transpose(split, (0, 2, 1, 3, 4)), (groups * m, c // groups, kh, kw))


def _stuffed(g: Context, x: Val, step: tuple[int, int]) -> Val:
    """[N, C, H*sh, W*sw] with the operand's elements at multiples of the strides, else zero."""
    if step == (1, 1):
        return x
    n, c, h, w = g.shape(x)
    wide = g.reshape(x, (n, c, h, 1, w, 1))
    after = (0, 0, 0, step[0] - 1, 0, step[1] - 1)
    wide = g.emit("pad", wide, before=(0,) * 6, after=after)
    return g.reshape(wide, (n, c, h * step[0], w * step[1]))


def _padded(g: Context, x: Val, before: Sequence[int], after: Sequence[int]) -> Val:
    """Zeros around the image; negative numbers cut."""
    return pad(g, x, (*before, *after), (2, 3), "constant", 0.0)


def _transposed_same(
    g: Context, x: Val, step: tuple[int, int], window: Sequence[int], extra: tuple[int, int],
    n: int, output_shape: Sequence[int] | None, auto_pad: str,
) -> tuple[int, int, int, int]:  # fmt: skip
    """What to cut from the full result so that it has the wanted extents."""
    extents = [int_value(d) for d in g.shape(x)[2:]]
    if None in extents:
        raise unsupported("output_shape or auto_pad=SAME over a symbolic dimension")
    sizes = [e for e in extents if e is not None]
    if auto_pad not in ("NOTSET", "", "VALID", "SAME_UPPER", "SAME_LOWER"):
        raise malformed(f"auto_pad={auto_pad!r}")
    if output_shape is not None:
        wanted = _pair(output_shape[-n:], n, "output_shape")
    else:
        wanted = (sizes[0] * step[0], sizes[1] * step[1])
    cut = []
    for i in (0, 1):
        total = step[i] * (sizes[i] - 1) + extra[i] + window[i] - wanted[i]
        small = total // 2
        cut.append((small, total - small) if auto_pad == "SAME_UPPER" else (total - small, small))
    return (cut[0][0], cut[1][0], cut[0][1], cut[1][1])


def max_pool(
    g: Context, x: Val, *, kernel_shape: Ints, auto_pad: Str = "NOTSET", ceil_mode: Int = 0,
    dilations: Ints | None = None, pads: Ints | None = None, storage_order: Int = 0,
    strides: Ints | None = None,
) -> Val:  # fmt: skip
    """Maximum over windows; the output Indices is not supported."""
    if sum(1 for o in g.outputs if o) > 1:
        raise unsupported("the output Indices")
    n = _spatial(g, x)
    kernel, step = _pair(kernel_shape, n, "kernel_shape"), _pair(strides, n, "strides")
    dilation = _pair(dilations, n, "dilations")
    padding = _padding(g, x, auto_pad, pads, kernel, step, dilation)
    y = g.emit(
        "max_pool2d", _image(g, x), kernel=kernel, strides=step, padding=padding,
        dilation=dilation, ceil_mode=bool(ceil_mode),
    )  # fmt: skip
    return _back(g, y, n)


def average_pool(
    g: Context, x: Val, *, kernel_shape: Ints, auto_pad: Str = "NOTSET", ceil_mode: Int = 0,
    count_include_pad: Int = 0, dilations: Ints | None = None, pads: Ints | None = None,
    strides: Ints | None = None,
) -> Val:  # fmt: skip
    """Mean over windows."""
    n = _spatial(g, x)
    kernel, step = _pair(kernel_shape, n, "kernel_shape"), _pair(strides, n, "strides")
    if _pair(dilations, n, "dilations") != (1, 1):
        raise unsupported(f"dilations={list(dilations or ())}", "only 1")
    padding = _padding(g, x, auto_pad, pads, kernel, step, (1, 1))
    y = g.emit(
        "avg_pool2d", _image(g, x), kernel=kernel, strides=step, padding=padding,
        ceil_mode=bool(ceil_mode), count_include_pad=bool(count_include_pad),
    )  # fmt: skip
    return _back(g, y, n)


def global_average_pool(g: Context, x: Val) -> Val:
    """Mean over all spatial dimensions, which stay as 1."""
    return g.emit("mean", x, axes=tuple(range(2, g.rank(x))), keepdims=True)


def global_max_pool(g: Context, x: Val) -> Val:
    """Maximum over all spatial dimensions, which stay as 1."""
    return g.emit("max", x, axes=tuple(range(2, g.rank(x))), keepdims=True)


def lrn(
    g: Context, x: Val, *, size: Int, alpha: Float = 1e-4, beta: Float = 0.75, bias: Float = 1.0
) -> Val:
    """Local response normalisation across channels."""
    return g.emit("lrn", x, size=size, alpha=alpha, beta=beta, bias=bias)


# -- normalisation ----------------------------------------------------------------------------


def batch_norm(
    g: Context, x: Val, scale: Val, bias: Val, mean: Val, var: Val, *, epsilon: Float = 1e-5,
    momentum: Float = 0.9, spatial: Int = 1, training_mode: Int = 0,
) -> Val:  # fmt: skip
    """The inference form: statistics are operands."""
    if not spatial:
        raise unsupported("spatial=0")
    if training_mode or sum(1 for o in g.outputs if o) > 1:
        raise unsupported("training mode", "export the model for inference")
    return g.emit("batch_norm", x, scale, bias, mean, var, eps=epsilon)


def layer_norm(
    g: Context, x: Val, scale: Val, bias: Val | None = None, *, axis: Int = -1,
    epsilon: Float = 1e-5, stash_type: Int = 1,
) -> tuple[Val, ...]:  # fmt: skip
    """Over the dimensions from `axis` on; Mean and InvStdDev are computed where asked for."""
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
    axes = tuple(range(at, g.rank(x)))
    square = g.emit("mean", g.emit("mul", x, x), axes=axes, keepdims=True)
    factor = g.emit("rsqrt", g.emit("add", square, g.like(epsilon, x)))
    return g.emit("mul", g.emit("mul", x, factor), scale)


def _per_channel(g: Context, v: Val, x: Val) -> Val:
    """[C] as [C, 1, ...] against [N, C, ...]."""
    return g.reshape(v, (g.shape(x)[1], *(1 for _ in g.shape(x)[2:])))


def _normalised_groups(g: Context, x: Val, groups: int, epsilon: float) -> Val:
    """Zero mean, unit variance over each of `groups` equal runs of channels."""
    n, c = g.shape(x)[:2]
    each = g.dims.divide(g.dims.product(g.shape(x)[1:]), IntImm(groups))
    if each is None or (int_value(c) or 0) % groups:
        raise malformed(f"{groups} groups do not divide the channels")
    rows = g.reshape(x, (n, groups, each))
    one = g.emit("full", shape=(each,), value=1.0, dtype=g.dtype(x))
    return g.reshape(g.emit("layer_norm", rows, one, axis=-1, eps=epsilon), g.shape(x))


def instance_norm(g: Context, x: Val, scale: Val, bias: Val, *, epsilon: Float = 1e-5) -> Val:
    """Each channel of each image to zero mean and unit variance, then scaled."""
    channels = int_value(g.shape(x)[1])
    if channels is None:
        raise unsupported("a symbolic number of channels")
    y = _normalised_groups(g, x, channels, epsilon)
    return g.emit("add", g.emit("mul", y, _per_channel(g, scale, x)), _per_channel(g, bias, x))


def group_norm(
    g: Context, x: Val, scale: Val, bias: Val, *, num_groups: Int, epsilon: Float = 1e-5,
    stash_type: Int = 1,
) -> Val:  # fmt: skip
    """Scale and bias per channel (opset 21)."""
    y = _normalised_groups(g, x, num_groups, epsilon)
    return g.emit("add", g.emit("mul", y, _per_channel(g, scale, x)), _per_channel(g, bias, x))


def group_norm_18(
    g: Context, x: Val, scale: Val, bias: Val, *, num_groups: Int, epsilon: Float = 1e-5
) -> Val:
    """Scale and bias per group."""
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


def lp_normalization(g: Context, x: Val, *, axis: Int = -1, p: Int = 2) -> Val:
    """Divides by the L1 or L2 norm along a dimension; a norm of 0 gives 0."""
    at = (g.axis(axis, g.rank(x)),)
    if p == 1:
        size = g.emit("sum", g.emit("abs", x), axes=at, keepdims=True)
    elif p == 2:
        size = g.emit("sqrt", g.emit("sum", g.emit("mul", x, x), axes=at, keepdims=True))
    else:
        raise malformed(f"p={p}; expected 1 or 2")
    empty = g.emit("equal", size, g.like(0, x))
    return g.emit("div", x, g.emit("where", empty, g.like(1, x), size))


# -- matrix products --------------------------------------------------------------------------


def matmul(g: Context, a: Val, b: Val) -> Val:
    """A constant matrix on the right is a layer's weights."""
    if isinstance(b, Constant) and g.rank(b) == 2 and g.rank(a) >= 2:
        return g.emit("linear", a, b)
    return g.emit("matmul", a, b)


def gemm(
    g: Context, a: Val, b: Val, c: Val | None = None, *, alpha: Float = 1.0, beta: Float = 1.0,
    transA: Int = 0, transB: Int = 0,
) -> Val:  # fmt: skip
    """alpha * A' B' + beta * C; constant B becomes a layer's weights."""
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
        y = g.emit("add", y, c if beta == 1 else g.emit("mul", c, g.like(beta, c)))
    return y


def _is_row(g: Context, c: Val, w: Val) -> bool:
    """Whether the bias is [N] or [1, N] for weights [K, N]."""
    *lead, last = g.shape(c) or (None,)
    return last == g.shape(w)[1] and all(int_value(d) == 1 for d in lead if d is not None)


TABLE: Table = {
    "Conv": {1: conv},
    "ConvTranspose": {1: conv_transpose},
    "MaxPool": {1: max_pool},
    "AveragePool": {7: average_pool},
    "GlobalAveragePool": {1: global_average_pool},
    "GlobalMaxPool": {1: global_max_pool},
    "LRN": {1: lrn},
    "BatchNormalization": {7: batch_norm},
    "LayerNormalization": {17: layer_norm},
    "RMSNormalization": {23: rms_norm},
    "InstanceNormalization": {6: instance_norm},
    "GroupNormalization": {18: group_norm_18, 21: group_norm},
    "LpNormalization": {1: lp_normalization},
    "MatMul": {1: matmul},
    "Gemm": {7: gemm},
}
