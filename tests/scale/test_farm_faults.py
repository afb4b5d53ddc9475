"""Farms in which something fails, is killed or interrupted: it costs its rows, and nothing else."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import tensorkiln as tk
from tensorkiln.base.progress import Progress
from tensorkiln.cli import main
from tensorkiln.kernels.records import Records
from tensorkiln.scale import farm
from tensorkiln.scale.build import compiler_identity
from tensorkiln.scale.local import LocalExecutor
from tensorkiln.scale.report import REPORT, FarmReport, State
from tests.kernels.test_records import measured
from tests.scale.networks import hashes, mlp, states

pytestmark = pytest.mark.filterwarnings("ignore:.* is the baseline")
ROOT = Path(__file__).parents[2]


# -- what fails ------------------------------------------------------------------------------------

FAILING = """
[models]
good = "nets/conv.onnx"
missing = "nets/none.onnx"
empty = "empty.onnx"
text = "text.onnx"
unsupported = "unsupported.onnx"
frozen = { path = "nets/mlp.onnx", freeze = { bach = 1 } }
lost = "lost/outside.onnx"
library = "library.so"
[targets]
here = "llvm"
"""
WHY = {
    "missing": ("missing-file", "no such file"),
    "empty": ("bad-model", "the file is empty"),
    "text": ("bad-model", "not an ONNX model"),
    "unsupported": ("unsupported", "Mystery"),
    "frozen": ("", "did you mean 'batch'?"),
    "lost": ("missing-file", "outside.bin"),
    "library": ("bad-model", "is a library, not a model"),
}


@pytest.fixture
def failing(small: Path) -> Path:
    from onnx import helper, save

    folder = small.parent
    (folder / "empty.onnx").touch()
    (folder / "text.onnx").write_text("Dear sir or madam,")
    (folder / "library.so").write_bytes(b"\x7fELF")
    (folder / "lost").mkdir()
    shutil.copy(folder / "outside.onnx", folder / "lost")
    ends = [helper.make_tensor_value_info(name, 1, [3]) for name in "xy"]
    graph = helper.make_graph([helper.make_node("Mystery", ["x"], ["y"])], "g", ends[:1], ends[1:])
    save(helper.make_model(graph), folder / "unsupported.onnx")
    (folder / "failing.toml").write_text(FAILING)
    return folder / "failing.toml"


def test_a_row_that_fails_costs_itself(failing: Path, tmp_path: Path) -> None:
    with ThreadPoolExecutor(1) as pool:
        report = farm(failing, tmp_path / "out", executor=pool)
        assert [row.model for row in (*report.made, *report.cached)] == ["good"]
        failures = {row.model: row.failure for row in report.failed}
        assert set(failures) == set(WHY)
        for model, (code, text) in WHY.items():
            failure = failures[model]
            assert failure is not None and text in failure.message, (model, failure)
            assert not code or failure.code == code, (model, failure)
            assert not failure.lost and "Traceback" not in failure.message
        recorded = json.loads((tmp_path / "out" / REPORT).read_text())
        errors = {row["model"]: row["error"] for row in recorded["rows"]}
        assert errors["missing"]["code"] == "missing-file" and errors["good"] is None
        assert set(hashes(tmp_path / "out")) == {"here/good.so"}
        shutil.copy(failing.parent / "nets/conv.onnx", failing.parent / "nets/none.onnx")
        again = farm(failing, tmp_path / "out", executor=pool)
    assert {r.model for r in again.rows if r.state is not State.FAILED} == {"good", "missing"}


POLICY_CASES = [
    ([], "all", False),
    ([], "supported", False),
    ([], "any", True),
    ([], "none", True),
    (["good"], "all", True),
    (["good", "unsupported"], "all", False),
    (["good", "unsupported"], "supported", True),
    (["unsupported"], "supported", True),
    (["unsupported"], "any", False),
    (["unsupported"], "none", True),
]


def test_policies(failing: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = failing.parent / "out"
    with ThreadPoolExecutor(1) as pool:
        whole = farm(failing, out, executor=pool)
    for models, policy, good in POLICY_CASES:
        rows = tuple(row for row in whole.rows if not models or row.model in models)
        assert FarmReport(whole.output, {}, rows).is_good(policy) == good, (models, policy)
    line = ["farm", str(failing), "-o", str(out), "-q", "--executor", "local:1"]
    assert main([*line, "--json"]) == 1
    document = json.loads(capsys.readouterr().out)
    assert document["ok"] is False and sum(document[s.value] for s in State) == len(whole.rows)
    assert main([*line, "--policy", "any"]) == 0
    text, err = capsys.readouterr()
    assert err == "" and text.startswith("  FILE")
    for row in document["rows"]:
        (row_line,) = [line for line in text.splitlines() if line.split()[0] == row["name"]]
        assert row_line.split()[1] == row["state"]
        assert row["error"] is None or row["error"]["message"].splitlines()[0] in row_line


def test_fail_fast(failing: Path, tmp_path: Path) -> None:
    with ThreadPoolExecutor(1) as pool:
        report = farm(failing, tmp_path / "out", executor=pool, fail_fast=True)
        assert not report.made and len(report.waiting) > 0, "models that cannot be read come first"
        only = ["here/unsupported.so", "here/frozen.so"]
        report = farm(failing, tmp_path / "out2", executor=pool, only=only, fail_fast=True)
        assert report.failed and len(report.rows) == 2
    assert report.is_good("none") and not report.is_good("any")


def test_a_model_that_changes_meanwhile(small: Path, tmp_path: Path) -> None:
    """The library would have the key of another model."""

    class Changing(ThreadPoolExecutor):
        def submit(self, *args: Any, **kwargs: Any) -> Any:
            for path in (small.parent / "outside.onnx", small.parent / "outside.bin"):
                path.write_bytes(path.read_bytes().replace(b"product", b"pro_uct"))
            return super().submit(*args, **kwargs)

    manifest = {"models": {"m": str(small.parent / "outside.onnx")}, "targets": {"here": "llvm"}}
    with Changing(1) as pool:
        report = farm(manifest, tmp_path / "out", executor=pool)
    assert report.rows[0].failure is not None and report.rows[0].failure.code == "changed"
    assert hashes(tmp_path / "out") == {}


def test_a_worker_with_another_compiler(
    small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Other(ThreadPoolExecutor):
        def submit(self, *args: Any, **kwargs: Any) -> Any:
            other_identity = {**compiler_identity(), "numpy": "0.1"}
            monkeypatch.setattr("tensorkiln.scale.build.compiler_identity", lambda: other_identity)
            return super().submit(*args, **kwargs)

    with Other(1) as pool:
        report = farm(small, tmp_path / "out", executor=pool, only=["old/conv.so"])
    failure = report.rows[0].failure
    assert failure is not None and failure.code == "other-compiler"
    assert "numpy is '0.1'" in failure.message


# -- interrupts ------------------------------------------------------------------------------------


def begun(small: Path, out: Path, *words: str) -> subprocess.Popen[str]:
    """A farm as a process of its own, which has made a file."""
    command = [sys.executable, "-m", "tensorkiln.cli", "farm", str(small), "-o", str(out)]
    process = subprocess.Popen(
        [*command, "--executor", "local:1", *words],
        env={**os.environ, "PYTHONPATH": str(ROOT), "KILN_PROGRESS": "plain"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    until = time.monotonic() + 300
    while not list(out.glob("*/*.so")):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < until
        time.sleep(0.01)
    return process


def workers_of(process: subprocess.Popen[str]) -> list[int]:
    """The processes of a session."""
    process_ids = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[3]) == process.pid and fields[0] != "Z":
            process_ids.append(int(entry.name))
    return process_ids


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="/proc is Linux's")
@pytest.mark.parametrize("signal_number", [signal.SIGKILL, signal.SIGINT])
def test_an_interrupted_farm_goes_on(
    small: Path,
    tmp_path: Path,
    signal_number: signal.Signals,
    monkeypatch: pytest.MonkeyPatch,
    fresh_cache: Callable[[Path], Path],
    ctrl_c: None,
) -> None:
    (tmp_path / "temporary").mkdir(mode=0o700)
    monkeypatch.setenv("TMPDIR", str(tmp_path / "temporary"))
    for attempt in range(5):  # on a busy machine it may be done before the signal comes
        monkeypatch.setenv("KILN_CACHE_DIR", str(fresh_cache(tmp_path / f"cache{attempt}")))
        out = tmp_path / f"out{attempt}"
        process = begun(small, out)
        os.kill(process.pid, signal_number)
        _, err = process.communicate(timeout=300)
        if process.returncode:
            break
    assert process.returncode == {signal.SIGINT: 130}.get(signal_number, -signal_number), err
    until = time.monotonic() + 60
    while workers_of(process):  # which notice that their parent is gone
        assert time.monotonic() < until, "workers outlive the farm"
        time.sleep(0.05)
    earlier_hashes = hashes(out)
    assert earlier_hashes
    assert all(name.endswith(".so") for name in earlier_hashes), "whole files only"
    assert not list((tmp_path / "temporary").iterdir()), "workers clean up"
    if signal_number is signal.SIGINT:
        assert "interrupted" in err and "Traceback" not in err
        written_report = json.loads((out / REPORT).read_text())
        assert "waiting" in {row["state"] for row in written_report["rows"]}
    with ThreadPoolExecutor(1) as pool:
        report = farm(small, out, executor=pool)
        assert len(report.rows) == 6 == len(report.made) + len(report.cached)
        straight = farm(small, tmp_path / "straight", executor=pool)
    assert not straight.failed
    assert hashes(out) == hashes(tmp_path / "straight")
    assert earlier_hashes.items() <= hashes(out).items()


class KillWorkers(Progress):
    """Kills the workers of an executor when it is told that a row is done."""

    def __init__(self, executor: LocalExecutor, kills: int):
        super().__init__()
        self._executor, self._kills = executor, kills
        self.killed = 0

    def advance(self, count: int = 1, item: str = "") -> None:
        if self.name == "compile" and self.killed < self._kills:
            until = time.monotonic() + 60
            while not self._executor._busy and time.monotonic() < until:
                time.sleep(0.01)
            for pool in list(self._executor._busy):
                for process in list((pool._processes or {}).values()):
                    process.kill()
                    self.killed += 1


def test_a_worker_that_is_killed_costs_its_job(
    small: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    fresh_cache: Callable[[Path], Path],
) -> None:
    with ThreadPoolExecutor(1) as pool:
        farm(small, tmp_path / "straight", executor=pool)
    monkeypatch.setenv("KILN_CACHE_DIR", str(fresh_cache(tmp_path / "another")))
    with LocalExecutor(1) as executor:
        progress = KillWorkers(executor, 2)
        report = farm(small, tmp_path / "out", executor=executor, progress=progress)
    assert progress.killed == 2
    assert set(states(report).values()) == {"made"}
    assert sum(row.tries for row in report.rows) > len(report.rows)
    assert hashes(tmp_path / "out") == hashes(tmp_path / "straight")


def test_records_of_a_manifest(cache: Path, tmp_path: Path) -> None:
    """They are part of what a row is made from: other records, other bytes, those of `compile`."""
    path, target = tmp_path / "net.onnx", {"kind": "llvm", "mcpu": "x86-64-v2"}
    path.write_bytes(mlp().SerializeToString())
    chosen = measured(tk.Target(target), tk.frontend.from_onnx(path), terms=2)
    Records(tuple(chosen)).write(tmp_path / "some.records")
    whole = {"models": {"net": str(path)}, "targets": {"v2": {"target": target}}}
    contents = []
    for defaults in ({}, {"records": str(tmp_path / "some.records")}):
        report = farm({**whole, "defaults": defaults}, tmp_path / f"out{len(contents)}")
        assert states(report) == {"v2/net.so": "made"}, report
        contents.append((tmp_path / f"out{len(contents)}" / "v2" / "net.so").read_bytes())
    assert contents[0] != contents[1]
    source = tk.frontend.from_onnx(path)
    alone = tk.compile(source, target, name="net", records=tmp_path / "some.records")
    assert alone.export_library(tmp_path / "alone.so").read_bytes() == contents[1]
    again = farm({**whole, "defaults": defaults}, tmp_path / "out0")
    assert states(again) == {"v2/net.so": "cached"}
    assert (tmp_path / "out0" / "v2" / "net.so").read_bytes() == contents[1]
