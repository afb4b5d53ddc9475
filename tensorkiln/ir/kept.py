"""The attribute `kept` of graph functions whose kernels' results are known besides
(`transform/relax/keep_values.py`): rows of a number, a kernel, and the names of a value.

The number is that of a result. An outer function shows its values while it runs: it calls the
function named `KEPT_VALUES` with the number of the first row and a tuple of the values of that row
and those after it. Each library has a function of this name that does nothing; one that is
registered takes its place (`call_packed`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tensorkiln.ir.attrs import Attrs

KEPT_VALUES = "kiln_kept_values"


@dataclass(frozen=True, slots=True)
class Kept:
    """Result `output` of a function is what `kernel`, or if that is empty a host step, computes.
    `names` are its names in graph passes: its own, then those of reshapes of it."""

    output: int
    kernel: str
    names: tuple[str, ...]


def kept_of(attrs: Mapping[str, Any]) -> tuple[Kept, ...]:
    """The rows of a function's attribute `kept`; none without it."""
    return tuple(Kept(row[0], row[1], tuple(row[2:])) for row in attrs.get("kept", ()))


def with_kernels_renamed(attrs: Attrs, names: Mapping[str, str]) -> Attrs:
    """The attributes, `kept` and `tuned`, with other names for kernels, old -> new."""
    changed: dict[str, Any] = {}
    if "kept" in attrs:
        rows = attrs["kept"]
        changed["kept"] = tuple((row[0], names.get(row[1], row[1]), *row[2:]) for row in rows)
    if "tuned" in attrs:
        changed["tuned"] = tuple((names.get(row[0], row[0]), *row[1:]) for row in attrs["tuned"])
    return Attrs.of(**{**attrs, **changed}) if changed else attrs
