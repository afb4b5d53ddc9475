"""Whether a graph function is well formed: scopes, types, calls."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tensorkiln.base.errors import nearest
from tensorkiln.ir.attrs import Attrs
from tensorkiln.ir.expr import Expr, Var, int_value
from tensorkiln.ir.module import AnyFunction, IRModule
from tensorkiln.ir.relax import (
    IMPURE_OPS,
    AnyTensorType,
    Binding,
    Body,
    Call,
    Constant,
    Function,
    FuncType,
    GlobalRef,
    If,
    Lambda,
    MatchCast,
    ObjectType,
    PrimType,
    PrimValue,
    RVar,
    ShapeType,
    ShapeValue,
    StringType,
    StringValue,
    TensorType,
    Tuple,
    TupleItem,
    TupleType,
    Type,
    Value,
)
from tensorkiln.ir.stmt import PrimFunc
from tensorkiln.ir.subtype import accepts, called_type, castable, function_type, is_condition
from tensorkiln.ir.type_text import show
from tensorkiln.ir.verify_calls import (
    check_graph,
    check_impure,
    check_kernel,
    check_operands,
    check_result,
)
from tensorkiln.ir.verify_expr import Malformed, step
from tensorkiln.ir.visit import walk

_LEAF_TYPES = (AnyTensorType, PrimType, StringType, ObjectType)


class GraphVerifier:
    """Walks one graph function with the values and symbolic dimensions known so far."""

    def __init__(self, mod: IRModule):
        self._mod = mod
        self._bound: set[RVar] = set()  # everywhere, in scope or not
        self._values: set[RVar] = set()
        self._dims: set[Var] = set()
        self._strict = False  # types of bindings use known dimensions only

    def function(self, f: Function) -> None:
        """Raise Malformed where `f` is not well formed."""
        self._strict = f.is_outer
        self._params(f)
        if f.is_primitive:
            # A kernel receives every dimension its operators mention, whether or not a parameter
            # has it in its shape.
            for b in f.bindings:
                self._type(b.var.type, brings=True)
                if isinstance(b.value, If | Lambda | MatchCast):
                    raise Malformed(f"{type(b.value).__name__} in a fused group")
        self._body(f)

    def _params(self, f: Function) -> None:
        for p in f.params:
            with step(f".{p.name}"):
                self._define(p, brings=True)

    def _body(self, f: Function | Body) -> None:
        for i, b in enumerate(f.bindings):
            with step(f".bindings[{i}]({b.var.name})"):
                self._binding(b)
        with step(".result"):
            self._value(f.result)

    def _define(self, var: RVar, brings: bool = False) -> None:
        if var in self._bound:
            raise Malformed("bound twice")
        self._type(var.type, brings or not self._strict)
        self._values.add(var)
        self._bound.add(var)

    @contextmanager
    def _scope(self) -> Iterator[None]:
        """What is bound inside is not seen after it."""
        values, dims = set(self._values), set(self._dims)
        yield
        self._values, self._dims = values, dims

    # ---- types -------------------------------------------------------------------------------

    def _type(self, t: Type, brings: bool) -> None:
        """A dimension's variable may be new where the type `brings` it in."""
        if isinstance(t, TupleType):
            for x in t.fields:
                self._type(x, brings)
        elif isinstance(t, TensorType):
            self._tensor(t, brings)
        elif isinstance(t, FuncType):
            with self._scope():
                for x in (*(t.params or ()), t.result):
                    self._type(x, brings=True)
        elif isinstance(t, ShapeType):
            self._dims.update(v for v in t.values or () if brings and isinstance(v, Var))
            for e in t.values or ():
                self._number(e)
        elif not isinstance(t, _LEAF_TYPES):
            raise Malformed(f"{t!r} is not a type")

    def _tensor(self, t: TensorType, brings: bool) -> None:
        for d in t.shape:
            if brings:
                self._dims.update(x for x in walk(d) if isinstance(x, Var))
            self._number(d)
            extent = int_value(d)
            if not d.dtype.is_int or (extent is not None and extent < 0):
                raise Malformed(f"extent {d!r}")
        if t.dtype.lanes != 1:
            raise Malformed(f"a tensor of {t.dtype}")
        if t.layout is not None and {a.dim for a in t.layout.axes} != set(range(t.ndim)):
            raise Malformed(f"layout {t.layout} for {t.ndim} dimensions")

    def _number(self, e: Expr) -> None:
        """A symbolic number: scalar, over known dimensions."""
        for x in walk(e):
            if isinstance(x, Var) and x not in self._dims:
                raise Malformed(f"dimension {x.name} is not known here")
            if x.dtype.lanes != 1:
                raise Malformed(f"{x.dtype} in a shape")

    # ---- values ------------------------------------------------------------------------------

    def _value(self, v: Value) -> None:
        if isinstance(v, RVar):
            if v not in self._values:
                raise Malformed(f"{v.name} is not bound here")
        elif isinstance(v, Tuple):
            for x in v.fields:
                self._value(x)
        elif isinstance(v, ShapeValue):
            for e in v.values:
                self._number(e)
        elif isinstance(v, Constant):
            self._constant(v)
        elif isinstance(v, PrimValue):
            self._number(v.value)
        elif isinstance(v, GlobalRef):
            self._function_named(v.name)
        elif not isinstance(v, StringValue):
            raise Malformed(f"{type(v).__name__} is not a value")

    def _constant(self, c: Constant) -> None:
        self._type(c.type, brings=False)
        expected = tuple(int_value(d) for d in c.type.physical_shape)
        if c.array.shape != expected:
            raise Malformed(f"constant {c.name}: array {c.array.shape}, type {expected}")
        if c.array.dtype.itemsize != c.type.dtype.bytes:
            raise Malformed(f"constant {c.name}: array {c.array.dtype}, type {c.type.dtype}")

    # ---- bindings ----------------------------------------------------------------------------

    def _binding(self, b: Binding) -> None:
        value = b.value
        if isinstance(value, Call):
            self._call(value, b.var.type)
        elif isinstance(value, TupleItem):
            self._value(value.value)
            self._equal(b.var.type, _field(value))
        elif isinstance(value, If):
            self._if(value, b.var.type)
        elif isinstance(value, Lambda):
            self._lambda(value)
            self._equal(b.var.type, value.type, exact=True)
        elif isinstance(value, MatchCast):
            self._match_cast(value)
            self._equal(b.var.type, value.type, exact=True)
        else:
            self._value(value)
            self._equal(b.var.type, self._type_of(value))
        self._define(b.var, brings=isinstance(value, MatchCast))

    def _equal(self, declared: Type, found: Type, exact: bool = False) -> None:
        """The variable's type is its value's; beside a plain value it may be wider."""
        if declared == found or (self._strict and not exact and accepts(declared, found)):
            return
        raise Malformed(f"the variable is {show(declared)}, its value {show(found)}")

    def _if(self, value: If, result: Type) -> None:
        self._value(value.cond)
        if not is_condition(value.cond.type):
            raise Malformed(f"a condition is one bool, not {show(value.cond.type)}")
        for name, body in (("then", value.then), ("orelse", value.orelse)):
            with step(f".{name}"), self._scope():
                self._body(body)
                if body.result.type != result:
                    found = show(body.result.type)
                    raise Malformed(f"the branch gives {found}, the variable is {show(result)}")

    def _lambda(self, value: Lambda) -> None:
        with step(f".{value.function.name}"), self._scope():
            self._params(value.function)
            self._body(value.function)

    def _match_cast(self, value: MatchCast) -> None:
        self._value(value.value)
        if not castable(value.value.type, value.type):
            raise Malformed(f"{show(value.value.type)} can never be {show(value.type)}")

    # ---- calls -------------------------------------------------------------------------------

    def _call(self, c: Call, result: Type) -> None:
        for i, a in enumerate(c.args):
            with step(f".args[{i}]"):
                self._value(a)
        self._attrs(c.attrs)
        if isinstance(c.callee, str):
            if not c.callee:
                raise Malformed("a call of nothing")
            if c.callee in IMPURE_OPS:
                check_impure(c, result, self._mod, self._type_of)
            return
        if isinstance(c.callee, RVar):
            self._call_value(c, c.callee, result)
            return
        callee = self._function_named(c.callee.name)
        if isinstance(callee, PrimFunc):
            check_kernel(callee, c, result)
        else:
            check_graph(callee, c, result, self._type_of)

    def _call_value(self, c: Call, callee: RVar, result: Type) -> None:
        self._value(callee)
        if not isinstance(callee.type, FuncType):
            raise Malformed(f"{callee.name} is {show(callee.type)}, not a function")
        check_operands(callee.name, callee.type.params, c.args, self._type_of)
        types = list(map(self._type_of, c.args))
        check_result(called_type(callee.type, types, self._dims), result)

    def _function_named(self, name: str) -> AnyFunction:
        if name not in self._mod:
            raise Malformed(f"no function {name!r}; {nearest(name, self._mod)}")
        return self._mod[name]

    def _type_of(self, v: Value) -> Type:
        """The type of a value, a function's own where it is one of the module."""
        return function_type(self._mod[v.name]) if isinstance(v, GlobalRef) else v.type

    def _attrs(self, attrs: Attrs) -> None:
        for key, value in attrs.items_:
            with step(f".attrs.{key}"):
                self._attr(value)

    def _attr(self, value: object) -> None:
        if isinstance(value, tuple):
            for x in value:
                self._attr(x)
        elif isinstance(value, Expr):
            self._number(value)


def _field(item: TupleItem) -> Type:
    t = item.value.type
    if not isinstance(t, TupleType) or not 0 <= item.index < len(t.fields):
        raise Malformed(f"item {item.index} of {show(t)}")
    return t.fields[item.index]
