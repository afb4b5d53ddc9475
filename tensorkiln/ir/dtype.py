"""Element types: a scalar type named in one table, and a number of vector lanes."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

# name -> (kind, bits, DLPack type code)
DTYPES: dict[str, tuple[str, int, int]] = {
    "bool": ("bool", 8, 6),
    "int8": ("int", 8, 0),
    "int16": ("int", 16, 0),
    "int32": ("int", 32, 0),
    "int64": ("int", 64, 0),
    "uint8": ("uint", 8, 1),
    "uint16": ("uint", 16, 1),
    "uint32": ("uint", 32, 1),
    "uint64": ("uint", 64, 1),
    "float16": ("float", 16, 2),
    "bfloat16": ("float", 16, 4),
    "float32": ("float", 32, 2),
    "float64": ("float", 64, 2),
}

# Further types of expressions: a pointer, and the result of a C function that returns nothing.
# Tensors never have them; a buffer of handles is a set of pointers.
_NO_DATA: dict[str, tuple[str, int, int]] = {"handle": ("handle", 64, 3), "void": ("void", 0, 3)}
_ALL = DTYPES | _NO_DATA


@dataclass(frozen=True, slots=True)
class DType:
    """A scalar type, `DType("float32")`, or a vector of it: `DType("float32", 16)`.

    Prints as `float32` and `float32x16`. Raise ValueError for an unknown name.
    """

    name: str
    lanes: int = 1

    def __post_init__(self) -> None:
        if self.name not in _ALL:
            raise ValueError(f"unknown dtype {self.name!r}; known: {', '.join(DTYPES)}")

    @staticmethod
    def parse(text: str | DType) -> DType:
        """`"float32x16"` -> `DType("float32", 16)`."""
        if isinstance(text, DType):
            return text
        name, _, lanes = text.partition("x")
        return DType(name, int(lanes) if lanes else 1)

    @property
    def bits(self) -> int:
        """Storage bits of one lane; a bool takes 8."""
        return _ALL[self.name][1]

    @property
    def bytes(self) -> int:
        """Storage bytes of one lane."""
        return _ALL[self.name][1] // 8

    @property
    def is_float(self) -> bool:
        return _ALL[self.name][0] == "float"

    @property
    def is_int(self) -> bool:
        """Signed or unsigned integer (bool is neither)."""
        return _ALL[self.name][0] in ("int", "uint")

    @property
    def is_unsigned(self) -> bool:
        return _ALL[self.name][0] in ("uint", "bool")

    @property
    def is_bool(self) -> bool:
        return self.name == "bool"

    @property
    def sums(self) -> DType:
        """The type in which operators add and multiply elements of this type: float32 for floats of
        16 bits, whose sums would round each term; else the type itself."""
        return DType("float32", self.lanes) if self.is_float and self.bits == 16 else self

    @property
    def element(self) -> DType:
        return self if self.lanes == 1 else _dtype(self.name, 1)

    def with_lanes(self, lanes: int) -> DType:
        return self if self.lanes == lanes else _dtype(self.name, lanes)

    def __eq__(self, other: object) -> bool:
        if self is other:  # as nearly always; types are compared more often than anything else
            return True
        if not isinstance(other, DType):
            return NotImplemented
        return self.name == other.name and self.lanes == other.lanes

    def __str__(self) -> str:
        return self.name if self.lanes == 1 else f"{self.name}x{self.lanes}"


@cache
def _dtype(name: str, lanes: int) -> DType:
    return DType(name, lanes)


FLOAT32 = DType("float32")
INT64 = DType("int64")
INT32 = DType("int32")
BOOL = DType("bool")
HANDLE = DType("handle")
VOID = DType("void")
