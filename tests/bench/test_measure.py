"""The measuring process: which contenders are timed, and how results are judged."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from bench import __main__ as command
from bench.contenders import Case, Contender
from bench.measure import (
    PRIORITY,
    Row,
    alone,
    check,
    interleave,
    mean_error,
    mismatch,
    prepare,
)
from bench.memory import growth

ONES = np.ones(3, np.float32)


def contender(name: str, run: Callable[[], object], package: str = "numpy") -> Contender:
    return Contender(name, name, package, "numpy", lambda case, threads: run)  # type: ignore[arg-type, return-value]


def rows(*contenders: Contender, seconds: float = 0.01) -> dict[str, Row]:
    case = Case("net", Path("net.onnx"), {}, Path())
    prepared = prepare(list(contenders), case, 1)
    check(prepared)
    interleave(prepared, 2, seconds)
    return {name: row for name, (row, _) in prepared.items()}


def test_all_that_agree_are_timed() -> None:
    rows_by_label = rows(contender("ours", lambda: (ONES,)), contender("ort", lambda: (ONES,)))
    assert all(row.status == "ok" and row.count >= 2 for row in rows_by_label.values())


def test_wrong_results_are_not_timed() -> None:
    rows_by_label = rows(contender("ort", lambda: (ONES,)), contender("ours", lambda: (2 * ONES,)))
    assert "off by 1" in rows_by_label["ours"].status and rows_by_label["ours"].count == 0
    assert rows_by_label["ort"].count >= 2


def test_what_is_missing_or_fails_says_so() -> None:
    def broken(case: Case, threads: int) -> Callable[[], tuple[np.ndarray, ...]]:
        raise ValueError("no such operator\nmore")

    failing = Contender("ort", "ort", "numpy", "numpy", broken)
    rows_by_label = rows(failing, contender("tvm", lambda: (ONES,), package="no_such.package"))
    assert rows_by_label["ort"].status == "failed: ValueError: no such operator"
    assert rows_by_label["tvm"].status == "not installed (pip install numpy)"


def test_a_hopeless_contender_gets_a_few_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bench.measure.FEW", 1)
    calls = []

    def slow() -> tuple[np.ndarray, ...]:
        calls.append(0)
        time.sleep(1.05)
        return (ONES,)

    rows_by_label = rows(contender("ours", lambda: (ONES,)), contender("tvm", slow))
    assert len(calls) == rows_by_label["tvm"].count == 2 and rows_by_label["tvm"].min_ms > 1000


def test_what_fails_when_it_runs_says_so() -> None:
    def broken() -> tuple[np.ndarray, ...]:
        raise RuntimeError("out of luck")

    rows_by_label = rows(contender("ours", lambda: (ONES,)), contender("iree", broken))
    assert rows_by_label["iree"].status == "failed: RuntimeError: out of luck"
    assert rows_by_label["ours"].status == "ok"


# Stands for bench.measure: contenders that hang, end the process, or are measured.
FAKE = """
import json, os, sys, time
spec = json.loads(open(sys.argv[1]).read())
for name in spec["contenders"]:
    with open(sys.argv[3] + ".part", "w") as file:
        json.dump({"name": name, "work": "compile"}, file)
    os.replace(sys.argv[3] + ".part", sys.argv[3])
    if name == spec.get("hangs"):
        time.sleep(600)
    if name == spec.get("ends"):
        os._exit(3)
rows = [{"name": name, "status": "ok"} for name in spec["contenders"]]
open(sys.argv[2], "w").write(json.dumps({"clock": "wall", "rows": rows}))
"""


def test_nobody_stops_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "COMMAND", (sys.executable, "-c", FAKE))
    names = ["ours", "ort", "iree", "tvm"]
    spec = {"threads": 1, "clock": "wall", "contenders": names, "hangs": "iree", "ends": "tvm"}
    result = command.measure(spec, 2.0, {"ort": "not measured: for a reason"})
    assert [row["name"] for row in result["rows"]] == names
    statuses = [row["status"] for row in result["rows"]]
    assert statuses[:2] == ["ok", "not measured: for a reason"]
    assert statuses[2] == "not measured: took longer than 2 s to compile"
    assert statuses[3] == "failed: ended the process (3) at: compile"


def test_a_process_that_never_begins_is_a_row_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "COMMAND", (sys.executable, "-c", "raise SystemExit(4)"))
    spec = {"threads": 1, "clock": "wall", "contenders": ["ours", "ort"]}
    rows = command.measure(spec, 5.0)["rows"]
    assert [row["status"] for row in rows] == ["failed: ended the process (4) at: start"] * 2


def test_the_budget_leaves_out_who_compiles_for_long() -> None:
    everyone = ["ours", "ort", "torch", "tvm"]
    options = command.parse(["--budget", "1", "--threads", "1", "--limit", "50"])
    assert command._within(options, everyone, time.monotonic()) == ({}, 50)
    left_out, _ = command._within(options, everyone, time.monotonic() - 61)
    assert list(left_out) == ["torch", "tvm"] and "budget of 1 min" in left_out["tvm"]
    left_out, limit = command._within(options, everyone, time.monotonic() - 30)
    assert not left_out and 29 < limit < 31


@pytest.mark.parametrize(
    ("have", "sentence"),
    [
        ([ONES], ""),
        ([ONES + 1e-6], ""),
        ([ONES, ONES], "2 outputs, expected 1"),
        ([ONES[:2]], "output 0 has shape"),
        ([ONES * np.nan], "output 0 is off"),
    ],
)
def test_mismatches(have: list[np.ndarray], sentence: str) -> None:
    assert mismatch([ONES], have).startswith(sentence) and bool(sentence) == bool(
        mismatch([ONES], have)
    )


def test_the_lock_is_held(tmp_path: Path) -> None:
    fcntl = pytest.importorskip("fcntl", reason="no fcntl: files cannot be locked")
    path = tmp_path / "lock"
    with alone(str(path)), path.open() as stream, pytest.raises(BlockingIOError):
        fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_the_priority_is_as_before() -> None:
    before = os.getpriority(os.PRIO_PROCESS, 0)
    stop = threading.Event()
    with alone(""):
        within = os.getpriority(os.PRIO_PROCESS, 0)
        threading.Thread(target=stop.wait).start()
    try:
        tasks = [int(task.name) for task in Path("/proc/self/task").iterdir()]
        assert {os.getpriority(os.PRIO_PROCESS, task) for task in tasks} == {before}
    finally:
        stop.set()
    assert within in (before, PRIORITY)


def test_memory_that_a_run_touches_is_seen() -> None:
    size = 64 << 20
    resident_growth = growth(lambda: np.ones(size, np.uint8))
    assert size * 0.9 < resident_growth < size * 1.5


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--models", "resnet19"], "unknown model 'resnet19'"),
        (["--peers", "ortt"], "unknown peer 'ortt'"),
        (["--threads", "0"], "this process may use"),
        (["--threads", "1,2", "--clock", "cpu"], "--threads"),
    ],
)
def test_bad_arguments(
    arguments: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        command.parse(arguments)
    assert sentence in capsys.readouterr().err


def test_mean_error_is_of_squares() -> None:
    want = np.array([3.0, -4.0, 0.0, 0.0])
    assert mean_error(want, want) == 0.0
    assert mean_error(want, want + np.array([0.5, 0, 0, 0])) == pytest.approx(0.5 / 5)
    assert mean_error(np.zeros(3), np.zeros(3)) == 0.0
    assert mean_error(want, want[:2]) == float("inf")
