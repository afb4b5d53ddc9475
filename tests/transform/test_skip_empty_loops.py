"""skip_empty_loops: before, after."""

from __future__ import annotations

import itertools
import textwrap

import pytest

from tensorkiln.script import from_source
from tensorkiln.transform.tir.skip_empty_loops import skip_empty_loops
from tests.transform.graphs import check_text


def test_loops_around_an_open_extent_begin_if_it_is_not_0() -> None:
    check_text(
        skip_empty_loops,
        """
        @T.prim_func
        def f(A: T.Buffer(("n", "m"), "float32"), B: T.Buffer(("m", "n"), "float32")):
            for i in T.parallel(n):
                for j in range(m):
                    B[j, i] = A[i, j]
        """,
        """
        @T.prim_func
        def f(A: T.Buffer(("n", "m"), "float32"), B: T.Buffer(("m", "n"), "float32")):
            if not m <= 0:
                for i in T.parallel(n):
                    for j in range(m):
                        B[j, i] = A[i, j]
        """,
    )


HEAD = """
@T.prim_func
def f(A: T.Buffer(("n", "m"), "float32"), B: T.Buffer(("m", "n"), "float32")):
"""
# A program's body and the tests that it gets, each before the loop over a variable.
PROGRAMS = {
    "a nest": (
        """
        for i in range(n):
            for j in range(m):
                B[j, i] = A[i, j]
        """,
        {"i": "not m <= 0"},
    ),
    "one loop": ("for i in range(n):\n    B[0, i] = 1.0", {}),
    "extents that are known": (
        """
        for i in range(8):
            for j in range(4):
                B[j, i] = A[i, j]
        """,
        {},
    ),
    "three loops, one of an extent that changes": (
        """
        for i in range(n):
            for j in range(T.min(i, 4)):
                for k in range(m):
                    B[k, i] = A[i, j]
        """,
        {"i": "not m <= 0"},
    ),
    "what is computed around an empty loop": (
        """
        acc = T.alloc_buffer((1,), "float32", scope="local")
        for i in range(n):
            acc[0] = 0.0
            for j in range(m):
                acc[0] = acc[0] + A[i, j]
            B[0, i] = acc[0]
        """,
        {},
    ),
    "a sum of all": (
        """
        acc = T.alloc_buffer((1,), "float32", scope="local")
        acc[0] = 0.0
        for i in range(n):
            for j in range(m):
                acc[0] = acc[0] + A[i, j]
        B[0, 0] = acc[0]
        """,
        {"i": "not m <= 0"},
    ),
    "memory for itself": (
        """
        for i in range(n):
            row = T.alloc_buffer((8,), "float32", scope="local")
            for k in range(8):
                row[k] = A[i, k]
            for j in range(m):
                B[j, i] = row[j]
        """,
        {"i": "not m <= 0"},
    ),
    "two loops": (
        """
        for i in range(n):
            for j in range(m):
                B[j, i] = A[i, j]
            for j in range(m - 1):
                B[j, i] = 0.0
        """,
        {"i": "not (m <= 0 and m - 1 <= 0)"},
    ),
    "a call of C": (
        """
        for i in range(n):
            for j in range(m):
                B[j, i] = A[i, j]
            T.evaluate(T.call_extern("int32", "counted"))
        """,
        {},
    ),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_loops_that_are_tested(name: str) -> None:
    body, expected = PROGRAMS[name]
    before = from_source(HEAD + textwrap.indent(textwrap.dedent(body), "    "))
    after = skip_empty_loops(before)
    lines = [line.strip() for line in after.script().splitlines()]
    conditions = {
        below.split()[1]: line.removeprefix("if ").removesuffix(":")
        for line, below in itertools.pairwise(lines)
        if line.startswith("if ")
    }
    assert conditions == expected
    assert (after is before) == (not expected)
