"""Element types: one row for each, with all that depends on the type alone.

`PROGRAM_TYPES` are those that programs compute with. `NARROW_TYPES` are those of arrays that
programs hold as bytes, by the names that package ml_dtypes has: an array of one has a byte for each
element. Of a type of fewer than 8 bits only the lowest bits count: those above are not read in
arguments, and in results they are the sign of a signed integer, else 0. Nothing is computed in such
a type; a program converts.

`python -m tests.base.element_headers --write` writes the tables of headers in C, C++ and Rust.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal["bool", "int", "uint", "float", "handle", "void"]


@dataclass(frozen=True, slots=True)
class ElementType:
    """An element type. Fields that a type does not need are empty.

    bits: of an element in memory
    code: DLPack's
    c, opencl, wgsl, llvm: of a value in these languages; `wgsl` has no longer integers than 32 bits
    short: in names of functions and vector types: "f16"
    safetensors: in such a file
    storage: the type that an element is in memory where that is another: an integer of its bits
    exponent: bits of a float's exponent
    tolerance: of results of a network that multiplies in this type, relative to a value and to the
        largest value. A network of a hundred layers that round to 8 bits is right to about two
        digits.
    in_numpy: whether NumPy itself has the type; others are from package ml_dtypes
    """

    name: str
    kind: Kind
    bits: int
    code: int
    c: str = ""
    opencl: str = ""
    wgsl: str = ""
    llvm: str = ""
    short: str = ""
    safetensors: str = ""
    storage: str = ""
    exponent: int = 0
    tolerance: tuple[float, float] = (0.0, 0.0)
    in_numpy: bool = True

    @property
    def is_float(self) -> bool:
        """Whether a float, of any size."""
        return self.kind == "float"

    @property
    def is_half(self) -> bool:
        """Whether a float of 16 bits."""
        return self.kind == "float" and self.bits == 16

    @property
    def is_integer(self) -> bool:
        """Whether an integer, signed or not; bool is neither."""
        return self.kind in ("int", "uint")

    @property
    def is_signed(self) -> bool:
        """Whether there are negative numbers; floats that are an exponent alone have none."""
        return self.kind == "int" or (self.is_float and self.digits > 0)

    @property
    def is_byte(self) -> bool:
        """Whether an integer of 8 bits."""
        return self.is_integer and self.bits == 8

    @property
    def per_byte(self) -> int:
        """How many elements share a byte; 1 if none do."""
        return max(1, 8 // self.bits)

    def size(self, count: int) -> int:
        """The bytes of so many elements, one after the other."""
        return -(-count * self.bits // 8)

    @property
    def stored(self) -> ElementType:
        """The row of the type that an element is in memory."""
        return ELEMENT_TYPES[self.storage] if self.storage else self

    @property
    def limits(self) -> tuple[int, int]:
        """The least and the greatest value of an integer."""
        if self.kind == "int":
            return -(1 << self.bits - 1), (1 << self.bits - 1) - 1
        return 0, (1 << self.bits) - 1

    @property
    def argument(self) -> ElementType:
        """The row of the type that a tensor has for who calls a function. DLPack packs elements of
        fewer than 8 bits, so those that are bytes in arrays are passed as bytes."""
        return self.stored if self.bits < 8 else self

    @property
    def dlpack(self) -> tuple[int, int]:
        """DLPack's code and bits of a tensor that a function takes or gives."""
        return self.argument.code, self.argument.bits

    @property
    def c_dtype(self) -> str:
        """The C initialiser of a `kiln_dtype` of such a tensor."""
        return f"{{{self.argument.code}, {self.argument.bits}, 1}}"

    @property
    def c_element(self) -> str:
        """The C type of an element in memory; addresses of a set are constant."""
        return f"{self.c}const" if self.kind == "handle" else self.stored.c

    @property
    def ptx(self) -> str:
        """The name in PTX: `s8`, `bf16`."""
        return f"s{self.bits}" if self.kind == "int" else self.short

    @property
    def digits(self) -> int:
        """Significant bits of a float."""
        return self.bits - self.exponent

    @property
    def mantissa(self) -> int:
        """Stored bits of a float's fraction."""
        return self.digits - 1

    @property
    def bias(self) -> int:
        """What is added to a float's exponent before it is stored."""
        return (1 << self.exponent - 1) - 1

    @property
    def infinity(self) -> int:
        """The bits of a float's infinity; those of NaN are greater."""
        return 2 * self.bias + 1 << self.mantissa

    @property
    def epsilon(self) -> float:
        """The distance from 1 to the next number of a float; of other types 0."""
        return 2.0**-self.mantissa if self.is_float else 0.0

    @property
    def tiny(self) -> float:
        """The least normal number of a float; of other types 0."""
        return 2.0 ** (1 - self.bias) if self.is_float else 0.0


def _table(*rows: ElementType) -> dict[str, ElementType]:
    return {row.name: row for row in rows}


_T = ElementType
# name, kind, bits, DLPack's code, then names in C, OpenCL C, WGSL, LLVM, functions, safetensors. A
# bfloat16 is its bits in LLVM: for a scalar `bfloat`, even to move it, LLVM emits calls of support
# functions that are not linked.
PROGRAM_TYPES = _table(
    _T("bool", "bool", 8, 6, "bool", "bool", "bool", "i1", "bool", "BOOL", storage="uint8"),
    _T("int8", "int", 8, 0, "int8_t", "char", "i32", "i8", "i8", "I8"),
    _T("int16", "int", 16, 0, "int16_t", "short", "i32", "i16", "i16", "I16"),
    _T("int32", "int", 32, 0, "int32_t", "int", "i32", "i32", "i32", "I32"),
    _T("int64", "int", 64, 0, "int64_t", "long", "", "i64", "i64", "I64"),
    _T("uint8", "uint", 8, 1, "uint8_t", "uchar", "u32", "i8", "u8", "U8"),
    _T("uint16", "uint", 16, 1, "uint16_t", "ushort", "u32", "i16", "u16", "U16"),
    _T("uint32", "uint", 32, 1, "uint32_t", "uint", "u32", "i32", "u32", "U32"),
    _T("uint64", "uint", 64, 1, "uint64_t", "ulong", "", "i64", "u64", "U64"),
    _T(
        *("float16", "float", 16, 2, "uint16_t", "ushort", "u32", "half", "f16", "F16"),
        storage="uint16",
        exponent=5,
        tolerance=(0.0, 1e-2),
    ),
    _T(
        *("bfloat16", "float", 16, 4, "uint16_t", "ushort", "u32", "i16", "bf16", "BF16"),
        storage="uint16",
        exponent=8,
        tolerance=(0.0, 5e-2),
        in_numpy=False,
    ),
    _T(
        *("float32", "float", 32, 2, "float", "float", "f32", "float", "f32", "F32"),
        exponent=8,
        tolerance=(1e-3, 1e-4),
    ),
    _T("float64", "float", 64, 2, "double", "double", "", "double", "f64", "F64", exponent=11),
)


def _narrow(name: str, kind: Kind, bits: int, code: int, exponent: int = 0) -> ElementType:
    storage = "int8" if kind == "int" else "uint8"
    return _T(name, kind, bits, code, storage=storage, exponent=exponent, in_numpy=False)


NARROW_TYPES = _table(
    _narrow("float8_e4m3fn", "float", 8, 10, 4),
    _narrow("float8_e4m3fnuz", "float", 8, 11, 4),
    _narrow("float8_e5m2", "float", 8, 12, 5),
    _narrow("float8_e5m2fnuz", "float", 8, 13, 5),
    _narrow("float8_e8m0fnu", "float", 8, 14, 8),
    _narrow("float6_e2m3fn", "float", 6, 15, 2),
    _narrow("float6_e3m2fn", "float", 6, 16, 3),
    _narrow("float4_e2m1fn", "float", 4, 17, 2),
    _narrow("int4", "int", 4, 0),
    _narrow("uint4", "uint", 4, 1),
    _narrow("int2", "int", 2, 0),
    _narrow("uint2", "uint", 2, 1),
)

# Also of no tensor: a set of addresses, and the result of a C function that returns nothing.
_HANDLE = _table(_T("handle", "handle", 64, 3, "void *", llvm="ptr"))
ELEMENT_TYPES = PROGRAM_TYPES | _HANDLE | NARROW_TYPES | _table(_T("void", "void", 0, 3))

# What a parameter of a function may hold: what C has a type for, or arrays hold as bytes.
PARAMETER_TYPES = {name: row for name, row in ELEMENT_TYPES.items() if row.stored.c}

# DLPack's names by code; the number of bits follows.
CODE_NAMES = {0: "int", 1: "uint", 2: "float", 4: "bfloat", 6: "bool"}


def program_type(name: str) -> str:
    """The type that programs have in place of type `name`: of a narrow one that of its bytes."""
    return NARROW_TYPES[name].storage if name in NARROW_TYPES else name


HALF_TYPES = tuple(row.name for row in PROGRAM_TYPES.values() if row.is_half)
BYTE_TYPES = tuple(row.name for row in PROGRAM_TYPES.values() if row.is_byte)
# What products may be computed in, the usual type first.
PRECISIONS = tuple(row.name for row in reversed(PROGRAM_TYPES.values()) if any(row.tolerance))
