"""`make gpu`: the whole of it on the stand-in for the driver; that a table is written whatever
becomes of its rows; that a machine without a GPU is told what lacks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tensorkiln as tk
from bench.gpu import table
from bench.gpu.__main__ import NO_GPU, cases_of, chosen
from bench.gpu.cases import RUNGS
from bench.gpu.conformance import TABLES, check_tests
from bench.gpu.device import Array, Contender, on_device
from bench.gpu.supervise import supervise
from bench.gpu.worker import Race
from bench.store import ROOT
from tensorkiln.ir.relax import tensor
from tensorkiln.kernels.case import rand
from tests.hosts.build import require
from tests.rotation import rows_in_turn
from tests.schedule.battery import Battery
from tests.transform.graphs import graph


def bench(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "bench.gpu", *arguments]
    variables = {**os.environ, "PYTHONPATH": str(ROOT), **environment}
    return subprocess.run(
        command, cwd=ROOT, env=variables, capture_output=True, text=True, check=False
    )


def rows(text: str) -> list[list[str]]:
    """The cells of the lines of a table."""
    lines = [line for line in text.splitlines() if line.startswith("| ")]
    return [[c.strip() for c in line.strip("|").split("|")] for line in lines[1:]]


def _family(name: str) -> str:
    """In a dry run products are of the same small size, and networks of a few layers."""
    return next((family for family in ("product", "batch") if family in name), name)


@pytest.mark.parametrize("name", TABLES)
def test_tables_have_names_that_compile(name: str) -> None:
    """Where there is no GPU they are never compiled as one library."""
    battery = Battery()
    TABLES[name].fill(battery)
    assert battery.cases
    assert [n for n in battery.cases if not n.isidentifier() or not n.isascii()] == []


def test_all_of_it_on_the_stand_in() -> None:
    """Every case has a row of ours with times, or that its check is right; peers say why they are
    not there. Products and networks take turns."""
    require("gcc")
    for package in ("torch", "onnx"):
        pytest.importorskip(package, reason=f"{package} is not installed")
    cases = cases_of(dry=True)
    words = ",".join(rows_in_turn(cases, family=_family))
    names = chosen(words, [*cases])
    process = bench("--dry", "--cases", words)
    table_rows = rows(process.stdout)
    assert list(dict.fromkeys(row[0] for row in table_rows)) == names, process.stderr
    for name, who, ms, *_, status, _ in table_rows:
        if who.startswith("Tensorkiln") and name != "torch.cuda.graph":
            assert status.startswith("ok"), (name, status, process.stderr)
            assert bool(ms) != name.startswith("kernels")
        elif who != "copy by the driver":
            assert status == "absent: a dry run has no peers"
    for dtype, rungs in RUNGS.items():
        for n in (4096, 8192):
            rung_labels = [
                r[1] for r in table_rows if r[0] == f"product {dtype} {n}" and "cuBLAS" not in r[1]
            ]
            assert rung_labels == [rung.label for rung in rungs if f"product {dtype} {n}" in names]
    captured = [row for row in table_rows if row[1] == "Tensorkiln, captured"]
    assert len(captured) == sum("batch" in name for name in names) > 0
    assert "DRY RUN" in process.stdout and "Look-alike" in process.stdout
    assert process.returncode == (0 if "Without:" not in process.stdout else 1)


def test_a_device_that_is_lost_costs_one_case_each() -> None:
    """The second launch of each process loses the device: the next case gets another process."""
    require("gcc")
    process = bench("--dry", "--cases", "elementwise,norm", LOOKALIKE_FAIL="cuLaunchKernel:2:719")
    statuses = {
        name: status for name, who, *_, status, _ in rows(process.stdout) if who == "Tensorkiln"
    }
    assert [*statuses] == ["elementwise", "layer norm"], process.stderr
    assert all("LAUNCH_FAILED (719)" in status for status in statuses.values()), statuses
    assert process.returncode == 1 and "0 of 2 cases have a result" in process.stdout


def test_without_a_gpu_it_says_so(tmp_path: Path) -> None:
    (tmp_path / "libcuda.so.1").write_text("not a library")
    process = bench(LD_LIBRARY_PATH=str(tmp_path))
    assert process.returncode == NO_GPU and not process.stdout
    for words in ("no GPU of NVIDIA", "libcuda.so.1", "cannot be opened", "make gpu DRY=1"):
        assert words in process.stderr


def test_make_passes_dry_on_and_keeps_nothing_of_it() -> None:
    require("make")
    outputs = {}
    for dry in ("", "1"):
        command = ["make", "-n", "-o", ".venv/has-dev", "gpu", f"DRY={dry}"]
        outputs[dry] = subprocess.run(command, cwd=ROOT, capture_output=True, text=True).stdout
    assert "bench.gpu ;" in outputs[""] and "bench.results" in outputs[""]
    assert "bench.gpu --dry;" in outputs["1"] and "bench.results" not in outputs["1"]


def test_cases_are_chosen_by_words(capsys: pytest.CaptureFixture[str]) -> None:
    names = [*cases_of(dry=False)]
    assert chosen("", names) == names
    assert chosen("resnet,float32 4", names) == [
        "product float32 4096",
        "resnet50, batch 1",
        "resnet50, batch 64",
        "resnet50 float16, batch 64",
    ]
    process = bench("--dry", "--cases", "resnte")
    assert process.returncode == 2 and "no case has 'resnte' in its name" in process.stderr


# ---- what becomes of cases ----------------------------------------------------------------------

_WORKER = """
import json, os, sys, time
out, names = open(sys.argv[1], "a"), json.loads(sys.argv[2])
def tell(**what):
    print(json.dumps(what), file=out, flush=True)
for name in names:
    tell(begin=name)
    if name == "hangs":
        time.sleep(600)
    if name == "hangs later":
        tell(part=name, rows=[{"label": "Tensorkiln", "status": "ok", "min_ms": 1.0}], rival="peer")
        time.sleep(600)
    if name == "killed":
        os.kill(os.getpid(), 9)
    if name == "silent":
        sys.exit(0)
    if name == "raises":
        raise RuntimeError("what it says")
    tell(end=name, rows=[])
    if name == "lost":
        sys.exit(3)
"""


def told(names: Sequence[str], case_s: float = 30.0, budget_s: float = 60.0) -> dict[str, Any]:
    def command(out: Path, todo: Sequence[str]) -> list[str]:
        return [sys.executable, "-c", _WORKER, str(out), json.dumps(list(todo))]

    ends = [t for t in supervise(command, names, case_s, budget_s) if "end" in t]
    assert [t["end"] for t in ends] == [*names]
    return {t["end"]: [(row["label"], row["status"]) for row in t["rows"]] for t in ends}


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("killed", "failed: the process ended by signal 9"),
        ("silent", "failed: the process ended with 0"),
        ("raises", "failed: the process ended with 1: RuntimeError: what it says"),
    ],
)
def test_a_case_that_ends_its_process(name: str, words: str) -> None:
    assert told(["first", name, "last"]) == {
        "first": [],
        name: [("Tensorkiln", words)],
        "last": [],
    }


def test_cases_that_take_too_long() -> None:
    """What there is of one is kept; the reason is its rival's."""
    late = "failed: took longer than 1 s"
    assert told(["lost", "hangs", "a", "hangs later", "b"], case_s=1.0) == {
        "lost": [],
        "hangs": [("Tensorkiln", late)],
        "a": [],
        "hangs later": [("Tensorkiln", "ok"), ("peer", late)],
        "b": [],
    }


def test_the_time_for_all_cases() -> None:
    statuses = told(["hangs", "a", "b"], budget_s=0.6)
    assert statuses["hangs"] == [("Tensorkiln", "failed: the time for all cases was over")]
    assert statuses["a"] == statuses["b"] == [("Tensorkiln", "left out: 0.01 minutes had passed")]


def test_a_worker_that_cannot_begin() -> None:
    def command(out: Path, todo: Sequence[str]) -> list[str]:
        return [sys.executable, "-c", "import no_such_module"]

    ends = list(supervise(command, ["a", "b"], 30.0, 60.0))
    assert [t["end"] for t in ends] == ["a", "b"]
    assert all("No module named 'no_such_module'" in t["rows"][0]["status"] for t in ends)


def test_only_right_results_are_timed() -> None:
    def check(outputs: list[Array]) -> str:
        return "" if outputs[0].all() else "off by 1"

    def fails() -> None:
        raise RuntimeError("a kernel failed\nsecond line")

    idle = np.ones(1)  # left by a run before

    race = Race(check, seconds=0.0)
    race.add(Contender("right", outputs=lambda: [np.ones(1)]))
    race.add(Contender("copies", outputs=list))  # nothing to check
    race.add(Contender("wrong", outputs=lambda: [np.zeros(1)]))
    race.add(Contender("idle", outputs=lambda: [idle], clear=lambda: idle.fill(0)))
    race.add(Contender("fails", fails))
    race.add(Contender("absent", fails, status="absent: no such package"))
    results = {row["label"]: (row["status"], row["count"] > 0) for row in race.run()}
    assert results == {
        "right": ("ok", True),
        "copies": ("ok", True),
        "wrong": ("wrong result: off by 1", False),
        "idle": ("wrong result: off by 1", False),
        "fails": ("failed: RuntimeError: a kernel failed", False),
        "absent": ("absent: no such package", False),
    }


# ---- the table ----------------------------------------------------------------------------------


def record(name: str, *who: tuple[str, str, float], **facts: Any) -> dict[str, Any]:
    table_rows = [
        {"label": label, "status": status, "min_ms": ms, "median_ms": ms * 2, "count": int(ms > 0)}
        for label, status, ms in who
    ]
    head = {"kind": "gpu", "model": name, "threads": 1, "machine": "GPU", "run": "now"}
    return {**head, "goal": None, "rows": table_rows, **facts}


PRODUCT = record(
    "product",
    ("Tensorkiln", "ok", 4.0),
    ("cuBLAS, torch 2", "ok", 2.0),
    amount=4e9,
    unit="FLOP",
    rival="cuBLAS",
    goal=0.6,
)
BAD = record(
    "net",
    ("Tensorkiln", "failed: a | b", 0.0),
    ("Tensorkiln, captured", "ok", 2.0),
    amount=8.0,
    unit="samples",
    rival="torch.compile",
)
RIGHT, WRONG = (
    record("kernels a", ("Tensorkiln", "ok", 0.0)),
    record("kernels b", ("Tensorkiln", "wrong result: off by 1", 0.0)),
)
NOT_THERE = record("torch.cuda.graph", ("Tensorkiln", "absent: no torch", 0.0))


def test_lines_have_shares_goals_and_reasons() -> None:
    assert table.share(PRODUCT) == 0.5 and table.share(BAD) is None
    assert table.lines(PRODUCT) == [
        "| product | Tensorkiln | 4 (8) | 1 TFLOP/s | 50% | 60% | ok, below the goal | now |",
        "| product | cuBLAS, torch 2 | 2 (4) | 2 TFLOP/s |  |  | ok | now |",
    ]
    line = table.lines({**PRODUCT, "goal": 0.5})[0]
    assert "| 50% | 50% | ok | now |" in line
    assert table.lines(BAD)[0] == "| net | Tensorkiln |  |  |  |  | failed: a / b | now |"
    assert table.lines(BAD)[1].startswith("| net | Tensorkiln, captured | 2 (4) | 4000 samples/s |")
    assert [table.fails(r) for r in (PRODUCT, BAD, RIGHT, WRONG, NOT_THERE)] == [
        False,
        True,
        False,
        True,
        False,
    ]


def test_the_page_counts_what_is_right_and_shows_the_rest() -> None:
    pytest.importorskip("torch", reason="torch is not installed")  # what else is on the page
    from bench.results import page

    text = page([PRODUCT, BAD, RIGHT, WRONG, NOT_THERE], "")
    assert "## GPU, machine A" in text and "1 of 3 checks are right" in text
    assert [row[0] for row in rows(text.split("## GPU")[1])] == [
        "product",
        "product",
        "net",
        "net",
        "kernels b",
        "torch.cuda.graph",
    ]


# ---- parts of it --------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:.*is the baseline")
def test_parameters_and_results_are_put_on_a_device() -> None:
    """Of one result and of several, a parameter that is also a result among them."""

    def several(g: Any, x: Any, y: Any) -> Any:
        from tensorkiln.ir.relax import Tuple

        return Tuple((g.exp(x), g.linear(y, rand(7, 3)), x))

    for build in (lambda g, x, y: g.add(x, y), several):
        mod = graph(build, x=(5, 7), y=tensor((5, 7), "float32"))
        exe = tk.compile(on_device(mod, "cuda"), "cuda")
        (info,) = exe.functions
        assert [p.device for p in (*info.info.inputs, *info.info.outputs)] == [1] * (
            2 + len(info.info.outputs)
        )


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("def test_a():\n    pass\n", ""),
        ("def test_a():\n    assert 0\n", "failed: 1 failed"),
    ],
)
def test_a_file_of_tests_is_a_check(body: str, words: str, tmp_path: Path) -> None:
    path = tmp_path / "test_some.py"
    path.write_text(body)
    message = check_tests(str(path))(None)  # type: ignore[arg-type]
    assert message.startswith(words) and bool(message) == bool(words)
