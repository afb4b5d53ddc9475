"""What functions of both languages begin with: parameters and `func_attr`."""

from __future__ import annotations

import ast

from tensorkiln.script.scope import NameScope


def plain_arguments(scope: NameScope, node: ast.FunctionDef) -> list[ast.arg]:
    """Return the parameters; raise UserError if there are defaults, `*args`, `**kwargs`, or
    positional-only or keyword-only parameters."""
    a = node.args
    if a.posonlyargs or a.kwonlyargs or a.vararg or a.kwarg or a.defaults:
        raise scope.fail(node, "parameters are plain names with a type")
    return a.args


def annotation(scope: NameScope, arg: ast.arg, hint: str) -> ast.expr:
    """Return the annotation of a parameter; raise UserError if it has none."""
    if arg.annotation is None:
        raise scope.fail(arg, f"parameter {arg.arg!r} needs a type", hint)
    return arg.annotation


def take_func_attr(
    scope: NameScope, nodes: list[ast.stmt], word: str
) -> tuple[list[ast.stmt], ast.expr | None]:
    """Return (other statements, argument) if the first statement of a function, apart from a
    docstring, is a call of `word`, e.g. `T.func_attr({...})`; else (nodes, None)."""
    start = 1 if ast.get_docstring(ast.Module(nodes, [])) is not None else 0
    match nodes[start : start + 1]:
        case [ast.Expr(value=ast.Call(args=[argument], keywords=[]) as call)]:
            if scope.dialect(call.func) == word:
                return nodes[:start] + nodes[start + 1 :], argument
    return nodes, None
