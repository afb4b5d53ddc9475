"""Nodes of expressions that generators of programs draw from what their classes declare."""

from __future__ import annotations

from collections.abc import Callable

from tensorkiln.ir.dtype import DType
from tensorkiln.ir.expr import CALLED, Expr
from tensorkiln.ir.form import ARGUMENTS

OF_EXPRESSIONS = tuple(t for t in CALLED.values() if all(f.kind is Expr for f in ARGUMENTS[t]))
"""Those that have no fields but expressions, of the node's own type or of one that `form` says."""


def operand_types(node: type[Expr], dtype: DType, scalar: Callable[[], bool]) -> list[DType]:
    """The types of the operands of a node of type `dtype`; `scalar`: whether one whose type `form`
    says is one value for all lanes."""
    assert node.form is not None
    types = [node.form.like.get(f.name) for f in ARGUMENTS[node]]
    return [dtype if t is None else t if scalar() else t.with_lanes(dtype.lanes) for t in types]
