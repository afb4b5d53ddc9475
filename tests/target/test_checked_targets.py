"""docs/targets.md: a row for every system that libraries are linked for, every board and every kind
of devices, which names the tests that check it."""

from __future__ import annotations

import re

from tensorkiln.target.kinds import KINDS
from tensorkiln.target.triple import library_triples
from tests.firmware.boards import BOARDS
from tests.named_tests import ROOT, absent_tests, names_tests_alone

PAGE = (ROOT / "docs" / "targets.md").read_text(encoding="utf-8")
TABLE = PAGE.partition("### What was checked, and how")[2].partition("\n\n`python")[0]


def test_every_target_names_its_tests() -> None:
    rows = [line.strip("| ").split(" | ") for line in TABLE.splitlines() if line.startswith("| ")]
    cells = [row[0] for row in rows[1:]]
    assert all(names_tests_alone(row[3]) for row in rows[1:])
    assert list(absent_tests(TABLE)) == []
    expected = {re.sub(r"\d+$", "", t) for t in library_triples()} | set(BOARDS)
    expected |= {k.name for k in KINDS.values() if k.is_accelerator} | {"c"}
    assert {name for cell in cells for name in re.findall(r"`([^`]+)`", cell)} == expected
