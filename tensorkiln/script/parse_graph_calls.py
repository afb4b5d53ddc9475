"""Calls in graphs that have a grammar of their own: `R.call_tir`, `R.match_cast`, `R.const`, ..."""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from tensorkiln.base.errors import nearest
from tensorkiln.ir.expr import Expr, IntImm, int_value
from tensorkiln.ir.relax import (
    Call,
    Constant,
    FuncType,
    GlobalRef,
    MatchCast,
    ObjectType,
    PrimValue,
    RVar,
    ShapeValue,
    StringValue,
    TensorType,
    Tuple,
    TupleType,
    Type,
    Value,
)
from tensorkiln.ir.stmt import PrimFunc
from tensorkiln.ir.subtype import Extents, castable, is_condition, loop_type, takes
from tensorkiln.ir.text.print_relax import digest
from tensorkiln.ir.type_text import show
from tensorkiln.script.arguments import options
from tensorkiln.script.graph_state import GraphState, Parsed
from tensorkiln.script.parse_attrs import parse_attr
from tensorkiln.script.parse_graph_types import is_type, parse_layout, parse_type, parse_types
from tensorkiln.script.parse_graph_values import (
    check_operands,
    inferred,
    make_call,
    module_function,
    parse_number,
    parse_value,
    type_of,
)
from tensorkiln.script.parse_literals import parse_dtype, parse_expr, parse_literal, parse_string
from tensorkiln.script.parse_shape import parse_shape

# Keywords for the type of a result; scripts of other compilers use the last two.
_OUT = ("out_type", "out_sinfo", "sinfo_args")


def _op(g: GraphState, node: ast.Call) -> Parsed:
    """`R.op("any name", ...)`."""
    if not node.args:
        raise g.fail(node, "expected the operator's name")
    return make_call(g, node, parse_string(g.scope, node.args[0]), node.args[1:]), None


def _out(g: GraphState, node: ast.Call, position: int) -> Type | None:
    """Return the result type of a call, given as operand number `position` or by keyword; None
    if it is not given."""
    type_nodes = [k.value for k in node.keywords if k.arg in _OUT]
    type_nodes += node.args[position:]
    if len(type_nodes) > 1:
        raise g.fail(type_nodes[1], "expected one result type, not several")
    if (
        type_nodes
        and isinstance(type_nodes[0], ast.Tuple | ast.List)
        and len(type_nodes[0].elts) == 1
    ):
        return parse_type(g.scope, type_nodes[0].elts[0])
    return parse_types(g.scope, type_nodes[0]) if type_nodes else None


def _call_tir(g: GraphState, node: ast.Call) -> Parsed:
    """`R.call_tir(cls.f, [x, y], R.Tensor(...))`."""
    if len(node.args) not in (2, 3):
        raise g.fail(node, "expected R.call_tir(cls.f, [args], out_type)")
    callee = _callee(g, node.args[0])
    call = make_call(g, node, callee, _list(node.args[1]), (*_OUT, "tir_vars"))
    numbers = [k.value for k in node.keywords if k.arg == "tir_vars"]
    values = (*call.args, *(v for n in numbers for v in _numbers(g, n)))
    call = replace(call, args=tuple(_as_number(g, v) for v in values))
    out = _out(g, node, 2)
    if out is None:
        out = inferred(g, node, call)
    return call, out


def _numbers(g: GraphState, node: ast.expr) -> list[Value]:
    """What `tir_vars=` passes: a shape, or a list of numbers."""
    if isinstance(node, ast.List | ast.Tuple):
        return [parse_value(g, x) for x in node.elts]
    return [parse_value(g, node)]


def _as_number(g: GraphState, v: Value) -> Value:
    """An operand of a tensor program; of a variable that holds an integer, its number."""
    number = g.number(v) if isinstance(v, RVar) else None
    return v if number is None else PrimValue(number)


def _callee(g: GraphState, node: ast.expr) -> GlobalRef:
    callee = module_function(g, node)
    if callee is None:
        raise g.fail(node, "expected a function of this module", "as cls.add_one")
    return callee


def _call_tir_inplace(g: GraphState, node: ast.Call) -> Parsed:
    """`R.call_tir_inplace(cls.f, [x, y], [0], R.Tensor(...))`: the list has the index of the
    operand that each result is written to, -1 for a new tensor."""
    if len(node.args) < 2:
        message = "expected R.call_tir_inplace(cls.f, [args], inplace_indices, out_type)"
        raise g.fail(node, message)
    callee = _callee(g, node.args[0])
    f = g.module.functions.get(callee.name)
    if f is not None and not isinstance(f, PrimFunc):
        raise g.fail(node.args[0], f"{callee.name} is not a tensor program")
    index_nodes = [k.value for k in node.keywords if k.arg in ("inplace_indices", "inplace")]
    index_nodes += node.args[2:3]
    if len(index_nodes) != 1:
        raise g.fail(
            node, "expected the indices of the operands that are written", "inplace_indices=[0]"
        )
    args = _list(node.args[1])
    inplace = _indices(g, index_nodes[0], len(args))
    skip = (*_OUT, "inplace_indices", "inplace")
    call = make_call(g, node, "call_tir_inplace", [node.args[0], *args], skip, inplace=inplace)
    return call, _out(g, node, 3) or _written(g, node, call, inplace)


def _indices(g: GraphState, node: ast.expr, count: int) -> tuple[int, ...]:
    literal = parse_literal(g.scope, node)
    items = literal if isinstance(literal, tuple) else (literal,)
    indices = tuple(i for i in items if isinstance(i, int))
    if len(indices) != len(items) or not all(-1 <= i < count for i in indices):
        raise g.fail(node, f"expected indices of the {count} operands, -1 for a new tensor")
    return indices


def _written(g: GraphState, node: ast.Call, call: Call, inplace: tuple[int, ...]) -> Type:
    """Return the result type if all results are written to operands: the operands' types."""
    if -1 in inplace:
        raise g.fail(node, "the type of this result is not known here", "write out_type=")
    types = tuple(call.args[1 + i].type for i in inplace)
    return types[0] if len(types) == 1 else TupleType(types)


def _name_of(g: GraphState, node: ast.Call, form: str) -> str:
    name = parse_literal(g.scope, node.args[0]) if node.args else None
    if not isinstance(name, str):
        raise g.fail(node.args[0] if node.args else node, f"expected {form}")
    return name


def _call_packed(g: GraphState, node: ast.Call) -> Parsed:
    """`R.call_packed("name", x, "text", 3, key="value")`; the last operand may be the result
    type."""
    name = _name_of(g, node, 'R.call_packed("name", args...)')
    count = len(node.args)
    if count > 1 and is_type(g.scope, node.args[-1]):
        count -= 1
    call = make_call(g, node, "call_packed", node.args[1:count], _OUT, name=name)
    return call, _out(g, node, count)


def _call_dps_packed(g: GraphState, node: ast.Call) -> Parsed:
    """`R.call_dps_packed("name", [x, y], R.Tensor(...))`."""
    name = _name_of(g, node, 'R.call_dps_packed("name", [args], out_type)')
    if len(node.args) < 2:
        raise g.fail(node, 'expected R.call_dps_packed("name", [args], out_type)')
    call = make_call(g, node, "call_dps_packed", _list(node.args[1]), _OUT, name=name)
    return call, _out(g, node, 2)


def _alloc_storage(g: GraphState, node: ast.Call) -> Parsed:
    """`R.alloc_storage(4096)`, or `R.alloc_storage(size=n * 4, pool="sram", align=8)`."""
    size_nodes = [*node.args, *(k.value for k in node.keywords if k.arg == "size")]
    if len(size_nodes) != 1:
        raise g.fail(node, "expected R.alloc_storage(size)")
    options = {k.arg: parse_attr(g.scope, k.value) for k in node.keywords if k.arg in _STORAGE[1:]}
    size = parse_attr(g.scope, size_nodes[0])
    return make_call(g, node, "alloc_storage", [], _STORAGE, size=size, **options), ObjectType()


_STORAGE = ("size", "pool", "align")


def _while_loop(g: GraphState, node: ast.Call) -> Parsed:
    """`R.while_loop(cond, body, *state)`."""
    if len(node.args) < 3:
        raise g.fail(node, "expected R.while_loop(cond, body, state...)")
    call = make_call(g, node, "while_loop", node.args)
    return call, _loop_type(g, node.args, call)


def _loop_type(g: GraphState, nodes: Sequence[ast.AST], call: Call) -> Type:
    """Return the result type of a `while_loop`; raise UserError if the condition or the body
    does not fit the state."""
    cond, body = (type_of(g, a) for a in call.args[:2])
    for node, f in zip(nodes, (cond, body), strict=False):
        if not isinstance(f, FuncType):
            raise g.fail(node, f"{show(f)} is not a function")
    assert isinstance(cond, FuncType) and isinstance(body, FuncType)
    if not is_condition(cond.result):
        raise g.fail(nodes[0], f"a condition is one bool, not {show(cond.result)}")
    state = call.args[2:]
    for f, name in ((cond, "the condition"), (body, "the body")):
        check_operands(g, nodes[0], nodes[2:], f.params, state, name)
    results: tuple[Type, ...] = (body.result,)
    if len(state) != 1 and isinstance(body.result, TupleType):
        results = body.result.fields
    if len(results) != len(state):
        message = f"the body gives {len(results)} values for a state of {len(state)}"
        raise g.fail(nodes[1], message)
    by: Extents = {}
    for p, r in zip(body.params or results, results, strict=True):
        if not takes(p, r, by):
            raise g.fail(nodes[1], f"the body takes {show(p)} and gives {show(r)}")
    return loop_type(body, [a.type for a in state], g.dims())


# ---- values ------------------------------------------------------------------------------


def _shape(g: GraphState, node: ast.Call) -> Parsed:
    """`R.shape(n, 4)` or `R.shape([n, 4])`."""
    args = node.args
    if len(args) == 1 and isinstance(args[0], ast.List | ast.Tuple):
        args = args[0].elts
    value = ShapeValue(tuple(parse_expr(g.scope, a) for a in args))
    for arg, e in zip(args, value.values, strict=True):
        if not e.dtype.is_int:
            raise g.fail(arg, f"an extent is an integer, not {e.dtype}")
    return value, value.type


def _single_argument(g: GraphState, node: ast.Call) -> ast.expr:
    if len(node.args) != 1 or node.keywords:
        raise g.fail(node, f"{g.scope.dialect(node.func)} takes one argument")
    return node.args[0]


def _prim_value(g: GraphState, node: ast.Call) -> Parsed:
    value = parse_number(g, _single_argument(g, node))
    return value, value.type


def _str(g: GraphState, node: ast.Call) -> Parsed:
    text = parse_literal(g.scope, _single_argument(g, node))
    if not isinstance(text, str):
        raise g.fail(node.args[0], "expected a string")
    value = StringValue(text)
    return value, value.type


def _tuple(g: GraphState, node: ast.Call) -> Parsed:
    value: Value = Tuple(tuple(parse_value(g, a) for a in node.args))
    return value, value.type


def _match_cast(g: GraphState, node: ast.Call) -> Parsed:
    """`R.match_cast(x, R.Tensor(("n", 4), "float32"))`."""
    if len(node.args) != 2 or node.keywords:
        raise g.fail(node, "expected R.match_cast(value, type)")
    value, target = parse_value(g, node.args[0]), parse_type(g.scope, node.args[1])
    if not castable(value.type, target):
        raise g.fail(node.args[1], f"{show(value.type)} can never be {show(target)}")
    return MatchCast(value, target), target


# ---- constants ---------------------------------------------------------------------------


def _const(g: GraphState, node: ast.Call) -> Parsed:
    """`R.const(values, dtype, shape?)`, or `R.const("key", dtype, shape, sha256=...)` for the
    array given as `constants["key"]`."""
    places = options(g.scope, node.keywords, ("layout", "name", "sha256"), node.func)
    if len(node.args) not in (2, 3):
        hint = 'as R.const([0], "int64"); an array of the surroundings is written by its name alone'
        raise g.fail(node, "expected R.const(values or key, dtype, shape, ...)", hint)
    layout = parse_layout(g.scope, places["layout"]) if "layout" in places else None
    dtype = parse_dtype(g.scope, node.args[1])
    data = parse_literal(g.scope, node.args[0])
    shape = parse_shape(g.scope, node.args[2]) if len(node.args) == 3 else None
    if isinstance(data, str):
        constant = _referred(g, node, data, TensorType(shape or (), dtype, layout), places)
    else:
        name = parse_string(g.scope, places["name"]) if "name" in places else ""
        array = _array(g, node, data, dtype.name)
        kind = TensorType(_extents(array) if shape is None else shape, dtype, layout)
        constant = Constant(array.reshape(_physical(g, node, kind, array.size)), kind, name)
    return constant, constant.type


def _array(g: GraphState, node: ast.Call, data: object, dtype: str) -> np.ndarray:
    try:
        array = np.array(data, dtype)
    except (ValueError, TypeError, OverflowError) as e:
        raise g.fail(node.args[0], f"not {dtype} data: {e}") from None
    misfit = _lost(np.array(data, object), array)
    if misfit is not None:
        hint = "write numbers that the type has, or another type"
        raise g.fail(node.args[0], f"not {dtype} data: {misfit!r} is no value of {dtype}", hint)
    return array


def _lost(numbers: np.ndarray, array: np.ndarray) -> object:
    """The first number that a conversion to a type of integers or bool has changed, or None. Floats
    are rounded, as every number that is written is."""
    if array.dtype.kind not in "iub":
        return None
    changed = numbers != array.astype(object)
    return numbers[changed].flat[0] if np.any(changed) else None


def _physical(g: GraphState, node: ast.Call, kind: TensorType, size: int) -> tuple[int, ...]:
    """Return the shape in memory, after the layout; raise UserError unless it is static and has
    `size` elements."""
    dims = [int_value(d) for d in kind.physical_shape]
    shape = tuple(d for d in dims if d is not None)
    if len(shape) != len(dims) or int(np.prod(shape, dtype=object)) != size:
        raise g.fail(node, f"{size} elements for a constant of shape {shape}")
    return shape


def _referred(
    g: GraphState, node: ast.Call, key: str, kind: TensorType, places: dict[str, ast.expr]
) -> Constant:
    literal = g.module.literals.get(key)
    if literal is not None and literal.type == kind:
        return literal
    array = g.module.constants.get(key)
    if array is None:
        names = list(g.module.constants)
        hint = nearest(key, names) or f"pass constants={{{key!r}: array}}"
        raise g.fail(node.args[0], f"no constant {key!r} was given", hint)
    shape = _physical(g, node, kind, array.size)
    if array.shape != shape or array.dtype.itemsize != kind.dtype.bytes:
        message = f"{key!r} is {array.dtype}{list(array.shape)}, expected {list(shape)}"
        raise g.fail(node, f"{message} of {kind.dtype}")
    expected = places.get("sha256")
    if expected is not None and parse_literal(g.scope, expected) != digest(array):
        raise g.fail(expected, f"the bytes given for {key!r} are not these")
    name = key.rpartition("#")[0] or key
    constant = Constant(array, kind, "" if name == "const" else name)
    g.module.literals[key] = constant
    return constant


def _list(node: ast.expr) -> list[ast.expr]:
    return list(node.elts) if isinstance(node, ast.Tuple | ast.List) else [node]


def _extents(array: np.ndarray) -> tuple[Expr, ...]:
    return tuple(IntImm(n) for n in array.shape)


CALLS: dict[str, Callable[[GraphState, ast.Call], Parsed]] = {
    "R.op": _op,
    "R.call_tir": _call_tir,
    "R.call_tir_inplace": _call_tir_inplace,
    "R.call_packed": _call_packed,
    "R.call_dps_packed": _call_dps_packed,
    "R.alloc_storage": _alloc_storage,
    "R.while_loop": _while_loop,
    "R.shape": _shape,
    "R.prim_value": _prim_value,
    "R.str": _str,
    "R.tuple": _tuple,
    "R.match_cast": _match_cast,
    "R.const": _const,
}
