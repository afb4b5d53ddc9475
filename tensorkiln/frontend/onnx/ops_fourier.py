"""DFT: discrete Fourier transforms as products with constant matrices.

The time is quadratic in the length. A length must be static.
"""

from __future__ import annotations

import numpy as np

from tensorkiln.frontend.onnx.context import Context
from tensorkiln.frontend.onnx.dispatch import Int, Table
from tensorkiln.frontend.onnx.issues import malformed, unsupported
from tensorkiln.frontend.onnx.known import Val
from tensorkiln.ir.expr import int_value


def dft_17(
    g: Context,
    x: Val,
    length: Val | None = None,
    *,
    axis: Int = 1,
    inverse: Int = 0,
    onesided: Int = 0,
) -> Val:
    """DFT with its axis as an attribute (until opset 19)."""
    return _dft(g, x, length, axis, bool(inverse), bool(onesided))


def dft_20(
    g: Context,
    x: Val,
    length: Val | None = None,
    axis: Val | None = None,
    *,
    inverse: Int = 0,
    onesided: Int = 0,
) -> Val:
    """DFT with its axis as an operand; by default the last dimension of the signal."""
    at = -2 if axis is None else int(g.scalar(axis, "axis"))
    return _dft(g, x, length, at, bool(inverse), bool(onesided))


def _dft(g: Context, x: Val, length: Val | None, axis: int, inverse: bool, onesided: bool) -> Val:
    """The transform of x [..., 1 or 2], whose last dimension holds the real part or both.

    `length` cuts the signal, or fills it up with zeros. With `onesided` a real signal has the first
    half of its transform; the inverse takes that half, and gives a real signal.
    """
    rank = g.rank(x)
    if rank < 2:
        raise malformed(f"expected a signal and its parts, got {rank} dimension(s)")
    at = g.axis(axis, rank)
    if at == rank - 1:
        raise malformed(f"axis={axis} is the dimension of real and imaginary parts")
    parts = int_value(g.shape(x)[-1])
    if parts not in (1, 2):
        raise malformed(f"the last dimension must be 1 or 2, got {parts}")
    if onesided and parts != 1 + inverse:
        raise malformed(f"onesided takes {1 + inverse} part(s) here, got {parts}")
    given = int_value(g.shape(x)[at])
    if given is None:
        raise unsupported("the signal's length is symbolic", "freeze={name: size}")
    half = onesided and inverse
    size = 2 * (given - 1) if half else given
    if length is not None:
        size = int(g.scalar(length, "dft_length"))
    if size < 1:
        raise malformed(f"a transform of {size} elements")
    order = [i for i in range(rank - 1) if i != at] + [at]
    signals = []
    for part in range(parts):
        begin, lead = (*[0] * (rank - 1), part), g.shape(x)[:-1]
        one = g.emit("slice", x, begin=begin, strides=(1,) * rank, shape=(*lead, 1))
        signals.append(_cut(g, g.transpose(g.reshape(one, lead), order), _bins(size, half)))
    results = _products(g, signals, size, inverse, onesided)
    back = [order.index(i) for i in range(rank - 1)]
    columns = [g.transpose(y, back) for y in results]
    wide = [g.reshape(y, (*g.shape(y), 1)) for y in columns]
    return wide[0] if len(wide) == 1 else g.emit("concat", *wide, axis=rank - 1)


def _bins(size: int, half: bool) -> int:
    """How many elements of a transform of `size` there are, in all or in the half of a real one."""
    return size // 2 + 1 if half else size


def _cut(g: Context, x: Val, size: int) -> Val:
    """The first `size` elements of the last dimension, with zeros where it has fewer."""
    rank, shape = g.rank(x), g.shape(x)
    have = int_value(shape[-1]) or 0
    if have < size:
        after = (*[0] * (rank - 1), size - have)
        return g.emit("pad", x, before=(0,) * rank, after=after, value=0.0)
    if have == size:
        return x
    return g.emit("slice", x, begin=(0,) * rank, strides=(1,) * rank, shape=(*shape[:-1], size))


def _products(
    g: Context, signals: list[Val], size: int, inverse: bool, onesided: bool
) -> list[Val]:
    """Real and imaginary part of the transform along the last dimension; the real one if it is the
    inverse of a half."""
    half = onesided and inverse
    k = np.arange(_bins(size, half))[:, None] * np.arange(_bins(size, onesided and not inverse))
    angle = 2 * np.pi * (k % size) / size
    scale = np.full((len(k), 1), 1 / size if inverse else 1.0)
    if half:  # each other bin stands for two
        scale[1 : (size + 1) // 2] *= 2
    cos = g.const(np.cos(angle) * scale, g.dtype(signals[0]))
    sin = g.const(np.sin(angle) * scale * (1 if inverse else -1), g.dtype(signals[0]))
    real, imag = (g.emit("matmul", signals[0], m) for m in (cos, sin))
    if len(signals) == 1:
        return [real, imag]
    real = g.emit("sub", real, g.emit("matmul", signals[1], sin))
    if half:
        return [real]
    return [real, g.emit("add", imag, g.emit("matmul", signals[1], cos))]


TABLE: Table = {"DFT": {17: dft_17, 20: dft_20}}
