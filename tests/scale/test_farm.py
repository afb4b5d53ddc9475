"""Farms: every row is what a single compile makes, whatever was there, broken or interrupted."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import tensorkiln as tk
from tensorkiln.base.errors import UserError
from tensorkiln.base.folders import file_hash
from tensorkiln.base.progress import Progress
from tensorkiln.cli import main
from tensorkiln.scale import farm
from tensorkiln.scale.build import compiler_identity
from tensorkiln.scale.local import LocalExecutor
from tensorkiln.scale.report import REPORT, FarmReport, State
from tests.scale.networks import TARGETS, write_networks

pytestmark = pytest.mark.filterwarnings("ignore:.* is the baseline")
ROOT = Path(__file__).parents[2]
ROWS = 27  # 6 models x 4 targets, 2 of 3 precisions twice

SMALL = f"""
[models]
mlp = {{ path = "nets/mlp.onnx", freeze = {{ batch = 1 }} }}
conv = "nets/conv.onnx"
{TARGETS}
[[exclude]]
target = ["plain", "arm"]
"""  # six rows for this machine


def states(report: FarmReport) -> dict[str, str]:
    return {row.name: row.state.value for row in report.rows}


def hashes(folder: Path) -> dict[str, str]:
    """By name the hash of each file below a folder but the report."""
    files = [p for p in folder.rglob("*") if p.is_file() and p.name != REPORT]
    return {p.relative_to(folder).as_posix(): file_hash(p) for p in files}


@dataclass(frozen=True)
class Whole:
    """A farm that was run once."""

    folder: Path
    report: FarmReport
    hashes: dict[str, str]


@pytest.fixture(scope="module")
def cache(
    tmp_path_factory: pytest.TempPathFactory, fresh_cache: Callable[[Path], Path]
) -> Iterator[Path]:
    """The cache of all farms here: it has nothing that a single compile has made."""
    with pytest.MonkeyPatch.context() as patch:
        place = fresh_cache(tmp_path_factory.mktemp("cache") / "kiln")
        patch.setenv("KILN_CACHE_DIR", str(place))
        yield place


@pytest.fixture(scope="module")
def whole(cache: Path, tmp_path_factory: pytest.TempPathFactory) -> Whole:
    folder = tmp_path_factory.mktemp("farm")
    report = farm(write_networks(folder), folder / "out", executor="local:2")
    return Whole(folder, report, hashes(folder / "out"))


@pytest.fixture
def small(whole: Whole, cache: Path, tmp_path: Path) -> Path:
    """The manifest of a few rows in a folder of its own, whose kernels are cached."""
    return write_networks(tmp_path / "small", SMALL)


# -- what is made ----------------------------------------------------------------------------------


def test_every_row_is_made(whole: Whole) -> None:
    assert set(states(whole.report).values()) == {"made"}, whole.report
    assert len(whole.report.rows) == ROWS
    assert set(whole.hashes) == {f.name for row in whole.report.rows for f in row.files}
    assert "old/outside.safetensors" in whole.hashes
    assert {n for n in whole.hashes if n.startswith(("plain/", "v3/conv"))} == {
        "v3/conv.so",
        "v3/conv-bfloat16.so",
        *(f"plain/{m}-size.so" for m in ("conv", "elementwise", "mlp", "outside")),
        "plain/script-size.so",
        "plain/softmax-size.so",
    }


EVERY = [pytest.param(1, marks=pytest.mark.scale, id="all"), pytest.param(5, id="some")]


@pytest.mark.parametrize("every", EVERY)
def test_equal_to_single_compiles(whole: Whole, tmp_path: Path, every: int) -> None:
    """Byte for byte, by `kiln compile` where it takes the model, in another cache."""
    rows = whole.report.rows[every - 1 :: every]
    targets = {
        "old": "llvm",
        "v3": '{"kind":"llvm","mcpu":"x86-64-v3"}',
        "plain": "c",
        "arm": '{"kind":"llvm","mtriple":"aarch64-linux-gnu"}',
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("KILN_CACHE_DIR")
        for row in rows:
            name = row.name.partition("/")[2]
            made = tmp_path / row.target_name / name
            made.parent.mkdir(exist_ok=True)
            precision = None
            if row.target_name == "v3":  # said, though it is the default
                precision = "bfloat16" if "bfloat16" in name else "float32"
            if row.model == "script":
                tk.compile(
                    whole.folder / "twice.py",
                    targets[row.target_name],
                    name="script",
                    precision=precision,
                    optimize="size" if row.target_name == "plain" else None,
                ).export_library(made)
                continue
            words = ["--name", "beside_it" if row.model == "outside" else row.model]
            words += ["--precision", precision] if precision else []
            words += ["--optimize", "size"] if row.target_name == "plain" else []
            words += ["--freeze", "batch=2"] if row.model == "mlp" else []
            words += ["--weights", "beside"] if row.name == "old/outside.so" else []
            inside = "" if row.model == "outside" else "nets/"
            model = whole.folder / f"{inside}{row.model}.onnx"
            target = targets[row.target_name]
            assert (
                main(["compile", str(model), "-q", "-o", str(made), "--target", target, *words])
                == 0
            )
    made_names = {f.name for row in rows for f in row.files}
    assert hashes(tmp_path) == {name: whole.hashes[name] for name in made_names}


def test_the_report(whole: Whole) -> None:
    found = json.loads((whole.folder / "out" / REPORT).read_text())
    assert [row["name"] for row in found["rows"]] == [row.name for row in whole.report.rows]
    assert found["names"] == sorted(whole.hashes)
    assert str(whole.folder) not in json.dumps(found), "no paths: outputs may be moved"
    first = found["rows"][0]
    assert first["files"][0]["sha256"] == whole.hashes[first["name"]]
    assert first["error"] is None and first["seconds"] > 0 and first["tries"] == 1


def test_again_nothing_is_made(whole: Whole) -> None:
    times = {p: p.stat().st_mtime_ns for p in (whole.folder / "out").glob("*/*")}
    again = farm(whole.folder / "farm.toml", whole.folder / "out", executor=Never())
    assert set(states(again).values()) == {"cached"}
    assert all(row.tries == 0 for row in again.rows)
    assert times == {p: p.stat().st_mtime_ns for p in (whole.folder / "out").glob("*/*")}
    assert [row.key for row in again.rows] == [row.key for row in whole.report.rows]


class Never(ThreadPoolExecutor):
    def submit(self, *args: Any, **kwargs: Any) -> Any:
        raise AssertionError("a job was begun")


def test_another_folder_is_filled_from_the_cache(whole: Whole, tmp_path: Path) -> None:
    report = farm(whole.folder / "farm.toml", tmp_path / "out", executor="local:1")
    assert set(states(report).values()) == {"cached"}
    assert hashes(tmp_path / "out") == whole.hashes
    for name in whole.hashes:
        here, there = tmp_path / "out" / name, whole.folder / "out" / name
        assert here.stat().st_mode == there.stat().st_mode


# -- what is missing -------------------------------------------------------------------------------

DAMAGE: dict[str, Callable[[Path], object]] = {
    "deleted": lambda path: path.unlink(),
    "empty": lambda path: path.write_bytes(b""),
    "cut": lambda path: path.write_bytes(path.read_bytes()[:-1]),
    "longer": lambda path: path.write_bytes(path.read_bytes() + b"x"),
    "another": lambda path: path.write_bytes(
        bytes([path.read_bytes()[0] ^ 1]) + path.read_bytes()[1:]
    ),
    "its folder": lambda path: shutil.rmtree(path.parent),
}


@pytest.mark.parametrize("cached", [True, False], ids=["in the cache", "nowhere"])
def test_what_is_damaged_is_made_again(
    small: Path,
    tmp_path: Path,
    cached: bool,
    monkeypatch: pytest.MonkeyPatch,
    fresh_cache: Callable[[Path], Path],
) -> None:
    with ThreadPoolExecutor(1) as pool:
        report = farm(small, tmp_path / "out", executor=pool)
        good = hashes(tmp_path / "out")
        for damage in DAMAGE.values() if cached else [DAMAGE["cut"]]:
            if not cached:
                monkeypatch.setenv("KILN_CACHE_DIR", str(fresh_cache(tmp_path / "another")))
            damage(tmp_path / "out" / "v3" / "mlp.so")
            again = farm(small, tmp_path / "out", executor=pool)
            assert hashes(tmp_path / "out") == good
            asked = [row for row in again.rows if row.tries]
            assert "v3/mlp.so" in [row.name for row in asked]
            assert {row.state for row in asked} == {State.CACHED if cached else State.MADE}
            assert len(again.rows) == len(report.rows) == len(again.made) + len(again.cached)


def test_a_folder_in_the_place_of_a_file(small: Path, tmp_path: Path) -> None:
    with ThreadPoolExecutor(1) as pool:
        farm(small, tmp_path / "out", executor=pool)
        place = tmp_path / "out" / "v3" / "mlp.so"
        place.unlink()
        (place / "mine").mkdir(parents=True)
        report = farm(small, tmp_path / "out", executor=pool)
        (failed,) = report.failed
        assert failed.name == "v3/mlp.so" and (place / "mine").is_dir()
        shutil.rmtree(place)
        assert not farm(small, tmp_path / "out", executor=pool).failed


@pytest.mark.parametrize("what", ["model", "weights", "option", "target", "compiler"])
def test_what_has_changed_is_made_again(
    whole: Whole, cache: Path, tmp_path: Path, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "changing"
    manifest = write_networks(folder, 'models.outside = "outside.onnx"\ntargets.here = "llvm"\n')
    with ThreadPoolExecutor(1) as pool:
        first = farm(manifest, tmp_path / "out", executor=pool)
        assert states(first) == {"here/outside.so": "made"}
        if what in ("model", "weights"):
            file = folder / ("outside.onnx" if what == "model" else "outside.bin")
            data = file.read_bytes()
            changed = data.replace(b"product", b"pro_uct") if what == "model" else data[::-1]
            assert changed != data, what
            file.write_bytes(changed)
        elif what == "compiler":
            other = {**compiler_identity(), "sources": "of another version"}
            monkeypatch.setattr("tensorkiln.scale.build.compiler_identity", lambda: other)
        else:
            text = manifest.read_text()
            options = 'defaults.allow_licenses = ["Apache-2.0"]\n' if what == "option" else ""
            text = text.replace('"llvm"', '{ target = { kind = "llvm", mcpu = "x86-64-v2" } }')
            manifest.write_text(options + (manifest.read_text() if options else text))
        again = farm(manifest, tmp_path / "out", executor=pool)
    assert states(again) == {"here/outside.so": "made"}
    assert again.rows[0].key != first.rows[0].key


def test_rows_that_are_asked_for(small: Path, tmp_path: Path) -> None:
    with ThreadPoolExecutor(1) as pool:
        some = farm(small, tmp_path / "out", executor=pool, only=["v3/*.so", "old/mlp.so"])
        assert [row.name for row in some.rows] == [
            "old/mlp.so",
            "v3/mlp.so",
            "v3/mlp-bfloat16.so",
            "v3/conv.so",
            "v3/conv-bfloat16.so",
        ]
        rest = farm(small, tmp_path / "out", executor=pool, only=["old/conv.so"])
        assert len(rest.rows) == 1
        again = farm(small, tmp_path / "out", executor=Never())
    assert set(states(again).values()) == {"cached"}
    with pytest.raises(UserError, match="did you mean 'old/mlp.so'"):
        farm(small, tmp_path / "out", only=["old/mpl.so"])
    with pytest.raises(UserError, match="expected a list of patterns"):
        farm(small, tmp_path / "out", only="old/*")


def test_a_dry_run_writes_nothing(small: Path, tmp_path: Path) -> None:
    report = farm(small, tmp_path / "out", cache=tmp_path / "cache", dry_run=True)
    assert set(states(report).values()) == {"waiting"}
    assert not (tmp_path / "out").exists() and not (tmp_path / "cache").exists()


def test_files_of_others_are_left_alone(small: Path, tmp_path: Path) -> None:
    mine = tmp_path / "out" / "v3" / "mlp.so"
    mine.parent.mkdir(parents=True)
    mine.write_text("mine")
    with ThreadPoolExecutor(1) as pool:
        for _ in range(2):
            report = farm(small, tmp_path / "out", executor=pool)
            assert mine.read_text() == "mine"
            (failed,) = report.failed
            assert failed.name == "v3/mlp.so" and failed.failure is not None
            assert failed.failure.code == "cannot-write"
            assert "was not written by a farm" in failed.failure.message
            assert len(report.failed) == 1
        mine.unlink()
        assert not farm(small, tmp_path / "out", executor=pool).failed


BAD_REPORTS = [
    b"",
    b"{",
    b"[]",
    b"{}",
    b'{"version": 2, "rows": [], "names": []}',
    b'{"version": 1, "rows": {}, "names": []}',
    b'{"version": 1, "rows": [1], "names": []}',
    b'{"version": 1, "rows": [{"name": 1}], "names": []}',
    b'{"version": 1, "rows": [], "names": [1]}',
    b'{"version": 1, "rows": []}',
    b'{"version": 1, "rows": [{"name": "a", "files": [{"name": "../a"}]}], "names": []}',
    b"\xff",
    b"[" * 100_000,
]


@pytest.mark.parametrize("text", BAD_REPORTS, ids=lambda text: ascii(text[:40]))
def test_a_damaged_report(small: Path, tmp_path: Path, text: bytes) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / REPORT).write_bytes(text)
    with pytest.raises(UserError) as caught:
        farm(small, tmp_path / "out", executor=Never())
    assert caught.value.code == "bad-report" and "remove it" in caught.value.hint
    assert (tmp_path / "out" / REPORT).read_bytes() == text


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
        found = {row.model: row.failure for row in report.failed}
        assert set(found) == set(WHY)
        for model, (code, text) in WHY.items():
            failure = found[model]
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
        (shown,) = [line for line in text.splitlines() if line.split()[0] == row["name"]]
        assert shown.split()[1] == row["state"]
        assert row["error"] is None or row["error"]["message"].splitlines()[0] in shown


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
            other = {**compiler_identity(), "numpy": "0.1"}
            monkeypatch.setattr("tensorkiln.scale.build.compiler_identity", lambda: other)
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
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[3]) == process.pid and fields[0] != "Z":
            found.append(int(entry.name))
    return found


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="/proc is Linux's")
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_an_interrupted_farm_goes_on(
    small: Path,
    tmp_path: Path,
    how: signal.Signals,
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
        os.kill(process.pid, how)
        _, err = process.communicate(timeout=300)
        if process.returncode:
            break
    assert process.returncode == {signal.SIGINT: 130}.get(how, -how), err
    until = time.monotonic() + 60
    while workers_of(process):  # which notice that their parent is gone
        assert time.monotonic() < until, "workers outlive the farm"
        time.sleep(0.05)
    there = hashes(out)
    assert there
    assert all(name.endswith(".so") for name in there), "whole files only"
    assert not list((tmp_path / "temporary").iterdir()), "workers clean up"
    if how is signal.SIGINT:
        assert "interrupted" in err and "Traceback" not in err
        found = json.loads((out / REPORT).read_text())
        assert "waiting" in {row["state"] for row in found["rows"]}
    with ThreadPoolExecutor(1) as pool:
        report = farm(small, out, executor=pool)
        assert len(report.rows) == 6 == len(report.made) + len(report.cached)
        straight = farm(small, tmp_path / "straight", executor=pool)
    assert not straight.failed
    assert hashes(out) == hashes(tmp_path / "straight")
    assert there.items() <= hashes(out).items()


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
    whole: Whole,
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
