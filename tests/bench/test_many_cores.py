"""Tasks on simulated cores, against formulas by hand."""

from __future__ import annotations

import pytest

import tensorkiln as tk
from bench.many_cores import CLAIM, START, CallOnCores, Loop, calls_of, loops_of, makespan, slowest
from tensorkiln.kernels.case import rand
from tensorkiln.script import from_source
from tests.transform.graphs import graph

TEXT = """
@T.prim_func
def f(X: T.Buffer((64, 8), "float32"), Y: T.Buffer((64, 8), "float32")):
    Y[0, 0] = 1.0
    for i in T.parallel(64):
        for j in range(8):
            Y[i, j] = X[i, j] * 2.0
    for k in range(3):
        for i in T.parallel(4):
            Y[i, k] = Y[i, k] + 1.0
"""


def test_loops_are_found_with_their_work() -> None:
    (f,) = from_source(TEXT).functions
    shared = Loop(64, 64 * 8 * 2), *[Loop(4, 4 * 2)] * 3
    assert loops_of(f) == (Loop(1, 1), *shared)


@pytest.mark.parametrize(
    ("iterations", "cores", "busiest_share"),
    [
        (1, 16, 1.0),
        (2, 16, 1 / 2),
        (3, 2, 2 / 3),
        (7, 4, 2 / 7),
        (64, 4, 1 / 4),
        (1000, 16, 1 / 16),
    ],
)
def test_a_loop_takes_as_long_as_its_busiest_thread(
    iterations: int, cores: int, busiest_share: float
) -> None:
    seconds = makespan(iterations, 1e6, cores)
    chunks = min(iterations, 8 * min(cores, iterations))
    assert seconds == pytest.approx(1e6 * busiest_share, rel=0.03 if iterations > 64 else 1e-5)
    assert iterations == 1 or seconds > 1e6 * busiest_share >= 1e6 / min(cores, chunks)


def test_starting_costs() -> None:
    assert makespan(2, 2.0, 2) == pytest.approx(1.0 + START + CLAIM)


def test_what_is_lost_is_named() -> None:
    even, alone = (
        CallOnCores("even", 1e6, (Loop(4096, 1.0),)),
        CallOnCores("one", 50.0, (Loop(1, 1.0),)),
    )
    (first, lost_share), *_ = slowest([even, alone], 16, 1)
    assert first in ("even", "one") and lost_share > 0
    assert slowest([alone], 16) == [("one", 50.0 - 50.0 / 16)]


def test_calls_of_a_network() -> None:
    mod = graph(lambda g, x: g.softmax(g.linear(x, rand(64, 512), rand(512)), axis=-1), x=(64, 64))
    calls = calls_of(mod, {}, 0.01)
    assert calls and all(c.micros > 0 for c in calls)
    assert all(c.on(1) == pytest.approx(c.micros) for c in calls)
    assert any(loop.iterations > 1 for c in calls for loop in c.loops)
    assert isinstance(mod, tk.IRModule)
