"""Convert Python's and NumPy's numbers to values of a library.

crt/scalar.c checks the range of a parameter's type; only numbers that do not fit into a
`kiln_value` are refused here.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tensorkiln.base.element_types import PROGRAM_TYPES
from tensorkiln.runtime.actual_types import is_a, shown
from tensorkiln.runtime.failures import ArgumentTypeError, ArgumentValueError
from tensorkiln.runtime.native import Value

INT, BOOL, FLOAT, TENSOR, UINT = 1, 2, 3, 7, 63  # enum kiln_kind of kiln.h


def put_number(value: Value, number: Any, label: str, dtype: str = "int64") -> bool:
    """Write a number into `value` and return True; return False for anything else, including
    zero-dimensional tensors.

    `label` names the parameter in errors, `dtype` is its element type. Raises ArgumentValueError
    for numbers that no value holds: finite ones beyond float64 if `dtype` is a float, else
    integers beyond 64 bits.
    """
    if is_a(number, bool, np.bool_):
        value.kind, value.payload.integer = BOOL, int(number)
    elif is_a(number, int):  # int.__index__: a subclass may override its own
        _put_integer(value, int.__index__(number), label, dtype)
    elif is_a(number, np.generic) and number.dtype.kind in "iu":
        _put_integer(value, int(number), label, dtype)
    elif is_a(number, float):
        value.kind, value.payload.real = FLOAT, float.__float__(number)
    elif _is_real(number):
        value.kind, value.payload.real = FLOAT, float(number)
        if _is_float(dtype) and math.isinf(value.payload.real) and not np.isinf(number):
            # A finite long double beyond float64.
            raise out_of_range(label, dtype, number)
    else:
        return False
    return True


def _is_real(number: Any) -> bool:
    is_other = is_a(number, np.generic) and _is_float(number.dtype.name)
    return is_other or is_a(number, np.floating)


def _is_float(dtype: str) -> bool:
    return dtype in PROGRAM_TYPES and PROGRAM_TYPES[dtype].is_float


def _put_integer(value: Value, number: int, label: str, dtype: str) -> None:
    if -(1 << 63) <= number < 1 << 63:
        value.kind, value.payload.integer = INT, number
    elif 0 < number < 1 << 64:
        value.kind, value.payload.integer = UINT, number - (1 << 64)
    else:
        try:
            value.kind, value.payload.real = FLOAT, float(number)
        except OverflowError:
            raise out_of_range(label, dtype, number) from None
        if not _is_float(dtype):
            raise out_of_range(label, dtype, number)


def out_of_range(label: str, dtype: str, number: object) -> ArgumentValueError:
    """The error for a number out of range, with the message of crt/scalar.c."""
    row = PROGRAM_TYPES[dtype]
    if row.is_float:
        expected = f"a number in the range of {dtype}"
    elif row.is_integer:
        lower, upper = row.limits
        expected = f"an integer from {lower} to {upper} ({dtype})"
    else:
        expected = "0 or 1 (bool)"
    message = f"{label} must be {expected}, received {shown(number)}"
    return ArgumentValueError(message, code="out-of-range")


def not_a_number(label: str, dtype: str, argument: object) -> ArgumentTypeError:
    """The error for an argument that is not a number, for a parameter that takes one."""
    expected = "a number" if _is_float(dtype) else "an integer"
    has_data = hasattr(argument, "__dlpack__") or hasattr(argument, "__array__")
    is_tensor = has_data and not is_a(argument, np.generic)
    received = "a tensor" if is_tensor else type(argument).__name__
    return ArgumentTypeError(
        f"{label} must be {expected}, received {received}",
        code="argument-kind",
        hint=".item() of a tensor of one element is a number" if is_tensor else "",
    )
