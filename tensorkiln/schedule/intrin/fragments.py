"""Fragments: which elements of a matrix each thread of a warp, or of a warpgroup, holds for
instructions on tensor cores, as data (PTX ISA, "Matrix Fragments for mma", "ldmatrix" and "Register
Fragments for wgmma").

The number of a thread, and the number of an element among those of a thread, are written in digits
of mixed radix, the most significant first. Each digit moves by a number of rows and columns. So the
row and column of an element follow by arithmetic, for numbers and for expressions alike.

All shapes have the same layout in bytes. With `per` elements in a register of 32 bits, thread 4 * g
+ t holds of a, 16 rows of 8 * per terms, and of b, 8 * per terms of 8 columns,

    a: register 2 * h + r: row 8 * r + g, terms from 4 * per * h + per * t on
    b: register h: column g, the same terms
    c: element 2 * r + e: row 8 * r + g, column 2 * t + e

Smaller shapes have one half of the rows or of the terms: the registers with r = 0 or h = 0 alone.
So a product of 16 rows and 32 bytes of terms is one instruction of the largest shape, or several of
a smaller one on parts of the same fragments (`mma_parts`).
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import TypeVar

from tensorkiln.ir.dtype import FLOAT16, DType
from tensorkiln.ir.expr import Expr

Index = TypeVar("Index", int, Expr)
_ROW = 16  # bytes of a row of a matrix that `ldmatrix` loads
_REGISTER = 4  # bytes


@dataclass(frozen=True, slots=True)
class Digit:
    """One digit of a number that is written with mixed bases: `count` is its base, and each step of
    it moves by `rows` and `columns`."""

    count: int
    rows: int
    columns: int


def place_of(number: Index, digits: tuple[Digit, ...]) -> tuple[Index, Index]:
    """(row, column) to which the digits of a number move."""
    row, column, below = number * 0, number * 0, 1
    for k, d in reversed(list(enumerate(digits))):
        digit = number // below if below > 1 else number
        digit = digit % d.count if k else digit
        row, column = row + digit * d.rows, column + digit * d.columns
        below *= d.count
    return row, column


@dataclass(frozen=True, slots=True)
class Fragment:
    """A matrix of `rows` x `columns`, distributed among threads. `thread` are the digits of a
    thread's number, `element` those of the number of an element among those that a thread holds."""

    rows: int
    columns: int
    thread: tuple[Digit, ...]
    element: tuple[Digit, ...]

    @property
    def count(self) -> int:
        """Elements that each thread holds."""
        return self.rows * self.columns // self.threads

    @property
    def threads(self) -> int:
        """Threads that hold the matrix together."""
        return math.prod(d.count for d in self.thread)

    def place(self, thread: Index, element: Index) -> tuple[Index, Index]:
        """The row and column of an element of a thread."""
        row, column = place_of(thread, self.thread)
        below, right = place_of(element, self.element)
        return row + below, column + right


@dataclass(frozen=True, slots=True)
class Shape:
    """The part of 16 rows and 32 bytes of terms that an instruction multiplies: `blocks` of 8 rows,
    and `halves` of the terms."""

    blocks: int = 2
    halves: int = 2


WHOLE = Shape()


def left_fragment(dtype: DType, shape: Shape = WHOLE) -> Fragment:
    """The left factor, rows x terms."""
    per = _REGISTER // dtype.bytes
    element = (Digit(shape.halves, 0, 4 * per), Digit(shape.blocks, 8, 0), Digit(per, 0, 1))
    thread = (Digit(8, 1, 0), Digit(4, 0, per))
    return Fragment(8 * shape.blocks, 4 * per * shape.halves, thread, element)


def right_fragment(dtype: DType, shape: Shape = WHOLE) -> Fragment:
    """The right factor, terms x columns."""
    per = _REGISTER // dtype.bytes
    element = (Digit(shape.halves, 4 * per, 0), Digit(per, 1, 0))
    return Fragment(4 * per * shape.halves, 8, (Digit(8, 0, 1), Digit(4, per, 0)), element)


def sums_fragment(shape: Shape = WHOLE) -> Fragment:
    """The sums, rows x columns."""
    element = (Digit(shape.blocks, 8, 0), Digit(2, 0, 1))
    return Fragment(8 * shape.blocks, 8, (Digit(8, 1, 0), Digit(4, 0, 2)), element)


SUMS = sums_fragment()


def warpgroup_sums(columns: int) -> Fragment:
    """The sums of a warpgroup, 64 rows: each warp holds 16 rows of them as in `SUMS`, one group of
    8 columns after the other."""
    thread = (Digit(4, SUMS.rows, 0), *SUMS.thread)
    element = (Digit(columns // SUMS.columns, 0, SUMS.columns), *SUMS.element)
    return Fragment(4 * SUMS.rows, columns, thread, element)


def warpgroup_left(terms: int) -> Fragment:
    """A left factor of 16-bit elements that a warpgroup holds, 64 rows: each warp holds 16 rows as
    in `left_fragment`, one group of 16 terms after the other."""
    of_warp = left_fragment(FLOAT16)
    thread = (Digit(4, of_warp.rows, 0), *of_warp.thread)
    element = (Digit(terms // of_warp.columns, 0, of_warp.columns), *of_warp.element)
    return Fragment(4 * of_warp.rows, terms, thread, element)


def matrix_fragment(dtype: DType, count: int, transposed: bool = False) -> Fragment:
    """`count` matrices below each other, of 8 rows of 16 bytes each, as `warp_load_matrix` returns
    them. If `transposed`, a thread holds the elements that it would else hold of the transposed
    matrix."""
    per = _REGISTER // dtype.bytes
    matrix, columns = Digit(count, 8, 0), _ROW // dtype.bytes
    if transposed:
        digits = (Digit(8, 0, 1), Digit(4, per, 0))
        return Fragment(8 * count, columns, digits, (matrix, Digit(per, 1, 0)))
    digits = (Digit(8, 1, 0), Digit(4, 0, per))
    return Fragment(8 * count, columns, digits, (matrix, Digit(per, 0, 1)))


# Matrices that one `warp_load_matrix_4` loads for a left factor of 16 rows, or for the right
# factors of two products, 16 columns. The digits of a matrix' number, that of its register, move by
# blocks of 8 rows (of the right factor: columns) and halves of the terms.
LEFT_MATRICES = (Digit(2, 0, 1), Digit(2, 1, 0))
RIGHT_MATRICES = (Digit(2, 1, 0), Digit(2, 0, 1))


# The shapes that GPUs of compute capability 7.5 have, of float16 and of integers of 8 bits.
_SHAPE = re.compile(r"m(\d+)n8k(\d+)")
_OLD = 75
_OLD_SHAPES = {2: Shape(2, 1), 1: Shape(1, 1)}


def shape_named(name: str, dtype: DType) -> Shape:
    """The shape of "m16n8k8" for factors of a type. Raises ValueError for text of another form."""
    match = _SHAPE.fullmatch(name)
    if match is None:
        raise ValueError(f"{name!r} is not the shape of a product of matrices")
    return Shape(int(match[1]) // 8, int(match[2]) * dtype.bytes // _ROW)


def shape_for(dtype: DType, capability: int) -> Shape:
    """The largest shape for factors of a type that a compute capability has, 80 for 8.0."""
    return _OLD_SHAPES[dtype.bytes] if capability == _OLD else WHOLE


@dataclass(frozen=True, slots=True)
class MmaPart:
    """The elements of the whole fragments of a thread that one instruction takes."""

    left: tuple[int, ...]
    right: tuple[int, ...]
    sums: tuple[int, ...]


def mma_parts(dtype: DType, shape: Shape) -> tuple[MmaPart, ...]:
    """The products of a shape that make up one of 16 rows and 32 bytes of terms, in order: those
    of the same sums follow each other."""
    per, parts = _REGISTER // dtype.bytes, []
    for rows in _groups(shape.blocks):
        for halves in _groups(shape.halves):
            left_elements = [
                (2 * h + r) * per + e for h in halves for r in rows for e in range(per)
            ]
            right_elements = [h * per + e for h in halves for e in range(per)]
            sums = [2 * r + e for r in rows for e in range(2)]
            parts.append(MmaPart(tuple(left_elements), tuple(right_elements), tuple(sums)))
    return tuple(parts)


def _groups(size: int) -> tuple[tuple[int, ...], ...]:
    """0 and 1, together or apart."""
    return ((0, 1),) if size == 2 else ((0,), (1,))


def mma_name(dtype: DType, shape: Shape = WHOLE) -> str:
    """The instruction that multiplies factors of a type."""
    return f"warp_mma_m{8 * shape.blocks}n8k{_ROW * shape.halves // dtype.bytes}"


__all__ = [
    "LEFT_MATRICES",
    "RIGHT_MATRICES",
    "SUMS",
    "WHOLE",
    "Digit",
    "Fragment",
    "MmaPart",
    "Shape",
    "left_fragment",
    "matrix_fragment",
    "mma_name",
    "mma_parts",
    "place_of",
    "right_fragment",
    "shape_for",
    "shape_named",
    "sums_fragment",
    "warpgroup_left",
    "warpgroup_sums",
]
