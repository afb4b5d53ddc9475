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
from bench.gpu.conformance import check_tests
from bench.gpu.device import Array, Contender, on_device
from bench.gpu.supervise import supervise
from bench.gpu.worker import Race
from bench.store import ROOT
from tensorkiln.ir.relax import tensor
from tensorkiln.kernels.case import rand
from tests.hosts.build import require
from tests.transform.graphs import graph


def bench(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "bench.gpu", *arguments]
    known = {**os.environ, "PYTHONPATH": str(ROOT), **environment}
    return subprocess.run(command, cwd=ROOT, env=known, capture_output=True, text=True, check=False)


def rows(text: str) -> list[list[str]]:
    """The cells of the lines of a table."""
    lines = [line for line in text.splitlines() if line.startswith("| ")]
    return [[c.strip() for c in line.strip("|").split("|")] for line in lines[1:]]


def test_all_of_it_on_the_stand_in() -> None:
    """Every case has a row of ours with times, or that its check is right; peers say why they are
    not there."""
    require("gcc")
    for package in ("torch", "onnx"):
        pytest.importorskip(package, reason=f"{package} is not installed")
    done = bench("--dry")
    found = rows(done.stdout)
    assert list(dict.fromkeys(row[0] for row in found)) == [*cases_of(dry=True)], done.stderr
    for name, who, ms, *_, what, _ in found:
        if who.startswith("Tensorkiln") and name != "torch.cuda.graph":
            assert what.startswith("ok"), (name, what, done.stderr)
            assert bool(ms) != name.startswith("kernels")
        elif who != "copy by the driver":
            assert what == "absent: a dry run has no peers"
    for dtype, rungs in RUNGS.items():
        for n in (4096, 8192):
            own = [r[1] for r in found if r[0] == f"product {dtype} {n}" and "cuBLAS" not in r[1]]
            assert own == [rung.label for rung in rungs]
    captured = [row for row in found if row[1] == "Tensorkiln, captured"]
    assert len(captured) == 3 and "DRY RUN" in done.stdout and "Look-alike" in done.stdout
    assert done.returncode == (0 if "Without:" not in done.stdout else 1)


def test_a_device_that_is_lost_costs_one_case_each() -> None:
    """The second launch of each process loses the device: the next case gets another process."""
    require("gcc")
    done = bench("--dry", "--cases", "elementwise,norm", LOOKALIKE_FAIL="cuLaunchKernel:2:719")
    ours = {name: what for name, who, *_, what, _ in rows(done.stdout) if who == "Tensorkiln"}
    assert [*ours] == ["elementwise", "layer norm"], done.stderr
    assert all("LAUNCH_FAILED (719)" in what for what in ours.values()), ours
    assert done.returncode == 1 and "0 of 2 cases have a result" in done.stdout


def test_without_a_gpu_it_says_so(tmp_path: Path) -> None:
    (tmp_path / "libcuda.so.1").write_text("not a library")
    done = bench(LD_LIBRARY_PATH=str(tmp_path))
    assert done.returncode == NO_GPU and not done.stdout
    for words in ("no GPU of NVIDIA", "libcuda.so.1", "cannot be opened", "make gpu DRY=1"):
        assert words in done.stderr


def test_make_passes_dry_on_and_keeps_nothing_of_it() -> None:
    require("make")
    shown = {}
    for dry in ("", "1"):
        command = ["make", "-n", "-o", ".venv/has-dev", "gpu", f"DRY={dry}"]
        shown[dry] = subprocess.run(command, cwd=ROOT, capture_output=True, text=True).stdout
    assert "bench.gpu ;" in shown[""] and "bench.results" in shown[""]
    assert "bench.gpu --dry;" in shown["1"] and "bench.results" not in shown["1"]


def test_cases_are_chosen_by_words(capsys: pytest.CaptureFixture[str]) -> None:
    names = [*cases_of(dry=False)]
    assert chosen("", names) == names
    assert chosen("resnet,float32 4", names) == [
        "product float32 4096",
        "resnet50, batch 1",
        "resnet50, batch 64",
    ]
    done = bench("--dry", "--cases", "resnte")
    assert done.returncode == 2 and "no case has 'resnte' in its name" in done.stderr


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

    found = [t for t in supervise(command, names, case_s, budget_s) if "end" in t]
    assert [t["end"] for t in found] == [*names]
    return {t["end"]: [(row["label"], row["status"]) for row in t["rows"]] for t in found}


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
    found = told(["hangs", "a", "b"], budget_s=0.6)
    assert found["hangs"] == [("Tensorkiln", "failed: the time for all cases was over")]
    assert found["a"] == found["b"] == [("Tensorkiln", "left out: 0.01 minutes had passed")]


def test_a_worker_that_cannot_begin() -> None:
    def command(out: Path, todo: Sequence[str]) -> list[str]:
        return [sys.executable, "-c", "import no_such_module"]

    found = list(supervise(command, ["a", "b"], 30.0, 60.0))
    assert [t["end"] for t in found] == ["a", "b"]
    assert all("No module named 'no_such_module'" in t["rows"][0]["status"] for t in found)


def test_only_right_results_are_timed() -> None:
    def check(found: list[Array]) -> str:
        return "" if found[0].all() else "off by 1"

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
    found = {row["label"]: (row["status"], row["count"] > 0) for row in race.run()}
    assert found == {
        "right": ("ok", True),
        "copies": ("ok", True),
        "wrong": ("wrong result: off by 1", False),
        "idle": ("wrong result: off by 1", False),
        "fails": ("failed: RuntimeError: a kernel failed", False),
        "absent": ("absent: no such package", False),
    }


# ---- the table ----------------------------------------------------------------------------------


def record(name: str, *who: tuple[str, str, float], **facts: Any) -> dict[str, Any]:
    made = [
        {"label": label, "status": status, "min_ms": ms, "median_ms": ms * 2, "count": int(ms > 0)}
        for label, status, ms in who
    ]
    head = {"kind": "gpu", "model": name, "threads": 1, "machine": "GPU", "run": "now"}
    return {**head, "goal": None, "rows": made, **facts}


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
    met = table.lines({**PRODUCT, "goal": 0.5})[0]
    assert "| 50% | 50% | ok | now |" in met
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
    said = check_tests(str(path))(None)  # type: ignore[arg-type]
    assert said.startswith(words) and bool(said) == bool(words)
