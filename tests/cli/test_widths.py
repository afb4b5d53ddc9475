"""What every command prints in narrow terminals: nothing is cut, and columns remain columns."""

from __future__ import annotations

import random
import shutil
from operator import itemgetter
from pathlib import Path

import pytest

from tensorkiln.cli import main, screen
from tensorkiln.cli.fold import fold
from tensorkiln.cli.tables import columns
from tests.cli.calls import CALLS, LINES, make_files, skip_without_its_packages
from tests.cli.test_options import commands
from tests.rotation import rows_in_turn

WIDTHS = (20, 40, 60, 80, 100)
BARS = dict.fromkeys(map(ord, "█▏▎▍▌▋▊▉"))


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("files")
    make_files(folder)
    return folder


def characters(text: str) -> str:
    """Those that folding keeps: all but spaces, line ends, and bars, which it shortens."""
    return "".join(text.translate(BARS).split())


def test_all_commands_are_here() -> None:
    assert set(CALLS) == set(commands())


@pytest.mark.parametrize("line", rows_in_turn(LINES, " ".join, itemgetter(0)), ids=" ".join)
def test_commands(
    line: list[str],
    files: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    skip_without_its_packages(line)
    shutil.copytree(files, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    texts: list[tuple[str, bool]] = []

    def recorded(text: str, width: int, *, table: bool = False) -> str:
        texts.append((text, table))
        return fold(text, width, table=table)

    monkeypatch.setattr(screen, "fold", recorded)
    monkeypatch.setattr(screen, "width_of", lambda stream: 40)
    assert main(line) == (1 if line[1:] and line[1].startswith("unsupported") else 0)
    out = capsys.readouterr().out
    if line[0] == "completion" or "host/weights.json" in line:  # programs and data have no width
        assert not texts
        return
    assert max(map(len, out.split("\n"))) <= 40
    assert characters(out) == characters("".join(text for text, _ in texts))
    for text, table in texts:
        for width in WIDTHS:
            folded = fold(text, width, table=table)
            assert max(map(len, folded.split("\n"))) <= width
            assert characters(folded) == characters(text)
        assert fold(text, 10**6, table=table) == text


@pytest.mark.parametrize("seed", rows_in_turn(range(50)))
def test_columns_remain_columns(seed: int) -> None:
    """The cells of a column begin at the same place in all rows, and stand in the same order."""
    draw = random.Random(seed)
    count, height = draw.randint(1, 8), draw.randint(2, 6)
    rows = [[f"{i}.{k}{'x' * draw.randint(0, 9)}" for k in range(count)] for i in range(height)]
    text = columns(rows)
    for width in (20, 30, 40, 60, 80):
        lines = fold(text, width).split("\n")
        assert max(map(len, lines)) <= width
        words = [word for line in lines for word in line.split()]
        assert words == [cell for row in rows for cell in row]
        for k in range(count):
            starts = {
                line.index(row[k]) for row in rows for line in lines if row[k] in line.split()
            }
            assert len(starts) == 1, lines


def test_words_are_wrapped_in_their_column() -> None:
    text = "\n".join(["facts", columns([("a", "one"), ("much", "two three four five six seven")])])
    lines = ["facts", "  a     one", "  much  two three", "        four five", "        six seven"]
    assert fold(text, 20).split("\n") == lines


def test_names_that_are_too_long() -> None:
    """Even a word that no line has room for is whole, on several lines."""
    text = columns([("x" * 90, "1 B"), ("y", "2 B")])
    lines = fold(text, 40).split("\n")
    assert max(map(len, lines)) <= 40
    assert characters("".join(lines)) == characters(text)
    assert [line.strip() for line in lines][-2:] == ["y", "2 B"]


def test_bars_are_shortened_in_proportion() -> None:
    text = columns([("a", "█" * 40), ("b", "█" * 20), ("c", "▏"), ("d", "")])
    for width in (20, 30, 40):
        bars = [line[5:] for line in fold(text, width).split("\n")]
        assert [len(bar) for bar in bars[:2]] == [width - 5, -(-(width - 5) // 2)]
        assert bars[2:] == ["▏", ""]


def test_headings_and_prose() -> None:
    text = "a heading of many words that has no room\n\n  row  1\n"
    assert fold(text, 20) == "a heading of many\n  words that has no\n  room\n\n  row  1\n"
    assert fold("", 20) == ""
