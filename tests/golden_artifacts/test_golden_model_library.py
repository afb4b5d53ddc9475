"""Archives in Model Library Format that former versions wrote, from version 8 on: they are read,
run and inspected, and what is written now differs from the newest as a file of this folder says.
"""

from __future__ import annotations

import json
import lzma
import platform
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import tensorkiln as tk
from tensorkiln.artifact.mlf.load import open_model_library
from tensorkiln.artifact.mlf.metadata import VERSION
from tensorkiln.cli import main
from tests.golden_artifacts.model_library import (
    DSP,
    HERE,
    TOOLS,
    WANTED,
    X,
    differences,
    listing,
    members,
    write,
)
from tests.mlf.build import compiled, driver, needs_gcc, output, unpacked

VERSIONS = sorted(int(p.stem.partition("-")[2]) for p in HERE.glob("mlf-*.json"))
versions = pytest.mark.parametrize("version", VERSIONS)
runs_here = pytest.mark.skipif(
    platform.machine() not in ("x86_64", "AMD64") or sys.platform != "linux",
    reason="the golden libraries are for Linux on x86-64",
)


def archive(version: int, folder: Path) -> Path:
    """The archive of a version as its users have it."""
    path = folder / "m.tar"
    path.write_bytes(lzma.decompress((HERE / f"mlf-{version}.tar.xz").read_bytes()))
    return path


def test_every_version_is_there() -> None:
    """A new version of the format gets an archive of its own, by make.py."""
    assert [*range(8, VERSION + 1)] == VERSIONS
    assert all(p.stat().st_size < 25_000 for p in HERE.glob("mlf-*.xz"))


@versions
def test_its_artifacts_come_back(version: int, tmp_path: Path) -> None:
    path = archive(version, tmp_path)
    recorded = json.loads((HERE / f"mlf-{version}.json").read_text(encoding="utf-8"))
    assert [*open_model_library(path).models()] == [*recorded]
    for place in (path, unpacked(path)):
        for name, rows in recorded.items():
            assert listing(tk.load_model_library_format(place, name)) == rows


@versions
def test_what_it_says(version: int, tmp_path: Path) -> None:
    models = open_model_library(archive(version, tmp_path)).models()
    one, board = models["any_batch"], models["board"]
    assert one.external_dependencies == (DSP, TOOLS) and [*one.bundled] == ["dsp"]
    assert [one.target["host"]["mcpu"], board.target["host"]["mcpu"]] == ["x86-64", "cortex-m4"]  # type: ignore[index]
    f, g = one.functions["main"], board.functions["main"]
    assert (f.symbols, f.io_size_bytes, f.constants_size_bytes) == (
        {"n": 1},
        "n * 4 * 4 + n * 3 * 4",
        512,
    )
    assert (g.symbols, g.io_size_bytes, g.constants_size_bytes) == ({}, 3 * (4 + 3) * 4, 256)
    assert [(p.name, p.size_bytes, p.alignment) for p in g.pools] == [("slow", 96, 16)]


@runs_here
@versions
def test_it_runs(version: int, tmp_path: Path) -> None:
    """Linked from its artifacts, with the version of crt that this is."""
    artifacts = tk.load_model_library_format(archive(version, tmp_path), "any_batch")
    found = tk.load_artifacts(artifacts).create_executor()["main"](X).numpy()
    assert np.allclose(found, WANTED, rtol=1e-5, atol=1e-6)


@needs_gcc
@versions
@pytest.mark.parametrize("name", ["any_batch", "board"])
def test_it_builds(name: str, version: int, tmp_path: Path) -> None:
    """By a C compiler alone, as its page says; the board's C is for any processor."""
    path = archive(version, tmp_path)
    model = open_model_library(path).model(name)
    sizes = dict.fromkeys(model.functions["main"].symbols, len(X))
    program = compiled(tmp_path / "build", driver(model, "main", sizes), [unpacked(path)])
    found = np.frombuffer(output(program, X), np.float32).reshape(WANTED.shape)
    assert np.allclose(found, WANTED, rtol=1e-5, atol=1e-6)


@versions
def test_it_is_inspected(version: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(archive(version, tmp_path))
    assert main(["inspect", path, "--verify"]) == 0
    assert main(["inspect", path]) == 0
    shown = capsys.readouterr().out
    for words in (f"version {version}", "model any_batch", "model board", "LicenseRef-tools"):
        assert words in shown, shown


# -- what is written now ----------------------------------------------------------------------


def test_how_todays_differs_from_it(tmp_path: Path, golden: Callable[[Path, str], None]) -> None:
    """`--bless` records the difference; the archive itself stays as it was. A difference in keys of
    metadata.json raises the format's version."""
    newest = VERSIONS[-1]
    before, now = members(archive(newest, tmp_path)), members(write(tmp_path / "now.tar"))
    golden(HERE / f"mlf-{newest}-since.diff", differences(before, now))
    old, new = (keys(json.loads(files["metadata.json"])) for files in (before, now))
    assert old == new, "other keys are another version of the format"


def keys(value: object, at: str = "") -> set[str]:
    """Every key of metadata.json that records have, as a path; names of tables are `*`."""
    if isinstance(value, list):
        return {k for v in value for k in keys(v, f"{at}[]")}
    if not isinstance(value, dict):
        return {at}
    named = at.endswith(("modules", "functions", "files", "placed", "target", "symbols", "bundled"))
    return {k for name, v in value.items() for k in keys(v, f"{at}.{'*' if named else name}")}


def test_differences_are_seen() -> None:
    before = {"a": b"one\ntwo\n", "b": b"\0"}
    rows: list[tuple[dict[str, bytes], str]] = [
        (before, ""),
        ({"b": b"\0", "a": b"one\ntwo\n"}, "the order of files"),
        ({**before, "a": b"one\nthree\n"}, "-two\n+three"),
        ({**before, "a": b"one\ntwo"}, "-\n"),
        ({**before, "a": b"one\r\ntwo\n"}, "+one\r\n"),
        ({**before, "c": b"new\n"}, "--- /dev/null\n+++ c\n"),
        ({**before, "c": b""}, "c: an empty file"),
        ({"a": before["a"]}, "--- b\n+++ /dev/null\n"),
    ]
    for now, words in rows:
        found = differences(before, now)
        assert words in found and bool(found) == bool(words), (now, found)
