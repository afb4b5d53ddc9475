"""Outer functions at the command line: inspected, and run where tensors are all they take."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import tensorkiln as tk
from tensorkiln.cli.entry import main
from tests.script.language import PROGRAMS


@pytest.fixture(scope="module")
def loop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    exe = tk.compile(PROGRAMS["loop_of_python"].module(), "llvm")
    return Path(exe.export_library(tmp_path_factory.mktemp("cli") / "loop.so"))


def test_run(loop: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.save(tmp_path / "x.npy", PROGRAMS["loop_of_python"].inputs["x"])
    np.save(tmp_path / "limit.npy", PROGRAMS["loop_of_python"].inputs["limit"])
    inputs = [f"--input={name}={tmp_path / f'{name}.npy'}" for name in ("x", "limit")]
    assert main(["run", str(loop), *inputs, f"--output-dir={tmp_path}"]) == 0
    assert "result0" in capsys.readouterr().out
    np.testing.assert_array_equal(np.load(tmp_path / "result0.npy"), [8, 0, 24, 0])
    assert np.load(tmp_path / "result1.npy") == 3


def test_inspect(loop: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(loop)]) == 0
    out = capsys.readouterr().out
    assert "outer function main" in out
    assert "out  result  a tuple (float32 [n], int64 [])\n" in out


def test_what_cannot_be_passed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tk.compile(PROGRAMS["casts"].module(), "llvm").export_library(tmp_path / "casts.so")
    assert main(["run", str(tmp_path / "casts.so"), "--random"]) != 0
    assert "main takes 'x', a tensor; from here only tensors" in capsys.readouterr().err
