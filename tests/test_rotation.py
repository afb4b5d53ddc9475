"""What one run of the tests takes of levels of processors and of rows."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tests.codegen.kernels import FORMS, LEVELS
from tests.emulated.machine import AARCH64
from tests.rotation import (
    BF16_OF_ARM,
    C_OF_THIS,
    EVERY,
    PARTS,
    TURNS,
    WIDE,
    Rotation,
    family_of,
    rotation_of,
    runnable_turns,
    without_other_levels,
)
from tests.schedule import test_attention_of_halves, test_halves


def test_names_are_those_of_the_kernels_tests() -> None:
    of_16_bits = {C_OF_THIS, *BF16_OF_ARM}
    assert set(EVERY) - set(WIDE) - of_16_bits == set(FORMS) - {"native", "c", "opencl"}
    assert of_16_bits <= {*test_halves.TARGETS, *test_attention_of_halves.TARGETS}


def test_every_turn_of_levels_comes_with_every_part_of_rows() -> None:
    for runnable in (TURNS, TURNS[:2], TURNS[1:2], ()):
        count = PARTS * max(1, len(runnable))
        commits = {rotation_of("commit", f"{k:040x}", lambda: runnable) for k in range(150)}  # noqa: B023
        numbers = {rotation_of(str(k), "", lambda: runnable) for k in range(count)}  # noqa: B023
        assert commits == numbers and len(numbers) == count
        assert {r.levels for r in numbers} == {frozenset(t) for t in runnable or ((),)}
    assert rotation_of("commit", "a" * 40) == rotation_of("commit", "a" * 40)
    assert rotation_of("all", "") == Rotation(frozenset(EVERY), None)
    with pytest.raises(pytest.UsageError, match="'sse3' is not all, commit or a number"):
        rotation_of("sse3", "")


def test_a_turn_can_run_here() -> None:
    turns = runnable_turns()
    assert TURNS[0] in turns or not LEVELS.get("sse2")
    assert (TURNS[2] in turns) == (not AARCH64.missing)


def test_every_row_comes_and_every_family_has_one_each_time() -> None:
    names = [*(f"conv_{a}_{b}" for a in range(5) for b in range(4)), "pool_3", "pool_2", "gated"]
    parts = [Rotation(part=k).rows(names) for k in range(PARTS)]
    assert {name for part in parts for name in part} == set(names)
    for part in parts:
        assert {family_of(name) for name in part} == {"conv", "pool", "gated"}
        assert part == [name for name in names if name in part]
        assert sum(name.startswith("conv") for name in part) == 5
    assert Rotation().rows(names) == names


def test_what_waits() -> None:
    def item(**params: object) -> Any:
        return SimpleNamespace(callspec=SimpleNamespace(params=params))

    plain: Any = SimpleNamespace()
    items = [plain, item(level="native"), item(run="sse2", size=3), item(level="avx2"), item(n=3)]
    runs, waits = without_other_levels(items, frozenset({"avx2"}))
    assert runs == [*items[:2], *items[3:]] and waits == [items[2]]
