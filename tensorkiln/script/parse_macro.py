"""Inlining of macros: their statements, with parameters bound to the arguments of a call."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from tensorkiln.base.errors import UserError
from tensorkiln.ir.expr import Expr, IntImm, Var
from tensorkiln.ir.stmt import Let, Seq, Stmt
from tensorkiln.ir.visit import has_load
from tensorkiln.script.macro import Macro
from tensorkiln.script.parse_body import parse_items
from tensorkiln.script.parse_literals import parse_argument
from tensorkiln.script.python_values import Value
from tensorkiln.script.scope import NameScope

MACRO_CALLS = 10_000


def inline_macro(scope: NameScope, macro: Macro, call: ast.Call) -> list[Stmt]:
    """Return the macro's statements for a call. An argument that reads memory is evaluated once,
    before them, in a `Let`. UserError if a function has more than MACRO_CALLS calls of macros,
    those in macros counted as often as they are inlined."""
    scope.macro_calls.append(macro.name)
    if len(scope.macro_calls) > MACRO_CALLS:
        raise scope.fail(call, f"more than {MACRO_CALLS:,} calls of macros in a function")
    arguments = _arguments(scope, macro, call)
    inner = replace(
        scope,
        source=macro.source,
        captured=macro.captured,
        meanings={},
        trusted=macro.trusted,
        define=False,
    )
    lets: list[tuple[Var, Expr]] = []
    with _named(scope, macro, call):
        for arg in _names(macro):
            value = arguments[arg.arg] if arg.arg in arguments else _default(inner, macro, arg)
            if isinstance(value, Expr) and not isinstance(value, Var | IntImm) and has_load(value):
                lets.append((Var(arg.arg, value.dtype), value))
                value = lets[-1][0]
            inner.bind(arg, arg.arg, value)
        body = parse_items(inner, macro.node.body)
    for var, value in reversed(lets):
        body = [Let(var, value, body[0] if len(body) == 1 else Seq(tuple(body)))]
    return body


def _names(macro: Macro) -> list[ast.arg]:
    a = macro.node.args
    if a.vararg or a.kwarg or a.posonlyargs:
        raise macro.source.error(macro.node, "the parameters of a macro are plain names")
    return [*a.args, *a.kwonlyargs]


def _arguments(scope: NameScope, macro: Macro, call: ast.Call) -> dict[str, Value]:
    names = [a.arg for a in _names(macro)]
    places = len(macro.node.args.args)
    if len(call.args) > places:
        raise scope.fail(call, f"{macro.name} takes {places} arguments, got {len(call.args)}")
    out = {name: parse_argument(scope, a) for name, a in zip(names, call.args, strict=False)}
    for k in call.keywords:
        if k.arg is None or k.arg not in names or k.arg in out:
            hint = f"its parameters: {', '.join(names)}"
            raise scope.fail(k.value, f"{macro.name} takes no {k.arg!r} here", hint)
        out[k.arg] = parse_argument(scope, k.value)
    has_default = {a.arg for a in _names(macro) if _default_node(macro, a) is not None}
    missing = [n for n in names if n not in out and n not in has_default]
    if missing:
        raise scope.fail(call, f"{macro.name} needs {', '.join(missing)}")
    return out


def _default_node(macro: Macro, arg: ast.arg) -> ast.expr | None:
    a = macro.node.args
    if arg in a.kwonlyargs:
        return a.kw_defaults[a.kwonlyargs.index(arg)]
    index = a.args.index(arg) - (len(a.args) - len(a.defaults))
    return a.defaults[index] if index >= 0 else None


def _default(inner: NameScope, macro: Macro, arg: ast.arg) -> Value:
    node = _default_node(macro, arg)
    assert node is not None, arg.arg
    return parse_argument(inner, node)


@contextmanager
def _named(scope: NameScope, macro: Macro, call: ast.Call) -> Iterator[None]:
    """Add the place of the call to errors inside the macro."""
    try:
        yield
    except UserError as e:
        place = f"in macro {macro.name!r}, called at {scope.source.place(call)}"
        message = f"{e.message}\n    {place}"
        raise UserError(message, code=e.code, where=e.where, hint=e.hint) from e.__cause__
