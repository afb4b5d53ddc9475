"""Whole-model tests: the big networks run only when asked for with `-m conformance`."""

from __future__ import annotations

import pytest

MARKER = "conformance"


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", f"{MARKER}: a full-size network; runs when `-m` names it (`make {MARKER}`)"
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if MARKER in str(config.getoption("markexpr")):
        return
    big = [item for item in items if item.get_closest_marker(MARKER)]
    if big:
        config.hook.pytest_deselected(items=big)
        items[:] = [item for item in items if item not in big]
