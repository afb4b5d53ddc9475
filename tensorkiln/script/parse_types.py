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
from tensorkiln.script.parse_expr import ExprParser


class TypeParser:
    """Parses types in the scope of `exprs`; quoted extents may introduce symbolic dimensions."""

    def __init__(self, exprs: ExprParser):
        self.exprs, self.scope, self.fail = exprs, exprs.scope, exprs.fail

    def is_type(self, node: ast.expr) -> bool:
        """Whether `node` is written as a type, e.g. `R.Object` or `R.Tensor(...)`."""
        call = isinstance(node, ast.Call)
        return self.scope.dialect(node.func if call else node) in _WORDS  # type: ignore[attr-defined]

    def type(self, node: ast.expr) -> Type:
        """Parse a type, which may also be quoted; raise UserError if `node` is not a type."""
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            return self.type(self.exprs.quoted(node, node.value))
        call = node if isinstance(node, ast.Call) else None
        path = self.scope.dialect(node if call is None else call.func)
        parse = _WORDS.get(path)
        if parse is None:
            hint = nearest(path, list(_WORDS)) if path.startswith("R.") else ""
            hint = hint or 'as R.Tensor((1, 16), "float32"), R.Tuple(...)'
            raise self.fail(node, "not a type", hint)
        if call is None:
            call = ast.copy_location(ast.Call(node, [], []), node)
        return parse(self, call)

    def types(self, node: ast.expr) -> Type:
        """Parse a type, or a list of types as a `TupleType`."""
        if isinstance(node, ast.Tuple | ast.List):
            return TupleType(tuple(map(self.type, node.elts)))
        return self.type(node)

    def options(self, node: ast.Call, names: tuple[str, ...]) -> dict[str, ast.expr]:
        """Return a call's arguments by name. All of `names` may also be given by position, in that
        order; raise UserError for other names and repeated ones."""
        word = self.scope.dialect(node.func)
        if len(node.args) > len(names):
            raise self.fail(node, f"{word} takes at most {len(names)} arguments")
        out = dict(zip(names, node.args, strict=False))
        for k in node.keywords:
            if k.arg not in names:
                hint = nearest(k.arg or "", names)
                raise self.fail(k.value, f"unknown option {k.arg!r} of {word}", hint)
            if k.arg in out:
                raise self.fail(k.value, f"{k.arg} is given twice")
            out[k.arg] = k.value
        return out

    # ---- one method per word -----------------------------------------------------------------

    def _tensor(self, node: ast.Call) -> Type:
        layout = [k for k in node.keywords if k.arg == "layout"]
        bare = ast.Call(node.func, node.args, [k for k in node.keywords if k.arg != "layout"])
        options = self.options(ast.copy_location(bare, node), ("shape", "dtype", "ndim"))
        dtype = self.exprs.dtype(options["dtype"]) if "dtype" in options else None
        if "shape" not in options:
            if layout:
                raise self.fail(layout[0].value, "a layout needs a shape")
            ndim = self.exprs.integer(options["ndim"]) if "ndim" in options else -1
            return AnyTensorType(None if ndim < 0 else ndim, dtype)
        if "ndim" in options:
            raise self.fail(options["ndim"], "a shape says how many dimensions there are")
        if dtype is None:
            raise self.fail(node, "expected a shape and a dtype", 'R.Tensor((4,), "float32")')
        shape = self.exprs.shape(options["shape"])
        return TensorType(shape, dtype, self.layout(layout[0].value) if layout else None)

    def layout(self, node: ast.expr) -> Layout:
        """Parse a memory layout, given as a string."""
        try:
            return Layout.parse(self.exprs.string(node))
        except ValueError as e:
            raise self.fail(node, str(e)) from None

    def _tuple(self, node: ast.Call) -> Type:
        if node.keywords:
            raise self.fail(node.keywords[0].value, "R.Tuple takes types only")
        if len(node.args) == 1 and isinstance(node.args[0], ast.List | ast.Tuple):
            return self.types(node.args[0])
        return TupleType(tuple(map(self.type, node.args)))

    def _shape(self, node: ast.Call) -> Type:
        """`R.Shape(2)`, or `R.Shape(("n", "m"))`, which names the extents."""
        options = self.options(node, ("ndim",))
        if "ndim" not in options:
            raise self.fail(node, "expected the number of extents", "R.Shape(ndim=2)")
        if isinstance(options["ndim"], ast.Tuple | ast.List):
            values = self.exprs.shape(options["ndim"])
            if not all(isinstance(v, Var) for v in values):
                raise self.fail(options["ndim"], "expected names of extents", 'R.Shape(("n",))')
            return ShapeType(len(values), values)
        ndim = self.exprs.integer(options["ndim"])
        if ndim < 0:
            raise self.fail(options["ndim"], f"expected 0 or more extents, received {ndim}")
        return ShapeType(ndim)

    def _prim(self, node: ast.Call) -> Type:
        options = self.options(node, ("dtype",))
        dtype = self.exprs.dtype(options["dtype"]) if "dtype" in options else INT64
        if dtype.lanes != 1:
            raise self.fail(node, f"{dtype} is a vector, not one number")
        return PrimType(dtype)

    def _string(self, node: ast.Call) -> Type:
        self.options(node, ())
        return StringType()

    def _object(self, node: ast.Call) -> Type:
        self.options(node, ())
        return ObjectType()

    def _callable(self, node: ast.Call) -> Type:
        options = self.options(node, ("params", "ret"))
        with self.scope.inner():  # symbols introduced by its types are local to them
            given = options.get("params")
            params: tuple[Type, ...] | None = None
            if isinstance(given, ast.Tuple | ast.List):
                params = tuple(map(self.type, given.elts))
            elif given is not None and not (
                isinstance(given, ast.Constant) and given.value is None
            ):
                hint = 'R.Callable((R.Tensor((4,), "float32"),), R.Object)'
                raise self.fail(given, "expected the types of the parameters as a tuple", hint)
            result = self.type(options["ret"]) if "ret" in options else ObjectType()
        return FuncType(params, result)


_WORDS: dict[str, Callable[[TypeParser, ast.Call], Type]] = {
    "R.Tensor": TypeParser._tensor,
    "R.Tuple": TypeParser._tuple,
    "R.Shape": TypeParser._shape,
    "R.Prim": TypeParser._prim,
    "R.String": TypeParser._string,
    "R.Str": TypeParser._string,
    "R.Object": TypeParser._object,
    "R.Callable": TypeParser._callable,
}
