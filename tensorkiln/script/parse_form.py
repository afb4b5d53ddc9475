"""Calls that are nodes: their arguments are the fields of a class that has a `form`."""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from typing import Any

from tensorkiln.ir.buffer import Buffer
from tensorkiln.ir.dtype import DType
from tensorkiln.ir.expr import Expr
from tensorkiln.ir.form import ARGUMENTS
from tensorkiln.script.arguments import options
from tensorkiln.script.parse_buffer import parse_buffer, parse_indices
from tensorkiln.script.parse_literals import (
    parse_dtype,
    parse_expr,
    parse_flag,
    parse_integer,
    parse_integers,
    parse_same,
    parse_string,
)
from tensorkiln.script.scope import NameScope


def parse_fields(
    scope: NameScope, call: ast.Call, node: type, operands: Sequence[ast.expr]
) -> dict[str, Any]:
    """Parse the fields of a node, of which `operands` are those without a default. Raise UserError
    for another number of them, an unknown option, or an argument of another kind than its field."""
    form, fields = node.form, ARGUMENTS[node]  # type: ignore[attr-defined]
    names = [f.name for f in fields if not f.is_option]
    defaults = {f.name: f.default for f in fields if f.is_option}
    if len(operands) != len(names):
        usage = ", ".join([*names, *(f"{name}={value!r}" for name, value in defaults.items())])
        raise scope.fail(call, f"expected T.{form.word}({usage})")
    nodes = dict(zip(names, operands, strict=True))
    nodes |= options(scope, call.keywords, [*defaults], call.func)
    unified = parse_same(scope, [nodes[name] for name in form.one_type]) if form.one_type else []
    values: dict[str, Any] = dict(zip(form.one_type, unified, strict=True))
    for f in fields:
        if f.name not in nodes or f.name in values:
            continue
        if f.kind == tuple[Expr, ...]:
            values[f.name] = parse_indices(scope, nodes[f.name], values["buffer"])
        elif f.kind is Expr:
            values[f.name] = parse_expr(scope, nodes[f.name], form.like.get(f.name))
        else:
            values[f.name] = _READERS[f.kind](scope, nodes[f.name])
    return values


# By annotation of a field, what parses it.
_READERS: dict[Any, Callable[[NameScope, ast.expr], Any]] = {
    Buffer: parse_buffer,
    DType: parse_dtype,
    bool: parse_flag,
    int: parse_integer,
    str: parse_string,
    tuple[int, ...]: parse_integers,
}
