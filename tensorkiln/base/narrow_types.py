"""Element types of arrays that programs hold as bytes, by the names that package ml_dtypes has.

An array of one has a byte for each element. Of a type of fewer than 8 bits only the lowest bits
count: those above are not read in arguments, and in results they are the sign of a signed integer,
else 0. Nothing is computed in such a type; a program converts.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class NarrowType:
    """`bits` of an element, DLPack's `code` of the type, and the type of the bytes, `storage`."""

    bits: int
    code: int
    storage: str

    @property
    def is_integer(self) -> bool:
        """Whether the elements are integers."""
        return self.code < 2

    @property
    def limits(self) -> tuple[int, int]:
        """The least and the greatest value of an integer."""
        if self.code == 0:
            return -(1 << self.bits - 1), (1 << self.bits - 1) - 1
        return 0, (1 << self.bits) - 1

    @property
    def passed(self) -> tuple[int, int]:
        """DLPack's code and bits of a tensor of it that a function takes or gives. DLPack packs
        elements of fewer than 8 bits, so those are passed as what they are: bytes."""
        return (self.code, 8) if self.bits == 8 else (int(self.storage == "uint8"), 8)


NARROW_TYPES = {
    "float8_e4m3fn": NarrowType(8, 10, "uint8"),
    "float8_e4m3fnuz": NarrowType(8, 11, "uint8"),
    "float8_e5m2": NarrowType(8, 12, "uint8"),
    "float8_e5m2fnuz": NarrowType(8, 13, "uint8"),
    "float8_e8m0fnu": NarrowType(8, 14, "uint8"),
    "float6_e2m3fn": NarrowType(6, 15, "uint8"),
    "float6_e3m2fn": NarrowType(6, 16, "uint8"),
    "float4_e2m1fn": NarrowType(4, 17, "uint8"),
    "int4": NarrowType(4, 0, "int8"),
    "uint4": NarrowType(4, 1, "uint8"),
    "int2": NarrowType(2, 0, "int8"),
    "uint2": NarrowType(2, 1, "uint8"),
}
