"""How element types and literals are spelled in LLVM IR."""

from __future__ import annotations

import math
import struct

from tensorkiln.codegen.expand.float_bits import half_bits, single
from tensorkiln.ir.dtype import FLOAT32, DType


def llvm_type(dtype: DType) -> str:
    """The register type: `<16 x float>`, `i64`; bool is `i1`."""
    element = dtype.row.llvm
    return element if dtype.lanes == 1 else f"<{dtype.lanes} x {element}>"


def memory_type(dtype: DType) -> str:
    """The type in memory: bool takes a byte."""
    return llvm_type(DType(dtype.row.storage, dtype.lanes) if dtype.is_bool else dtype)


def parameter_type(dtype: DType) -> str:
    """The type of a kernel's parameter for a number, `kernel_type` (codegen/c_text/types.py) in
    LLVM: 16-bit floats as their bits, a bool as a byte."""
    return dtype.row.stored.llvm


def suffix(dtype: DType) -> str:
    """The piece of an intrinsic's name: `v16f32`."""
    row = dtype.row
    text = row.llvm if row.llvm.startswith("i") else row.short
    return text if dtype.lanes == 1 else f"v{dtype.lanes}{text}"


def float_literal(value: float, dtype: DType) -> str:
    """The literal of the nearest value of `dtype`: for float32 and float64 the bits of a double,
    `0x3FF0000000000000`; for float16 its own, `0xH3C00`; for bfloat16 its bits as an integer."""
    if value != value:  # of a NaN only the sign is kept
        value = math.copysign(math.nan, value)
    if dtype.is_half:
        bits = half_bits(value, dtype.row)
        return str(bits) if dtype.row.llvm.startswith("i") else f"0xH{bits:04X}"
    if dtype.element == FLOAT32:
        value = single(value)
    return f"0x{struct.unpack('<Q', struct.pack('<d', value))[0]:016X}"
