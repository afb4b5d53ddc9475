"""Values of graphs from Python syntax trees: operands, constants and calls."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from tensorkiln import ops
from tensorkiln.base.errors import UserError, nearest
from tensorkiln.ir.attrs import Attrs, AttrValue
from tensorkiln.ir.dtype import BOOL, DType
from tensorkiln.ir.relax import (
    IMPURE_OPS,
    Binding,
    Bound,
    Call,
    FuncType,
    GlobalRef,
    If,
    Lambda,
    MatchCast,
    ObjectType,
    PrimType,
    PrimValue,
    RVar,
    ShapeValue,
    StringValue,
    TensorType,
    Tuple,
    TupleItem,
    TupleType,
    Type,
    Value,
    constant,
)
from tensorkiln.ir.stmt import TensorProgram
from tensorkiln.ir.subtype import Extents, called_type, function_type, is_condition, takes
from tensorkiln.ir.type_text import show
from tensorkiln.ops.attribute import check_all, check_one
from tensorkiln.script.arguments import function_name
from tensorkiln.script.graph_state import GraphState, Parsed
from tensorkiln.script.parse_attrs import parse_attr, parse_attrs
from tensorkiln.script.parse_literals import (
    parse_expr,
    parse_integer,
    parse_raw,
    parse_string,
    typed_number,
)
from tensorkiln.script.scope import Number, plain
from tensorkiln.script.spellings import instead_of, spelled

# Right sides that must be bound to a variable before they can be operands.
COMPUTED = (Call, TupleItem, If, Lambda, MatchCast)
# Callees whose grammar lists all keywords: no others are taken as attributes.
WITHOUT_ATTRS = frozenset({"call_tir_inplace", "alloc_storage", "while_loop"})


def parse_value(g: GraphState, node: ast.expr) -> Value:
    """Parse an operand. A nested call is first bound to a new variable."""
    definition, result_type = parse_bound(g, node)
    if not isinstance(definition, COMPUTED):
        return definition
    var = RVar(f"lv{len(g.bindings)}", result_type or inferred(g, node, definition))
    g.bindings.append(Binding(var, definition))
    return var


def parse_bound(g: GraphState, node: ast.expr) -> Parsed:
    """Parse the right side of a binding; also return its type, or None if that is to be
    inferred."""
    parse = _VALUES.get(type(node))
    if parse is None:
        raise _not_a_value(g, node)
    return parse(g, node)


def _not_a_value(g: GraphState, node: ast.expr) -> UserError:
    operator = spelled(f"R.{node.attr}") if isinstance(node, ast.Attribute) else ""
    example = f"{operator}(x, ...)" if ops.declared(operator[2:]) is not None else "R.add(x, y)"
    return g.fail(node, "not a graph value", f"operators are calls: {example}")


def _typed(value: Value) -> Parsed:
    return value, value.type


def _constant(g: GraphState, node: ast.Constant) -> Parsed:
    if isinstance(node.value, str):
        return _typed(StringValue(node.value))
    if not isinstance(node.value, bool | int | float):
        raise _not_a_value(g, node)
    return _typed(parse_number(g, node))


def _negative(g: GraphState, node: ast.UnaryOp) -> Parsed:
    if not isinstance(node.op, ast.USub):
        raise _not_a_value(g, node)
    return _typed(parse_number(g, node))


def _arithmetic(g: GraphState, node: ast.BinOp | ast.Compare) -> Parsed:
    """`k * 3 + 1` and `k > 3` of numbers: integers that are variables, and symbolic sizes."""
    names = [g.scope.meanings.get(x.id) for x in ast.walk(node) if isinstance(x, ast.Name)]
    wrong = next((v for v in names if isinstance(v, RVar) and g.number(v) is None), None)
    if wrong is not None and isinstance(wrong.type, PrimType):
        message = f"arithmetic on a number of {wrong.type.dtype}"
        raise g.fail(node, message, "of integers here; a tensor program computes with others")
    if wrong is not None:
        raise _not_a_value(g, node)
    return _typed(parse_number(g, node))


def _tuple(g: GraphState, node: ast.Tuple | ast.List) -> Parsed:
    return _typed(Tuple(tuple(parse_value(g, x) for x in node.elts)))


def parse_number(g: GraphState, node: ast.expr) -> PrimValue:
    """Parse a number: `3` is an int64, `2.5` a float64; `T.int32(3)` gives another dtype."""
    number = parse_raw(g.scope, node)
    if isinstance(number, Number):
        wide = DType("float64") if isinstance(number.value, float) else None
        number = typed_number(g.scope, node, number, wide)
    if number.dtype.lanes != 1:
        raise g.fail(node, f"{number.dtype} is a vector, not one number")
    return PrimValue(number)


def _name(g: GraphState, node: ast.Name) -> Parsed:
    name = node.id
    meaning = g.scope.meanings.get(name)
    if isinstance(meaning, RVar):
        return _typed(meaning)
    captured = g.scope.captured.get(name)
    if meaning is None and isinstance(captured, np.ndarray):
        if name not in g.module.literals:
            g.module.literals[name] = constant(captured, name)
        return _typed(g.module.literals[name])
    literal = plain(captured) if meaning is None else None
    if isinstance(literal, str):
        return _typed(StringValue(literal))
    if isinstance(literal, int | float):
        return _typed(parse_number(g, node))
    if meaning is None:
        if name in g.hidden:
            message = f"{name!r} is a value inside R.dataflow, which its R.output does not list"
            raise g.fail(node, message, f"R.output(..., {name})")
        raise g.scope.unknown(node)
    hint = f"R.prim_value({name}), R.shape([{name}]), or an attribute"
    raise g.fail(node, f"{name!r} is a number, not a tensor", hint)


def _item(g: GraphState, node: ast.Subscript) -> Parsed:
    if g.is_module(node.value):
        return _function(g, node)
    value = parse_value(g, node.value)
    index = parse_integer(g.scope, node.slice)
    if not isinstance(value.type, TupleType):
        hint = "narrow it with R.match_cast(x, R.Tuple(...))"
        if isinstance(value.type, TensorType):
            hint = f'of a tensor: R.take(x, R.const([{index}], "int64"), axis=0), or R.slice'
        raise g.fail(node, f"items are those of tuples, not of {show(value.type)}", hint)
    fields = value.type.fields
    if not 0 <= index < len(fields):
        raise g.fail(node, f"no item {index}: {len(fields)} items in this value")
    return TupleItem(value, index), fields[index]


def _function(g: GraphState, node: ast.expr) -> Parsed:
    """Parse `cls.f` as a value."""
    callee = module_function(g, node)
    if callee is None:
        raise _not_a_value(g, node)
    params, result = _signature(g, node, callee)
    return callee, FuncType(params, result)


def parse_condition(g: GraphState, node: ast.expr) -> Value:
    """Parse the condition of a branch or a loop: a graph value of one bool, or a comparison of
    numbers."""
    if isinstance(node, ast.Compare | ast.BoolOp | ast.UnaryOp):
        return PrimValue(parse_expr(g.scope, node, BOOL))
    value = parse_value(g, node)
    if not is_condition(value.type):
        hint = "compare numbers, as n > 4, or a tensor of one element by R.greater(x, y)"
        raise g.fail(node, f"a condition is one bool, not {show(value.type)}", hint)
    return value


# ---- types of calls ----------------------------------------------------------------------


def inferred(g: GraphState, node: ast.expr, value: Bound) -> Type:
    """Return the type of a call that is not annotated; raise UserError if it is unknown."""
    assert isinstance(value, Call)
    result_type: Type | None = None
    if value.op:
        result_type = _operator_type(g, node, value)
    elif isinstance(value.callee, RVar):
        assert isinstance(value.callee.type, FuncType)
        result_type = called_type(value.callee.type, [a.type for a in value.args], g.dims())
    elif isinstance(value.callee, GlobalRef):
        result_type = _function_result(g, node, value.callee, value)
    if result_type is None:
        hint = 'write it: y: R.Tensor((1, 16), "float32") = ...'
        raise g.fail(node, "the type of this result is not known here", hint)
    return result_type


_PROGRAM = "a tensor program computes others: R.call_tir(cls.f, [x], R.Tensor(...))"


def _operator_type(g: GraphState, node: ast.expr, call: Call) -> Type | None:
    """Return the type by the operator's type rule, or by `infer` if it is not declared; None if
    the script must give the type."""
    if call.op == "call_packed":
        return ObjectType()
    if call.op in IMPURE_OPS:
        return None
    if ops.declared(call.op) is not None:
        return derived(g, node, call)
    try:
        return g.module.infer(call)
    except UserError as error:
        raise g.fail(node, error.message, error.hint or _PROGRAM) from None


def derived(g: GraphState, node: ast.expr, call: Call) -> Type:
    """Return the type of a call by the type rule of its operator, which must be declared."""
    try:
        return ops.infer(call)
    except UserError as error:
        raise g.fail(node, error.message, error.hint) from None


def _function_result(g: GraphState, node: ast.expr, ref: GlobalRef, call: Call) -> Type | None:
    f = g.module.functions.get(ref.name)
    if isinstance(f, TensorProgram):
        return _kernel_result(f)
    if f is None and ref.name not in g.module.headers:
        return None
    params, result = _signature(g, node, ref)
    return called_type(FuncType(params, result), [a.type for a in call.args])


def _signature(
    g: GraphState, node: ast.expr, ref: GlobalRef
) -> tuple[tuple[Type, ...] | None, Type]:
    """Return parameter and result types of a function of the module. Raise UserError if the
    function is not parsed yet and its result type is not written."""
    f = g.module.functions.get(ref.name)
    header = g.module.headers.get(ref.name)
    if f is not None or header is None:
        t = ref.type if f is None else function_type(f)
        return t.params, t.result
    params, result = header()
    if result is None:
        hint = f'write it: def {ref.name}(...) -> R.Tensor((1, 16), "float32"):'
        raise g.fail(node, f"the result of {ref.name!r} is not known before its text", hint)
    return params, result


# ---- calls -------------------------------------------------------------------------------


def module_function(g: GraphState, node: ast.expr) -> GlobalRef | None:
    """Return the function that `Module.f` or `Module["f"]` refers to; None if `node` is of
    another form. Raise UserError if the module has no such function."""
    name = function_name(g.scope, node, g.words, g.module.names)
    return None if name is None else GlobalRef(name)


def _call(g: GraphState, node: ast.Call) -> Parsed:
    callee = module_function(g, node.func)
    if callee is not None:
        call = make_call(g, node, callee, node.args)
        _check_function(g, node, callee, call)
        return call, None
    path = g.scope.dialect(node.func)
    if path.startswith("R."):
        special = g.scope.grammar.graph_calls.get(path)
        if special is not None:
            parsed: Parsed = special(g, node)
            return parsed
        if instead_of(path) and ops.declared(path[2:]) is None:
            raise g.fail(node, f"there is no operator {path[2:]!r}", instead_of(path))
        return g.scope.grammar.operator_call(g, node, path[2:]), None
    if path or (isinstance(node.func, ast.Name) and node.func.id not in g.scope.meanings):
        raise g.fail(node.func, "not an operator", "operators are R.name(...)")
    return _call_value(g, node), None


def _call_value(g: GraphState, node: ast.Call) -> Call:
    """Parse a call of a variable that holds a function."""
    function = parse_value(g, node.func)
    if not isinstance(function, RVar) or not isinstance(function.type, FuncType):
        hint = "narrow it with R.match_cast(f, R.Callable(...))"
        raise g.fail(node.func, f"{show(function.type)} is not a function", hint)
    call = make_call(g, node, function, node.args)
    check_operands(g, node, node.args, function.type.params, call.args, function.name)
    return call


def _check_function(g: GraphState, node: ast.Call, callee: GlobalRef, call: Call) -> None:
    """Check operands against the parameters of a graph function, if they are known."""
    f = g.module.functions.get(callee.name)
    if isinstance(f, TensorProgram) or (f is None and callee.name not in g.module.headers):
        return
    if f is not None and not f.is_primitive:
        params: tuple[Type, ...] | None = tuple(p.type for p in f.params)
    elif f is None:
        params = g.module.headers[callee.name]()[0]
    else:
        return
    args = call.args
    if f is None and len(args) == len(params or ()) + 1 and isinstance(args[-1], ShapeValue):
        args = args[:-1]  # sizes, which a call of an external function passes: `f` may be one
    check_operands(g, node, node.args[: len(args)], params, args, callee.name)


def check_operands(
    g: GraphState,
    node: ast.AST,
    operands: Sequence[ast.AST],
    params: tuple[Type, ...] | None,
    args: Sequence[Value],
    name: str,
) -> None:
    """Raise UserError at the first operand that does not fit its parameter, or for a wrong
    number of operands."""
    if params is None:
        return
    if len(params) != len(args):
        raise g.fail(node, f"{name} takes {len(params)} operands, got {len(args)}")
    by: Extents = {}
    for operand, p, a in zip(operands, params, args, strict=True):
        if not takes(p, type_of(g, a), by):
            hint = "R.match_cast(x, type) checks a type when it runs"
            raise g.fail(operand, f"{show(p)} expected, {show(a.type)} given", hint)


def type_of(g: GraphState, v: Value) -> Type:
    """Return the type of a value. A reference to a function of the module has the function's
    type if its body or its header gives it."""
    if isinstance(v, GlobalRef):
        f = g.module.functions.get(v.name)
        header = g.module.headers.get(v.name)
        if f is not None:
            return function_type(f)
        if header is not None:
            params, result = header()
            return v.type if result is None else FuncType(params, result)
    return v.type


def make_call(
    g: GraphState,
    node: ast.Call,
    callee: str | GlobalRef | RVar,
    args: list[ast.expr],
    skip: tuple[str, ...] = (),
    **fixed: AttrValue,
) -> Call:
    """Make a call with the operands `args` and the attributes `fixed`. Keywords of `node` are
    further attributes, except `span` and those in `skip`."""
    attrs: dict[str, AttrValue] = dict(fixed)
    span = ""
    for k in node.keywords:
        if k.arg == "span":
            span = parse_string(g.scope, k.value)
        elif k.arg is None:
            for key, value in parse_attrs(g.scope, k.value).items_:
                _attribute(g, attrs, fixed, k.value, key, value)
                _check_attribute(g, k.value, callee, skip, key, value)
        elif k.arg not in skip:
            value = parse_attr(g.scope, k.value)
            _attribute(g, attrs, fixed, k.value, k.arg, value)
            _check_attribute(g, k.value, callee, skip, k.arg, value)
    values = tuple(parse_value(g, a) for a in args)
    call = Call(callee, values, Attrs(tuple(sorted(attrs.items(), key=lambda p: p[0]))), span)
    _check_call(g, node, call)
    return ops.with_defaults(call)  # so that all readers of the call find all attributes


def _attribute(
    g: GraphState,
    attrs: dict[str, AttrValue],
    fixed: Mapping[str, AttrValue],
    node: ast.expr,
    key: str,
    value: AttrValue,
) -> None:
    if key in attrs:
        by = "by position" if key in fixed else "twice"
        raise g.fail(node, f"{key!r} is given {by}")
    attrs[key] = value


def _check_attribute(
    g: GraphState,
    node: ast.expr,
    callee: str | GlobalRef | RVar,
    words: tuple[str, ...],
    key: str,
    value: AttrValue,
) -> None:
    """Raise UserError if the callee has no such attribute or does not accept its value."""
    op = ops.declared(callee) if isinstance(callee, str) else None
    if op is not None:
        try:
            check_one(op.name, op.attrs, key, value)
        except UserError as error:
            raise g.fail(node, error.message, error.hint) from None
    elif not isinstance(callee, str) or callee in WITHOUT_ATTRS:
        options = [*words, "span"]
        name = callee if isinstance(callee, str) else callee.name
        hint = nearest(key, options) or f"options are {', '.join(options)}"
        raise g.fail(node, f"unknown option {key!r} in a call of {name}", hint)


def _check_call(g: GraphState, node: ast.Call, call: Call) -> None:
    """Raise UserError if required attributes are missing or the operand count is wrong."""
    op = ops.declared(call.op)
    if op is None:
        return
    try:
        op.check_count(len(call.args))
        check_all(op.name, op.attrs, call.attrs)
    except UserError as error:
        raise g.fail(node, error.message, error.hint) from None


def _kernel_result(f: TensorProgram) -> Type | None:
    """Return the result type of a call of `f`; None if it has no outputs, or one whose symbolic
    shape depends on the operands."""
    outs = f.buffers[-f.outputs :] if f.outputs else ()
    types = tuple(TensorType(b.shape, b.dtype) for b in outs)
    if not types or any(t.static_shape() is None for t in types):
        return None
    return types[0] if len(types) == 1 else TupleType(types)


_VALUES: dict[type[ast.expr], Callable[[GraphState, Any], Parsed]] = {
    ast.Name: _name,
    ast.Constant: _constant,
    ast.UnaryOp: _negative,
    ast.BinOp: _arithmetic,
    ast.Compare: _arithmetic,
    ast.Tuple: _tuple,
    ast.List: _tuple,
    ast.Subscript: _item,
    ast.Attribute: _function,
    ast.Call: _call,
}
