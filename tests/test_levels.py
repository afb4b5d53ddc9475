"""Which levels of processors a run of the tests takes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tests.codegen.kernels import FORMS, LEVELS
from tests.emulated.machine import AARCH64
from tests.levels import EVERY, TURNS, WIDE, levels_of, runnable_turns, without_other_levels


def test_names_are_those_of_the_kernels_tests() -> None:
    assert set(EVERY) - set(WIDE) == set(FORMS) - {"native", "c", "opencl"}


def test_every_turn_comes() -> None:
    for runnable in (TURNS, TURNS[:2], TURNS[1:2]):
        turns = {levels_of("turn", f"{k:040x}", lambda: runnable) for k in range(40)}  # noqa: B023
        assert turns == {frozenset(turn) for turn in runnable}
    assert levels_of("turn", "", lambda: ()) == set()
    assert levels_of("turn", "a" * 40) == levels_of("turn", "a" * 40)


def test_a_turn_can_run_here() -> None:
    turns = runnable_turns()
    assert ("sse2",) in turns or not LEVELS.get("sse2")
    assert (TURNS[2] in turns) == (not AARCH64.missing)


def test_names() -> None:
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
