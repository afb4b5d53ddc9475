"""Element types of programs: a scalar type of `base/element_types.py`, and a number of lanes."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from tensorkiln.base.element_types import ELEMENT_TYPES, NARROW_TYPES, PROGRAM_TYPES, ElementType

# Besides types of tensors: a pointer, and the result of a C function that returns nothing. Tensors
# never have them; a buffer of handles is a set of pointers.
_ROWS = {name: row for name, row in ELEMENT_TYPES.items() if name not in NARROW_TYPES}


@dataclass(frozen=True, slots=True)
class DType:
    """A scalar type, `DType("float32")`, or a vector of it: `DType("float32", 16)`.

    Prints as `float32` and `float32x16`. Raise ValueError for an unknown name.
    """

    name: str
    lanes: int = 1

    def __post_init__(self) -> None:
        if self.name not in _ROWS:
            raise ValueError(f"unknown dtype {self.name!r}; known: {', '.join(PROGRAM_TYPES)}")

    @staticmethod
    def parse(text: str | DType) -> DType:
        """`"float32x16"` -> `DType("float32", 16)`."""
        if isinstance(text, DType):
            return text
        name, _, lanes = text.partition("x")
        return DType(name, int(lanes) if lanes else 1)

    @property
    def row(self) -> ElementType:
        """What is known of the scalar type."""
        return _ROWS[self.name]

    @property
    def bits(self) -> int:
        """Storage bits of one lane; a bool takes 8."""
        return _ROWS[self.name].bits

    @property
    def bytes(self) -> int:
        """Storage bytes of one lane by itself."""
        return -(-_ROWS[self.name].bits // 8)

    def size(self, count: int) -> int:
        """Storage bytes of so many elements, one after the other."""
        return _ROWS[self.name].size(count)

    @property
    def is_float(self) -> bool:
        return _ROWS[self.name].kind == "float"

    @property
    def is_half(self) -> bool:
        """Whether a float of 16 bits."""
        return _ROWS[self.name].is_half

    @property
    def is_int(self) -> bool:
        """Signed or unsigned integer (bool is neither)."""
        return _ROWS[self.name].is_integer

    @property
    def is_unsigned(self) -> bool:
        return _ROWS[self.name].kind in ("uint", "bool")

    @property
    def is_bool(self) -> bool:
        return _ROWS[self.name].kind == "bool"

    @property
    def sums(self) -> DType:
        """The type in which operators add and multiply elements of this type: float32 for floats of
        16 bits, whose sums would round each term; else the type itself."""
        return DType("float32", self.lanes) if self.is_half else self

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
FLOAT64 = DType("float64")
FLOAT16 = DType("float16")
BFLOAT16 = DType("bfloat16")
INT8 = DType("int8")
UINT8 = DType("uint8")
INT16 = DType("int16")
UINT32 = DType("uint32")
UINT64 = DType("uint64")
INT64 = DType("int64")
INT32 = DType("int32")
BOOL = DType("bool")
HANDLE = DType("handle")
VOID = DType("void")
