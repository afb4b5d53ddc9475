"""The attribute `kept` of graph functions whose kernels' results are returned too
(`transform/relax/keep_values.py`): rows of the number of a result, its kernel, its names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tensorkiln.ir.attrs import Attrs


@dataclass(frozen=True, slots=True)
class Kept:
    """Result `output` of a function is what `kernel` computes; `names` are those that graph passes
    have for the value, the first one its own and the others of reshapes of it."""

    output: int
    kernel: str
    names: tuple[str, ...]


def kept_of(attrs: Attrs) -> tuple[Kept, ...]:
    """The rows of a function's attribute `kept`; none without it."""
    return tuple(Kept(row[0], row[1], tuple(row[2:])) for row in attrs.get("kept", ()))


def with_kernels_renamed(attrs: Attrs, names: Mapping[str, str]) -> Attrs:
    """The attributes with other names for kernels, old -> new."""
    if "kept" not in attrs:
        return attrs
    rows = tuple((row[0], names.get(row[1], row[1]), *row[2:]) for row in attrs["kept"])
    return Attrs.of(**{**attrs, "kept": rows})
