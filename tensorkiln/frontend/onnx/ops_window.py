"""Convolution; in more than two spatial dimensions by way of ops_deep.py."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tensorkiln.frontend.graph.context import Context
from tensorkiln.frontend.graph.issues import malformed, unsupported
from tensorkiln.frontend.graph.values import Val
from tensorkiln.frontend.onnx.dispatch import Int, Ints, Str, Table
from tensorkiln.frontend.onnx.ops_deep import conv_deep, conv_transpose_deep
from tensorkiln.frontend.onnx.ops_pad import pad
from tensorkiln.frontend.onnx.windows import Windows, padded_same, same_padding
from tensorkiln.ir.expr import IntImm, int_value
from tensorkiln.ops.window import Window


def _spatial(g: Context, x: Val) -> int:
    """The number of spatial dimensions of [N, C, ...]; NodeProblem if there is none.

    Importers treat one dimension as two, with height 1.
    """
    n = g.rank(x) - 2
    if n < 1:
        raise malformed(f"expected [N, C, ...], got an operand of {g.rank(x)} dimensions")
    return n


def _pair(values: Sequence[int] | None, n: int, what: str, least: int = 1) -> tuple[int, int]:
    """A checked attribute of n entries as (vertical, horizontal); (1, 1) if it is absent."""
    if values is None:
        return (1, 1)
    if len(values) != n or any(v < least for v in values):
        raise malformed(f"{what}={list(values)} for {n} spatial dimension(s)")
    return (values[0], values[1]) if n == 2 else (1, values[0])


def _padding(
    g: Context,
    x: Val,
    auto_pad: str,
    pads: Sequence[int] | None,
    kernel: tuple[int, int],
    strides: tuple[int, int],
    dilation: tuple[int, int],
) -> tuple[int, int, int, int]:
    """The padding as (top, left, bottom, right)."""
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
        same_padding(e, k, s, d, auto_pad == "SAME_UPPER")
        for e, k, s, d in zip(extents, kernel, strides, dilation, strict=True)
    ]
    return (out[0][0], out[1][0], out[0][1], out[1][1])


def _image(g: Context, x: Val) -> Val:
    """Reshape [N, C, L] to [N, C, 1, L]; return [N, C, H, W] unchanged."""
    if g.rank(x) == 4:
        return x
    n, c, width = g.shape(x)
    return g.reshape(x, (n, c, 1, width))


def _back(g: Context, y: Val, n: int) -> Val:
    dims = g.shape(y)
    return y if n == 2 else g.reshape(y, (dims[0], dims[1], dims[3]))


def conv(
    g: Context,
    x: Val,
    w: Val,
    b: Val | None = None,
    *,
    auto_pad: Str = "NOTSET",
    dilations: Ints | None = None,
    group: Int = 1,
    kernel_shape: Ints | None = None,
    pads: Ints | None = None,
    strides: Ints | None = None,
) -> Val:
    """Convolution of x [N, C, (H,) W] with w [M, C/group, (kh,) kw] and bias [M]."""
    if g.rank(w) != g.rank(x):
        raise malformed(f"the weights have {g.rank(w)} dimensions, the operand {g.rank(x)}")
    extents = [int_value(d) for d in g.shape(w)[2:]]
    if None in extents:
        raise unsupported("the kernel's extent is symbolic")
    shape = tuple(e for e in extents if e is not None)
    if kernel_shape is not None and tuple(kernel_shape) != shape:
        raise malformed(f"kernel_shape={list(kernel_shape)}, but the weights have {list(shape)}")
    windows = Windows(shape, strides, dilations, pads, auto_pad, False)
    x, windows = padded_same(g, x, windows, 0.0)
    if g.rank(x) > 4:
        given = windows.along(g, x)
        return conv_deep(g, x, w, b, given[:-2], group, lambda u, v: _flat(g, u, v, given, group))
    n = _spatial(g, x)
    kernel = _pair(shape, n, "kernel")
    step, dilation = _pair(strides, n, "strides"), _pair(dilations, n, "dilations")
    padding = _padding(g, x, windows.auto_pad, windows.pads, kernel, step, dilation)
    args = [_image(g, x), _image(g, w)] + ([b] if b is not None else [])
    y = g.emit("conv2d", *args, strides=step, padding=padding, dilation=dilation, groups=group)
    return _back(g, y, n)


def _flat(g: Context, x: Val, w: Val, windows: Sequence[Window], groups: int) -> Val:
    """The convolution along the last two of more dimensions."""
    rows, cols = windows[-2:]
    return g.emit(
        "conv2d",
        x,
        w,
        strides=(rows.stride, cols.stride),
        padding=(rows.before, cols.before, rows.after, cols.after),
        dilation=(rows.dilation, cols.dilation),
        groups=groups,
    )


def conv_transpose(
    g: Context,
    x: Val,
    w: Val,
    b: Val | None = None,
    *,
    auto_pad: Str = "NOTSET",
    dilations: Ints | None = None,
    group: Int = 1,
    kernel_shape: Ints | None = None,
    output_padding: Ints | None = None,
    output_shape: Ints | None = None,
    pads: Ints | None = None,
    strides: Ints | None = None,
) -> Val:
    """Transposed convolution, of w [C, M/group, (kh,) kw]; without strides it is a convolution by
    mirrored weights."""
    n = g.rank(x) - 2
    if g.rank(w) != n + 2:
        raise malformed(f"the weights have {g.rank(w)} dimensions, the operand {n + 2}")
    if n > 2:
        return _transposed_deep(
            g,
            x,
            w,
            b,
            auto_pad=auto_pad,
            dilations=dilations or (1,) * n,
            group=group,
            output_padding=output_padding or (0,) * n,
            output_shape=None if output_shape is None else output_shape[-n:],
            pads=pads or (0,) * (2 * n),
            strides=strides or (1,) * n,
        )
    n = _spatial(g, x)
    image, w = _image(g, x), _image(g, w)
    sizes = [int_value(d) for d in g.shape(w)]
    if None in sizes:
        raise unsupported("the weights have symbolic dimensions")
    channels, _, *kernel = (d or 1 for d in sizes)
    if group < 1 or channels % group:
        raise malformed(f"group={group} does not divide {channels} channels")
    step, dilation = _pair(strides, n, "strides"), _pair(dilations, n, "dilations")
    extra = (0, 0) if output_padding is None else _pair(output_padding, n, "output_padding", 0)
    extra = (0, extra[1]) if n == 1 else extra
    window = [(k - 1) * d + 1 for k, d in zip(kernel, dilation, strict=True)]
    if output_shape is not None or auto_pad not in ("NOTSET", "", "VALID"):
        cut = _transposedsame_padding(g, image, step, window, extra, n, output_shape, auto_pad)
    else:
        given = None if auto_pad == "VALID" else pads
        cut = _padding(g, x, "NOTSET", given, (1, 1), (1, 1), (1, 1))
    if step != (1, 1) and dilation != (1, 1):
        w, dilation = _dilated(g, w, dilation, window), (1, 1)
    cut = (cut[0], cut[1], cut[2] - extra[0], cut[3] - extra[1])
    if group == 1 and [int_value(d) for d in g.shape(image)[2:]] == [1, 1] and dilation == (1, 1):
        y = _of_one_pixel(g, image, w, b, cut)
    elif step == (1, 1):
        y = _mirrored(g, image, w, b, group, window, dilation, cut)
    else:
        args = [image, w] + ([b] if b is not None else [])
        y = g.emit("conv2d_transpose", *args, strides=step, cut=cut, groups=group)
    return _back(g, y, n)


def _of_one_pixel(g: Context, x: Val, w: Val, b: Val | None, cut: Sequence[int]) -> Val:
    """The transposed convolution of images of one pixel: a product of matrices."""
    c, m, kh, kw = g.shape(w)
    rows = g.reshape(x, (g.shape(x)[0], c))
    y = g.emit("matmul", rows, g.reshape(w, (c, m * kh * kw)))
    y = _cropped(g, g.reshape(y, (g.shape(x)[0], m, kh, kw)), [-n for n in cut])
    return y if b is None else g.emit("add", y, g.reshape(b, (m, 1, 1)))


def _mirrored(
    g: Context,
    x: Val,
    w: Val,
    b: Val | None,
    groups: int,
    window: Sequence[int],
    dilation: tuple[int, int],
    cut: Sequence[int],
) -> Val:
    """A transposed convolution without strides, as a convolution."""
    pads = [window[i % 2] - 1 - n for i, n in enumerate(cut)]
    image = _cropped(g, x, [min(p, 0) for p in pads])
    args = [image, _turned(g, w, groups)] + ([b] if b is not None else [])
    padding = tuple(max(p, 0) for p in pads)
    return g.emit("conv2d", *args, padding=padding, dilation=dilation, groups=groups)


def _transposed_deep(
    g: Context,
    x: Val,
    w: Val,
    b: Val | None,
    *,
    auto_pad: str,
    dilations: Sequence[int],
    group: int,
    output_padding: Sequence[int],
    output_shape: Sequence[int] | None,
    pads: Sequence[int],
    strides: Sequence[int],
) -> Val:
    """A transposed convolution in three or more dimensions; attributes as for `conv_transpose`."""
    n = g.rank(x) - 2
    lengths = [len(v) for v in (dilations, output_padding, strides)]
    if lengths != [n] * 3 or len(pads) != 2 * n or len(output_shape or dilations) != n:
        raise malformed(f"attributes of another number of dimensions than {n}")
    if min(*strides, *dilations) < 1 or min(*pads, *output_padding) < 0:
        given = f"strides={list(strides)}, dilations={list(dilations)}, pads={list(pads)}"
        raise malformed(f"{given}, output_padding={list(output_padding)}")
    rest: dict[str, Any] = {
        "auto_pad": auto_pad,
        "dilations": dilations[1:],
        "group": group,
        "output_padding": output_padding[1:],
        "output_shape": None if output_shape is None else output_shape[1:],
        "pads": (*pads[1:n], *pads[n + 1 :]),
        "strides": strides[1:],
    }
    y = conv_transpose_deep(
        g, x, w, strides[0], dilations[0], lambda u, v: conv_transpose(g, u, v, **rest)
    )
    cut = (pads[0], pads[n])
    if auto_pad == "VALID":
        cut = (0, 0)
    if output_shape is not None or auto_pad in ("SAME_UPPER", "SAME_LOWER"):
        size, full = int_value(g.shape(x)[2]), int_value(g.shape(y)[2])
        if size is None or full is None:
            raise unsupported("output_shape or auto_pad=SAME over a symbolic dimension")
        wanted = output_shape[0] if output_shape is not None else size * strides[0]
        total = full + output_padding[0] - wanted
        small = total // 2
        cut = (small, total - small) if auto_pad == "SAME_UPPER" else (total - small, small)
    y = pad(g, y, (-cut[0], output_padding[0] - cut[1]), (2,), "constant", 0.0)
    if b is None:
        return y
    return g.emit("add", y, g.reshape(b, (g.shape(y)[1], *[1] * n)))


def _cropped(g: Context, x: Val, pads: Sequence[int]) -> Val:
    """`x` with its rows and columns padded by (top, left, bottom, right); negative pads crop."""
    return pad(g, x, pads, (2, 3), "constant", 0.0)


def _turned(g: Context, w: Val, groups: int) -> Val:
    """[C, M/g, kh, kw] as the weights [M, C/g, kh, kw] of a convolution, their taps mirrored."""
    c, m, kh, kw = (int_value(d) or 0 for d in g.shape(w))
    split = g.reshape(w, (groups, c // groups, m, kh, kw))
    turned = g.emit(
        "slice",
        split,
        begin=(0, 0, 0, kh - 1, kw - 1),
        strides=(1, 1, 1, -1, -1),
        shape=(groups, c // groups, m, kh, kw),
    )
    return g.reshape(g.transpose(turned, (0, 2, 1, 3, 4)), (groups * m, c // groups, kh, kw))


def _dilated(g: Context, w: Val, dilation: tuple[int, int], window: Sequence[int]) -> Val:
    """The weights as [C, M/g, *window], with dilation - 1 zeros between neighbouring taps."""
    c, m, kh, kw = g.shape(w)
    wide = g.reshape(w, (c, m, kh, 1, kw, 1))
    after = (0, 0, 0, dilation[0] - 1, 0, dilation[1] - 1)
    wide = g.emit("pad", wide, before=(0,) * 6, after=after)
    wide = g.reshape(wide, (c, m, kh * dilation[0], kw * dilation[1]))
    return _cropped(g, wide, (0, 0, 1 - dilation[0], 1 - dilation[1]))


def _transposedsame_padding(
    g: Context,
    x: Val,
    step: tuple[int, int],
    window: Sequence[int],
    extra: tuple[int, int],
    n: int,
    output_shape: Sequence[int] | None,
    auto_pad: str,
) -> tuple[int, int, int, int]:
    """How much to cut from the full result at (top, left, bottom, right) to give it the extents of
    `output_shape`, or of `auto_pad`: input extent * stride. A negative number adds zeros."""
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


TABLE: Table = {
    "Conv": {1: conv},
    "ConvTranspose": {1: conv_transpose},
}
