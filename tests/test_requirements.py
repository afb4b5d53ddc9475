"""docs/requirements.md: each block runs, each test exists, each state is in the table."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.test_docs import ROOT, Block, blocks_of, commands, run_blocks

__all__ = ["commands"]

PAGE = (ROOT / "docs" / "requirements.md").read_text(encoding="utf-8")
HEAD, *REST = re.split(r"^## ", PAGE, flags=re.M)
STATES = ("Met", "In part", "Not met")


@dataclass(frozen=True)
class Requirement:
    number: int
    state: str
    blocks: list[Block]
    tests: list[str]


def requirement(text: str) -> Requirement:
    number = int(text.partition(".")[0])
    state = re.findall(r"^\*\*(Met|In part|Not met)\b", text, re.M)
    assert len(state) == 1, f"{number} has the states {state}"
    tests = re.findall(r"`(tests/[^`]+)`", text)
    return Requirement(number, state[0], blocks_of(text), tests)


REQUIREMENTS = [requirement(text) for text in REST]


def test_all_are_there() -> None:
    assert [r.number for r in REQUIREMENTS] == list(range(1, 26))
    table = dict(re.findall(r"^\| (met|in part|not met) \| ([\d, ]+) \|$", HEAD, re.M))
    for state in STATES:
        listed = [int(n) for n in table[state.lower()].split(",")]
        assert listed == [r.number for r in REQUIREMENTS if r.state == state], state


@pytest.mark.in_turn()
@pytest.mark.parametrize("r", REQUIREMENTS, ids=lambda r: str(r.number))
def test_its_command_runs(r: Requirement, tmp_path: Path, commands: Path) -> None:
    assert r.blocks and not any(b.skipped for b in r.blocks)
    run_blocks([*blocks_of(HEAD), *r.blocks], tmp_path, commands)


@pytest.mark.parametrize("r", REQUIREMENTS, ids=lambda r: str(r.number))
def test_its_tests_exist(r: Requirement) -> None:
    assert r.tests or r.state == "Not met"
    for name in r.tests:
        file, _, function = name.partition("::")
        text = (ROOT / file).read_text(encoding="utf-8")
        assert not function or f"def {function}(" in text, name
