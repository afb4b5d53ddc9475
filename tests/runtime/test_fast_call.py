"""Builtin functions of libraries: what they leave to Python, and what outlives what."""

from __future__ import annotations

import gc
import sys
import weakref
from typing import Any

import numpy as np
import pytest

import tensorkiln as tk
from tensorkiln.base.errors import UserError
from tensorkiln.ir.expr import Var
from tensorkiln.ir.relax import RVar, Tuple
from tensorkiln.kernels.case import Graph
from tensorkiln.runtime import Executor, Module
from tests.transform.graphs import graph

X = np.arange(-2, 2, dtype=np.float32)


@pytest.fixture
def module() -> Module:
    return tk.compile(graph(lambda g, x: g.relu(x), x=(4,))).jit()


def in_python(function: Any) -> list[object]:
    """The arguments of each call that the builtin hands over from now on."""
    bound_call, slow_calls = function.__call__.__self__, []
    slow = bound_call.slow

    def call(*arguments: object, **named: object) -> object:
        slow_calls.append((arguments, named))
        return slow(*arguments, **named)

    bound_call.slow = call
    return slow_calls


def test_plain_calls_never_enter_python(module: Module) -> None:
    run = Executor(module)["main"]
    slowly, out = in_python(run), np.empty_like(X)
    assert run(X).numpy().tolist() == [0, 0, 0, 1]
    assert run(x=X).numpy().tolist() == [0, 0, 0, 1]
    assert run(run(X)).numpy().tolist() == [0, 0, 0, 1]
    for call in (lambda: run(X, out=out), lambda: run(x=X, out=out), lambda: run(out=out, x=X)):
        out.fill(7)
        assert call() is out and out.tolist() == [0, 0, 0, 1]
    assert slowly == []
    assert run(X, out=[out]) == [out] and len(slowly) == 1


def test_results_of_any_number_and_size() -> None:
    def build(g: Graph, x: RVar) -> Tuple:
        return Tuple((g.relu(x), g.neg(x)))

    n = Var("n")
    run = Executor(tk.compile(graph(build, x=(n, 4))).jit())["main"]
    slowly = in_python(run)
    for rows in (1, 3, 9000):
        x = np.linspace(-1, 1, rows * 4, dtype=np.float32).reshape(rows, 4)
        high, low = run(x)
        np.testing.assert_array_equal(high.numpy(), np.maximum(x, 0))
        np.testing.assert_array_equal(low.numpy(), -x)
    assert slowly == []
    with pytest.raises(ValueError, match="must have 2 dimensions"):
        run(X)
    assert len(slowly) == 1


def test_results_without_dimensions() -> None:
    run = Executor(tk.compile(graph(lambda g, x: g.sum(x, axes=(0,)), x=(4,))).jit())["main"]
    slowly = in_python(run)
    result = run(X)
    assert result.shape == () and result.numpy() == -2 and slowly == []


def test_an_input_may_be_called_out() -> None:
    run = Executor(tk.compile(graph(lambda g, x, out: g.add(x, out), x=(4,), out=(4,))).jit())
    room = np.empty_like(X)
    assert run["main"](X, X).numpy().tolist() == [-4, -2, 0, 2]
    assert run["main"](X, X, out=room) is room and room.tolist() == [-4, -2, 0, 2]


def test_what_python_raises_is_raised(module: Module) -> None:
    class Stops:
        def __dlpack__(self) -> object:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Executor(module)["main"](Stops())


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


def test_memory_goes_with_the_last_function(module: Module) -> None:
    run = Executor(module)["main"]
    memory = weakref.ref(run.__call__.__self__.slow._slow._memory)
    builtin = run.__call__
    del run
    assert builtin(X).numpy().tolist() == [0, 0, 0, 1] and memory() is not None
    gc.disable()
    try:
        del builtin
        assert memory() is None, "it waits for the garbage to be collected"
    finally:
        gc.enable()


def test_a_closed_library_is_not_called(module: Module) -> None:
    run = Executor(module)["main"]
    builtin = run.__call__
    module.close()
    with pytest.raises(UserError, match="closed"):
        builtin(X)
    with pytest.raises(UserError, match="closed"):
        run(X)
    with pytest.raises(UserError, match="closed"):
        run(X, out=np.empty_like(X))
