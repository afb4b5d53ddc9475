"""Roofline rows of a small network."""

from __future__ import annotations

import pytest

import tensorkiln as tk
from bench import roofline as tool
from bench.limits import UNITS, Limits, measure_limits
from bench.roofline import Roofline, Row, restored, roofline, table
from bench.store import load
from tensorkiln.base.errors import UserError
from tensorkiln.ir.expr import Var
from tensorkiln.ir.relax import tensor
from tensorkiln.kernels.case import rand
from tests.transform.graphs import graph

LIMITS = Limits({"float32": 100.0}, ((1 << 20, 50.0), (1 << 28, 20.0)))


def test_rows_add_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tool, "measure_limits", lambda target: LIMITS)
    mod = graph(
        lambda g, x: g.softmax(g.relu(g.linear(x, rand(64, 96), rand(96))), axis=-1), x=(40, 64)
    )
    network = roofline(mod, 0.01)
    linear = next(r for r in network.rows if r.kernel.startswith("linear"))
    flops, weights, moved_bytes = (
        40 * 96 * (2 * 64 + 1),
        4 * (64 * 96 + 96),
        4 * (40 * 64 + 40 * 96),
    )
    assert (linear.calls, linear.flops, linear.bytes) == (1, flops, weights + moved_bytes)
    assert linear.bound == "compute" and linear.limit == pytest.approx(flops / 100e3)
    softmax = next(r for r in network.rows if r.kernel.startswith("softmax"))
    assert softmax.bound == "memory" and softmax.limit == pytest.approx(2 * 4 * 40 * 96 / 50e3)
    assert network.micros == sum(r.micros for r in network.rows) <= network.whole * 1.5
    assert [r.micros for r in network.rows] == sorted(
        (r.micros for r in network.rows), reverse=True
    )


def test_weights_lie_where_all_of_a_run_lie(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two layers of 144 KiB have 288 KiB between two runs; one that is used twice has its own."""
    limits = Limits({"float32": 1e9}, ((1 << 10, 50.0), (1 << 18, 10.0)))
    monkeypatch.setattr(tool, "measure_limits", lambda target: limits)
    first, two = rand(192, 192), rand(192, 192, seed=1)
    of = {}
    for name, (a, b) in {"once": (first, two), "twice": (first, first)}.items():
        mod = graph(lambda g, x, a=a, b=b: g.linear(g.linear(x, a), b), x=(2, 192))
        of[name] = sum(r.limit for r in roofline(mod, 0.01).rows)
    weight_bytes, moved = 4 * 192 * 192, 2 * 4 * 2 * 192
    assert of["once"] == pytest.approx(2 * (weight_bytes / 10e3 + moved / 50e3))
    assert of["twice"] == pytest.approx(2 * (weight_bytes / 50e3 + moved / 50e3))


def test_the_table_folds_what_is_not_shown() -> None:
    rows = tuple(Row(f"k{i}", "loops", 1, 1e6, 1e3, 30.0 - i, 5.0, "memory") for i in range(5))
    lines = table(Roofline(rows, 200.0, LIMITS), top=2)
    assert [line.split(" | ")[0] for line in lines[2:]] == [
        "| `k0`",
        "| `k1`",
        "| 3 more",
        "| **all kernels**",
    ]
    assert "| 5 |" in lines[-1] and "| 18% | 100.0% | 115 |" in lines[-1]
    assert rows[0].reached == pytest.approx(1 / 6) and rows[0].lost == 25


def test_symbolic_dimensions_are_refused() -> None:
    mod = graph(lambda g, x: g.relu(x), x=tensor((Var("n"), 8), "float32"))
    with pytest.raises(UserError, match="symbolic dimensions"):
        tool.random_inputs(tk.compile(mod))


def test_records_come_back(monkeypatch: pytest.MonkeyPatch, tmp_path: object) -> None:
    records: list[object] = []
    monkeypatch.setattr(tool, "add", lambda *args, **_: records.append(args[3]))
    network = Roofline((Row("k", "loops", 2, 1.0, 2.0, 3.0, 1.0, "memory"),), 4.0, LIMITS)
    tool.record("mlp", network)
    (data,) = records
    assert restored(data) == network  # type: ignore[arg-type]
    assert load is not None


def test_limits_of_this_machine() -> None:
    limits = measure_limits(times=1)
    assert (
        set(limits.peaks) >= set(UNITS)
        and min(limits.peaks.values()) > 0
        and all(rate > 0 for _, rate in limits.gbytes)
    )
    assert [size for size, _ in limits.gbytes] == sorted(size for size, _ in limits.gbytes)
