"""Bodies of tensor programs: runs of statements, of which some bind names for the rest."""

from __future__ import annotations

import ast

from tensorkiln.base.errors import UserError
from tensorkiln.ir.stmt import Seq, Stmt
from tensorkiln.script.parse_buffer import Wrap
from tensorkiln.script.parse_literals import in_python, parse_any
from tensorkiln.script.python_values import is_python, steps, unwrap, wrap
from tensorkiln.script.scope import NameScope

_STATEMENTS = "there are loops, if, while, assert, stores A[i] = v, x = v, T.block, T.alloc_buffer"


def parse_body(scope: NameScope, nodes: list[ast.stmt]) -> Stmt:
    """Parse a block to a single statement, a `Seq` unless it has exactly one."""
    items = parse_items(scope, nodes)
    return items[0] if len(items) == 1 else Seq(tuple(items))


def parse_items(scope: NameScope, nodes: list[ast.stmt]) -> list[Stmt]:
    """Parse a block to its statements. One that binds a name, such as `x = ...` (`Let`) or
    `T.alloc_buffer`, takes all statements after it as its body."""
    groups: list[list[Stmt]] = [[]]
    wraps: list[Wrap] = []
    todo = nodes[::-1]
    with scope.inner():
        while todo:
            node = todo.pop()
            if isinstance(node, ast.If):
                branch = _decided(scope, node)
                if branch is not None:
                    todo += branch[::-1]
                    continue
            wrap_or_stmts = _statement(scope, node)
            if isinstance(wrap_or_stmts, list):
                groups[-1] += wrap_or_stmts
            else:
                wraps.append(wrap_or_stmts)
                groups.append([])
    while wraps:
        stmts = groups.pop()
        body = stmts[0] if len(stmts) == 1 else Seq(tuple(stmts))
        groups[-1].append(wraps.pop()(body))
    return groups[0]


def _decided(scope: NameScope, node: ast.If) -> list[ast.stmt] | None:
    """Return the statements of the branch taken if the condition is a Python value, else
    None."""
    test = parse_any(scope, node.test)
    if not is_python(test):
        return None
    return node.body if unwrap(test) else node.orelse


def unpack(scope: NameScope, target: ast.expr, value: object, node: ast.expr) -> None:
    """Bind a name to a Python value, or a tuple of names to its items."""
    if isinstance(target, ast.Name):
        meaning = wrap(value)
        scope.bind(target, target.id, meaning)
        return
    if not isinstance(target, ast.Tuple | ast.List):
        raise scope.fail(target, "expected a name")
    with in_python(scope, node):
        items = steps(value)
    if len(items) != len(target.elts):
        raise scope.fail(node, f"{len(target.elts)} names for {len(items)} values")
    for name, item in zip(target.elts, items, strict=True):
        unpack(scope, name, item, node)


def _statement(scope: NameScope, node: ast.stmt) -> Wrap | list[Stmt]:
    """Parse one statement. If it binds a name, return a function that makes the statement from the
    rest of the block. Otherwise return the statements that it is: several for an unrolled loop or a
    macro, none for an assignment of a Python value, which is bound while parsing."""
    parse = scope.grammar.statements.get(type(node))
    if parse is None:
        raise not_a_statement(scope, node)
    wrap_or_stmts: Wrap | list[Stmt] = parse(scope, node)
    return wrap_or_stmts


def not_a_statement(scope: NameScope, node: ast.AST, hint: str = "") -> UserError:
    """Return the UserError for a node that is not a statement of tensor programs."""
    return scope.fail(node, "not a statement of tensor programs", hint or _STATEMENTS)
