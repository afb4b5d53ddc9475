"""Results of several runs and machines, side by side in one file."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench import store


def test_newer_records_replace_older_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "results.jsonl"
    assert store.load(path) == []
    store.add("latency", "mlp", 1, {"rows": [1]}, path)
    store.add("latency", "mlp", 2, {"rows": [2]}, path)
    store.add("roofline", "mlp", 1, {"rows": [3]}, path)
    store.add("latency", "mlp", 1, {"rows": [4]}, path)
    assert [r["rows"] for r in store.load(path)] == [[2], [3], [4]]
    monkeypatch.setattr(store, "machine", lambda: "another")
    store.add("latency", "mlp", 1, {"rows": [5]}, path)
    assert [r["rows"] for r in store.load(path)] == [[2], [3], [4], [5]]


def test_every_record_says_where_it_comes_from(tmp_path: Path) -> None:
    record = store.add("memory", "mlp", 1, {"rows": []}, tmp_path / "results.jsonl")
    assert record["machine"] == store.machine() and "CPUs" in record["machine"]
    assert record["run"].startswith("20")
