"""The gate on instruction counts, on made-up records and on counts of a real module."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench import compare as tool
from bench.compare import changes, check, load, recorded
from bench.instructions import TARGET, count_instructions, missing
from tensorkiln.base.errors import UserError
from tensorkiln.kernels.case import rand
from tests.transform.graphs import graph

RECORD = {
    "target": TARGET,
    "models": {"net": {"conv": 1000, "pool": 500}},
    "notes": {"net/pool": "reads wider rows", "other/conv": "kept"},
}


def test_equal_counts_are_no_change() -> None:
    assert check(RECORD, "net", {"conv": 1000, "pool": 500}) == []
    assert check(RECORD, "unknown", {"conv": 1}) == []


def test_growth_beyond_three_percent_fails() -> None:
    assert [c.fails for c in check(RECORD, "net", {"conv": 1030, "pool": 500})] == [False, False]
    kernel, model = check(RECORD, "net", {"conv": 1031, "pool": 500})
    assert (kernel.key, kernel.fails, model.key, model.fails) == ("net/conv", True, "net", False)
    assert "FAILS" in kernel.text() and "+3.1%" in kernel.text()


def test_a_note_lets_a_kernel_grow() -> None:
    kernel, model = check(RECORD, "net", {"conv": 1000, "pool": 540})
    assert not kernel.fails and "reads wider rows" in kernel.text()
    assert not model.fails  # 40 of 1500 is less than 3%
    assert check(RECORD, "net", {"conv": 1000, "pool": 560})[1].fails


def test_kernels_that_come_and_go_count_in_the_sum() -> None:
    pool_change, new, model = check(RECORD, "net", {"conv": 1000, "pool_relu": 400})
    assert (pool_change.key, pool_change.now, new.before) == ("net/pool", 0, 0)
    assert not pool_change.fails and not new.fails and not model.fails
    *_, model = check(RECORD, "net", {"conv": 1000, "pool_relu": 900})
    assert model.fails and model.before == 1500


def test_recording_replaces_one_model_and_its_notes() -> None:
    new_record = recorded(RECORD, "net", {"conv": 7})
    assert new_record["models"] == {"net": {"conv": 7}} and new_record["notes"] == {
        "other/conv": "kept"
    }
    assert changes("net", new_record["models"]["net"], {"conv": 7}, {}) == []


@pytest.fixture
def gate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The command on a record of its own, with a counter that is told what to say."""
    path = tmp_path / "instructions.json"
    path.write_text(json.dumps({**RECORD, "models": {"mlp": {"a": 100}}}), encoding="utf-8")
    monkeypatch.setattr(tool, "RECORD", path)
    monkeypatch.setattr(tool, "load", lambda: load(path))
    monkeypatch.setattr(tool, "count_instructions", lambda mod: {"a": 110})
    monkeypatch.setattr(tool.tk.frontend, "from_onnx", lambda path: None)
    monkeypatch.setattr("tests.zoo.export.model_path", lambda name: path)
    yield path


def test_the_command_fails_then_records(gate: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("torch", reason="torch is not installed: the zoo cannot be read")
    assert tool.main([]) == 1 and "mlp/a: 100 -> 110" in capsys.readouterr().out
    assert tool.main(["--record"]) == 0
    assert json.loads(gate.read_text())["models"]["mlp"] == {"a": 110}
    assert tool.main([]) == 0


@pytest.mark.skipif(bool(missing()), reason=missing() or "-")
def test_counts_are_repeatable_and_follow_the_work() -> None:
    def counts(rows: int) -> dict[str, int]:
        mod = graph(lambda g, x: g.relu(g.linear(x, rand(64, 96), rand(96))), x=(rows, 64))
        return count_instructions(mod)

    (few,), (again,), (many,) = (counts(n).values() for n in (16, 16, 64))
    assert few == again
    # 8 lanes of multiply and add, without FMA: at least two instructions for 8 products.
    assert few > 16 * 64 * 96 * 2 / 8 and 3 < many / few < 5


def test_without_valgrind_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda name: None)
    with pytest.raises(UserError, match="valgrind") as error:
        count_instructions(graph(lambda g, x: g.relu(x), x=(4,)))
    assert error.value.code == "no-valgrind"
