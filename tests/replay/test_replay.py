"""Replay tells every file that differs, and compiles the same bytes twice."""

from __future__ import annotations

from pathlib import Path

from tests.replay.__main__ import difference_of_texts, differences
from tests.replay.corpus import MEASURED, TARGETS, rows
from tests.replay.faults import PLANTING
from tests.replay.write import written

ROOT = Path(__file__).resolve().parents[2]


def test_what_differs() -> None:
    before = {"a": {"x": "1", "y": "2", "z": "3"}, "b": {}}
    now = {"a": {"x": "1", "y": "4", "w": "5"}, "c": {}}
    assert list(differences(before, now)) == [
        ("a", "w", "is new", "file"),
        ("a", "y", "differs", "file"),
        ("a", "z", "is gone", "file"),
        ("b", "", "is gone", "row"),
        ("c", "", "is new", "row"),
    ]


def test_rows() -> None:
    names = [row.name for row in rows()]
    assert len(names) == len(set(names))
    assert {name.partition("/")[2] for name in names} >= {*TARGETS, *map(" ".join, MEASURED)}
    assert all((ROOT / name).is_file() for name in PLANTING)


def test_twice(tmp_path: Path) -> None:
    (tmp_path / "contents").mkdir()
    _, first = written(tmp_path, "transformer/c")
    assert written(tmp_path, "transformer/c") == ("transformer/c", first)
    assert {"kernels.c", "entry.c"} <= {name.rpartition("/")[2] for name in first}
    assert any(name.startswith("archive/") for name in first)
    contents = {path.name for path in (tmp_path / "contents").iterdir()}
    assert contents == set(first.values())


def test_texts(tmp_path: Path) -> None:
    old, new, blob = (tmp_path / name for name in ("old", "new", "blob"))
    old.write_text("a\nb\n")
    new.write_text("a\nc\n")
    blob.write_bytes(b"\xff\x00")
    assert difference_of_texts(old, new)[-2:] == ["-b", "+c"]
    assert difference_of_texts(old, blob) == difference_of_texts(old, tmp_path / "none") == []
