"""The journal: whole lines, torn ends, and those of other searches."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tensorkiln.base.errors import UserError
from tensorkiln.tuning.journal import HEADER, Entry, Journal

SAME = {key: f"some {key}" for key in HEADER}
ENTRIES = (
    Entry("w1", (), 0, "ok", "", 1.5, 1.6, 1.5, 1.0, "ms", "a processor"),
    Entry("w1", (("rows", 6), ("unroll", 2)), 0, "ok", "", 1.25, 1.3, 1.5, 0.84, "ms", "µ", "0a"),
    Entry("w1", (("rows", 7),), 0, "crash", "it ended by SIGSEGV"),
    Entry("w1", (("rows", 6), ("unroll", 2)), 1, "ok", "", 1.26, 1.3, 1.5, 0.84, "ms"),
)


def written(path: Path) -> bytes:
    with Journal(path, SAME, {"w1": 0.25}) as book:
        for entry in ENTRIES:
            book.add(entry)
    return path.read_bytes()


def test_what_was_added_is_there_again(tmp_path: Path) -> None:
    path = tmp_path / "j"
    written(path)
    with Journal(path, SAME, {"w2": 9.0}) as book:
        assert tuple(book) == ENTRIES
        assert book.costs == {"w1": 0.25}, "a search goes on with the costs that it began with"
        assert book.get("w1", (("rows", 7),), 0) == ENTRIES[2]
        assert book.get("w1", (("rows", 7),), 1) is None


def test_a_torn_end_is_cut_off_wherever_it_is(tmp_path: Path) -> None:
    path = tmp_path / "j"
    content = written(path)
    ends = [i + 1 for i, c in enumerate(content) if c == ord("\n")]
    for length in range(len(content)):
        path.write_bytes(content[:length])
        whole = sum(end <= length for end in ends)
        with Journal(path, SAME, {"w1": 0.25}) as book:
            assert tuple(book) == ENTRIES[: max(0, whole - 1)], length
            for entry in ENTRIES:
                book.add(entry)
        with Journal(path, SAME, {}) as book:
            assert tuple(book) == ENTRIES


@pytest.mark.parametrize("key", HEADER)
def test_that_of_another_search_is_refused_by_name(tmp_path: Path, key: str) -> None:
    content = written(tmp_path / "j")
    with pytest.raises(UserError) as caught:
        Journal(tmp_path / "j", {**SAME, key: "another"}, {})
    assert caught.value.code == "other-journal"
    assert HEADER[key] in caught.value.message and f"some {key}" in caught.value.message
    assert (tmp_path / "j").read_bytes() == content


def test_without_a_path_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with Journal(None, SAME, {}) as book:
        book.add(ENTRIES[0])
        assert tuple(book) == ENTRIES[:1]
    assert not list(tmp_path.iterdir())


def test_only_one_search_has_it(tmp_path: Path) -> None:
    path = tmp_path / "j"
    with Journal(path, SAME, {}) as book:
        book.add(ENTRIES[0])
        with pytest.raises(UserError) as caught:
            Journal(path, SAME, {})
        assert caught.value.code == "in-use"
        book.add(ENTRIES[1])
    with Journal(path, SAME, {}) as book:
        assert tuple(book) == ENTRIES[:2]


HEAD = json.dumps({"kiln_tuning": 1, **SAME, "costs": {}})
ENTRY = {"workload": "w", "knobs": {}, "run": 0, "state": "ok"}


@pytest.mark.parametrize(
    "lines",
    [
        ["Dear sir or madam"],
        ["{}"],
        ["[]"],
        [json.dumps({"kiln_records": 1})],
        [HEAD.replace('"kiln_tuning": 1', '"kiln_tuning": 2')],
        [HEAD.replace('"kiln_tuning": 1', '"kiln_tuning": "1"')],
        [HEAD.replace('"costs": {}', '"costs": {"w": "much"}')],
        [HEAD.replace('"costs": {}', '"costs": {"w": -1}')],
        [HEAD[:-1] + ', "more": 1}'],
        [HEAD, "{"],
        [HEAD, json.dumps({**ENTRY, "more": 1})],
        [HEAD, json.dumps({**ENTRY, "knobs": {"rows": "many"}})],
        [HEAD, json.dumps({**ENTRY, "knobs": 3})],
        [HEAD, json.dumps({**ENTRY, "run": -1})],
        [HEAD, json.dumps({**ENTRY, "value": "NaN"})],
        [HEAD, json.dumps({**ENTRY, "value": True})],
        [HEAD, json.dumps({k: v for k, v in ENTRY.items() if k != "state"})],
    ],
)
def test_what_is_none_is_refused_and_left_alone(tmp_path: Path, lines: list[str]) -> None:
    path = tmp_path / "j"
    text = "\n".join([*lines, json.dumps(ENTRY), ""])
    path.write_text(text)
    with pytest.raises(UserError) as caught:
        Journal(path, SAME, {})
    assert caught.value.code in ("bad-journal", "other-journal")
    assert f"{path}:{len(lines)}" in str(caught.value)
    assert path.read_text() == text


def test_a_file_without_a_line_is_no_torn_journal(tmp_path: Path) -> None:
    path = tmp_path / "j"
    path.write_text("an important letter")
    with pytest.raises(UserError, match="no journal"):
        Journal(path, SAME, {})
    assert path.read_text() == "an important letter"


@pytest.mark.parametrize("kind", ["folder", "pipe", "nowhere", "below a file"])
def test_other_places(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "j"
    if kind == "folder":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "nowhere":
        path = path / "k" / "l"
    else:
        path.touch()
        path = path / "k"
    with pytest.raises(UserError) as caught:
        Journal(path, SAME, {})
    assert caught.value.code == "cannot-write"
