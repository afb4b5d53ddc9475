"""Builtin functions that take DLPack capsules: what they refuse, and what outlives what."""

from __future__ import annotations

import gc
import sys

import numpy as np
import pytest

import tensorkiln as tk
from tensorkiln.base.errors import UserError
from tensorkiln.runtime import Executor, Module
from tests.transform.graphs import graph

X = np.arange(-2, 2, dtype=np.float32)


@pytest.fixture
def module() -> Module:
    return tk.compile(graph(lambda g, x: g.relu(x), x=(4,))).jit()


def test_a_call_takes_the_fast_road(module: Module, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Executor(module)["main"]
    monkeypatch.setattr(type(run), "_call_slowly", None)
    out = np.empty_like(X)
    assert run(X).numpy().tolist() == [0, 0, 0, 1]
    assert run(X, out=out) is out and out.tolist() == [0, 0, 0, 1]


def test_what_has_no_plain_export_takes_the_other(module: Module) -> None:
    locked = X.copy()
    locked.flags.writeable = False
    assert Executor(module)["main"](locked).numpy().tolist() == [0, 0, 0, 1]

    class Odd:
        def __dlpack__(self) -> object:
            return "no capsule"

    with pytest.raises(UserError, match="Odd"):
        Executor(module)["main"](Odd())


def test_capsules_are_given_back(module: Module) -> None:
    run, x, out = Executor(module)["main"], X.copy(), np.empty_like(X)
    run(x, out=out)
    before = sys.getrefcount(x), sys.getrefcount(out)
    for _ in range(100):
        run(x, out=out)
        with pytest.raises(UserError):
            run(x[:3], out=out)
    gc.collect()
    assert (sys.getrefcount(x), sys.getrefcount(out)) == before


def test_functions_die_in_any_order(module: Module) -> None:
    for _ in range(50):
        executor = Executor(module)
        run = executor["main"]
        del executor
        gc.collect()
        run(X)
        del run
    gc.collect()


def test_a_closed_library_is_not_called(module: Module) -> None:
    run = Executor(module)["main"]
    module.close()
    with pytest.raises(UserError, match="closed"):
        run(X)
    with pytest.raises(UserError, match="closed"):
        run(X, out=np.empty_like(X))
