"""Shapes: tuples of extents, which may introduce symbolic dimensions."""

from __future__ import annotations

import ast

from tensorkiln.ir.expr import Expr
from tensorkiln.script.parse_literals import NAMES, parse_any, parse_expr, typed_number
from tensorkiln.script.python_values import unwrap, wrap
from tensorkiln.script.scope import NameScope, Number, Python


def parse_shape(scope: NameScope, node: ast.expr) -> tuple[Expr, ...]:
    """Parse a shape, a tuple of extents or a captured sequence of them. An extent in quotes is
    an expression that may introduce symbolic dimensions."""
    if isinstance(node, (ast.Tuple, ast.List)):
        out: list[Expr] = []
        for item in node.elts:
            if isinstance(item, ast.Starred):
                out += _extents(scope, item.value)
            else:
                out.append(_extent(scope, item))
        return tuple(out)
    return tuple(_extents(scope, node))


def _extents(scope: NameScope, node: ast.expr) -> list[Expr]:
    """Return the extents in a captured Python sequence."""
    items = unwrap(parse_any(scope, node)) if isinstance(node, (*NAMES, ast.BinOp)) else None
    if not isinstance(items, tuple | list):
        raise scope.fail(node, "expected a shape", "a tuple, as (1, 16) or (4,)")
    out = []
    for item in items:
        if isinstance(item, str):
            quoted = ast.copy_location(ast.Constant(item), node)
            out.append(_extent(scope, quoted))
            continue
        value = wrap(item)
        if isinstance(value, Python):
            raise scope.fail(node, f"an extent is an integer, not {item!r}")
        out.append(_is_extent(scope, node, _typed(scope, node, value)))
    return out


def _typed(scope: NameScope, node: ast.expr, value: Expr | Number) -> Expr:
    return typed_number(scope, node, value, None) if isinstance(value, Number) else value


def _extent(scope: NameScope, node: ast.expr) -> Expr:
    """Parse one extent of a shape, an integer expression; see `shape`."""
    before, target = scope.define, node
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        target = parse_quoted(scope, node, node.value)
        scope.define = True
    try:
        value = parse_expr(scope, target)
    finally:
        scope.define = before
    return _is_extent(scope, node, value)


def _is_extent(scope: NameScope, node: ast.expr, value: Expr) -> Expr:
    if not value.dtype.is_int or value.dtype.lanes != 1:
        raise scope.fail(node, f"an extent is an integer, not {value.dtype}")
    return value


def parse_quoted(scope: NameScope, node: ast.Constant, text: str) -> ast.expr:
    """Return the syntax tree of an expression inside a string; its nodes lie at the string."""
    try:
        tree = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError):
        raise scope.fail(node, "not an expression") from None
    for inner in ast.walk(tree):
        ast.copy_location(inner, node)
    return tree
