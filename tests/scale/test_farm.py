"""Farms: every row is what a single compile makes, whatever was there, broken or interrupted."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest

import tensorkiln as tk
from tensorkiln.base.errors import UserError
from tensorkiln.cli import main
from tensorkiln.scale import farm
from tensorkiln.scale.build import compiler_identity
from tensorkiln.scale.report import REPORT, FarmReport, State
from tests.scale.networks import Never, hashes, states, write_networks

pytestmark = pytest.mark.filterwarnings("ignore:.* is the baseline")
ROOT = Path(__file__).parents[2]
ROWS = 27  # 6 models x 4 targets, 2 of 3 precisions twice


@dataclass(frozen=True)
class Whole:
    """A farm that was run once."""

    folder: Path
    report: FarmReport
    hashes: dict[str, str]


@pytest.fixture(scope="module")
def whole(cache: Path, tmp_path_factory: pytest.TempPathFactory) -> Whole:
    folder = tmp_path_factory.mktemp("farm")
    report = farm(write_networks(folder), folder / "out", executor="local:2")
    return Whole(folder, report, hashes(folder / "out"))


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


@pytest.mark.parametrize("stride", EVERY)
def test_equal_to_single_compiles(whole: Whole, tmp_path: Path, stride: int) -> None:
    """Byte for byte, by `kiln compile` where it takes the model, in another cache."""
    rows = whole.report.rows[stride - 1 :: stride]
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
            library = tmp_path / row.target_name / name
            library.parent.mkdir(exist_ok=True)
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
                ).export_library(library)
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
                main(["compile", str(model), "-q", "-o", str(library), "--target", target, *words])
                == 0
            )
    made_names = {f.name for row in rows for f in row.files}
    assert hashes(tmp_path) == {name: whole.hashes[name] for name in made_names}


def test_the_report(whole: Whole) -> None:
    report = json.loads((whole.folder / "out" / REPORT).read_text())
    assert [row["name"] for row in report["rows"]] == [row.name for row in whole.report.rows]
    assert report["names"] == sorted(whole.hashes)
    assert str(whole.folder) not in json.dumps(report), "no paths: outputs may be moved"
    first = report["rows"][0]
    assert first["files"][0]["sha256"] == whole.hashes[first["name"]]
    assert first["error"] is None and first["seconds"] > 0 and first["tries"] == 1


def test_again_nothing_is_made(whole: Whole) -> None:
    times = {p: p.stat().st_mtime_ns for p in (whole.folder / "out").glob("*/*")}
    again = farm(whole.folder / "farm.toml", whole.folder / "out", executor=Never())
    assert set(states(again).values()) == {"cached"}
    assert all(row.tries == 0 for row in again.rows)
    assert times == {p: p.stat().st_mtime_ns for p in (whole.folder / "out").glob("*/*")}
    assert [row.key for row in again.rows] == [row.key for row in whole.report.rows]


def test_another_folder_is_filled_from_the_cache(whole: Whole, tmp_path: Path) -> None:
    report = farm(whole.folder / "farm.toml", tmp_path / "out", executor="local:1")
    assert set(states(report).values()) == {"cached"}
    assert hashes(tmp_path / "out") == whole.hashes
    for name in whole.hashes:
        copy_path, original_path = tmp_path / "out" / name, whole.folder / "out" / name
        assert copy_path.stat().st_mode == original_path.stat().st_mode


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
            tried_rows = [row for row in again.rows if row.tries]
            assert "v3/mlp.so" in [row.name for row in tried_rows]
            assert {row.state for row in tried_rows} == {State.CACHED if cached else State.MADE}
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


@pytest.mark.parametrize("subject", ["model", "weights", "option", "target", "compiler"])
def test_what_has_changed_is_made_again(
    whole: Whole, cache: Path, tmp_path: Path, subject: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "changing"
    manifest = write_networks(folder, 'models.outside = "outside.onnx"\ntargets.here = "llvm"\n')
    with ThreadPoolExecutor(1) as pool:
        first = farm(manifest, tmp_path / "out", executor=pool)
        assert states(first) == {"here/outside.so": "made"}
        if subject in ("model", "weights"):
            file = folder / ("outside.onnx" if subject == "model" else "outside.bin")
            data = file.read_bytes()
            changed = data.replace(b"product", b"pro_uct") if subject == "model" else data[::-1]
            assert changed != data, subject
            file.write_bytes(changed)
        elif subject == "compiler":
            other_identity = {**compiler_identity(), "sources": "of another version"}
            monkeypatch.setattr("tensorkiln.scale.build.compiler_identity", lambda: other_identity)
        else:
            text = manifest.read_text()
            options = 'defaults.allow_licenses = ["Apache-2.0"]\n' if subject == "option" else ""
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
        single_row = farm(small, tmp_path / "out", executor=pool, only=["old/conv.so"])
        assert len(single_row.rows) == 1
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
