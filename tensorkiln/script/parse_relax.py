"""Graphs from Python syntax trees: types, values, bindings and `Function`."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np

from tensorkiln.base.errors import nearest
from tensorkiln.ir.attrs import Attrs, AttrValue
from tensorkiln.ir.dtype import INT64
from tensorkiln.ir.expr import Expr, IntImm, Var, int_value
from tensorkiln.ir.layout import Layout
from tensorkiln.ir.module import AnyFunction
from tensorkiln.ir.relax import (
    Binding,
    Bound,
    Call,
    Constant,
    Function,
    GlobalRef,
    If,
    Lambda,
    MatchCast,
    RVar,
    ShapeType,
    ShapeValue,
    TensorType,
    Tuple,
    TupleItem,
    TupleType,
    Type,
    Value,
    constant,
)
from tensorkiln.ir.stmt import PrimFunc
from tensorkiln.ir.text.print_relax import digest
from tensorkiln.script.parse_expr import ExprParser
from tensorkiln.script.parse_tir import plain_arguments
from tensorkiln.script.scope import Number, Scope

Infer = Callable[[Call], Type]


@dataclass(slots=True)
class ModuleContext:
    """What the functions of one module share. `names` is None when not all are known."""

    words: set[str]
    names: list[str] | None
    constants: Mapping[str, np.ndarray]
    infer: Infer | None = None
    functions: dict[str, AnyFunction] = field(default_factory=dict)
    literals: dict[str, Constant] = field(default_factory=dict)


class RelaxParser:
    """One `@R.function`."""

    def __init__(self, scope: Scope, module: ModuleContext):
        self.scope, self.module = scope, module
        self.exprs = ExprParser(scope)
        self.fail = self.exprs.fail
        self._bindings: list[Binding] = []
        self._words = set(module.words)

    def function(self, node: ast.FunctionDef, options: list[ast.keyword]) -> Function:
        """The graph of a decorated function."""
        params = []
        for arg in plain_arguments(self.scope, node):
            if arg.annotation is None:
                hint = 'as x: R.Tensor((1, "n"), "float32")'
                raise self.fail(arg, f"parameter {arg.arg!r} needs a type", hint)
            params.append(RVar(arg.arg, self.type(arg.annotation)))
            self.scope.bind(arg, arg.arg, params[-1])
        name, attrs = self._options(node.name, options)
        result = self._body(node)
        if node.returns is not None:
            self._check_result(node.returns, result)
        return Function(name, tuple(params), tuple(self._bindings), result, attrs)

    def _options(self, name: str, options: list[ast.keyword]) -> tuple[str, Attrs]:
        attrs = Attrs()
        for k in options:
            if k.arg == "name":
                name = str(self.exprs.literal(k.value))
            elif k.arg == "attrs" and isinstance(k.value, ast.Dict):
                attrs = Attrs(tuple(sorted(self._dict(k.value).items(), key=lambda p: p[0])))
            elif k.arg != "infer":
                hint = nearest(k.arg or "", ["name", "attrs"])
                raise self.fail(k.value, f"unknown option {k.arg!r} of R.function", hint)
        return name, attrs

    def _check_result(self, node: ast.expr, result: Value) -> None:
        declared = self.type(node)
        if declared != result.type:
            raise self.fail(node, "the result has another type", f"it is {result.type}")

    # ---- types -------------------------------------------------------------------------------

    def type(self, node: ast.expr) -> Type:
        """`R.Tensor(shape, dtype, layout=)`, `R.Tuple(...)` or `R.Shape(ndim)`."""
        if isinstance(node, ast.Call):
            path = self.scope.dialect(node.func)
            if path == "R.Tuple" and not node.keywords:
                return TupleType(tuple(map(self.type, node.args)))
            if path == "R.Shape" and len(node.args) == 1 and not node.keywords:
                return ShapeType(self.exprs.integer(node.args[0]))
            if path == "R.Tensor":
                return self._tensor(node)
        raise self.fail(node, "not a type", 'as R.Tensor((1, 16), "float32"), R.Tuple(...)')

    def _tensor(self, node: ast.Call) -> TensorType:
        layout: Layout | None = None
        arguments = list(node.args)
        for k in node.keywords:
            if k.arg == "layout":
                layout = self._layout(k.value)
            elif k.arg == "dtype" and len(arguments) == 1:
                arguments.append(k.value)
            else:
                raise self.fail(k.value, f"unknown option {k.arg!r} of R.Tensor")
        if len(arguments) != 2:
            raise self.fail(node, "expected a shape and a dtype", 'R.Tensor((4,), "float32")')
        return TensorType(self.exprs.shape(arguments[0]), self.exprs.dtype(arguments[1]), layout)

    def _layout(self, node: ast.expr) -> Layout:
        try:
            return Layout.parse(str(self.exprs.literal(node)))
        except ValueError as e:
            raise self.fail(node, str(e)) from None

    # ---- statements --------------------------------------------------------------------------

    def _body(self, node: ast.FunctionDef) -> Value:
        for i, s in enumerate(node.body):
            if isinstance(s, ast.Return):
                if i + 1 != len(node.body):
                    raise self.fail(node.body[i + 1], "nothing may follow return")
                if s.value is None:
                    raise self.fail(s, "a graph function returns a value")
                return self.value(s.value)
            self._stmt(s)
        raise self.fail(node, f"{node.name!r} has no return")

    def _stmt(self, s: ast.stmt) -> None:
        match s:
            case ast.Pass() | ast.Expr(value=ast.Constant(value=str())):
                return
            case ast.Assign(targets=[ast.Name() as name], value=value):
                if not self._alias(name, value):
                    self._bind(name, value, None)
            case ast.AnnAssign(target=ast.Name() as name, value=ast.expr() as value):
                self._bind(name, value, s.annotation)
            case ast.With(items=[ast.withitem(context_expr=ast.Call() as call)]) if (
                self.scope.dialect(call.func) == "R.dataflow"
            ):
                for inner in s.body:
                    self._stmt(inner)
            case ast.Expr(value=ast.Call() as call) if self.scope.dialect(call.func) == "R.output":
                return
            case _:
                hint = "there are bindings `y = ...`, `with R.dataflow():`, and return"
                raise self.fail(s, "not a statement of graphs", hint)

    def _alias(self, name: ast.Name, value: ast.expr) -> bool:
        """`cls = MyModule`, and `n = T.int64()` for a symbolic dimension."""
        if isinstance(value, ast.Name) and value.id in self._words - set(self.scope.bound):
            self._words.add(name.id)
            return True
        if isinstance(value, ast.Call) and not value.args and not value.keywords:
            path = self.scope.dialect(value.func)
            if path == "T.int64":
                if not isinstance(self.scope.bound.get(name.id), Var):
                    self.scope.bind(name, name.id, Var(name.id, INT64))
                return True
        return False

    def _bind(self, name: ast.Name, node: ast.expr, annotation: ast.expr | None) -> None:
        value, found = self._bound(node)
        if annotation is not None:
            found = self.type(annotation)
        elif found is None:
            found = self._inferred(node, value)
        var = RVar(name.id, found)
        self.scope.bind(name, name.id, var)
        self._bindings.append(Binding(var, value))

    def _inferred(self, node: ast.expr, value: Bound) -> Type:
        """The type of a call that the script does not write down."""
        assert isinstance(value, Call)
        if value.op and self.module.infer is not None:
            return self.module.infer(value)
        callee = value.callee
        found = None
        if isinstance(callee, GlobalRef):
            found = _result_type(self.module.functions.get(callee.name))
        if found is None:
            hint = 'write it: y: R.Tensor((1, 16), "float32") = ...'
            raise self.fail(node, "the type of this result is not known here", hint)
        return found

    # ---- values ------------------------------------------------------------------------------

    def value(self, node: ast.expr) -> Value:
        """An operand; a call in its place is bound to a variable of its own first."""
        bound, found = self._bound(node)
        if not isinstance(bound, Call | TupleItem | If | Lambda | MatchCast):
            return bound
        var = RVar(f"lv{len(self._bindings)}", found or self._inferred(node, bound))
        self._bindings.append(Binding(var, bound))
        return var

    def _bound(self, node: ast.expr) -> tuple[Bound, Type | None]:
        """The right side of a binding, and its type as far as the text says."""
        match node:
            case ast.Name(id=name):
                value = self._named(node, name)
            case ast.Tuple(elts=elts) | ast.List(elts=elts):
                value = Tuple(tuple(map(self.value, elts)))
            case ast.Subscript(value=inner) if not self._is_module(inner):
                return self._item(node, inner)
            case ast.Call():
                return self._call(node)
            case _:
                raise self.fail(node, "not a graph value", "operators are calls: R.add(x, y)")
        return value, value.type

    def _named(self, node: ast.Name, name: str) -> Value:
        found = self.scope.bound.get(name)
        if isinstance(found, RVar):
            return found
        captured = self.scope.captured.get(name)
        if found is None and isinstance(captured, np.ndarray):
            if name not in self.module.literals:
                self.module.literals[name] = constant(captured, name)
            return self.module.literals[name]
        if found is None:
            raise self.scope.unknown(node)
        raise self.fail(node, f"{name!r} is a number, not a tensor", "R.shape(n), or an attribute")

    def _item(self, node: ast.Subscript, inner: ast.expr) -> tuple[Bound, Type | None]:
        value = self.value(inner)
        index = self.exprs.integer(node.slice)
        fields = value.type.fields if isinstance(value.type, TupleType) else ()
        if not 0 <= index < len(fields):
            raise self.fail(node, f"no item {index}: {len(fields)} items in this value")
        return TupleItem(value, index), fields[index]

    # ---- calls -------------------------------------------------------------------------------

    def _is_module(self, node: ast.expr) -> bool:
        return (
            isinstance(node, ast.Name)
            and node.id in self._words
            and node.id not in self.scope.bound
        )

    def _callee(self, node: ast.expr) -> GlobalRef | None:
        """`Module.f` or `Module["f"]`."""
        name: object = None
        if isinstance(node, ast.Attribute) and self._is_module(node.value):
            name = node.attr
        elif isinstance(node, ast.Subscript) and self._is_module(node.value):
            name = self.exprs.literal(node.slice)
        if not isinstance(name, str):
            return None
        known = self.module.names
        if known is not None and name not in known:
            raise self.fail(node, f"no function {name!r} in this module", nearest(name, known))
        return GlobalRef(name)

    def _call(self, node: ast.Call) -> tuple[Bound, Type | None]:
        callee = self._callee(node.func)
        if callee is not None:
            return self._make(node, callee, node.args), None
        path = self.scope.dialect(node.func)
        if not path.startswith("R."):
            raise self.fail(node.func, "not an operator", "operators are R.name(...)")
        special = _CALLS.get(path)
        if special is not None:
            return special(self, node)
        return self._make(node, path[2:], node.args), None

    def _make(self, node: ast.Call, callee: str | GlobalRef, args: list[ast.expr]) -> Call:
        attrs: dict[str, AttrValue] = {}
        span = ""
        for k in node.keywords:
            if k.arg == "span":
                span = str(self.exprs.literal(k.value))
            elif k.arg is not None:
                attrs[k.arg] = self.attr(k.value)
            elif isinstance(k.value, ast.Dict):
                attrs |= self._dict(k.value)
            else:
                raise self.fail(k.value, "expected attributes as a dict")
        values = tuple(map(self.value, args))
        return Call(callee, values, Attrs(tuple(sorted(attrs.items(), key=lambda p: p[0]))), span)

    def _dict(self, node: ast.Dict) -> dict[str, AttrValue]:
        out = {}
        for k, v in zip(node.keys, node.values, strict=True):
            if not isinstance(k, ast.Constant) or not isinstance(k.value, str):
                raise self.fail(k or v, "attribute names are strings")
            out[k.value] = self.attr(v)
        return out

    def attr(self, node: ast.expr) -> AttrValue:
        """A Python literal, or an expression over symbolic dimensions."""
        match node:
            case ast.Constant(value=(None | bool() | int() | float() | str()) as value):
                return value
            case ast.Tuple(elts=elts) | ast.List(elts=elts):
                return tuple(map(self.attr, elts))
            case ast.Call(func=ast.Name(id="float")):
                return self.exprs.literal(node)  # type: ignore[return-value]
        found = self.exprs.raw(node)
        return found.value if isinstance(found, Number) else found

    def _op(self, node: ast.Call) -> tuple[Bound, Type | None]:
        """`R.op("any name", ...)`."""
        if not node.args:
            raise self.fail(node, "expected the operator's name")
        name = self.exprs.literal(node.args[0])
        return self._make(node, str(name), node.args[1:]), None

    def _call_tir(self, node: ast.Call) -> tuple[Bound, Type | None]:
        """`R.call_tir(cls.f, [x, y], R.Tensor(...))`."""
        if len(node.args) != 3:
            raise self.fail(node, "expected R.call_tir(cls.f, [args], out_type)")
        function, args, out = node.args
        callee = self._callee(function)
        if callee is None:
            raise self.fail(function, "expected a function of this module", "as cls.add_one")
        values = args.elts if isinstance(args, (ast.Tuple, ast.List)) else [args]
        call = self._make(node, callee, values)
        if isinstance(out, (ast.Tuple, ast.List)):
            return call, TupleType(tuple(map(self.type, out.elts)))
        return call, self.type(out)

    def _shape(self, node: ast.Call) -> tuple[Bound, Type | None]:
        value = ShapeValue(tuple(map(self.exprs.expr, node.args)))
        return value, value.type

    # ---- constants ---------------------------------------------------------------------------

    def _const(self, node: ast.Call) -> tuple[Bound, Type | None]:
        """`R.const(values, dtype, shape?)`, or `R.const("key", dtype, shape, sha256=...)`."""
        options = {k.arg: k.value for k in node.keywords}
        unknown = [k for k in options if k not in ("layout", "name", "sha256")]
        if unknown or len(node.args) not in (2, 3):
            raise self.fail(node, "expected R.const(values or key, dtype, shape, ...)")
        layout = self._layout(options["layout"]) if "layout" in options else None
        dtype = self.exprs.dtype(node.args[1])
        data = self.exprs.literal(node.args[0])
        shape = self.exprs.shape(node.args[2]) if len(node.args) == 3 else None
        if isinstance(data, str):
            found = self._referred(node, data, TensorType(shape or (), dtype, layout), options)
        else:
            name = str(self.exprs.literal(options["name"])) if "name" in options else ""
            array = self._array(node, data, dtype.name)
            kind = TensorType(_extents(array) if shape is None else shape, dtype, layout)
            found = Constant(array.reshape(self._physical(node, kind, array.size)), kind, name)
        return found, found.type

    def _array(self, node: ast.Call, data: object, dtype: str) -> np.ndarray:
        try:
            return np.array(data, dtype)
        except (ValueError, TypeError, OverflowError) as e:
            raise self.fail(node.args[0], f"not {dtype} data: {e}") from None

    def _physical(self, node: ast.Call, kind: TensorType, size: int) -> tuple[int, ...]:
        """The physical shape, which must hold `size` elements."""
        dims = [int_value(d) for d in kind.physical_shape]
        shape = tuple(d for d in dims if d is not None)
        if len(shape) != len(dims) or int(np.prod(shape, dtype=object)) != size:
            raise self.fail(node, f"{size} elements for a constant of shape {shape}")
        return shape

    def _referred(
        self, node: ast.Call, key: str, kind: TensorType, options: dict[str | None, ast.expr]
    ) -> Constant:
        known = self.module.literals.get(key)
        if known is not None and known.type == kind:
            return known
        array = self.module.constants.get(key)
        if array is None:
            names = list(self.module.constants)
            hint = nearest(key, names) or f"pass constants={{{key!r}: array}}"
            raise self.fail(node.args[0], f"no constant {key!r} was given", hint)
        shape = self._physical(node, kind, array.size)
        if array.shape != shape or array.dtype.itemsize != kind.dtype.bytes:
            message = f"{key!r} is {array.dtype}{list(array.shape)}, expected {list(shape)}"
            raise self.fail(node, f"{message} of {kind.dtype}")
        expected = options.get("sha256")
        if expected is not None and self.exprs.literal(expected) != digest(array):
            raise self.fail(expected, f"the bytes given for {key!r} are not these")
        name = key.rpartition("#")[0] or key
        found = Constant(array, kind, "" if name == "const" else name)
        self.module.literals[key] = found
        return found


def _extents(array: np.ndarray) -> tuple[Expr, ...]:
    return tuple(IntImm(n) for n in array.shape)


def _result_type(f: AnyFunction | None) -> Type | None:
    """What a call of `f` gives, where that does not depend on its operands."""
    if isinstance(f, PrimFunc) and f.outputs:
        outs = f.buffers[-f.outputs :]
        types = tuple(TensorType(b.shape, b.dtype) for b in outs)
        if all(t.static_shape() is not None for t in types):
            return types[0] if len(types) == 1 else TupleType(types)
    if isinstance(f, Function) and isinstance(f.result.type, TensorType):
        return f.result.type if f.result.type.static_shape() is not None else None
    return None


_CALLS: dict[str, Callable[[RelaxParser, ast.Call], tuple[Bound, Type | None]]] = {
    "R.const": RelaxParser._const,
    "R.shape": RelaxParser._shape,
    "R.call_tir": RelaxParser._call_tir,
    "R.op": RelaxParser._op,
}
