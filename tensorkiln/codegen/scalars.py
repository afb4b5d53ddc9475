"""Numbers as parameters: how one of each element type travels from a caller to a kernel.

A kernel takes what an element of that type is in C (`DTYPES`): float16 and bfloat16 as their 16
bits, a bool as a byte, 0 or 1. A plain C entry takes the widest type of its kind, so that nothing
is converted before crt/scalar.c has checked the range and rounded; `kiln_scalar` is what it makes.
"""

from __future__ import annotations

from tensorkiln.codegen.host_function import DTYPES
from tensorkiln.codegen.llvm.types import bfloat_bits, half_bits
from tensorkiln.ir.expr import Expr, FloatImm, IntImm


def is_real(dtype: str) -> bool:
    """Whether a number of this type may have a fraction."""
    return DTYPES[dtype].code in (2, 4)


def kernel_type(dtype: str) -> str:
    """The C type in which a kernel takes it."""
    return DTYPES[dtype].c_type


def kernel_member(dtype: str) -> str:
    """The member of a bound `kiln_scalar` that becomes the kernel's argument."""
    return "real" if dtype in ("float32", "float64") else "integer"


def entry_type(dtype: str) -> str:
    """The C type in which a plain C entry takes it."""
    return "double" if is_real(dtype) else "uint64_t" if dtype == "uint64" else "int64_t"


def entry_member(dtype: str) -> str:
    """The member of `kiln_scalar` that a plain C entry fills."""
    return "real" if is_real(dtype) else "integer"


def entry_value(dtype: str, name: str) -> str:
    """C text that fills it with the entry's parameter."""
    return f"(int64_t){name}" if dtype == "uint64" else name


def literal(e: Expr) -> str | None:
    """C text of a constant as a kernel takes it; None for what is no constant."""
    if isinstance(e, IntImm):
        return integer_literal(int(e.value))
    if not isinstance(e, FloatImm):
        return None
    if e.dtype.name == "float16":
        return hex(half_bits(e.value))
    if e.dtype.name == "bfloat16":
        return hex(bfloat_bits(e.value))
    return real_literal(e.value)


def integer_literal(value: int) -> str:
    """C text of an integer that has no type of its own in C without a suffix where it is large."""
    if value >= 1 << 63:
        return f"{value}u"
    return f"({value + 1} - 1)" if value == -(1 << 63) else str(value)


def real_literal(value: float) -> str:
    """C text of a double."""
    if value != value:
        return '__builtin_nan("")'
    if value in (float("inf"), float("-inf")):
        return f"{'-' if value < 0 else ''}__builtin_inf()"
    return repr(value)
