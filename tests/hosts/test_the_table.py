"""Each row of the table of docs/howto/hosts.md names what a host has and a test's program uses."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tensorkiln.link.headers import CRATE, host_headers
from tests.hosts.build import HERE, ROOT

PAGE = (ROOT / "docs/howto/hosts.md").read_text(encoding="utf-8")
ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in PAGE.split("## What each can do")[1].splitlines()
    if line.startswith("| ")
][1:]
PROGRAMS = {  # those of this folder are built and run by its tests
    "C": [*HERE.glob("*.c"), ROOT / "examples/c_host/any_model.c"],
    "C++": [*HERE.glob("*.cpp"), ROOT / "examples/cpp_host/main.cpp"],
    "Rust": [*HERE.glob("*.rs"), ROOT / "examples/rust_host/src/main.rs"],
}
HOSTS = {
    "C": [path for path in host_headers() if path.suffix == ".h"],
    "C++": [path for path in host_headers() if path.suffix == ".hpp"],
    "Rust": [*(CRATE / "src").glob("*.rs")],
}


def all_words(paths: list[Path]) -> set[str]:
    return set(re.findall(r"\w+", "\n".join(path.read_text(encoding="utf-8") for path in paths)))


def test_the_table_is_read() -> None:
    assert len(ROWS) >= 14 and all(len(row) == 4 for row in ROWS)


@pytest.mark.parametrize("column", [1, 2, 3], ids=HOSTS)
def test_what_the_table_names_is_there_and_used(column: int) -> None:
    language = list(HOSTS)[column - 1]
    offered, used_words = all_words(HOSTS[language]), all_words(PROGRAMS[language])
    for row in ROWS:
        names = re.findall(r"`([\w:]+)`", row[column])
        assert names, row
        for word in (word for name in names for word in name.split("::")):
            assert word in offered, f"{language} has no {word}"
            assert word in used_words, f"no program of the tests uses {word} in {language}"
