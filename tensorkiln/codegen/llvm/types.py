"""How element types and literals are spelled in LLVM IR."""

from __future__ import annotations

import math
import struct

from tensorkiln.codegen.expand.float_bits import bfloat_bits, half_bits, single
from tensorkiln.ir.dtype import DType

# A bfloat16 is represented by its bits: for a scalar `bfloat`, even to move it, LLVM emits calls of
# support functions that are not linked.
ELEMENT = {
    "bool": "i1",
    "int8": "i8",
    "uint8": "i8",
    "int16": "i16",
    "uint16": "i16",
    "int32": "i32",
    "uint32": "i32",
    "int64": "i64",
    "uint64": "i64",
    "float16": "half",
    "bfloat16": "i16",
    "float32": "float",
    "float64": "double",
    "handle": "ptr",
}


def llvm_type(dtype: DType) -> str:
    """The register type: `<16 x float>`, `i64`; bool is `i1`."""
    element = ELEMENT[dtype.name]
    return element if dtype.lanes == 1 else f"<{dtype.lanes} x {element}>"


def memory_type(dtype: DType) -> str:
    """The type in memory: bool takes a byte."""
    return llvm_type(DType("uint8", dtype.lanes) if dtype.is_bool else dtype)


def parameter_type(dtype: DType) -> str:
    """The type of a kernel's parameter for a number, `kernel_type` (codegen/host/scalars.py) in
    LLVM: 16-bit floats as their bits, a bool as a byte."""
    if dtype.is_bool:
        return "i8"
    return "i16" if dtype.name == "float16" else llvm_type(dtype)


def suffix(dtype: DType) -> str:
    """The piece of an intrinsic's name: `v16f32`."""
    names = {"float": "f32", "double": "f64", "half": "f16"}
    element = ELEMENT[dtype.name]
    text = names.get(element, element)
    return text if dtype.lanes == 1 else f"v{dtype.lanes}{text}"


def float_literal(value: float, dtype: DType) -> str:
    """The literal of the nearest value of `dtype`: for float32 and float64 the bits of a double,
    `0x3FF0000000000000`; for float16 its own, `0xH3C00`; for bfloat16 its bits as an integer."""
    if value != value:  # of a NaN only the sign is kept
        value = math.copysign(math.nan, value)
    if dtype.name == "float16":
        return f"0xH{half_bits(value):04X}"
    if dtype.name == "bfloat16":
        return str(bfloat_bits(value))
    if dtype.name == "float32":
        value = single(value)
    return f"0x{struct.unpack('<Q', struct.pack('<d', value))[0]:016X}"
