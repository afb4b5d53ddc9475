"""Types of graphs from Python syntax trees: `R.Tensor((1, "n"), "float32")`, `R.Tuple(...)`, ..."""

from __future__ import annotations

import ast
from collections.abc import Callable

from tensorkiln.base.errors import nearest
from tensorkiln.ir.dtype import INT64
from tensorkiln.ir.expr import Var
from tensorkiln.ir.layout import Layout
from tensorkiln.ir.relax import (
    AnyTensorType,
    FuncType,
    ObjectType,
    PrimType,
    ShapeType,
    StringType,
    TensorType,
    TupleType,
    Type,
)
from tensorkiln.script.arguments import arguments
from tensorkiln.script.parse_literals import parse_dtype, parse_integer, parse_string
from tensorkiln.script.parse_shape import parse_quoted, parse_shape
from tensorkiln.script.scope import NameScope


def is_type(scope: NameScope, node: ast.expr) -> bool:
    """Whether `node` is written as a type, e.g. `R.Object` or `R.Tensor(...)`."""
    call = isinstance(node, ast.Call)
    return scope.dialect(node.func if call else node) in _WORDS  # type: ignore[attr-defined]


def parse_type(scope: NameScope, node: ast.expr) -> Type:
    """Parse a type, which may also be quoted; raise UserError if `node` is not a type."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return parse_type(scope, parse_quoted(scope, node, node.value))
    call = node if isinstance(node, ast.Call) else None
    path = scope.dialect(node if call is None else call.func)
    parse = _WORDS.get(path)
    if parse is None:
        hint = nearest(path, list(_WORDS)) if path.startswith("R.") else ""
        hint = hint or 'as R.Tensor((1, 16), "float32"), R.Tuple(...)'
        raise scope.fail(node, "not a type", hint)
    if call is None:
        call = ast.copy_location(ast.Call(node, [], []), node)
    return parse(scope, call)


def parse_types(scope: NameScope, node: ast.expr) -> Type:
    """Parse a type, or a list of types as a `TupleType`."""
    if isinstance(node, ast.Tuple | ast.List):
        return TupleType(tuple(parse_type(scope, x) for x in node.elts))
    return parse_type(scope, node)


# ---- one function per word -----------------------------------------------------------------


def _tensor(scope: NameScope, node: ast.Call) -> Type:
    options = arguments(scope, node, ("shape", "dtype", "ndim"), ("layout", "device"))
    dtype = parse_dtype(scope, options["dtype"]) if "dtype" in options else None
    if "shape" not in options:
        for name in ("layout", "device"):
            if name in options:
                raise scope.fail(options[name], f"a {name} needs a shape")
        ndim = parse_integer(scope, options["ndim"]) if "ndim" in options else -1
        return AnyTensorType(None if ndim < 0 else ndim, dtype)
    if "ndim" in options:
        raise scope.fail(options["ndim"], "a shape says how many dimensions there are")
    if dtype is None:
        raise scope.fail(node, "expected a shape and a dtype", 'R.Tensor((4,), "float32")')
    shape = parse_shape(scope, options["shape"])
    layout = parse_layout(scope, options["layout"]) if "layout" in options else None
    device = parse_string(scope, options["device"]) if "device" in options else ""
    if "device" in options and not device:
        raise scope.fail(options["device"], "expected a device", "the target_key of one")
    return TensorType(shape, dtype, layout, device)


def parse_layout(scope: NameScope, node: ast.expr) -> Layout:
    """Parse a memory layout, given as a string."""
    try:
        return Layout.parse(parse_string(scope, node))
    except ValueError as e:
        raise scope.fail(node, str(e)) from None


def _tuple(scope: NameScope, node: ast.Call) -> Type:
    if node.keywords:
        raise scope.fail(node.keywords[0].value, "R.Tuple takes types only")
    if len(node.args) == 1 and isinstance(node.args[0], ast.List | ast.Tuple):
        return parse_types(scope, node.args[0])
    return TupleType(tuple(parse_type(scope, x) for x in node.args))


def _shape(scope: NameScope, node: ast.Call) -> Type:
    """`R.Shape(2)`, or `R.Shape(("n", "m"))`, which names the extents."""
    options = arguments(scope, node, ("ndim",))
    if "ndim" not in options:
        raise scope.fail(node, "expected the number of extents", "R.Shape(ndim=2)")
    if isinstance(options["ndim"], ast.Tuple | ast.List):
        values = parse_shape(scope, options["ndim"])
        if not all(isinstance(v, Var) for v in values):
            raise scope.fail(options["ndim"], "expected names of extents", 'R.Shape(("n",))')
        return ShapeType(len(values), values)
    ndim = parse_integer(scope, options["ndim"])
    if ndim < 0:
        raise scope.fail(options["ndim"], f"expected 0 or more extents, received {ndim}")
    return ShapeType(ndim)


def _prim(scope: NameScope, node: ast.Call) -> Type:
    """`R.Prim("int64")`, or `R.Prim("int64", value="k")`, which names the number."""
    options = arguments(scope, node, ("dtype", "value"))
    dtype = parse_dtype(scope, options["dtype"]) if "dtype" in options else INT64
    if dtype.lanes != 1:
        raise scope.fail(node, f"{dtype} is a vector, not one number")
    if "value" not in options:
        return PrimType(dtype)
    name_node = options["value"]
    (value,) = parse_shape(scope, ast.copy_location(ast.Tuple([name_node], ast.Load()), name_node))
    if not isinstance(value, Var) or not dtype.is_int:
        raise scope.fail(name_node, "expected the name of an integer", 'R.Prim("int64", value="k")')
    return PrimType(dtype, value)


def _string(scope: NameScope, node: ast.Call) -> Type:
    arguments(scope, node, ())
    return StringType()


def _object(scope: NameScope, node: ast.Call) -> Type:
    arguments(scope, node, ())
    return ObjectType()


def _callable(scope: NameScope, node: ast.Call) -> Type:
    options = arguments(scope, node, ("params", "ret"))
    with scope.inner():  # symbols introduced by its types are local to them
        params_node = options.get("params")
        params: tuple[Type, ...] | None = None
        if isinstance(params_node, ast.Tuple | ast.List):
            params = tuple(parse_type(scope, x) for x in params_node.elts)
        elif params_node is not None and not (
            isinstance(params_node, ast.Constant) and params_node.value is None
        ):
            hint = 'R.Callable((R.Tensor((4,), "float32"),), R.Object)'
            raise scope.fail(params_node, "expected the types of the parameters as a tuple", hint)
        result = parse_type(scope, options["ret"]) if "ret" in options else ObjectType()
    return FuncType(params, result)


_WORDS: dict[str, Callable[[NameScope, ast.Call], Type]] = {
    "R.Tensor": _tensor,
    "R.Tuple": _tuple,
    "R.Shape": _shape,
    "R.Prim": _prim,
    "R.String": _string,
    "R.Str": _string,
    "R.Object": _object,
    "R.Callable": _callable,
}
