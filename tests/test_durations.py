"""The table by which workers begin with the longest files."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests import durations
from tests.durations import TESTS, DurationRecorder, recorded, sort_by_duration


def test_the_table_names_files_that_are_here() -> None:
    assert [path for path in recorded() if not path.is_file()] == []


def test_the_longest_begin(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(durations, "TABLE", tmp_path / "durations.json")
    recorder: Any = DurationRecorder()
    for name, seconds in {"a::one": 0.4, "b::one": 3.2, "a::two": 0.4, "c::one[x::y]": 9.0}.items():
        recorder.pytest_runtest_logreport(SimpleNamespace(nodeid=f"tests/{name}", duration=seconds))
    recorder.pytest_sessionfinish()
    assert json.loads((tmp_path / "durations.json").read_text()) == {"b": 3, "c": 9}
    items: Any = [SimpleNamespace(path=TESTS / name) for name in "aabbcd"]
    sort_by_duration(items)
    assert [item.path.name for item in items] == [*"cbbaad"]
