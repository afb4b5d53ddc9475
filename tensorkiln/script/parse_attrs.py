"""Attributes of functions, loops, blocks and calls."""

from __future__ import annotations

import ast

from tensorkiln.base.dependency import FIELDS, ExternalDependency
from tensorkiln.base.errors import UserError
from tensorkiln.ir.attrs import Attrs, AttrValue
from tensorkiln.ir.expr import Expr
from tensorkiln.ir.known_attrs import CALL_ATTRS, DEPENDENCIES, Table, problem_of
from tensorkiln.script.arguments import arguments
from tensorkiln.script.parse_literals import parse_any, parse_literal
from tensorkiln.script.python_values import unwrap
from tensorkiln.script.scope import NameScope, plain
from tensorkiln.target import Target


def parse_attr(scope: NameScope, node: ast.expr) -> AttrValue:
    """Parse the value of an attribute: a literal, a captured Python value, or an expression
    over symbolic dimensions."""
    match node:
        case ast.Constant(value=(None | bool() | int() | float() | str()) as value):
            return value
        case ast.Tuple(elts=elts) | ast.List(elts=elts):
            return tuple(parse_attr(scope, x) for x in elts)
        case ast.Call(func=ast.Name(id="float")):
            return parse_literal(scope, node)  # type: ignore[return-value]
        case ast.Call() if scope.dialect(node.func)[2:] == "ExternalDependency":
            return _dependency(scope, node)
    attr_value = parse_any(scope, node)
    if isinstance(attr_value, Expr):
        return attr_value
    constant = plain(unwrap(attr_value))
    if constant is None and unwrap(attr_value) is not None:
        raise scope.fail(node, f"a Python {type(unwrap(attr_value)).__name__} as an attribute")
    return constant  # type: ignore[return-value]


def _dependency(scope: NameScope, node: ast.Call) -> ExternalDependency:
    """`T.ExternalDependency("blas", "https://...", version_spec="1.2")`, also with `R`."""
    nodes = arguments(scope, node, FIELDS, owner="an external dependency")
    missing = [name for name in FIELDS[:2] if name not in nodes]
    if missing:
        raise scope.fail(node, f"an external dependency needs its {missing[0]}")
    fields = {name: parse_attr(scope, value) for name, value in nodes.items()}
    try:
        return ExternalDependency(**fields)  # type: ignore[arg-type]
    except UserError as error:
        raise scope.fail(node, f"{error.where}: {error.message}", error.hint) from None


def parse_dependencies(scope: NameScope, node: ast.expr) -> tuple[ExternalDependency, ...]:
    """Parse a list of external dependencies."""
    dependencies = parse_attr(scope, node)
    problem = problem_of(CALL_ATTRS, "", DEPENDENCIES, dependencies)
    if problem is not None:
        raise scope.fail(node, *problem)
    return dependencies  # type: ignore[return-value]


def parse_attrs(scope: NameScope, node: ast.expr) -> Attrs:
    """Parse attributes: `{"name": value}`, or a captured dict."""
    if isinstance(node, ast.Dict):
        out: dict[str, AttrValue] = {}
        for k, v in zip(node.keys, node.values, strict=True):
            if not isinstance(k, ast.Constant) or not isinstance(k.value, str):
                raise scope.fail(k or v, "attribute names are strings")
            out[k.value] = _target(scope, v) if k.value == "target" else parse_attr(scope, v)
        return Attrs.of(**out)
    attr_dict = unwrap(parse_any(scope, node))
    if not isinstance(attr_dict, dict) or not all(isinstance(k, str) for k in attr_dict):
        raise scope.fail(node, "expected attributes as a dict", 'as {"mine.depth": 4}')
    captured = {
        k: _target_text(scope, node, v) if k == "target" else plain(v) for k, v in attr_dict.items()
    }
    return Attrs.of(**captured)  # type: ignore[arg-type]


def _target(scope: NameScope, node: ast.expr) -> AttrValue:
    """The text of a target that is written as text, a dict, `T.target(spec, host=None)` or a
    captured Python value; other values as they are, for the table of attributes to refuse."""
    return _target_text(scope, node, _target_spec(scope, node))


def _target_text(scope: NameScope, node: ast.expr, spec: object) -> AttrValue:
    if isinstance(spec, Target):
        return str(spec)
    if not isinstance(spec, dict):
        return plain(spec)  # type: ignore[return-value]
    return str(_checked_target(scope, node, spec))


def _checked_target(scope: NameScope, node: ast.expr, spec: object, host: object = None) -> Target:
    try:
        return Target(spec, host)  # type: ignore[arg-type]
    except UserError as error:
        raise scope.fail(node, f"{error.where}: {error.message}", error.hint) from None


def _target_spec(scope: NameScope, node: ast.expr) -> object:
    """What is written as a target, or as a part of one: fields of dicts, and lists of these."""
    match node:
        case ast.Dict(keys=keys, values=values):
            fields: dict[str, object] = {}
            for k, v in zip(keys, values, strict=True):
                if not isinstance(k, ast.Constant) or not isinstance(k.value, str):
                    raise scope.fail(k or v, "the fields of a target have names, as 'kind'")
                if k.value in fields:
                    raise scope.fail(k, f"field {k.value!r} is given twice")
                fields[k.value] = _target_spec(scope, v)
            return fields
        case ast.List(elts=elts) | ast.Tuple(elts=elts):
            return [_target_spec(scope, x) for x in elts]
        case ast.Call(func=func) if scope.dialect(func)[2:] == "target":
            return _target_call(scope, node)
        case ast.Constant(value=value):
            return value
    return unwrap(parse_any(scope, node))


def _target_call(scope: NameScope, node: ast.Call) -> Target:
    """`T.target("cuda", host="llvm")`, also with `R`."""
    specs = [_target_spec(scope, x) for x in node.args]
    named = {k.arg or "": _target_spec(scope, k.value) for k in node.keywords}
    unknown = next((name for name in named if name != "host"), None)
    if not 1 <= len(specs) <= 2 or unknown is not None or (len(specs) == 2 and named):
        raise scope.fail(node, "expected T.target(target) or T.target(target, host=target)")
    return _checked_target(scope, node, specs[0], specs[1] if specs[1:] else named.get("host"))


def parse_known_attrs(scope: NameScope, node: ast.expr, table: Table, name: str) -> Attrs:
    """Parse the attributes of `name`. Raise UserError unless each is in the table with a valid
    value, or has a dot in its name."""
    attrs, places = parse_attrs(scope, node), {}
    if isinstance(node, ast.Dict):
        keys = zip(node.keys, node.values, strict=True)
        places = {k.value: v for k, v in keys if isinstance(k, ast.Constant)}
    for key, value in attrs.items_:
        problem = problem_of(table, name, key, value)
        if problem is not None:
            raise scope.fail(places.get(key, node), *problem)
    return attrs
