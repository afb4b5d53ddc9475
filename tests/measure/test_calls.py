"""Kernel calls observed inside whole runs."""

from __future__ import annotations

import numpy as np
import pytest

import tensorkiln as tk
from tensorkiln.base.errors import UnsupportedError, UserError
from tensorkiln.kernels.case import rand
from tensorkiln.measure.calls import around_calls, time_calls
from tensorkiln.script import R
from tests.transform.graphs import graph

X = np.random.default_rng(0).standard_normal((8, 16)).astype(np.float32)


@pytest.mark.parametrize("threads", [1, 2])
def test_every_call_of_a_run_is_timed(threads: int) -> None:
    mod = graph(lambda g, x: g.softmax(g.silu(g.softmax(x, axis=-1)), axis=-1), x=(8, 16))
    exe = tk.compile(mod)
    found = time_calls(exe, {"x": X}, 0.01, threads)
    (plan,) = exe.functions
    assert [c.symbol for c in found.calls] == [c.symbol for c in plan.calls]
    assert [c.symbol for c in found.calls].count("softmax") == 2
    assert found.runs >= 3
    for call in found.calls:
        assert 0 <= call.micros <= call.median
    assert sum(c.micros for c in found.calls) <= found.micros


def test_what_runs_around_calls_leaves_the_result_alone() -> None:
    mod = graph(lambda g, x: g.relu(g.linear(x, rand(16, 5), rand(5))), x=(8, 16))
    exe = tk.compile(mod)
    head = "static const char *seen; static int depth;"
    odd = around_calls(exe, "depth++; seen = SYMBOL", "depth--; (void)seen", head)
    want = tk.runtime.Executor(exe, tk.cpu())["main"](X).numpy()
    assert np.array_equal(tk.runtime.Executor(odd, tk.cpu())["main"](X).numpy(), want)
    text = odd.artifacts["entry.c"].text()
    assert text.count("#define linear_relu(...)") == 1 and 'seen = "linear_relu"' in text
    assert "depth" not in exe.artifacts["entry.c"].text()


@tk.script.ir_module
class Branching:
    @R.function
    def main(  # noqa: ANN201
        c: R.Tensor((), "bool"), x: R.Tensor((4,), "float32")
    ):
        if c:  # noqa: SIM108
            y = R.relu(x)
        else:
            y = R.neg(x)
        return y


def test_host_steps_have_no_call_plan() -> None:
    exe = tk.compile(Branching, "native")
    with pytest.raises(UserError, match="no graph function is called 'main'"):
        time_calls(exe, {"c": np.array(True), "x": X[0, :4]})
    text = around_calls(exe, "here++", "", "static int here;").artifacts["entry.c"].text()
    assert text.count("here++") == 2  # but what they call has


def test_code_that_is_compiled_already() -> None:
    with pytest.raises(UnsupportedError, match="llvmjit"):
        around_calls(tk.compile(Branching, "llvmjit"), "", "")
