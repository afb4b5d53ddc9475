"""Values of the float types as numbers and bits."""

from __future__ import annotations

import struct
from dataclasses import dataclass


def single(value: float) -> float:
    """The nearest float32; infinity beyond its range."""
    try:
        return float(struct.unpack("<f", struct.pack("<f", value))[0])
    except OverflowError:
        return float("inf") if value > 0 else float("-inf")


def half_bits(value: float) -> int:
    """The bits of the nearest float16; infinity beyond its range."""
    try:
        return int(struct.unpack("<H", struct.pack("<e", value))[0])
    except OverflowError:
        return 0x7C00 if value > 0 else 0xFC00


def bfloat_bits(value: float) -> int:
    """The bits of the nearest bfloat16. The value is rounded to float32 first."""
    bits = int(struct.unpack("<I", struct.pack("<f", single(value)))[0])
    if value != value:
        return bits >> 16 | 0x40
    return (bits + 0x7FFF + (bits >> 16 & 1)) >> 16


@dataclass(frozen=True, slots=True)
class Format:
    """How a float type is stored: `mantissa` bits, exponents with a `bias`."""

    mantissa: int
    bias: int

    @property
    def infinity(self) -> int:
        """The bits of infinity; those of NaN are greater."""
        return 2 * self.bias + 1 << self.mantissa

    @property
    def room(self) -> int:
        """By how many bits an integer below 2**(mantissa + 1) can be shifted in a word as wide as
        the type."""
        return {23: 32, 52: 64}[self.mantissa] - self.mantissa - 1


FORMATS = {"float32": Format(23, 127), "float64": Format(52, 1023)}
