"""Tensor programs: `@T.prim_func` with its options and parameters."""

from __future__ import annotations

import ast
from typing import Any

from tensorkiln.ir.attrs import NO_ATTRS
from tensorkiln.ir.expr import Var
from tensorkiln.ir.known_attrs import PROGRAM_ATTRS
from tensorkiln.ir.outputs import inferred_outputs
from tensorkiln.ir.stmt import Param, PrimFunc
from tensorkiln.script.arguments import options
from tensorkiln.script.handle_params import with_buffers
from tensorkiln.script.parse_attrs import parse_known_attrs
from tensorkiln.script.parse_body import parse_body
from tensorkiln.script.parse_buffer import parse_buffer_type
from tensorkiln.script.parse_header import annotation, plain_arguments, take_func_attr
from tensorkiln.script.parse_literals import parse_dtype, parse_literal
from tensorkiln.script.scope import NameScope

_TYPE = 'as A: T.Buffer((4,), "float32") or n: T.int64'
_OPTIONS: dict[str, tuple[type, str]] = {
    "name": (str, "a text"),
    "outputs": (int, "a number of buffers"),
    "inplace": (tuple, "a tuple of positions of parameters"),
    "op_class": (str, "a text"),
    "private": (bool, "True or False"),
}


def parse_program(scope: NameScope, node: ast.FunctionDef, keywords: list[ast.keyword]) -> PrimFunc:
    """Parse a decorated function; `keywords` are those of its decorator."""
    node = with_buffers(scope, node)
    params = _params(scope, node)
    values = _options(scope, keywords)
    nodes, attrs_node = take_func_attr(scope, node.body, "T.func_attr")
    name, attrs = values.get("name", node.name), NO_ATTRS
    if attrs_node is not None:
        attrs = parse_known_attrs(scope, attrs_node, PROGRAM_ATTRS, name)
    body = parse_body(scope, nodes)
    outputs = values.get("outputs", inferred_outputs(params, body))
    return PrimFunc(
        name=name,
        params=params,
        body=body,
        outputs=outputs,
        inplace=values.get("inplace", ()),
        op_class=values.get("op_class", "loops"),
        public=not values.get("private", False),
        attrs=attrs,
    )


def _options(scope: NameScope, keywords: list[ast.keyword]) -> dict[str, Any]:
    values = {}
    for name, node in options(scope, keywords, [*_OPTIONS], "T.prim_func").items():
        value, (kind, form) = parse_literal(scope, node), _OPTIONS[name]
        value = (value,) if kind is tuple and type(value) is int else value
        if type(value) is not kind:
            raise scope.fail(node, f"option {name!r} is {form}, not {value!r}")
        values[name] = value
    return values


def _params(scope: NameScope, node: ast.FunctionDef) -> tuple[Param, ...]:
    """Bind scalars before buffers, because the shape of a buffer may use a scalar that comes
    after it; return the parameters in their written order."""
    out: dict[str, Param] = {}
    for arg in plain_arguments(scope, node):
        if _buffer_call(scope, arg) is None:
            out[arg.arg] = Var(arg.arg, parse_dtype(scope, annotation(scope, arg, _TYPE)))
            scope.bind(arg, arg.arg, out[arg.arg])
    for arg in node.args.args:
        call = _buffer_call(scope, arg)
        if call is not None:
            out[arg.arg] = parse_buffer_type(scope, call, arg.arg)
            scope.bind(arg, arg.arg, out[arg.arg])
    return tuple(out[arg.arg] for arg in node.args.args)


def _buffer_call(scope: NameScope, arg: ast.arg) -> ast.Call | None:
    a = annotation(scope, arg, _TYPE)
    is_buffer = isinstance(a, ast.Call) and scope.dialect(a.func) == "T.Buffer"
    return a if is_buffer and isinstance(a, ast.Call) else None
