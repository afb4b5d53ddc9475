"""Expressions that are evaluated while parsing: attributes, sequences, f-strings, Python calls."""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import Any

from tensorkiln.ir.expr import Expr
from tensorkiln.script.macro import Macro
from tensorkiln.script.parse_literals import in_python, parse_any, parse_argument
from tensorkiln.script.python_values import BUILTINS, OWN_BUILTINS, Value, attribute, unwrap, wrap
from tensorkiln.script.scope import NameScope, Python
from tensorkiln.script.spellings import instead_of


def _sequence(scope: NameScope, node: ast.Tuple | ast.List) -> Value:
    """Evaluate a list or a tuple to a tuple of Python values and expressions."""
    items = [parse_any(scope, x) for x in node.elts]
    captured = any(isinstance(v, Expr) or v.captured for v in items)
    return Python(tuple(map(unwrap, items)), captured)


def _text(scope: NameScope, node: ast.JoinedStr) -> Value:
    """Evaluate an f-string of Python values; conversions and formats are refused."""
    parts = []
    for part in node.values:
        if isinstance(part, ast.Constant):
            parts.append(str(part.value))
            continue
        assert isinstance(part, ast.FormattedValue)
        value = parse_any(scope, part.value)
        if isinstance(value, Expr) or part.conversion != -1 or part.format_spec is not None:
            raise scope.fail(part.value, "an f-string takes only Python values without a format")
        parts.append(str(unwrap(value)))
    return Python("".join(parts))


def _slice(scope: NameScope, node: ast.Slice) -> Value:
    """Evaluate a slice, the index of a Python sequence."""
    ends = (node.lower, node.upper, node.step)
    bounds = [None if x is None else unwrap(parse_any(scope, x)) for x in ends]
    return Python(slice(*bounds), captured=False)


def _attribute(scope: NameScope, node: ast.Attribute) -> Value:
    """Evaluate `x.name` for a Python value, a buffer or an expression; raise UserError if the
    script may not read that attribute."""
    if scope.dialect(node):
        raise scope.fail(node, f"{scope.dialect(node)} cannot be used as a value")
    base = parse_any(scope, node.value)
    with in_python(scope, node):
        member = attribute(unwrap(base), node.attr, scope.trusted)
    if member is None:
        type_name = type(unwrap(base)).__name__
        message = f"a {type_name} has no attribute {node.attr!r} that a script may use"
        raise scope.fail(node, message, instead_of(f"x.{node.attr}"))
    return member


def call_python(scope: NameScope, node: ast.Call) -> Value:
    """Call a captured Python function, or a builtin that scripts may use, while parsing."""
    f = python_function(scope, node.func)
    if not callable(f) or isinstance(f, Macro):
        macro = isinstance(f, Macro)
        message = "a macro is a statement" if macro else "not a function of the script language"
        raise scope.fail(node.func, message, "functions begin with T., or are captured from Python")
    args: list[Any] = []
    for a in node.args:
        if isinstance(a, ast.Starred):
            args += unwrap(parse_any(scope, a.value))
        else:
            args.append(unwrap(parse_argument(scope, a)))
    options = {k.arg: unwrap(parse_argument(scope, k.value)) for k in node.keywords if k.arg}
    if len(options) != len(node.keywords):
        raise scope.fail(node, "a script cannot use ** in a call")
    with in_python(scope, node):
        return wrap(f(*args, **options))


def python_function(scope: NameScope, node: ast.expr) -> object:
    """Return the Python object that a call names, for instance a function or macro; None if it
    is a name after `T.` or `R.`, an expression, or unknown."""
    if isinstance(node, ast.Name) and node.id not in scope.meanings:
        table = OWN_BUILTINS if scope.trusted else BUILTINS
        return scope.captured.get(node.id, table.get(node.id))
    if scope.dialect(node) or not isinstance(node, ast.Name | ast.Attribute):
        return None
    meaning = parse_any(scope, node)
    return None if isinstance(meaning, Expr) else unwrap(meaning)


EXPRESSIONS: dict[type[ast.expr], Callable[..., Value]] = {
    ast.Attribute: _attribute,
    ast.Tuple: _sequence,
    ast.List: _sequence,
    ast.JoinedStr: _text,
    ast.Slice: _slice,
}
