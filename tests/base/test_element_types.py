"""The table of element types beside NumPy and ml_dtypes, and the tables of headers made from it."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from tensorkiln.base.element_types import (
    BYTE_TYPES,
    ELEMENT_TYPES,
    HALF_TYPES,
    NARROW_TYPES,
    PARAMETER_TYPES,
    PRECISIONS,
    PROGRAM_TYPES,
    ElementType,
    program_type,
)
from tests.base import element_headers

FLOATS = [row for row in ELEMENT_TYPES.values() if row.is_float]
INTEGERS = [row for row in ELEMENT_TYPES.values() if row.is_integer]
TENSORS = [*PROGRAM_TYPES.values(), *NARROW_TYPES.values()]


def dtype_of(row: ElementType) -> np.dtype:
    return np.dtype(row.name if row.in_numpy else getattr(ml_dtypes, row.name))


@pytest.mark.parametrize("row", TENSORS, ids=lambda row: row.name)
def test_arrays_have_the_type_by_its_name(row: ElementType) -> None:
    dtype = dtype_of(row)
    assert dtype.name == row.name
    assert dtype.itemsize == row.argument.size(1) == row.stored.size(1)
    assert dtype_of(row.stored).itemsize == dtype.itemsize
    assert row.in_numpy == (dtype.isbuiltin == 1)


@pytest.mark.parametrize("row", FLOATS, ids=lambda row: row.name)
def test_a_float_is_what_its_exponent_says(row: ElementType) -> None:
    limits = ml_dtypes.finfo(dtype_of(row))
    assert row.is_signed == (limits.min < 0)
    if row.is_signed:
        assert row.mantissa == limits.nmant
        assert row.epsilon == float(limits.eps)
    if "fnuz" not in row.name:  # whose exponents have a bias of one more
        assert row.tiny in (float(limits.tiny), 2 * float(limits.tiny))
    if row in PROGRAM_TYPES.values():
        assert row.tiny == float(limits.tiny)
        bits = np.asarray(np.inf, dtype_of(row)).view(f"u{row.bits // 8}")
        assert row.infinity == int(bits)


@pytest.mark.parametrize("row", INTEGERS, ids=lambda row: row.name)
def test_an_integer_has_the_limits_of_its_bits(row: ElementType) -> None:
    limits = ml_dtypes.iinfo(dtype_of(row))
    assert row.limits == (int(limits.min), int(limits.max))
    assert row.is_signed == (limits.min < 0)


def test_elements_of_few_bits_share_bytes() -> None:
    rows = ELEMENT_TYPES["int4"], ELEMENT_TYPES["uint2"], ELEMENT_TYPES["float6_e2m3fn"]
    assert [row.per_byte for row in rows] == [2, 4, 1]
    assert [row.size(5) for row in rows] == [3, 2, 4]
    assert [ELEMENT_TYPES[name].size(5) for name in ("bool", "int64")] == [5, 40]
    assert [row.argument.size(5) for row in rows] == [5, 5, 5]


def test_names() -> None:
    assert HALF_TYPES == ("float16", "bfloat16")
    assert BYTE_TYPES == ("int8", "uint8")
    assert PRECISIONS == ("float32", "bfloat16", "float16")
    assert [program_type(name) for name in ("int4", "float8_e5m2", "bool")] == [
        *("int8", "uint8", "bool")
    ]
    rows = [row for row in TENSORS if row.bits >= 8]
    assert len({row.dlpack for row in rows}) == len(rows)
    assert PARAMETER_TYPES["handle"].c_element == "void *const"
    assert [ELEMENT_TYPES[n].ptx for n in ("int8", "uint8", "bfloat16")] == ["s8", "u8", "bf16"]


def test_headers_have_the_tables_of_the_rows() -> None:
    for file, text in element_headers.written().items():
        have = (element_headers.ROOT / file).read_text(encoding="utf-8")
        assert have == text, f"{file}: python -m tests.base.element_headers --write"
