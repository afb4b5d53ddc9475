"""What CMSIS-NN computes, in exact integers: the reference of the tests, from the definitions of
the operators and of the fixed-point arithmetic (docs/howto/cmsis-nn.md). Images are N, C, H, W."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from math import ceil, floor

import numpy as np

Array = np.ndarray


def fixed(value: float) -> tuple[int, int]:
    """(multiplier, shift) with value = multiplier * 2**(shift - 31), by exact arithmetic."""
    exact, shift = Fraction(value), 0
    while exact >= 1:
        exact, shift = exact / 2, shift + 1
    while exact < Fraction(1, 2):
        exact, shift = exact * 2, shift - 1
    multiplier = floor(exact * 2**31 + Fraction(1, 2))
    return (multiplier, shift) if multiplier < 2**31 else (2**30, shift + 1)


def _away(x: Fraction) -> int:
    """To the nearest integer, ties away from zero."""
    return floor(x + Fraction(1, 2)) if x >= 0 else ceil(x - Fraction(1, 2))


def _up(x: Fraction) -> int:
    """To the nearest integer, ties upwards."""
    return floor(x + Fraction(1, 2))


def rescaled(sums: Array, factor: float) -> Array:
    """Each int32 sum times the factor, rounded twice."""
    multiplier, shift = fixed(factor)

    def one(a: int) -> int:
        high = _up(Fraction(int(a) * 2 ** max(shift, 0) * multiplier, 2**31))
        return _away(Fraction(high, 2 ** max(-shift, 0)))

    flat = {a: one(a) for a in np.unique(sums).tolist()}
    return np.vectorize(flat.__getitem__, otypes=[np.int64])(sums)


def per_channel(sums: Array, factors: Sequence[float], axis: int) -> Array:
    parts = np.moveaxis(sums, axis, 0)
    factors = list(factors) * (len(parts) if len(factors) == 1 else 1)
    scaled = [rescaled(p, f) for p, f in zip(parts, factors, strict=True)]
    return np.moveaxis(np.stack(scaled), 0, axis)


def finished(values: Array, zero: int, low: int, high: int) -> Array:
    return np.clip(values + zero, low, high).astype(np.int8)


def windows(
    x: Array,
    kernel: Sequence[int],
    strides: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    size: Sequence[int],
    fill: int,
) -> Array:
    """Windows [N, C, OH, OW, kh, kw] of an image padded by `fill` at the top and left, and wherever
    a window ends behind the image."""
    spans = [(size[i] - 1) * strides[i] + (kernel[i] - 1) * dilation[i] + 1 for i in (0, 1)]
    wide = np.full(
        (*x.shape[:2], *(max(s, padding[i] + x.shape[2 + i]) for i, s in enumerate(spans))),
        fill,
        np.int64,
    )
    wide[:, :, padding[0] : padding[0] + x.shape[2], padding[1] : padding[1] + x.shape[3]] = x
    taps = [
        wide[:, :, i * dilation[0] :, j * dilation[1] :][
            :,
            :,
            : (size[0] - 1) * strides[0] + 1 : strides[0],
            : (size[1] - 1) * strides[1] + 1 : strides[1],
        ]
        for i in range(kernel[0])
        for j in range(kernel[1])
    ]
    return np.stack(taps, -1).reshape(*x.shape[:2], *size, *kernel)


def softmax(x: Array, scale: float) -> Array:
    """Rows [R, C] of int8 to int8 with the scale 1/256 and zero point -128."""
    multiplier, shift = fixed(scale * 2.0**26)
    lowest = -((31 << 26) >> shift)
    rows = []
    for row in x.astype(int).tolist():
        values = [a - max(row) for a in row]
        powers = [
            _exponential(_times(d << shift, multiplier)) if d >= lowest else None for d in values
        ]
        total = sum(_away(Fraction(p, 2**12)) for p in powers if p is not None)
        zeros = 32 - total.bit_length()
        scale_ = _reciprocal((total << zeros) - 2**31)
        rows.append(
            [
                -128
                if p is None
                else min(127, _away(Fraction(_times(scale_, p), 2 ** (35 - zeros))) - 128)
                for p in powers
            ]
        )
    return np.array(rows, np.int8)


def _times(a: int, b: int) -> int:
    return 2**31 - 1 if a == b == -(2**31) else _away_down(Fraction(a * b, 2**31))


def _away_down(x: Fraction) -> int:
    """To the nearest integer; ties upwards, as 64-bit division that truncates after an offset of
    2**30 for positive and of 1 - 2**30 for negative products computes them."""
    return floor(x + Fraction(1, 2))


def _exponential(a: int) -> int:
    """exp(a / 2**26) * 2**31 for a <= 0."""
    if a == 0:
        return 2**31 - 1
    part = a % 2**24 - 2**24
    fraction_bits = part - a
    x = part * 32 + 2**28
    x2 = _times(x, x)
    cubic = _away(Fraction(_times(x2, x2), 4)) + _times(x2, x)
    tail = _away(Fraction(_times(cubic, 715827883) + x2, 2))
    value = 1895147668 + _times(1895147668, x + tail)
    for k, e in enumerate((1672461947, 1302514674, 790015084, 290630308, 39332535, 720401, 242)):
        if fraction_bits >> (24 + k) & 1:
            value = _times(value, e)
    return value


def _reciprocal(a: int) -> int:
    """2**31 / (1 + a / 2**31) for 0 <= a < 2**31."""
    half = (a + 2**31) // 2
    x = 1515870810 + _times(half, -1010580540)
    for _ in range(3):
        x += _times(x, 2**29 - _times(half, x)) * 4
    return min(2 * x, 2**31 - 1)
