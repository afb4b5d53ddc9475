"""`bench.devices`: launches are counted, and a machine without TVM is said to be one."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import tensorkiln as tk
from bench.devices import groups_of_tvm, launches, line
from tensorkiln.kernels.case import rand
from tests.transform.graphs import graph


@pytest.mark.filterwarnings("ignore:.*is the baseline")
def test_launches_of_a_run_are_counted() -> None:
    def network(g, x):  # noqa: ANN001, ANN202
        y = g.softmax(g.linear(x, rand(20, 40)))
        return g.linear(g.softmax(g.linear(y, rand(40, 40))), rand(40, 40))

    exe = tk.compile(graph(network, x=(9, 20)), "opencl")
    assert launches(exe) == 5 and len(exe.copies()) == 2
    assert len(exe.kernels) < 5  # equal kernels are there once


def test_no_tvm_is_a_status() -> None:
    tvm_groups = groups_of_tvm(sys.executable, Path("no-such-model.onnx"), {})
    assert "status" in tvm_groups and "groups" not in tvm_groups


@pytest.mark.parametrize(
    ("tvm", "expected"),
    [
        ({"groups": 39, "version": "0.27"}, "39 (0.27)"),
        ({"status": "not installed"}, "not installed"),
    ],
)
def test_a_row(tvm: dict[str, object], expected: str) -> None:
    times = [{"name": n, "min_ms": 1.0, "median_ms": 2.0} for n in ("cpu", "opencl")]
    record = {"model": "m", "rows": times, "device": "d", "launches": 3, "kernels": 2, "copies": 1}
    row = line({**record, "tvm": tvm, "run": "r"})
    assert row == f"| m | 1.00 (2.00) | 1.00 (2.00) | d | 3 | 2 | 1 | {expected} | r |"
