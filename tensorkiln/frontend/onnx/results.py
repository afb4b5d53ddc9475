"""The names of a model's results, and the types of its arrays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tensorkiln.base.text import unused
from tensorkiln.ir.array_types import ARRAY_TYPES
from tensorkiln.ir.relax import Function, RVar


def distinct(results: Sequence[tuple[str, RVar]]) -> list[tuple[str, RVar]]:
    """Results with names of their own: one that is listed again is `name_2`."""
    names = {name for name, _ in results}
    result_of_name: dict[str, RVar] = {}
    for name, value in results:
        result_of_name[unused(name, names) if name in result_of_name else name] = value
        names.update(result_of_name)
    return list(result_of_name.items())


def array_types(f: Function, types: Mapping[str, str]) -> dict[str, object]:
    """The attribute of `f` that says the types of arrays, by input or output; empty: its tensor's.
    Functions with control flow have none: they take and give values, whose elements are bytes."""
    pairs = tuple((name, kind) for name, kind in types.items() if kind)
    return {} if f.is_outer or not pairs else {ARRAY_TYPES: pairs}
