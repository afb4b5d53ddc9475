"""`kiln tune`: what it writes, and what it goes on from."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from examples.make_mlp import make_mlp
from tensorkiln.base.errors import UserError
from tensorkiln.cli import main
from tensorkiln.kernels.records import read_records
from tests.tuning import hooks

TUNE = ["tune", "mlp.onnx", "--dim=batch=8", "--kernels=1", "--search=random", "-q"]


@pytest.fixture
def work_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mlp.onnx").write_bytes(make_mlp().SerializeToString())
    return tmp_path


def test_records_are_kept_and_the_journal_goes_on(
    work_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other_records = hooks.tuned(None, trials=4).records
    assert len(other_records), "the test needs a record of another model"
    other_records.write(work_folder / "r")
    line = [*TUNE, "--records", "r", "--journal", "j", "--trials"]
    assert main([*line, "1", "--json"]) == 0
    first = json.loads(capsys.readouterr().out)
    (row,) = first["kernels"]
    assert (row["tried"], row["problem"], row["unit"]) == (1, "", "ms")
    assert first["count"] == len(read_records("r")) >= len(other_records)
    lines = Path("j").read_text().splitlines()
    assert main([*line, "2", "--json"]) == 0
    (again,) = json.loads(capsys.readouterr().out)["kernels"]
    assert again["tried"] == 2 and again["name"] == row["name"]
    assert Path("j").read_text().splitlines()[: len(lines)] == lines
    records = read_records("r")
    assert records.merge(other_records).text() == records.text()
    assert main(["compile", "mlp.onnx", "--records", "r", "-o", "new.so", "-q"]) == 0
    # As of another model, which is refused before anything is measured.
    with pytest.raises(UserError, match="another"):
        hooks.tuned(work_folder / "j")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--executor", "loacl:2"], "did you mean 'local'"),
        (["--executor", "local:0"], "executor"),
        (["--target", "c"], "'llvm'"),
        (["--measure", "instructions"], "aarch64"),
        (["--dim=bacth=3"], "did you mean 'batch'"),
    ],
    ids=str,
)
def test_mistakes(
    work_folder: Path, words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*TUNE, "--records", "r", *words]) in (2, 3)
    assert message in capsys.readouterr().err
    assert not Path("r").exists()
