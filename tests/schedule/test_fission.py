"""fission: each statement of a loop gets a loop of its own."""

from __future__ import annotations

import numpy as np
import pytest

import tensorkiln as tk
from tensorkiln.ir.module import IRModule
from tensorkiln.schedule.primitives import Fission, Schedule, ScheduleError, fission
from tensorkiln.script import T


@T.prim_func
def rows(A: T.Buffer((4, 8), "float32"), C: T.Buffer((4,), "float32")) -> None:
    for i in range(4):
        t = T.alloc_buffer((8,), "float32", scope="local")
        for j in range(8):
            t[j] = A[i, j] * T.float32(2)
        C[i] = T.float32(0)
        for k in range(8):
            C[i] = C[i] + t[k]


def test_buffers_made_in_the_body_get_a_dimension() -> None:
    s = Schedule(rows)
    made = s.fission("i")
    assert s.loops_of("t") == ("i", "j")
    assert "t = T.alloc_buffer((4, 8)" in s.func.script()
    assert "for i_1 in" in s.func.script() and made == Fission(("i", "i_1", "i_2"))
    a = np.arange(32, dtype=np.float32).reshape(4, 8)
    for f in (rows, s.func):
        out = np.zeros(4, np.float32)
        tk.compile(IRModule((f,)), "native", relax_pipeline=None)["rows"](a, out)
        np.testing.assert_array_equal(out, 2 * a.sum(axis=1))


def test_a_buffer_of_one_element_becomes_a_row() -> None:
    @T.prim_func
    def sums(A: T.Buffer((4, 8), "float32"), C: T.Buffer((4,), "float32")) -> None:
        for i in range(4):
            t = T.alloc_buffer((1,), "float32", scope="local")
            t[0] = T.float32(0)
            for k in range(8):
                t[0] = t[0] + A[i, k]
            C[i] = t[0]

    s = Schedule(sums)
    _, _, last = s.fission("i").parts
    assert "t = T.alloc_buffer((4,)" in s.func.script()
    s.vectorize(last)
    a = np.arange(32, dtype=np.float32).reshape(4, 8)
    out = np.zeros(4, np.float32)
    tk.compile(IRModule((s.func,)), "native", relax_pipeline=None)["sums"](a, out)
    np.testing.assert_array_equal(out, a.sum(axis=1))


def test_a_single_statement_stays() -> None:
    with pytest.raises(ScheduleError, match="single statement") as e:
        fission(rows, "j")
    assert e.value.where == "fission('j')"
