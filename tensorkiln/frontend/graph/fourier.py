"""Discrete Fourier transforms as products with constant matrices. The time is quadratic in the
length, which must be static."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tensorkiln.frontend.graph.context import Context
from tensorkiln.frontend.graph.values import Val


def bins(size: int, half: bool) -> int:
    """How many elements of a transform of `size` there are, in all or in the half of a real one."""
    return size // 2 + 1 if half else size


def transform(
    g: Context, signals: Sequence[Val], size: int, *, inverse: bool, onesided: bool, factor: float
) -> list[Val]:
    """Real and imaginary part of `factor` times the transform along the last dimension of signals,
    given by their real parts or both; the real one alone if it is the inverse of a half.

    `size` is that of the whole transform, and must be a number of at least 1.
    """
    half = onesided and inverse
    k = np.arange(bins(size, half))[:, None] * np.arange(bins(size, onesided and not inverse))
    angle = 2 * np.pi * (k % size) / size
    scale = np.full((len(k), 1), factor)
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
