"""The results of an import: their names and types, and what is computed for none of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from tensorkiln.base.text import unused
from tensorkiln.ir.array_types import ARRAY_TYPES
from tensorkiln.ir.relax import Function, MatchCast, RVar
from tensorkiln.ir.visit_graph import variables


def distinct(results: Sequence[tuple[str, RVar]]) -> list[tuple[str, RVar]]:
    """Results with names of their own: one that is listed again is `name_2`."""
    taken = {name for name, _ in results}
    found: dict[str, RVar] = {}
    for name, value in results:
        found[unused(name, taken) if name in found else name] = value
        taken.update(found)
    return list(found.items())


def array_types(f: Function, types: Mapping[str, str]) -> dict[str, object]:
    """The attribute of `f` that says the types of arrays, by input or output; empty: its tensor's.
    Functions with control flow have none: they take and give values, whose elements are bytes."""
    pairs = tuple((name, kind) for name, kind in types.items() if kind)
    return {} if f.is_outer or not pairs else {ARRAY_TYPES: pairs}


def live(f: Function) -> Function:
    """`f` without unused bindings, which shape arithmetic that was folded later leaves behind."""
    needed = set(variables(f.result))
    kept = []
    for binding in reversed(f.bindings):
        if binding.var in needed or isinstance(binding.value, MatchCast):
            kept.append(binding)
            needed.update(variables(binding.value))
    return f if len(kept) == len(f.bindings) else replace(f, bindings=tuple(reversed(kept)))
