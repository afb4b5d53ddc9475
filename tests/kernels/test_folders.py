"""The families of this package, by their folders."""

from __future__ import annotations

import itertools
import subprocess
import sys

import pytest

from tensorkiln.kernels import folders
from tensorkiln.kernels.family import Family
from tensorkiln.kernels.folders import built_in_families


def _operators(row: Family) -> set[str]:
    """What a row computes, or rewrites for a kernel."""
    return {*row.operators, *([row.algorithm.operator] if row.algorithm is not None else ())}


def test_what_rows_have_in_common_is_ordered_by_what_they_declare() -> None:
    """No order follows from the names of folders alone."""
    rows = folders._rows()
    after = {
        n: {k for k, b in enumerate(rows) if k != n and folders._precedes(a, b, n < k)}
        for n, a in enumerate(rows)
    }
    for _ in rows:  # what comes after others
        after = {n: ks.union(*(after[k] for k in ks)) for n, ks in after.items()}
    for (n, (folder, row)), (k, (folder2, row2)) in itertools.combinations(enumerate(rows), 2):
        operators = _operators(row) & _operators(row2)
        if operators and set(row.devices) & set(row2.devices):
            assert k in after[n] or n in after[k], f"{folder} and {folder2} share {operators}"


def test_plain_loops_come_last() -> None:
    for device in ("cpu", "opencl", "cuda", "webgpu"):
        rows = [row for row in built_in_families() if device in row.devices]
        assert [bool(row.operators) for row in rows] == [True] * (len(rows) - 1) + [False]


def test_a_circle_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [
        ("a", Family("a", ("relu",), "m:f", before=("b",))),
        ("b", Family("b", ("relu",), "m:f", before=("a",))),
    ]
    monkeypatch.setattr(folders, "_rows", lambda: rows)
    with pytest.raises(ValueError, match="cycle"):
        built_in_families.__wrapped__()


def test_families_are_imported_when_they_are_asked_for() -> None:
    program = (
        "import sys, tensorkiln.cli, tensorkiln.kernels\n"
        "loaded = [m for m in sys.modules if m.startswith('tensorkiln.families.')]\n"
        "from tensorkiln.kernels.folders import built_in_families; built_in_families()\n"
        "rows = [m for m in sys.modules if m.startswith('tensorkiln.families.')]\n"
        "print(*loaded, '|', *(m for m in rows if m.endswith(('.schedule', '.gpu', '.program'))))"
    )
    out = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert out.stdout.strip() == "|"
