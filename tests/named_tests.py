"""Pages that name tests, as `tests/folder/test_file.py::test_name` in backquotes."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
NAMED = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")


def absent_tests(page: str) -> Iterator[str]:
    """The tests that a page names and that are not there."""
    for file, name in NAMED.findall(page):
        path = ROOT / file
        tree = ast.parse(path.read_text(encoding="utf-8") if path.exists() else "")
        functions = {f.name for f in tree.body if isinstance(f, ast.FunctionDef)}
        if name not in functions or not name.startswith("test_"):
            yield f"{file}::{name}"


def names_tests_alone(cell: str) -> bool:
    """Whether a cell of a table is a list of tests, and nothing else."""
    return bool(NAMED.findall(cell)) and not NAMED.sub("", cell).strip(", ")
