"""`T.call(cls.kernel, x, storages[0] + 64, n)`: calls of functions of the same module."""

from __future__ import annotations

import ast

from tensorkiln.ir.buffer import AddressOf, Buffer
from tensorkiln.ir.expr import Expr, IntImm
from tensorkiln.ir.stmt import CallKernel
from tensorkiln.script.arguments import function_name, options
from tensorkiln.script.parse_literals import parse_expr, parse_integer, parse_string
from tensorkiln.script.scope import NameScope


def parse_call(scope: NameScope, node: ast.Call) -> CallKernel:
    """Parse `T.call`. The name of a buffer as an argument is the address of its first element."""
    if not node.args:
        raise scope.fail(node, "expected a function of this module", "as T.call(cls.kernel, x)")
    name = function_name(scope, node.args[0], scope.words, scope.functions)
    if name is None:
        raise scope.fail(node.args[0], "expected a function of this module", "as cls.kernel")
    nodes = options(scope, node.keywords, ("grid", "block", "span"), node.func)
    grid, block = (_three(scope, nodes.get(word)) for word in ("grid", "block"))
    span = parse_string(scope, nodes["span"]) if "span" in nodes else ""
    args = tuple(_argument(scope, a) for a in node.args[1:])
    extents = tuple(parse_expr(scope, e) for e in grid)
    return CallKernel(name, args, span, extents, tuple(parse_integer(scope, e) for e in block))


def _three(scope: NameScope, node: ast.expr | None) -> list[ast.expr]:
    """The items of `(x, y, z)`; none without a node."""
    if node is None:
        return []
    if not isinstance(node, ast.Tuple) or len(node.elts) != 3:
        raise scope.fail(node, "expected (x, y, z)", "such as (n, 1, 1)")
    return node.elts


def _argument(scope: NameScope, node: ast.expr) -> Expr:
    meaning = scope.meanings.get(node.id) if isinstance(node, ast.Name) else None
    if isinstance(meaning, Buffer):
        return AddressOf(meaning, tuple(IntImm(0) for _ in meaning.shape))
    return parse_expr(scope, node)
