"""Levels of processors for which kernels are compiled, and those that one run of the tests takes.

A test with a parameter whose value is the name of a level runs for `native` and for one other,
which the commit chooses of those that can run here, so that each comes in turn; with `--levels=all`
(`make test-all`) for each.
"""

from __future__ import annotations

import hashlib
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

NATIVE = "native"
# Levels that take turns: those of a turn share most of what they generate.
TURNS: tuple[tuple[str, ...], ...] = (
    ("sse2",),
    ("avx2", "c of avx2"),
    ("neon", "dotprod", "i8mm"),
)
# Only `all` takes these, whose registers are those of `native` wherever they can run: what differs
# is what their kernels cost, by which Winograd's and Strassen's are chosen.
WIDE = ("x86-64-v4", "znver4")
EVERY = (*(level for turn in TURNS for level in turn), *WIDE)


def commit() -> str:
    """The commit of the tree that is tested; empty outside of a repository."""
    command = ["git", "-C", str(Path(__file__).parent), "rev-parse", "HEAD"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
    except OSError:
        return ""


def runnable_turns() -> tuple[tuple[str, ...], ...]:
    """The turns that this machine can run: a level whose tests are all skipped has none."""
    from tests.codegen.kernels import LEVELS
    from tests.emulated.machine import AARCH64

    emulated = () if AARCH64.missing else ("neon",)
    return tuple(turn for turn in TURNS if turn[0] in (*LEVELS, *emulated))


def levels_of(
    requested: str, tree: str, turns: Callable[[], Sequence[tuple[str, ...]]] = runnable_turns
) -> frozenset[str]:
    """The levels besides `native` that `--levels=requested` means for the commit `tree`: `all`,
    `turn` (one of `turns()`, if there are any), or names with commas. Raises pytest.UsageError for
    names of none."""
    if requested == "all":
        return frozenset(EVERY)
    if requested == "turn":
        runnable = turns()
        number = hashlib.sha256(tree.encode()).digest()[0]
        return frozenset(runnable[number % len(runnable)] if runnable else ())
    names = frozenset(requested.split(",")) - {NATIVE}
    if unknown := sorted(names - set(EVERY)):
        raise pytest.UsageError(f"--levels: {unknown[0]!r} is not one of {', '.join(EVERY)}")
    return names


def without_other_levels(
    items: Sequence[pytest.Item], levels: frozenset[str]
) -> tuple[list[pytest.Item], list[pytest.Item]]:
    """The items that run, and those of levels that are not among `levels`."""
    left_out = frozenset(EVERY) - levels
    runs: list[pytest.Item] = []
    waits: list[pytest.Item] = []
    for item in items:
        spec = getattr(item, "callspec", None)
        values = () if spec is None else spec.params.values()
        belongs = any(isinstance(v, str) and v in left_out for v in values)
        (waits if belongs else runs).append(item)
    return runs, waits
