"""The families of this package: rows and cases of the folders of `tensorkiln/families`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from graphlib import TopologicalSorter
from importlib import import_module, resources
from typing import TYPE_CHECKING

from tensorkiln.kernels.family import Family

if TYPE_CHECKING:
    from tensorkiln.kernels.case import Case

_PACKAGE = "tensorkiln.families"
# A folder's file with `ROWS`, and that with the function `schedule` of their kernels: for
# processors, and for devices whose threads run in blocks.
_FILES = {"row": "schedule", "gpu_row": "gpu"}


@cache
def built_in_families() -> tuple[Family, ...]:
    """All rows, each before those that `Family.before` names."""
    rows = _rows()
    graph = {
        n: [k for k, a in enumerate(rows) if k != n and _precedes(a, b, k < n)]
        for n, b in enumerate(rows)
    }
    return tuple(rows[n][1] for n in TopologicalSorter(graph).static_order())


@cache
def cases(table: str) -> Mapping[str, Case]:
    """The example graphs of all families by name: the `table` "CASES" for processors, "GPU_CASES"
    for devices whose threads run in blocks. ValueError for two of one name."""
    named: dict[str, Case] = {}
    for folder in _folders_with("case"):
        new = getattr(import_module(f"{_PACKAGE}.{folder}.case"), table, {})
        if twice := named.keys() & new:
            raise ValueError(f"{folder}: other cases have the names {sorted(twice)}")
        named |= new
    return named


def _folders_with(file: str) -> list[str]:
    """The folders that have a Python file of a name, sorted."""
    root = resources.files(_PACKAGE)
    return sorted(f.name for f in root.iterdir() if f.joinpath(f"{file}.py").is_file())


def _rows() -> list[tuple[str, Family]]:
    """Each row, after the name of its folder."""
    return [
        (folder, replace(row, schedule=f"{_PACKAGE}.{folder}.{schedule}:schedule"))
        for rows, schedule in _FILES.items()
        for folder in _folders_with(rows)
        for row in import_module(f"{_PACKAGE}.{folder}.{rows}").ROWS
    ]


def _precedes(a: tuple[str, Family], b: tuple[str, Family], is_earlier: bool) -> bool:
    """Whether row `a` comes before row `b`; rows of one folder in the order of their file."""
    (folder, row), (folder_b, row_b) = a, b
    if bool(row.operators) != bool(row_b.operators):
        return bool(row.operators)
    return folder_b in row.before or (folder == folder_b and is_earlier)
