"""`T.call(cls.kernel, x, storages[0] + 64, n)`: calls of functions of the same module."""

from __future__ import annotations

import ast

from tensorkiln.base.errors import nearest
from tensorkiln.ir.buffer import AddressOf, Buffer
from tensorkiln.ir.expr import Expr, IntImm
from tensorkiln.ir.stmt import CallKernel
from tensorkiln.script.parse_expr import ExprParser


def parse_call(exprs: ExprParser, node: ast.Call) -> CallKernel:
    """Parse `T.call`. The name of a buffer as an argument is the address of its first element."""
    if not node.args:
        raise exprs.fail(node, "expected a function of this module", "as T.call(cls.kernel, x)")
    name = _name(exprs, node.args[0])
    span = ""
    for k in node.keywords:
        if k.arg != "span":
            raise exprs.fail(k.value, f"unknown option {k.arg!r} of T.call", "it takes span=")
        span = exprs.string(k.value)
    return CallKernel(name, tuple(_argument(exprs, a) for a in node.args[1:]), span)


def _name(exprs: ExprParser, node: ast.expr) -> str:
    """Return the name of the function that `cls.kernel` or `cls["any name"]` refers to."""
    scope = exprs.scope
    match node:
        case ast.Attribute(value=ast.Name(id=word), attr=name) if word in scope.words:
            pass
        case ast.Subscript(value=ast.Name(id=word), slice=ast.Constant(value=str(name))) if (
            word in scope.words
        ):
            pass
        case _:
            raise exprs.fail(node, "expected a function of this module", "as cls.kernel")
    if scope.functions is not None and name not in scope.functions:
        hint = nearest(name, scope.functions)
        raise exprs.fail(node, f"no function {name!r} in this module", hint)
    return name


def _argument(exprs: ExprParser, node: ast.expr) -> Expr:
    found = exprs.scope.bound.get(node.id) if isinstance(node, ast.Name) else None
    if isinstance(found, Buffer):
        return AddressOf(found, tuple(IntImm(0) for _ in found.shape))
    return exprs.expr(node)
