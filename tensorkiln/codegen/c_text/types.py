"""Element types in C, and how a number of each is passed from a caller to a kernel.

A kernel takes the C type of an element (`c_element`): float16 and bfloat16 as their 16 bits, a bool
as a byte, 0 or 1. A plain C entry takes the widest C type of the kind, int64_t, uint64_t or double,
so that nothing is converted before crt/scalar.c checks the range and rounds. A `kiln_scalar` holds
the number on the way.
"""

from __future__ import annotations

from tensorkiln.base.element_types import PARAMETER_TYPES


def is_real(dtype: str) -> bool:
    """Whether a number of this type may have a fraction."""
    return PARAMETER_TYPES[dtype].is_float


def kernel_type(dtype: str) -> str:
    """The C type of a kernel's parameter for a number of this type."""
    return PARAMETER_TYPES[dtype].c_element


def kernel_member(dtype: str) -> str:
    """The member of a bound `kiln_scalar` that becomes the kernel's argument."""
    return "real" if is_real(dtype) and not PARAMETER_TYPES[dtype].is_half else "integer"


def entry_type(dtype: str) -> str:
    """The C type of a plain C entry's parameter for a number of this type."""
    return "double" if is_real(dtype) else "uint64_t" if dtype == "uint64" else "int64_t"


def entry_member(dtype: str) -> str:
    """The member of `kiln_scalar` that a plain C entry fills."""
    return "real" if is_real(dtype) else "integer"


def entry_value(dtype: str, name: str) -> str:
    """C text of the value that the entry stores in `entry_member` for its parameter `name`."""
    return f"(int64_t){name}" if dtype == "uint64" else name
