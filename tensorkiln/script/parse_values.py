"""Values of graphs from Python syntax trees: operands, constants and calls."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from tensorkiln import ops
from tensorkiln.base.errors import UserError, nearest
from tensorkiln.ir.attrs import Attrs, AttrValue
from tensorkiln.ir.dtype import BOOL, DType
from tensorkiln.ir.expr import Var
from tensorkiln.ir.module import AnyFunction
from tensorkiln.ir.relax import (
    IMPURE_OPS,
    Binding,
    Bound,
    Call,
    Constant,
    FuncType,
    GlobalRef,
    If,
    Lambda,
    MatchCast,
    ObjectType,
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
from tensorkiln.script.parse_expr import ExprParser
from tensorkiln.script.parse_types import TypeParser
from tensorkiln.script.scope import Number, Scope, plain

Infer = Callable[[Call], Type]
# The right side of a binding, and its type; None if that is still to be inferred.
Parsed = tuple[Bound, Type | None]
# Right sides that must be bound to a variable before they can be operands.
COMPUTED = (Call, TupleItem, If, Lambda, MatchCast)
# Callees whose grammar lists all keywords: no others are taken as attributes.
WITHOUT_ATTRS = frozenset({"call_tir_inplace", "alloc_storage", "while_loop"})


@dataclass(slots=True)
class ModuleContext:
    """State shared by the functions of one module while it is parsed.

    `words` are names of the module itself, such as `cls`. `names` lists all its functions; None if
    not all are known. `functions` and `literals` hold the functions and constants parsed so far.
    `headers` has a callable for each graph function, which returns its parameter types and its
    result type, None if that is not written, before the function is parsed.
    """

    words: set[str]
    names: list[str] | None
    constants: Mapping[str, np.ndarray]
    infer: Infer = ops.infer
    functions: dict[str, AnyFunction] = field(default_factory=dict)
    literals: dict[str, Constant] = field(default_factory=dict)
    headers: dict[str, Callable[[], tuple[tuple[Type, ...], Type | None]]] = field(
        default_factory=dict
    )


class ValueParser:
    """Parses values in one scope; nested calls are appended to `bindings`."""

    special: ClassVar[Mapping[str, Callable[..., Parsed]]] = {}

    def __init__(self, scope: Scope, module: ModuleContext):
        self.scope, self.module = scope, module
        self.exprs = ExprParser(scope)
        self.types = TypeParser(self.exprs)
        self.fail = self.exprs.fail
        self.bindings: list[Binding] = []
        self.words = set(module.words)

    # ---- values ------------------------------------------------------------------------------

    def value(self, node: ast.expr) -> Value:
        """Parse an operand. A nested call is first bound to a new variable."""
        bound, found = self.bound(node)
        if not isinstance(bound, COMPUTED):
            return bound
        var = RVar(f"lv{len(self.bindings)}", found or self.inferred(node, bound))
        self.bindings.append(Binding(var, bound))
        return var

    def bound(self, node: ast.expr) -> Parsed:
        """Parse the right side of a binding; also return its type, or None if that is to be
        inferred."""
        match node:
            case ast.Name(id=name):
                value = self._named(node, name)
            case ast.Tuple(elts=elts) | ast.List(elts=elts):
                value = Tuple(tuple(map(self.value, elts)))
            case ast.Subscript(value=inner) if not self.is_module(inner):
                return self._item(node, inner)
            case ast.Call():
                return self._call(node)
            case ast.Constant(value=str(text)):
                value = StringValue(text)
            case ast.Constant(value=bool() | int() | float()) | ast.UnaryOp(op=ast.USub()):
                value = self.number(node)
            case ast.Attribute() | ast.Subscript():
                return self._function(node)
            case _:
                raise self.fail(node, "not a graph value", "operators are calls: R.add(x, y)")
        return value, value.type

    def number(self, node: ast.expr) -> PrimValue:
        """Parse a number: `3` is an int64, `2.5` a float64; `T.int32(3)` gives another dtype."""
        found = self.exprs.raw(node)
        if isinstance(found, Number):
            wide = DType("float64") if isinstance(found.value, float) else None
            found = self.exprs.number(node, found, wide)
        if found.dtype.lanes != 1:
            raise self.fail(node, f"{found.dtype} is a vector, not one number")
        return PrimValue(found)

    def _named(self, node: ast.Name, name: str) -> Value:
        found = self.scope.bound.get(name)
        if isinstance(found, RVar):
            return found
        captured = self.scope.captured.get(name)
        if found is None and isinstance(captured, np.ndarray):
            if name not in self.module.literals:
                self.module.literals[name] = constant(captured, name)
            return self.module.literals[name]
        literal = plain(captured) if found is None else None
        if isinstance(literal, str):
            return StringValue(literal)
        if isinstance(literal, int | float):
            return self.number(node)
        if found is None:
            raise self.scope.unknown(node)
        hint = f"R.prim_value({name}), R.shape([{name}]), or an attribute"
        raise self.fail(node, f"{name!r} is a number, not a tensor", hint)

    def _item(self, node: ast.Subscript, inner: ast.expr) -> Parsed:
        value = self.value(inner)
        index = self.exprs.integer(node.slice)
        fields = value.type.fields if isinstance(value.type, TupleType) else ()
        if not 0 <= index < len(fields):
            raise self.fail(node, f"no item {index}: {len(fields)} items in this value")
        return TupleItem(value, index), fields[index]

    def _function(self, node: ast.expr) -> Parsed:
        """Parse `cls.f` as a value."""
        found = self.callee(node)
        if found is None:
            raise self.fail(node, "not a graph value", "operators are calls: R.add(x, y)")
        params, result = self._signature(node, found)
        return found, FuncType(params, result)

    def condition(self, node: ast.expr) -> Value:
        """Parse the condition of a branch or a loop: a graph value of one bool, or a comparison of
        numbers."""
        if isinstance(node, ast.Compare | ast.BoolOp | ast.UnaryOp):
            return PrimValue(self.exprs.expr(node, BOOL))
        value = self.value(node)
        if not is_condition(value.type):
            hint = "compare numbers, as n > 4, or a tensor of one element by R.greater(x, y)"
            raise self.fail(node, f"a condition is one bool, not {show(value.type)}", hint)
        return value

    # ---- types of calls ----------------------------------------------------------------------

    def dims(self) -> set[Var]:
        """Return the symbolic dimensions in scope."""
        return {v for v in self.scope.bound.values() if isinstance(v, Var)}

    def inferred(self, node: ast.expr, value: Bound) -> Type:
        """Return the type of a call that is not annotated; raise UserError if it is unknown."""
        assert isinstance(value, Call)
        found: Type | None = None
        if value.op:
            found = self._operator_type(node, value)
        elif isinstance(value.callee, RVar):
            assert isinstance(value.callee.type, FuncType)
            found = called_type(value.callee.type, [a.type for a in value.args], self.dims())
        elif isinstance(value.callee, GlobalRef):
            found = self._function_result(node, value.callee, value)
        if found is None:
            hint = 'write it: y: R.Tensor((1, 16), "float32") = ...'
            raise self.fail(node, "the type of this result is not known here", hint)
        return found

    def _operator_type(self, node: ast.expr, call: Call) -> Type | None:
        """Return the type by the operator's type rule, or by `infer` if it is not declared; None if
        the script must give the type."""
        if call.op == "call_packed":
            return ObjectType()
        if call.op in IMPURE_OPS:
            return None
        if ops.declared(call.op) is not None:
            return self.derived(node, call)
        try:
            return self.module.infer(call)
        except UserError as error:
            raise self.fail(node, error.message, error.hint) from None

    def derived(self, node: ast.expr, call: Call) -> Type:
        """Return the type of a call by the type rule of its operator, which must be declared."""
        try:
            return ops.infer(call)
        except UserError as error:
            raise self.fail(node, error.message, error.hint) from None

    def _function_result(self, node: ast.expr, ref: GlobalRef, call: Call) -> Type | None:
        f = self.module.functions.get(ref.name)
        if isinstance(f, TensorProgram):
            return _kernel_result(f)
        if f is None and ref.name not in self.module.headers:
            return None
        params, result = self._signature(node, ref)
        return called_type(FuncType(params, result), [a.type for a in call.args])

    def _signature(self, node: ast.expr, ref: GlobalRef) -> tuple[tuple[Type, ...] | None, Type]:
        """Return parameter and result types of a function of the module. Raise UserError if the
        function is not parsed yet and its result type is not written."""
        f = self.module.functions.get(ref.name)
        header = self.module.headers.get(ref.name)
        if f is not None or header is None:
            t = ref.type if f is None else function_type(f)
            return t.params, t.result
        params, result = header()
        if result is None:
            hint = f'write it: def {ref.name}(...) -> R.Tensor((1, 16), "float32"):'
            raise self.fail(node, f"the result of {ref.name!r} is not known before its text", hint)
        return params, result

    # ---- calls -------------------------------------------------------------------------------

    def is_module(self, node: ast.expr) -> bool:
        """Whether `node` is a name of this module, such as `cls`."""
        return (
            isinstance(node, ast.Name) and node.id in self.words and node.id not in self.scope.bound
        )

    def callee(self, node: ast.expr) -> GlobalRef | None:
        """Return the function that `Module.f` or `Module["f"]` refers to; None if `node` is of
        another form. Raise UserError if the module has no such function."""
        name: object = None
        if isinstance(node, ast.Attribute) and self.is_module(node.value):
            name = node.attr
        elif isinstance(node, ast.Subscript) and self.is_module(node.value):
            name = self.exprs.literal(node.slice)
        if not isinstance(name, str):
            return None
        known = self.module.names
        if known is not None and name not in known:
            raise self.fail(node, f"no function {name!r} in this module", nearest(name, known))
        return GlobalRef(name)

    def _call(self, node: ast.Call) -> Parsed:
        callee = self.callee(node.func)
        if callee is not None:
            call = self.make(node, callee, node.args)
            self._check_function(node, callee, call)
            return call, None
        path = self.scope.dialect(node.func)
        if path.startswith("R."):
            special = self.special.get(path)
            if special is not None:
                return special(self, node)
            return self.make(node, path[2:], node.args), None
        if path or (isinstance(node.func, ast.Name) and node.func.id not in self.scope.bound):
            raise self.fail(node.func, "not an operator", "operators are R.name(...)")
        return self._call_value(node), None

    def _call_value(self, node: ast.Call) -> Call:
        """Parse a call of a variable that holds a function."""
        function = self.value(node.func)
        if not isinstance(function, RVar) or not isinstance(function.type, FuncType):
            hint = "narrow it with R.match_cast(f, R.Callable(...))"
            raise self.fail(node.func, f"{show(function.type)} is not a function", hint)
        call = self.make(node, function, node.args)
        self.check_operands(node, node.args, function.type.params, call.args, function.name)
        return call

    def _check_function(self, node: ast.Call, callee: GlobalRef, call: Call) -> None:
        """Check operands against the parameters of a graph function, if they are known."""
        f = self.module.functions.get(callee.name)
        if isinstance(f, TensorProgram) or (f is None and callee.name not in self.module.headers):
            return
        if f is not None and not f.is_primitive:
            params: tuple[Type, ...] | None = tuple(p.type for p in f.params)
        elif f is None:
            params = self.module.headers[callee.name]()[0]
        else:
            return
        args = call.args
        if f is None and len(args) == len(params or ()) + 1 and isinstance(args[-1], ShapeValue):
            args = args[:-1]  # sizes, which a call of an external function passes: `f` may be one
        self.check_operands(node, node.args[: len(args)], params, args, callee.name)

    def check_operands(
        self,
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
            raise self.fail(node, f"{name} takes {len(params)} operands, got {len(args)}")
        by: Extents = {}
        for at, p, a in zip(operands, params, args, strict=True):
            if not takes(p, self.type_of(a), by):
                hint = "R.match_cast(x, type) checks a type when it runs"
                raise self.fail(at, f"{show(p)} expected, {show(a.type)} given", hint)

    def type_of(self, v: Value) -> Type:
        """Return the type of a value. A reference to a function of the module has the function's
        type if its body or its header gives it."""
        if isinstance(v, GlobalRef):
            f = self.module.functions.get(v.name)
            header = self.module.headers.get(v.name)
            if f is not None:
                return function_type(f)
            if header is not None:
                params, result = header()
                return v.type if result is None else FuncType(params, result)
        return v.type

    def make(
        self, node: ast.Call, callee: str | GlobalRef | RVar, args: list[ast.expr],
        skip: tuple[str, ...] = (), **fixed: AttrValue,
    ) -> Call:  # fmt: skip
        """Make a call with the operands `args` and the attributes `fixed`. Keywords of `node` are
        further attributes, except `span` and those in `skip`."""
        attrs: dict[str, AttrValue] = dict(fixed)
        span = ""
        for k in node.keywords:
            if k.arg == "span":
                span = self.exprs.string(k.value)
            elif k.arg is None:
                for key, value in self.exprs.attrs(k.value).items_:
                    self._attribute(attrs, fixed, k.value, key, value)
                    self._check_attribute(k.value, callee, skip, key, value)
            elif k.arg not in skip:
                value = self.exprs.attr(k.value)
                self._attribute(attrs, fixed, k.value, k.arg, value)
                self._check_attribute(k.value, callee, skip, k.arg, value)
        values = tuple(map(self.value, args))
        call = Call(callee, values, Attrs(tuple(sorted(attrs.items(), key=lambda p: p[0]))), span)
        self._check_call(node, call)
        return ops.with_defaults(call)  # so that all readers of the call find all attributes

    def _attribute(
        self, attrs: dict[str, AttrValue], fixed: Mapping[str, AttrValue],
        node: ast.expr, key: str, value: AttrValue,
    ) -> None:  # fmt: skip
        if key in attrs:
            by = "by position" if key in fixed else "twice"
            raise self.fail(node, f"{key!r} is given {by}")
        attrs[key] = value

    def _check_attribute(
        self, node: ast.expr, callee: str | GlobalRef | RVar, words: tuple[str, ...],
        key: str, value: AttrValue,
    ) -> None:  # fmt: skip
        """Raise UserError if the callee has no such attribute or does not accept its value."""
        op = ops.declared(callee) if isinstance(callee, str) else None
        if op is not None:
            try:
                check_one(op.name, op.attrs, key, value)
            except UserError as error:
                raise self.fail(node, error.message, error.hint) from None
        elif not isinstance(callee, str) or callee in WITHOUT_ATTRS:
            known = [*words, "span"]
            name = callee if isinstance(callee, str) else callee.name
            hint = nearest(key, known) or f"options are {', '.join(known)}"
            raise self.fail(node, f"unknown option {key!r} in a call of {name}", hint)

    def _check_call(self, node: ast.Call, call: Call) -> None:
        """Raise UserError if required attributes are missing or the operand count is wrong."""
        op = ops.declared(call.op)
        if op is None:
            return
        try:
            op.check_count(len(call.args))
            check_all(op.name, op.attrs, call.attrs)
        except UserError as error:
            raise self.fail(node, error.message, error.hint) from None


def _kernel_result(f: TensorProgram) -> Type | None:
    """Return the result type of a call of `f`; None if it has no outputs, or one whose symbolic
    shape depends on the operands."""
    outs = f.buffers[-f.outputs :] if f.outputs else ()
    types = tuple(TensorType(b.shape, b.dtype) for b in outs)
    if not types or any(t.static_shape() is None for t in types):
        return None
    return types[0] if len(types) == 1 else TupleType(types)
