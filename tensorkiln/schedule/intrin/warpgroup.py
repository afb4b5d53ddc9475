"""Products of a warpgroup's 128 threads, of matrices in shared memory that the instruction itself
reads, and how these lie there (PTX ISA, "Shared Memory Matrix Layout", 128-byte swizzling)."""

from __future__ import annotations

import re

from tensorkiln.arith import simplify
from tensorkiln.ir.buffer import Buffer, Load, buffer
from tensorkiln.ir.device_instructions import (
    DEVICE_INSTRUCTIONS,
    MATRIX_ALIGN,
    WARPGROUP,
    WARPGROUP_ROWS,
    WARPGROUP_TERMS,
    WARPGROUP_THREADS,
    warpgroup_mma_name,
)
from tensorkiln.ir.expr import Broadcast, Expr, IntImm, Var, binary, cast, intrin
from tensorkiln.ir.stmt import Store
from tensorkiln.schedule.intrin.fragments import warpgroup_left, warpgroup_sums
from tensorkiln.schedule.intrin.warp import all_of, loops, of_threads, where
from tensorkiln.schedule.primitives.instruction import Instruction

_ROW = 64  # elements of a row: 128 bytes
_ZERO = IntImm(0)
_PIECE = 8  # elements that stay together: 16 bytes


def swizzled(position: Expr, term: Expr, transposed: bool) -> tuple[Expr, Expr]:
    """Where the element of row or column `position` and of `term` (of 64) is: in which row of 64
    elements, and which of them.

    A row of 128 bytes is of one row of the matrix, with 64 terms, or, transposed, of one term, with
    64 rows; further 64 rows follow behind the 64 terms of these. The pieces of 16 bytes of row r
    are permuted: piece c is at c ^ r % 8, so that the same piece of eight rows is in all banks.
    """
    row, along = position, term
    if transposed:
        row, along = position // _ROW * WARPGROUP_TERMS + term, position % _ROW
    piece = binary("bitxor", simplify(along // _PIECE), simplify(row % _PIECE))
    return simplify(row), piece * _PIECE + simplify(along % _PIECE)


def whole_rows(m: Buffer, count: int, first: Expr = _ZERO) -> Load:
    """All elements of `count` rows of a buffer, as the operand of a product."""
    lanes = all_of(count * _ROW)
    size = Broadcast(IntImm(_ROW), lanes.lanes)
    return Load(m, (lanes // size + Broadcast(first, lanes.lanes), lanes % size))


def warpgroup_mma(
    columns: int,
    transposed: str,
    dtype: str,
    terms: int = WARPGROUP_TERMS,
    fragment: bool = False,
) -> Instruction:
    """c[i, j] += a[i, k] * b[k, j] for 64 rows; c is a buffer of a row per thread, with `fragment`
    a is another."""
    row = DEVICE_INSTRUCTIONS[warpgroup_mma_name(columns, transposed, terms, fragment)]
    f, of_left = warpgroup_sums(columns), warpgroup_left(terms)
    blocks = terms // WARPGROUP_TERMS
    a = buffer("a", (WARPGROUP_ROWS * blocks, WARPGROUP_TERMS), dtype, align=MATRIX_ALIGN)
    if fragment:
        a = buffer("a", (WARPGROUP_THREADS, of_left.count), dtype)
    b = buffer("b", (columns * blocks, WARPGROUP_TERMS), dtype, align=MATRIX_ALIGN)
    c = buffer("c", (WARPGROUP_THREADS, f.count), "float32")
    i, j, k, t = Var("i"), Var("j"), Var("k"), Var("t")
    left_place = (
        where(of_left, i, k) if fragment else _place(i, k, WARPGROUP_ROWS, terms, "a" in transposed)
    )
    x = cast(Load(a, left_place), "float32")
    y = cast(Load(b, _place(j, k, columns, terms, "b" in transposed)), "float32")
    place = where(f, i, j)
    step = Store(c, place, Load(c, place) + x * y)
    thread_row = (t, all_of(f.count))
    left_factor = (
        Load(a, (t, all_of(of_left.count))) if fragment else whole_rows(a, WARPGROUP_ROWS * blocks)
    )
    value = intrin(row.name, left_factor, whole_rows(b, columns * blocks), Load(c, thread_row))
    template = loops(step, (i, WARPGROUP_ROWS), (j, columns), (k, terms))
    code = of_threads(t, WARPGROUP_THREADS, Store(c, thread_row, value))
    name = f"{row.name}_{dtype}"
    return Instruction.of(name, (a, b, c), template, code, row.memory, WARPGROUP, WARPGROUP_THREADS)


def _place(
    position: Expr, term: Expr, size: int, terms: int, transposed: bool
) -> tuple[Expr, Expr]:
    """As `swizzled`, of a matrix of `size` rows or columns whose terms lie 64 by 64."""
    if terms == WARPGROUP_TERMS:
        return swizzled(position, term, transposed)
    row, column = swizzled(position, term % WARPGROUP_TERMS, transposed)
    return simplify(term // WARPGROUP_TERMS * size + row), column


def warpgroup_named(name: str) -> Instruction | None:
    """The instruction called `name`, as `warpgroup_mma_m64n128k64_transposed_b_float16`; None for
    another form, or for what has no row."""
    match = re.fullmatch(
        r"warpgroup_mma_(fragment_)?m64n(\d+)k(\d+)(?:_transposed_(a|b|ab))?_(float16|bfloat16)",
        name,
    )
    if match is None:
        return None
    columns, transposed, terms, fragment = (
        int(match[2]),
        match[4] or "",
        int(match[3]),
        bool(match[1]),
    )
    if warpgroup_mma_name(columns, transposed, terms, fragment) not in DEVICE_INSTRUCTIONS:
        return None
    return warpgroup_mma(columns, transposed, match[5], terms, fragment)


__all__ = [
    "swizzled",
    "warpgroup_mma",
    "warpgroup_named",
    "whole_rows",
]
