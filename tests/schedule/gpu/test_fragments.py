"""Fragments of matrices among the threads of a warp, against the formulas of the PTX ISA
("Matrix Fragments for mma.m16n8k8", "... k16", "... k32", and "ldmatrix")."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest

from tensorkiln.ir.dtype import DType
from tensorkiln.ir.expr import Expr, IntImm, Var, int_value
from tensorkiln.ir.visit import substitute
from tensorkiln.schedule.intrin.fragments import (
    LEFT_MATRICES,
    RIGHT_MATRICES,
    SUMS,
    Fragment,
    left_fragment,
    matrix_fragment,
    place_of,
    right_fragment,
)

Place = Callable[[int, int, int], tuple[int, int]]

# (row, column) of element i of thread 4 * group + member, as the document has them.


def halves_a(group: int, member: int, i: int) -> tuple[int, int]:
    row = group if 0 <= i < 2 or 4 <= i < 6 else group + 8
    return row, member * 2 + (i & 1) + (8 if i >= 4 else 0)


def halves_b(group: int, member: int, i: int) -> tuple[int, int]:
    return member * 2 + (i & 1) + (8 if i >= 2 else 0), group


def tf32_a(group: int, member: int, i: int) -> tuple[int, int]:
    row = group if i in (0, 2) else group + 8
    return row, member if i in (0, 1) else member + 4


def tf32_b(group: int, member: int, i: int) -> tuple[int, int]:
    return (member if i == 0 else member + 4), group


def bytes_a(group: int, member: int, i: int) -> tuple[int, int]:
    row = group if 0 <= i < 4 or 8 <= i < 12 else group + 8
    return row, member * 4 + (i & 3) + (16 if i >= 8 else 0)


def bytes_b(group: int, member: int, i: int) -> tuple[int, int]:
    return member * 4 + (i & 3) + (16 if i >= 4 else 0), group


def sums(group: int, member: int, i: int) -> tuple[int, int]:
    return (group if i < 2 else group + 8), member * 2 + (i & 1)


CASES: dict[str, tuple[Fragment, Place, tuple[int, int]]] = {
    "a float16": (left_fragment(DType("float16")), halves_a, (16, 16)),
    "b bfloat16": (right_fragment(DType("bfloat16")), halves_b, (16, 8)),
    "a float32": (left_fragment(DType("float32")), tf32_a, (16, 8)),
    "b float32": (right_fragment(DType("float32")), tf32_b, (8, 8)),
    "a int8": (left_fragment(DType("int8")), bytes_a, (16, 32)),
    "b uint8": (right_fragment(DType("uint8")), bytes_b, (32, 8)),
    "c": (SUMS, sums, (16, 8)),
    # Two elements of row `group` each; of the transpose, of column `group`.
    "matrix": (
        matrix_fragment(DType("float16"), 4),
        lambda g, t, i: (8 * (i // 2) + g, 2 * t + i % 2),
        (32, 8),
    ),
    "matrix transposed": (
        matrix_fragment(DType("float16"), 4, transposed=True),
        lambda g, t, i: (8 * (i // 2) + 2 * t + i % 2, g),
        (32, 8),
    ),
    "matrix of float32": (
        matrix_fragment(DType("float32"), 2),
        lambda g, t, i: (8 * i + g, t),
        (16, 4),
    ),
    "matrix of int8": (
        matrix_fragment(DType("int8"), 1),
        lambda g, t, i: (g, 4 * t + i),
        (8, 16),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_the_formulas_of_the_document(name: str) -> None:
    f, place, shape = CASES[name]
    assert (f.rows, f.columns) == shape
    found = {(t, i): f.place(t, i) for t in range(32) for i in range(f.count)}
    assert found == {(t, i): place(t // 4, t % 4, i) for t, i in found}
    assert sorted(found.values()) == [*itertools.product(range(f.rows), range(f.columns))]


@pytest.mark.parametrize("name", CASES)
def test_expressions_have_the_same_places(name: str) -> None:
    f, _, _ = CASES[name]
    thread, element = Var("t"), Var("i")
    row, column = f.place(thread, element)
    for t, i in itertools.product(range(0, 32, 5), range(f.count)):
        values: dict[Var, Expr] = {thread: IntImm(t), element: IntImm(i)}
        at = tuple(int_value(substitute(e, values)) for e in (row, column))
        assert at == f.place(t, i)


@pytest.mark.parametrize("dtype", ["float16", "float32", "int8"])
def test_what_four_matrices_are_of_factors(dtype: str) -> None:
    """The matrices that one load gives are, register by register, the fragments of a left factor,
    or of two right ones."""
    t = DType(dtype)
    per, half = 4 // t.bytes, 16 // t.bytes
    loaded, left, right = matrix_fragment(t, 4), left_fragment(t), right_fragment(t)
    for thread, i in itertools.product(range(32), range(4 * per)):
        row, column = loaded.place(thread, i)
        block, terms = place_of(row // 8, LEFT_MATRICES)
        assert left.place(thread, i) == (8 * block + row % 8, half * terms + column)
        block, terms = place_of(row // 8, RIGHT_MATRICES)
        term, j = right.place(thread, i % (2 * per))
        assert (i // (2 * per), j, term) == (block, row % 8, half * terms + column)
