"""Values of the float types as numbers and bits."""

from __future__ import annotations

import struct

from tensorkiln.base.element_types import ELEMENT_TYPES, ElementType


def single(value: float) -> float:
    """The nearest float32; infinity beyond its range."""
    try:
        return float(struct.unpack("<f", struct.pack("<f", value))[0])
    except OverflowError:
        return float("inf") if value > 0 else float("-inf")


def half_bits(value: float, row: ElementType) -> int:
    """The bits of the nearest number of a type of 16 bits; infinity beyond its range. To a bfloat16
    the value is rounded by way of float32."""
    if row.exponent == ELEMENT_TYPES["float32"].exponent:  # the upper half of a float32
        bits = int(struct.unpack("<I", struct.pack("<f", single(value)))[0])
        return bits >> 16 | 0x40 if value != value else (bits + 0x7FFF + (bits >> 16 & 1)) >> 16
    try:
        return int(struct.unpack("<H", struct.pack("<e", value))[0])
    except OverflowError:
        return row.infinity if value > 0 else 0x8000 | row.infinity
