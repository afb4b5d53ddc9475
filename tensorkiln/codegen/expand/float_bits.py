"""Values of the float types as numbers and bits."""

from __future__ import annotations

import struct


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
