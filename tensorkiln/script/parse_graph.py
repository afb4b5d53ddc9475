"""Graphs from Python syntax trees: functions, bindings, branches, loops and closures.

In straight-line code every name is bound once. Only an `if` or `while` may rebind names that were
bound before it.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from tensorkiln import ops
from tensorkiln.ir.attrs import Attrs
from tensorkiln.ir.dtype import INT64
from tensorkiln.ir.expr import Expr, Var
from tensorkiln.ir.known_attrs import GRAPH_ATTRS
from tensorkiln.ir.relax import (
    Binding,
    Bound,
    Call,
    Function,
    Lambda,
    ObjectType,
    RVar,
    TensorType,
    Tuple,
    TupleType,
    Type,
    Value,
)
from tensorkiln.ir.stmt import PrimFunc
from tensorkiln.ir.subtype import accepts, logical
from tensorkiln.ir.type_text import show
from tensorkiln.ops.rules import same_extent
from tensorkiln.script.arguments import options
from tensorkiln.script.graph_state import GraphState, ModuleContext, Parsed
from tensorkiln.script.parse_attrs import parse_known_attrs
from tensorkiln.script.parse_graph_flow import (
    branch,
    loop,
    not_a_statement,
    parse_sequence,
    parse_statement,
    widened,
)
from tensorkiln.script.parse_graph_types import parse_type
from tensorkiln.script.parse_graph_values import (
    derived,
    inferred,
    make_call,
    module_function,
    parse_bound,
    parse_value,
    type_of,
)
from tensorkiln.script.parse_header import annotation, plain_arguments, take_func_attr
from tensorkiln.script.parse_literals import parse_flag, parse_string
from tensorkiln.script.scope import NameScope

_TYPE = 'as x: R.Tensor((1, "n"), "float32")'


def parse_graph(
    scope: NameScope, module: ModuleContext, node: ast.FunctionDef, keywords: list[ast.keyword]
) -> Function:
    """Parse a decorated function; `keywords` are those of its decorator."""
    return _function(GraphState(scope, module, node, set(module.words)), node, keywords)


def parse_header(scope: NameScope, node: ast.FunctionDef) -> tuple[tuple[Type, ...], Type | None]:
    """Return the types of the parameters, and that of the result or None if it is not written."""
    params = (parse_type(scope, annotation(scope, a, _TYPE)) for a in plain_arguments(scope, node))
    return tuple(params), None if node.returns is None else parse_type(scope, node.returns)


def _function(g: GraphState, node: ast.FunctionDef, keywords: list[ast.keyword]) -> Function:
    params = []
    for arg in plain_arguments(g.scope, node):
        params.append(RVar(arg.arg, parse_type(g.scope, annotation(g.scope, arg, _TYPE))))
        g.bind(arg, arg.arg, params[-1])
    nodes, attrs_node = take_func_attr(g.scope, node.body, "R.func_attr")
    name, attrs = _options(g, node.name, keywords, attrs_node)
    g.declared = _header_result(g, node)
    result = parse_sequence(g, nodes)
    if result is None:
        raise g.fail(node, f"{node.name!r} has no return")
    if node.returns is not None:
        result = _checked_result(g, node.returns, result)
    return Function(name, tuple(params), tuple(g.bindings), result, attrs)


def _options(
    g: GraphState, name: str, keywords: list[ast.keyword], attrs_node: ast.expr | None
) -> tuple[str, Attrs]:
    """Return the function's name and attributes, from the decorator's `keywords` and `attrs_node`,
    the argument of R.func_attr. Raise UserError if they differ on an attribute."""
    attrs: dict[str, object] = {}
    nodes = [attrs_node] if attrs_node is not None else []
    words = ("name", "attrs", "private", "infer")
    places = options(g.scope, keywords, words, "R.function")
    if "name" in places:
        name = parse_string(g.scope, places["name"])
    if "attrs" in places:
        nodes.append(places["attrs"])
    if "private" in places and parse_flag(g.scope, places["private"]):
        attrs["private"] = True
    for node in nodes:
        for key, value in parse_known_attrs(g.scope, node, GRAPH_ATTRS, name).items_:
            if attrs.setdefault(key, value) != value:
                raise g.fail(node, f"attribute {key!r} is given twice")
    return name, Attrs(tuple(sorted(attrs.items(), key=lambda p: p[0])))  # type: ignore[arg-type]


def _header_result(g: GraphState, node: ast.FunctionDef) -> Type | None:
    """Return the type after `->`, for `return` inside branches. Symbols that it introduces are
    not kept: `_checked_result` parses it again, when those of the body are bound."""
    if node.returns is None:
        return None
    with g.scope.inner():
        return parse_type(g.scope, node.returns)


def _checked_result(g: GraphState, node: ast.expr, result: Value) -> Value:
    declared = parse_type(g.scope, node)
    if declared == result.type or _is_renamed(g, declared, result.type):
        return _on_devices(g, result, declared)
    if not accepts(declared, type_of(g, result)):
        message = f"it is {show(result.type)}, not {show(declared)}"
        raise g.fail(node, "the result is not of the declared type", message)
    if accepts(result.type, declared):
        return _on_devices(g, result, declared)
    return widened(g, result, declared)


def _is_renamed(g: GraphState, declared: Type, derived: Type) -> bool:
    """Whether two types differ in nothing but the symbols that each introduces itself, such as
    those of a `R.Callable`, whose extents a MatchCast in the body of a function determines."""
    forward, backward = (_up_to_names(g) for _ in range(2))
    return accepts(declared, derived, forward) and accepts(derived, declared, backward)


def _up_to_names(g: GraphState) -> Callable[[Expr, Expr], bool]:
    scope_vars = {v for v in g.scope.meanings.values() if isinstance(v, Var)}
    named: dict[Var, Expr] = {}

    def equal_but_for_names(a: Expr, b: Expr) -> bool:
        both_new = isinstance(a, Var) and isinstance(b, Var) and not {a, b} & scope_vars
        return named.setdefault(a, b) == b if both_new else a == b  # type: ignore[arg-type]

    return equal_but_for_names


def _on_devices(g: GraphState, result: Value, declared: Type) -> Value:
    """`result`, its tensors on the devices that the type says: by another name if they are made
    on others."""
    if isinstance(result, Tuple) and isinstance(declared, TupleType):
        return Tuple(
            tuple(_on_devices(g, *p) for p in zip(result.fields, declared.fields, strict=True))
        )
    if not isinstance(declared, TensorType) or not isinstance(result.type, TensorType):
        return result
    on_device = declared.device in ("", result.type.device)
    return result if on_device else widened(g, result, replace(result.type, device=declared.device))


# ---- statements --------------------------------------------------------------------------


def _pass(g: GraphState, s: ast.Pass) -> None:
    pass


def _assign(g: GraphState, s: ast.Assign) -> None:
    if len(s.targets) != 1 or not isinstance(s.targets[0], ast.Name):
        raise not_a_statement(g, s)
    if not _alias(g, s.targets[0], s.value):
        _bind(g, s.targets[0], s.value, None)


def _annotated(g: GraphState, s: ast.AnnAssign) -> None:
    if not isinstance(s.target, ast.Name) or s.value is None:
        raise not_a_statement(g, s)
    _bind(g, s.target, s.value, s.annotation)


def _dataflow(g: GraphState, s: ast.With) -> None:
    if len(s.items) != 1 or not g.scope.is_call(s.items[0].context_expr, "R.dataflow"):
        raise not_a_statement(g, s)
    before = set(g.scope.meanings)
    for inner in s.body:
        parse_statement(g, inner)
    listed = _output_names(g, s)
    if listed is None:  # then all are
        return
    for name in [n for n in g.scope.meanings if n not in before and n not in listed]:
        if isinstance(g.scope.meanings[name], RVar):
            del g.scope.meanings[name]
            g.hidden.add(name)


def _output_names(g: GraphState, s: ast.With) -> set[str] | None:
    """The names that the R.output of a dataflow block lists; None if it has none."""
    calls = [
        x.value
        for x in s.body
        if isinstance(x, ast.Expr)
        and isinstance(x.value, ast.Call)
        and g.scope.dialect(x.value.func) == "R.output"
    ]
    if not calls:
        return None
    return {n.id for c in calls for a in c.args for n in ast.walk(a) if isinstance(n, ast.Name)}


def _return(g: GraphState, s: ast.Return) -> None:
    hint = "let both branches end with return, or assign and return after them"
    raise g.fail(s, "return may only end a function or a branch", hint)


def _alias(g: GraphState, name: ast.Name, value: ast.expr) -> bool:
    """Parse `cls = MyModule`, another name for the module, or `n = T.int64()`, a symbolic
    dimension; return whether the statement is either."""
    if isinstance(value, ast.Name) and value.id in g.words - set(g.scope.meanings):
        g.words.add(name.id)
        return True
    if isinstance(value, ast.Call) and not value.args and not value.keywords:
        path = g.scope.dialect(value.func)
        if path == "T.int64":
            if not isinstance(g.scope.meanings.get(name.id), Var):
                g.scope.bind(name, name.id, Var(name.id, INT64))
            return True
    return False


def _effect(g: GraphState, s: ast.Expr) -> None:
    """Parse a call as a statement: it is bound to `_`, which nothing reads. Skip a string."""
    if isinstance(s.value, ast.Constant) and isinstance(s.value.value, str):
        return
    if not isinstance(s.value, ast.Call):
        raise not_a_statement(g, s)
    call = s.value
    if g.scope.dialect(call.func) == "R.output":
        for a in call.args:
            parse_value(g, a)
        return
    definition, result_type = _in_place(g, call) or parse_bound(g, call)
    g.bindings.append(Binding(RVar("_", result_type or inferred(g, call, definition)), definition))


def _in_place(g: GraphState, node: ast.Call) -> Parsed | None:
    """Parse `cls.f(x, y)` as a `call_tir_inplace` if it passes all buffers of a tensor program,
    outputs included; else return None."""
    callee = module_function(g, node.func)
    f = g.module.functions.get(callee.name) if callee is not None else None
    if not isinstance(f, PrimFunc) or len(node.args) != len(f.buffers) or not f.outputs:
        return None
    assert callee is not None
    inplace = tuple(range(len(f.buffers) - f.outputs, len(f.buffers)))
    program_call = make_call(g, node, callee, node.args, inplace=inplace)
    call = Call(
        "call_tir_inplace", (callee, *program_call.args), program_call.attrs, program_call.span
    )
    types = tuple(program_call.args[i].type for i in inplace)
    return call, types[0] if len(types) == 1 else TupleType(types)


def _bind(g: GraphState, name: ast.Name, node: ast.expr, annotation: ast.expr | None) -> None:
    # First, because it may introduce symbolic dimensions that the value uses.
    declared = None if annotation is None else parse_type(g.scope, annotation)
    value, value_type = parse_bound(g, node)
    if annotation is not None and declared is not None:
        _check_annotation(g, annotation, declared, value, value_type, node)
        value_type = declared
    elif value_type is None:
        value_type = inferred(g, node, value)
    var = RVar(name.id, value_type)
    g.bind(name, name.id, var)
    g.bindings.append(Binding(var, value))


def _check_annotation(
    g: GraphState,
    node: ast.expr,
    declared: Type,
    value: Bound,
    value_type: Type | None,
    call: ast.expr,
) -> None:
    """Raise UserError unless the annotation is the value's own type or a wider one; a value of
    unknown type takes any annotation."""
    if isinstance(value, Call) and ops.declared(value.op) is not None:
        value_type, declared = logical(derived(g, call, value)), logical(declared)
    if value_type is None or declared == value_type or isinstance(value_type, ObjectType):
        return
    if not accepts(declared, value_type, same_extent):
        hint = "R.match_cast(x, type) checks a type when it runs"
        if isinstance(value, Call):
            hint = f"write the type of what the call gives, {show(value_type)}, or none"
        message = f"the variable is {show(declared)}, its value {show(value_type)}"
        raise g.fail(node, message, hint)


def _closure(g: GraphState, s: ast.FunctionDef) -> None:
    """Parse `@R.function def inner(...)`, a closure over names bound before it."""
    calls = [d.func if isinstance(d, ast.Call) else d for d in s.decorator_list]
    if [g.scope.dialect(d) for d in calls] != ["R.function"]:
        raise g.fail(s, f"{s.name!r} needs one known decorator", "decorate it with @R.function")
    decorator = s.decorator_list[0]
    declared = g.declared
    with g.inside():
        keywords = decorator.keywords if isinstance(decorator, ast.Call) else []
        function = _function(g, s, keywords)
    g.declared = declared
    value = Lambda(function)
    var = RVar(s.name, value.type)
    g.bind(s, s.name, var)
    g.bindings.append(Binding(var, value))


STATEMENTS: dict[type[ast.stmt], Callable[[GraphState, Any], None]] = {
    ast.Pass: _pass,
    ast.Assign: _assign,
    ast.AnnAssign: _annotated,
    ast.Expr: _effect,
    ast.With: _dataflow,
    ast.If: branch,
    ast.While: loop,
    ast.FunctionDef: _closure,
    ast.Return: _return,
}
