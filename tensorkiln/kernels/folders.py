"""The families of this package: the rows of the folders of `tensorkiln/families`."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from graphlib import TopologicalSorter
from importlib import import_module, resources

from tensorkiln.kernels.family import Family

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


def _rows() -> list[tuple[str, Family]]:
    """Each row, after the name of its folder."""
    root = resources.files(_PACKAGE)
    folders = sorted(entry.name for entry in root.iterdir() if entry.is_dir())
    return [
        (folder, replace(row, schedule=f"{_PACKAGE}.{folder}.{schedule}:schedule"))
        for folder in folders
        for rows, schedule in _FILES.items()
        if root.joinpath(folder, f"{rows}.py").is_file()
        for row in import_module(f"{_PACKAGE}.{folder}.{rows}").ROWS
    ]


def _precedes(a: tuple[str, Family], b: tuple[str, Family], is_earlier: bool) -> bool:
    """Whether row `a` comes before row `b`; rows of one folder in the order of their file."""
    (folder, row), (folder_b, row_b) = a, b
    if bool(row.operators) != bool(row_b.operators):
        return bool(row.operators)
    return folder_b in row.before or (folder == folder_b and is_earlier)
