"""Local buffers: their size with strides, and the limit of the stack."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import tensorkiln as tk
from tensorkiln.base.errors import UserError
from tensorkiln.codegen.expand.offsets import elements
from tensorkiln.codegen.stack import STACK_LIMIT
from tensorkiln.ir.buffer import buffer
from tensorkiln.ir.expr import Var, const
from tensorkiln.schedule.primitives import storage_align
from tensorkiln.script import T


@T.prim_func
def staged(A: T.Buffer((8, 64)), C: T.Buffer((8, 64))) -> None:
    t = T.alloc_buffer((8, 64), "float32", scope="local")
    for i, j in T.grid(8, 64):
        t[i, j] = A[i, j] + T.float32(1)
    for i, j in T.grid(8, 64):
        C[i, j] = t[7 - i, 63 - j]


@T.prim_func
def large(A: T.Buffer((1024, 1024)), C: T.Buffer((1024, 1024))) -> None:
    t = T.alloc_buffer((1024, 1024), "float32", scope="local")
    for i, j in T.grid(1024, 1024):
        t[i, j] = A[i, j]
    for i, j in T.grid(1024, 1024):
        C[i, j] = t[i, j]


def test_gaps_of_strides_count() -> None:
    b = buffer("b", (8, 64))
    assert elements(b) == 512
    assert elements(replace(b, strides_given=(const(65), const(1)))) == 7 * 65 + 64
    assert elements(buffer("n", (Var("n"),))) is None


def test_padded_rows_stay_apart() -> None:
    f = storage_align(staged, "t", 0, 64, 1)
    assert "strides=(65, 1)" in f.script()
    a = np.random.default_rng(0).normal(size=(8, 64)).astype(np.float32)
    c = np.zeros_like(a)
    tk.compile(tk.IRModule((f,)), relax_pipeline=None).jit()["staged"](a, c)
    np.testing.assert_array_equal(c, a[::-1, ::-1] + 1)


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(UserError, match="4,194,304 bytes of stack") as e:
        tk.compile(tk.IRModule((large,)), relax_pipeline=None)
    assert e.value.code == "stack" and e.value.where == "large" and "compute_at" in e.value.hint
    assert f"{STACK_LIMIT:,}" in str(e.value)
