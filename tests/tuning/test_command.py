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
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mlp.onnx").write_bytes(make_mlp().SerializeToString())
    return tmp_path


def test_records_are_kept_and_the_journal_goes_on(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = hooks.tuned(None, trials=4).records
    assert len(other), "the test needs a record of another model"
    other.write(here / "r")
    line = [*TUNE, "--records", "r", "--journal", "j", "--trials"]
    assert main([*line, "1", "--json"]) == 0
    first = json.loads(capsys.readouterr().out)
    (row,) = first["kernels"]
    assert (row["tried"], row["problem"], row["unit"]) == (1, "", "ms")
    assert first["count"] == len(read_records("r")) >= len(other)
    lines = Path("j").read_text().splitlines()
    assert main([*line, "2", "--json"]) == 0
    (again,) = json.loads(capsys.readouterr().out)["kernels"]
    assert again["tried"] == 2 and again["name"] == row["name"]
    assert Path("j").read_text().splitlines()[: len(lines)] == lines
    kept = read_records("r")
    assert kept.merge(other).text() == kept.text()
    assert main(["compile", "mlp.onnx", "--records", "r", "-o", "new.so", "-q"]) == 0
    # As of another model, which is refused before anything is measured.
    with pytest.raises(UserError, match="another"):
        hooks.tuned(here / "j")


@pytest.mark.parametrize(
    ("words", "said"),
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
    here: Path, words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*TUNE, "--records", "r", *words]) in (2, 3)
    assert said in capsys.readouterr().err
    assert not Path("r").exists()
