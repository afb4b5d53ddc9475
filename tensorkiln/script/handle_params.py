"""Parameters that are handles, and the statements that say which buffers they are:

    def f(a: T.handle):                           ->   def f(A: T.Buffer(("m",), "float32")):
        m = T.int64()
        A = T.match_buffer(a, (m,), "float32")

A handle without such a statement stays as it is.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping

from tensorkiln.script.scope import NameScope

_SYMBOLS = ("T.int64", "T.int32", "T.var", "T.SizeVar")


def with_buffers(scope: NameScope, node: ast.FunctionDef) -> ast.FunctionDef:
    """The definition with buffers as parameters in the place of handles that it matches; `node`
    itself if there are none."""
    handles = {a.arg for a in node.args.args if _is_handle(scope, a)}
    buffers: dict[str, tuple[str, ast.Call]] = {}
    symbols: set[str] = set()
    dropped: list[ast.stmt] = []
    for s in node.body if handles else ():
        name, call = _assigned(s)
        path = scope.dialect(call.func) if call is not None else ""
        if call is not None and path in _SYMBOLS and _has_no_value(call):
            symbols.add(name)
        elif call is not None and path == "T.match_buffer" and _handle_of(call) in handles:
            buffers.setdefault(_handle_of(call), (name, call))
        elif isinstance(s, ast.Expr):  # a docstring, T.func_attr
            continue
        else:
            break
        dropped.append(s)
    if not buffers:
        return node
    arguments = [_parameter(a, buffers, symbols) for a in node.args.args]
    definition = ast.FunctionDef(**{name: getattr(node, name) for name in node._fields})
    definition.args = ast.arguments(**{n: getattr(node.args, n) for n in node.args._fields})
    definition.args.args = arguments
    definition.body = [s for s in node.body if s not in dropped] or [
        ast.copy_location(ast.Pass(), node)
    ]
    return ast.copy_location(definition, node)


def _is_handle(scope: NameScope, arg: ast.arg) -> bool:
    a = arg.annotation
    a = a.func if isinstance(a, ast.Call) and not a.args else a
    return a is not None and scope.dialect(a) == "T.handle"


def _assigned(s: ast.stmt) -> tuple[str, ast.Call | None]:
    """The name and the call of a statement `name = call`."""
    target = s.targets[0] if isinstance(s, ast.Assign) and len(s.targets) == 1 else None
    value = s.value if isinstance(s, ast.Assign) else None
    if isinstance(target, ast.Name) and isinstance(value, ast.Call):
        return target.id, value
    return "", None


def _has_no_value(call: ast.Call) -> bool:
    """`T.int64()`, `T.var("int64")`, `T.SizeVar("n", "int64")`: a symbol, not a conversion."""
    texts = all(isinstance(a, ast.Constant) and isinstance(a.value, str) for a in call.args)
    return texts and all(k.arg in ("is_size_var", "dtype") for k in call.keywords)


def _handle_of(call: ast.Call) -> str:
    first = call.args[0] if call.args else None
    return first.id if isinstance(first, ast.Name) else ""


def _parameter(
    arg: ast.arg, buffers: Mapping[str, tuple[str, ast.Call]], symbols: set[str]
) -> ast.arg:
    if arg.arg not in buffers:
        return arg
    name, call = buffers[arg.arg]
    func = ast.copy_location(
        ast.Attribute(ast.copy_location(ast.Name("T", ast.Load()), call), "Buffer", ast.Load()),
        call,
    )
    arguments = [_shape(a, symbols) if i == 0 else a for i, a in enumerate(call.args[1:])]
    keywords = [
        ast.keyword(k.arg, _shape(k.value, symbols) if k.arg == "shape" else k.value)
        for k in call.keywords
    ]
    annotation = ast.copy_location(ast.Call(func, arguments, keywords), call)
    return ast.copy_location(ast.arg(name, annotation), arg)


def _shape(node: ast.expr, symbols: set[str]) -> ast.expr:
    """A shape whose extents of symbols are quoted, as those that introduce dimensions are."""
    if not isinstance(node, ast.Tuple | ast.List):
        return node
    extents = [_extent(e, symbols) for e in node.elts]
    return ast.copy_location(ast.Tuple(extents, ast.Load()), node)


def _extent(e: ast.expr, symbols: set[str]) -> ast.expr:
    if not any(isinstance(n, ast.Name) and n.id in symbols for n in ast.walk(e)):
        return e
    return ast.copy_location(ast.Constant(ast.unparse(e)), e)


__all__ = ["with_buffers"]
