"""Which levels of processors a run of the tests takes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tests.codegen.kernels import FORMS
from tests.levels import EVERY, TURNS, levels_of, without_other_levels


def test_names_are_those_of_the_kernels_tests() -> None:
    assert set(EVERY) == set(FORMS) - {"native", "c", "opencl"}


def test_every_turn_comes() -> None:
    turns = {levels_of("turn", f"{k:040x}") for k in range(40)}
    assert turns == {frozenset(turn) for turn in TURNS}
    assert levels_of("turn", "a" * 40) == levels_of("turn", "a" * 40)
    assert levels_of("all", "") == set(EVERY)
    assert levels_of("native,sse2", "") == {"sse2"} and levels_of("native", "") == set()
    with pytest.raises(pytest.UsageError, match="'sse3' is not one of sse2"):
        levels_of("sse3", "")


def test_what_waits() -> None:
    def item(**params: object) -> Any:
        return SimpleNamespace(callspec=SimpleNamespace(params=params))

    plain: Any = SimpleNamespace()
    items = [plain, item(level="native"), item(run="sse2", size=3), item(level="avx2"), item(n=3)]
    runs, waits = without_other_levels(items, frozenset({"avx2"}))
    assert runs == [*items[:2], *items[3:]] and waits == [items[2]]
