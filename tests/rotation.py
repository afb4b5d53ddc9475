"""What one run of the tests takes of levels of processors and of rows of large tables.

`make test-all` takes everything. `make test` has a rotation, a number that the commit chooses and
`make test ROTATION=number` repeats. It runs

- tests with a parameter whose value is the name of a level for `native` and for one other turn of
  levels that this machine can run;
- one part of PARTS of the rows that tests choose by `rows_in_turn` or by the marker `in_turn`:
  those of one property and one family that differ in values alone. Each family has a row in
  every run.

What plants a fault, what stands for a fault that was mended, and what alone tests a thing, are no
such rows.
"""

from __future__ import annotations

import hashlib
import re
import subprocess
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import pytest

NATIVE = "native"
PARTS = 4
# Levels of products of 16 bits alone.
C_OF_THIS = "c of this processor"
BF16_OF_ARM = ("neon with bf16", "c of neon with bf16")
# Levels that take turns: those of a turn share most of what they generate.
TURNS: tuple[tuple[str, ...], ...] = (
    ("sse2", C_OF_THIS),
    ("avx2", "c of avx2"),
    ("neon", "dotprod", "i8mm", *BF16_OF_ARM),
)
# Only `all` takes these, whose registers are those of `native` wherever they can run: what differs
# is what their kernels cost, by which Winograd's and Strassen's are chosen.
WIDE = ("x86-64-v4", "znver4")
EVERY = (*(level for turn in TURNS for level in turn), *WIDE)
Row = TypeVar("Row")


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


@dataclass(frozen=True)
class Rotation:
    """What one run takes: `levels` besides `native`, and rows of part `part`, all where that is
    None."""

    levels: frozenset[str] = frozenset(EVERY)
    part: int | None = None
    label: str = "all"

    def rows(
        self,
        table: Iterable[Row],
        name: Callable[[Row], str] = str,
        family: Callable[[Row], Hashable] | None = None,
    ) -> list[Row]:
        """See `rows_in_turn`."""
        items = list(table)
        if self.part is None:
            return items
        families = defaultdict[Hashable, list[int]](list)
        for k, row in enumerate(items):
            families[family(row) if family else family_of(name(row))].append(k)
        chosen: set[int] = set()
        for members in families.values():
            members.sort(key=lambda k: hashlib.sha256(name(items[k]).encode()).digest())
            parts = min(PARTS, len(members))
            chosen.update(members[self.part % parts :: parts])
        return [row for k, row in enumerate(items) if k in chosen]


def rotation_of(
    requested: str, tree: str, turns: Callable[[], Sequence[tuple[str, ...]]] = runnable_turns
) -> Rotation:
    """What `--rotation=requested` means for the commit `tree`: `all`, a number, or `commit`, whose
    number the commit chooses. A hash does it, as pushes of as many commits as there are parts would
    always have the same part. Raises pytest.UsageError for another word."""
    if requested == "all":
        return Rotation()
    runnable = turns() or ((),)
    count = PARTS * len(runnable)
    if requested == "commit":
        number = int.from_bytes(hashlib.sha256(tree.encode()).digest()[:4]) % count
    elif requested.isdecimal():
        number = int(requested) % count
    else:
        raise pytest.UsageError(f"--rotation: {requested!r} is not all, commit or a number")
    turn, part = divmod(number, PARTS)
    return Rotation(frozenset(runnable[turn]), part, f"{number} of {count}")


_current = Rotation()


def begin(rotation: Rotation) -> None:
    """Have `rows_in_turn` choose for this rotation, before files of tests are imported."""
    global _current
    _current = rotation


def family_of(name: str) -> str:
    """The words of a name before its first number, which names of rows that differ in sizes begin
    with: `conv` of `conv_16_3_7`."""
    return re.split(r"[-_ ,.(]*\d", name, maxsplit=1)[0]


def rows_in_turn(
    table: Iterable[Row],
    name: Callable[[Row], str] = str,
    family: Callable[[Row], Hashable] | None = None,
) -> list[Row]:
    """The rows that this run takes, in their order: of each family one part of PARTS, at least one
    row, dealt by a hash of their names; all in `make test-all`. Families are those of `family_of`
    names where no `family` is given.

    Of the factors of a product of tables one is chosen from, as a part of one would always meet the
    same part of another. Levels take turns of their own."""
    return _current.rows(table, name, family)


def without_other_rows(
    items: Sequence[pytest.Item], rotation: Rotation
) -> tuple[list[pytest.Item], list[pytest.Item]]:
    """The items that run, and those that have their turn in other runs: of tests with the marker
    `in_turn`, whose arguments name the parameters that tell families apart."""
    tests = defaultdict[Hashable, list[pytest.Item]](list)
    for item in items:
        if marker := item.get_closest_marker("in_turn"):
            values = item.callspec.params  # type: ignore[attr-defined]
            family = tuple(str(values[name]) for name in marker.args)
            tests[item.nodeid.partition("[")[0], family].append(item)
    waits = {
        item
        for rows in tests.values()
        for item in {*rows}.difference(
            rotation.rows(rows, lambda item: item.nodeid, lambda _: None)
        )
    }
    return [i for i in items if i not in waits], [i for i in items if i in waits]


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
