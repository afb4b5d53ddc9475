"""Calls of operators as other compilers' scripts write them: an attribute by position or by another
name, axes that are left out, shapes as `R.shape`, and operators that are a reshape of ours."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping

from tensorkiln import ops
from tensorkiln.ir.attrs import Attrs, AttrValue
from tensorkiln.ir.expr import Expr, IntImm, binary, int_value
from tensorkiln.ir.relax import Binding, Call, RVar, TensorType, Value
from tensorkiln.script.graph_state import GraphState, Parsed
from tensorkiln.script.parse_graph_values import make_call, parse_value
from tensorkiln.script.parse_literals import parse_dtype, parse_literal

# Attributes of an operator that may be given by position, after its operands.
_BY_POSITION: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(("sum", "mean", "max", "min", "prod"), ("axes", "keepdims")),
    **dict.fromkeys(("argmax", "argmin"), ("axis", "keepdims")),
    "reshape": ("shape",),
    "broadcast_to": ("shape",),
    "transpose": ("axes",),
    "cast": ("dtype",),
    "clip": ("min", "max"),
    "tile": ("repeats",),
    "full": ("shape", "value", "dtype"),
    "softmax": ("axis",),
    "log_softmax": ("axis",),
    "leaky_relu": ("alpha",),
    "top_k": ("k",),
}
# The names that other compilers give attributes.
_RENAMED: Mapping[str, Mapping[str, str]] = {
    **{name: {"axis": "axes"} for name in ("sum", "mean", "max", "min", "prod")},
    "layer_norm": {"epsilon": "eps", "axes": "axis"},
    "batch_norm": {"epsilon": "eps"},
    "tile": {"repeat": "repeats"},
    "full": {"fill_value": "value"},
    "max_pool2d": {"pool_size": "kernel"},
    "avg_pool2d": {"pool_size": "kernel"},
}
# Attributes that other compilers have, and the value that is ours: any other is refused.
_FIXED: Mapping[str, Mapping[str, tuple[object, ...]]] = {
    "matmul": {"out_dtype": ("void", "", None)},
    "linear": {"out_dtype": ("void", "", None)},
    "conv2d": {
        "data_layout": ("NCHW",),
        "kernel_layout": ("OIHW",),
        "out_layout": ("NCHW", "", None),
        "out_dtype": ("void", "", None),
    },
    "max_pool2d": {"layout": ("NCHW",), "out_layout": ("NCHW", "", None)},
    "avg_pool2d": {"layout": ("NCHW",), "out_layout": ("NCHW", "", None)},
}
_TUPLES = ("axes", "repeats")  # one number stands for a tuple of it
_PAIRS = ("kernel", "strides", "dilation")  # for a tuple of two


def operator_call(g: GraphState, node: ast.Call, name: str) -> Call:
    """The call of operator `name`, its attributes by our names. Raises UserError as `make_call`."""
    args = list(node.args)
    if ops.declared(name) is None:  # of another package: its attributes mean what they say
        return make_call(g, node, name, args)
    if name == "concat" and len(args) == 1 and isinstance(args[0], ast.Tuple | ast.List):
        args = list(args[0].elts)
    attrs: list[ast.keyword] = []
    count = _operands(name)
    if name in _BY_POSITION:
        attrs = _positional(g, args[count:], name)
        args = args[:count]
    for k in node.keywords:
        attr_name = _RENAMED.get(name, {}).get(k.arg or "", k.arg)
        if not _is_fixed(g, node, name, k):
            attrs.append(ast.keyword(attr_name, _value(attr_name or "", k.value, g)))
    first: Value | None = None
    missing = name in _AXES and args and not any(k.arg == "axes" for k in attrs)
    if missing:
        first = parse_value(g, args[0])
        attrs.append(_all_axes(node, first, reverse=name == "transpose"))
    call = ast.copy_location(ast.Call(node.func, args, attrs), node)
    if first is None:
        return make_call(g, call, name, args)
    return _with_operand(g, call, name, first)


_AXES = ("sum", "mean", "max", "min", "prod", "transpose")


def _operands(name: str) -> int:
    declared = ops.declared(name)
    return len(declared.inputs) if declared is not None else 0


def _positional(g: GraphState, nodes: list[ast.expr], name: str) -> list[ast.keyword]:
    names = _BY_POSITION[name]
    return [ast.keyword(key, _value(key, node, g)) for key, node in zip(names, nodes, strict=False)]


def _value(key: str, node: ast.expr, g: GraphState) -> ast.expr:
    """The value of an attribute as ours is written."""
    if isinstance(node, ast.Call) and g.scope.dialect(node.func) == "R.shape":
        several = len(node.args) == 1 and isinstance(node.args[0], ast.List | ast.Tuple)
        return node.args[0] if several else _tuple(node.args, node)
    if isinstance(node, ast.Call) and key == "value" and g.scope.dialect(node.func) == "R.const":
        return node.args[0] if node.args else node
    digits = node.operand if isinstance(node, ast.UnaryOp) else node
    number = isinstance(digits, ast.Constant) and type(digits.value) is int  # True is not one
    if key in _TUPLES and number:
        return _tuple([node], node)
    if key in _PAIRS and number:
        return _tuple([node, node], node)
    if key == "axis" and isinstance(node, ast.List | ast.Tuple) and len(node.elts) == 1:
        return node.elts[0]
    if key == "padding" and isinstance(node, ast.List | ast.Tuple) and len(node.elts) == 2:
        return _tuple([*node.elts, *node.elts], node)
    return _tuple([node] * 4, node) if key == "padding" and number else node


def _tuple(items: list[ast.expr], place: ast.expr) -> ast.expr:
    return ast.copy_location(ast.Tuple(list(items), ast.Load()), place)


def _is_fixed(g: GraphState, node: ast.Call, name: str, k: ast.keyword) -> bool:
    """Whether an attribute is one that has one value here, which is given."""
    allowed = _FIXED.get(name, {}).get(k.arg or "")
    if allowed is None:
        return False
    value = parse_literal(g.scope, k.value)
    if value in allowed:
        return True
    if k.arg == "out_dtype":
        operands = [parse_value(g, a) for a in node.args[:1]]
        t = operands[0].type if operands else None
        if isinstance(t, TensorType) and t.dtype.name == value:
            return True
        hint = f'R.cast(..., dtype="{value}") of the operands, or of the result'
        raise g.fail(k.value, f"{name} gives the type of its operands, not {value!r}", hint)
    allowed_value = next(a for a in allowed if a)
    raise g.fail(k.value, f"{k.arg}={value!r} of {name}", f"{allowed_value!r}, and R.transpose")


def _all_axes(node: ast.Call, operand: Value, reverse: bool) -> ast.keyword:
    ndim = operand.type.ndim if isinstance(operand.type, TensorType) else 0
    axes = range(ndim)[::-1] if reverse else range(ndim)
    items: list[ast.expr] = [ast.copy_location(ast.Constant(i), node) for i in axes]
    return ast.keyword("axes", _tuple(items, node))


def _with_operand(g: GraphState, node: ast.Call, name: str, operand: Value) -> Call:
    """The call whose first operand is parsed already."""
    key = "the operand"  # no name of a script
    var = operand
    if not isinstance(var, RVar):
        var = RVar(f"lv{len(g.bindings)}", operand.type)
        g.bindings.append(Binding(var, operand))
    g.scope.meanings[key] = var
    try:
        named = ast.copy_location(ast.Name(key, ast.Load()), node.args[0])
        return make_call(g, node, name, [named, *node.args[1:]])
    finally:
        del g.scope.meanings[key]


# ---- operators that are one of ours ----------------------------------------------------------


def _shape_of(t: TensorType) -> tuple[AttrValue, ...]:
    return tuple(_extent(d) for d in t.shape)


def _extent(d: Expr) -> AttrValue:
    size = int_value(d)
    return d if size is None else size


def _complete_call(node: ast.Call, op: str, args: tuple[Value, ...], **attrs: AttrValue) -> Parsed:
    return ops.with_defaults(Call(op, args, Attrs.of(**attrs))), None


def _operand(g: GraphState, node: ast.Call) -> tuple[Value, TensorType]:
    if not node.args:
        raise g.fail(node, f"{g.scope.dialect(node.func)} needs an operand")
    x = parse_value(g, node.args[0])
    if not isinstance(x.type, TensorType):
        raise g.fail(node.args[0], "a tensor of known shape is needed here", "R.match_cast")
    return x, x.type


def _axes_of(g: GraphState, node: ast.Call, ndim: int) -> tuple[int, ...] | None:
    """The axes of a call as numbers from 0 to `ndim` - 1; None if it gives none."""
    axis_nodes = [*node.args[1:2], *(k.value for k in node.keywords if k.arg in ("axis", "axes"))]
    if len(axis_nodes) > 1 or len(node.args) > 2 or len(node.keywords) > 1:
        raise g.fail(node, "expected a tensor and its axes")
    literal = parse_literal(g.scope, axis_nodes[0]) if axis_nodes else None
    if literal is None:
        return None
    axes = literal if isinstance(literal, tuple) else (literal,)
    numbers = tuple(a for a in axes if type(a) is int and -ndim <= a < ndim)
    if len(numbers) != len(axes):
        raise g.fail(axis_nodes[0], f"expected axes of {-ndim} to {ndim - 1}, received {literal!r}")
    return tuple(a % ndim for a in numbers)


def _expand_dims(g: GraphState, node: ast.Call) -> Parsed:
    x, t = _operand(g, node)
    count = 1 + t.ndim
    axis_nodes = [*node.args[1:2], *(k.value for k in node.keywords if k.arg == "axis")]
    several = axis_nodes and isinstance(axis_nodes[0], ast.List | ast.Tuple)
    count = t.ndim + (len(axis_nodes[0].elts) if several else 1)  # type: ignore[attr-defined]
    axes = _axes_of(g, node, count) or (0,)
    sizes = iter(_shape_of(t))
    shape = tuple(1 if i in axes else next(sizes) for i in range(count))
    return _complete_call(node, "reshape", (x,), shape=shape)


def _squeeze(g: GraphState, node: ast.Call) -> Parsed:
    x, t = _operand(g, node)
    sizes = _shape_of(t)
    axes = _axes_of(g, node, t.ndim)
    if axes is None:
        axes = tuple(i for i, d in enumerate(sizes) if d == 1)
    wrong = next((i for i in axes if sizes[i] != 1), None)
    if wrong is not None:
        raise g.fail(node, f"axis {wrong} has extent {sizes[wrong]}, not 1")
    return _complete_call(
        node, "reshape", (x,), shape=tuple(d for i, d in enumerate(sizes) if i not in axes)
    )


def _flatten(g: GraphState, node: ast.Call) -> Parsed:
    x, t = _operand(g, node)
    total: Expr = IntImm(1)
    for d in t.shape:
        total = binary("mul", total, d)
    return _complete_call(node, "reshape", (x,), shape=(_extent(total),))


def _square(g: GraphState, node: ast.Call) -> Parsed:
    x, _ = _operand(g, node)
    if not isinstance(x, RVar):
        x, value = RVar(f"lv{len(g.bindings)}", x.type), x
        g.bindings.append(Binding(x, value))
    return _complete_call(node, "mul", (x, x))


def _filled(value: int) -> Callable[[GraphState, ast.Call], Parsed]:
    """`R.zeros(shape, dtype)`, `R.ones(shape, dtype)`."""

    def parse(g: GraphState, node: ast.Call) -> Parsed:
        names = ("shape", "dtype")
        attrs = [
            ast.keyword(key, _value(key, a, g)) for key, a in zip(names, node.args, strict=False)
        ]
        attrs += [ast.keyword(k.arg, _value(k.arg or "", k.value, g)) for k in node.keywords]
        attrs.append(ast.keyword("value", ast.copy_location(ast.Constant(value), node)))
        return make_call(
            g, ast.copy_location(ast.Call(node.func, [], attrs), node), "full", []
        ), None

    return parse


def _filled_like(value: int) -> Callable[[GraphState, ast.Call], Parsed]:
    """`R.zeros_like(x, dtype)`, `R.ones_like(x, dtype)`."""

    def parse(g: GraphState, node: ast.Call) -> Parsed:
        _, t = _operand(g, node)
        dtype_nodes = [*node.args[1:2], *(k.value for k in node.keywords if k.arg == "dtype")]
        dtype = parse_dtype(g.scope, dtype_nodes[0]).name if dtype_nodes else t.dtype.name
        return _complete_call(node, "full", (), shape=_shape_of(t), value=value, dtype=dtype)

    return parse


CALLS: dict[str, Callable[[GraphState, ast.Call], Parsed]] = {
    "R.expand_dims": _expand_dims,
    "R.squeeze": _squeeze,
    "R.flatten": _flatten,
    "R.square": _square,
    "R.zeros": _filled(0),
    "R.ones": _filled(1),
    "R.zeros_like": _filled_like(0),
    "R.ones_like": _filled_like(1),
}

__all__ = ["CALLS", "operator_call"]
