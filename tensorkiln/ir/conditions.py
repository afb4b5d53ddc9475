"""Conditions on the sizes of a call of a graph function: its attribute `assumes`.

An entry is a condition over symbolic dimensions, `n <= 512`, or a pair of one and the reason for
it, which names the node: `(n >= 5, "top: a last dimension of 5 or more")`. A call with sizes for
which one does not hold is refused before anything runs.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from tensorkiln.ir.attrs import Attrs, AttrValue
from tensorkiln.ir.expr import Expr
from tensorkiln.ir.relax import Function


class SizeCondition(NamedTuple):
    """A condition on sizes, and the reason for it, or ""."""

    holds: Expr
    reason: str = ""


def conditions_of(f: Function) -> tuple[SizeCondition, ...]:
    """The conditions that `f` assumes, in their order."""
    rows = f.attrs.get("assumes", ())
    return tuple(SizeCondition(r) if isinstance(r, Expr) else SizeCondition(*r) for r in rows)


def as_attribute(conditions: Iterable[SizeCondition]) -> tuple[AttrValue, ...]:
    """The conditions as the value of `assumes`; of several that are equal, the first."""
    rows: dict[Expr, AttrValue] = {}
    for holds, reason in conditions:
        rows.setdefault(holds, (holds, reason) if reason else holds)
    return tuple(rows.values())


def with_conditions(attrs: Attrs, conditions: Iterable[SizeCondition]) -> Attrs:
    """The attributes of a function with these conditions instead of those that it assumes."""
    rows = as_attribute(conditions)
    other_attrs = {k: v for k, v in attrs.items() if k != "assumes"}
    return Attrs.of(**other_attrs, **({"assumes": rows} if rows else {}))
