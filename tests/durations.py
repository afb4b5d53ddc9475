"""How long each file of tests takes: seconds in `durations.json`, of those of more than one.

Workers take the longest first, so that none waits at the end for another that is in one of them.
`make test DURATIONS=1` writes the table.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
TABLE = TESTS / "durations.json"
_SHORT = 1.0  # seconds, of files without a row


def recorded() -> dict[Path, int]:
    """Seconds by file, of those that have a row."""
    return {TESTS / name: s for name, s in json.loads(TABLE.read_text()).items()}


def sort_by_duration(items: list[pytest.Item]) -> None:
    """The tests of the longest files first, those of one file together and in their order."""
    seconds = recorded()
    items.sort(key=lambda item: -seconds.get(item.path, 0))


class DurationRecorder:
    """The plugin that adds up what tests take, and writes it at the end of the run."""

    def __init__(self) -> None:
        self._seconds: Counter[str] = Counter()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._seconds[report.nodeid.partition("::")[0].removeprefix("tests/")] += report.duration

    def pytest_sessionfinish(self) -> None:
        rows = {name: round(s) for name, s in sorted(self._seconds.items()) if s > _SHORT}
        TABLE.write_text(json.dumps(rows, indent=1) + "\n")
