"""Verifier of graph functions: scopes, types and calls."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tensorkiln.ir.attrs import Attrs
from tensorkiln.ir.dtype import INT64
from tensorkiln.ir.expr import Expr, IntImm, Var, int_value
from tensorkiln.ir.hints import among, extent, fresh, instead, plural, unbound
from tensorkiln.ir.known_attrs import CALL_ATTRS, DEPENDENCIES, problem_of
from tensorkiln.ir.layout import Layout
from tensorkiln.ir.malformed import Malformed, fitting, listed, require_texts, step
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
    size_symbols,
)
from tensorkiln.ir.stmt import TensorProgram
from tensorkiln.ir.subtype import accepts, called_type, castable, function_type, is_condition
from tensorkiln.ir.type_text import show
from tensorkiln.ir.verify_calls import (
    check_graph,
    check_impure,
    check_kernel,
    check_operands,
    check_result,
    one_bool,
)
from tensorkiln.ir.visit import walk

_LEAF_TYPES = (AnyTensorType, PrimType, StringType, ObjectType)
_TYPE_NAMES = [t.__name__ for t in (TensorType, TupleType, FuncType, ShapeType, *_LEAF_TYPES)]
_VALUE_NAMES = [
    t.__name__ for t in (RVar, Tuple, ShapeValue, Constant, PrimValue, GlobalRef, StringValue)
]


class GraphVerifier:
    """Verifies one graph function, tracking the values and symbolic dimensions bound so far."""

    def __init__(self, mod: IRModule, verified: dict[int, object]):
        """`verified` maps ids to constants and types of constant shape that were verified before.

        Their validity depends on nothing else, and most of them survive from pass to pass.
        """
        self._mod = mod
        self._verified = verified
        self._all_vars: set[RVar] = set()  # every variable bound so far, in scope or not
        self._values: set[RVar] = set()
        self._dims: set[Var] = set()
        self._strict = False  # outer function: types of bindings may only use known dimensions

    def function(self, f: Function) -> None:
        """Raise Malformed if `f` is not well formed."""
        self._strict = f.is_outer
        self._params(f)
        if f.is_primitive:
            # The kernel gets every dimension that occurs in a type or attribute of the group as
            # a parameter, so a dimension need not occur in the shape of a tensor parameter.
            self._dims.update(size_symbols(f))
            for b in f.bindings:
                if isinstance(b.value, If | Lambda | MatchCast):
                    hint = (
                        f"compute {b.var.name} before the group: one holds calls and plain values"
                    )
                    raise Malformed(f"{type(b.value).__name__} in a fused group", hint)
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
        if var in self._all_vars:
            raise Malformed("bound twice", fresh("RVar", var.name))
        require_texts(var.name)
        self._type(var.type, brings or not self._strict)
        self._values.add(var)
        self._all_vars.add(var)

    @contextmanager
    def _scope(self) -> Iterator[None]:
        """Values and dimensions bound inside are out of scope afterwards."""
        values, dims = set(self._values), set(self._dims)
        yield
        self._values, self._dims = values, dims

    # ---- types -------------------------------------------------------------------------------

    def _type(self, t: Type, brings: bool) -> None:
        """Verify a type. If it `brings` dimensions, their variables may be new and are bound from
        here on: in types of parameters and MatchCasts, and in all types of straight-line functions.
        """
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
        elif isinstance(t, PrimType):
            self._dims.update([t.value] if t.value is not None and brings else [])
            if t.value is not None:
                self._number(t.value)
        elif not isinstance(t, _LEAF_TYPES):
            raise Malformed(f"{t!r} is not a type", f"types are {listed(_TYPE_NAMES)}")

    def _tensor(self, t: TensorType, brings: bool) -> None:
        if self._verified.get(id(t)) is t:
            return
        numbers = True
        for d in t.shape:
            if isinstance(d, IntImm) and d.value >= 0 and d.dtype == INT64:
                continue
            numbers = False
            if brings:
                self._dims.update(x for x in walk(d) if isinstance(x, Var))
            self._number(d)
            size = int_value(d)
            if not d.dtype.is_int or (size is not None and size < 0):
                raise Malformed(f"extent {d!r}", extent(d.dtype))
        if t.dtype.lanes != 1:
            hint = f"a tensor of {t.dtype.element}, and a last dimension of {t.dtype.lanes}"
            raise Malformed(f"a tensor of {t.dtype}", hint)
        require_texts(t.device)
        if t.layout is not None and {a.dim for a in t.layout.axes} != set(range(t.ndim)):
            hint = f"name its dimensions, as in {str(Layout.plain(t.ndim))!r}"
            raise Malformed(f"layout {t.layout} for {t.ndim} dimensions", hint)
        if numbers:
            self._verified[id(t)] = t

    def _number(self, e: Expr) -> None:
        """Verify a symbolic number: scalar, and over dimensions bound before."""
        for x in walk(e):
            if isinstance(x, Var) and x not in self._dims:
                hint = unbound(x.name, sorted(v.name for v in self._dims))
                raise Malformed(f"dimension {x.name} is not known here", hint)
            if x.dtype.lanes != 1:
                raise Malformed(f"{x.dtype} in a shape", instead(x.dtype, x.dtype.element))

    # ---- values ------------------------------------------------------------------------------

    def _value(self, v: Value) -> None:
        if isinstance(v, RVar):
            if v not in self._values:
                hint = unbound(v.name, sorted(x.name for x in self._values))
                raise Malformed(f"{v.name} is not bound here", hint)
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
            raise _no_value(v)

    def _constant(self, c: Constant) -> None:
        if self._verified.get(id(c)) is c:
            return
        self._type(c.type, brings=False)
        expected = tuple(int_value(d) for d in c.type.physical_shape)
        if c.data.shape != expected:
            hint = f"in memory, {show(c.type)} is an array of shape {expected}"
            raise Malformed(f"constant {c.name}: array {c.data.shape}, type {expected}", hint)
        if c.data.dtype.itemsize != c.type.dtype.bytes:
            hint = f"a type of {c.data.dtype}, or elements of {plural(c.type.dtype.bytes, 'byte')}"
            raise Malformed(f"constant {c.name}: array {c.data.dtype}, type {c.type.dtype}", hint)
        self._verified[id(c)] = c

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

    def _equal(self, declared: Type, derived: Type, exact: bool = False) -> None:
        """Compare the type of a variable with that of its value.

        In outer functions it may be wider, unless `exact`: `y: R.Object = x`.
        """
        if declared == derived or (self._strict and not exact and accepts(declared, derived)):
            return
        hint = f"make the variable {show(derived)}"
        if self._strict and isinstance(derived, ObjectType | AnyTensorType):
            hint += f"; {fitting(declared, derived)}"
        raise Malformed(f"the variable is {show(declared)}, its value {show(derived)}", hint)

    def _if(self, value: If, result: Type) -> None:
        self._value(value.cond)
        if not is_condition(value.cond.type):
            message = f"a condition is one bool, not {show(value.cond.type)}"
            raise Malformed(message, one_bool(value.cond.type))
        for name, body in (("then", value.then), ("orelse", value.orelse)):
            with step(f".{name}"), self._scope():
                self._body(body)
                if body.result.type != result:
                    branch_type = show(body.result.type)
                    message = f"the branch gives {branch_type}, the variable is {show(result)}"
                    raise Malformed(message, fitting(result, body.result.type))

    def _lambda(self, value: Lambda) -> None:
        with step(f".{value.function.name}"), self._scope():
            self._params(value.function)
            self._body(value.function)

    def _match_cast(self, value: MatchCast) -> None:
        self._value(value.value)
        if not castable(value.value.type, value.type):
            message = f"{show(value.value.type)} can never be {show(value.type)}"
            raise Malformed(message, fitting(value.type, value.value.type))

    # ---- calls -------------------------------------------------------------------------------

    def _call(self, c: Call, result: Type) -> None:
        for i, a in enumerate(c.args):
            if a not in self._values:  # the fast path: most arguments are bound variables
                with step(f".args[{i}]"):
                    self._value(a)
        self._attrs(c.attrs)
        if isinstance(c.callee, str):
            if not c.callee:
                names = listed(self._mod)
                raise Malformed(
                    "the call has no callee", f"name an operator, or a function: {names}"
                )
            if c.callee in IMPURE_OPS:
                check_impure(c, result, self._mod, self._type_of)
            return
        if isinstance(c.callee, RVar):
            self._call_value(c, c.callee, result)
            return
        callee = self._function_named(c.callee.name)
        if isinstance(callee, TensorProgram):
            check_kernel(callee, c, result)
        else:
            check_graph(callee, c, result, self._type_of)

    def _call_value(self, c: Call, callee: RVar, result: Type) -> None:
        self._value(callee)
        if not isinstance(callee.type, FuncType):
            functions = sorted(v.name for v in self._values if isinstance(v.type, FuncType))
            hint = f"functions bound here: {listed(functions) or 'none'}"
            raise Malformed(f"{callee.name} is {show(callee.type)}, not a function", hint)
        check_operands(callee.name, callee.type.params, c.args, self._type_of)
        types = list(map(self._type_of, c.args))
        check_result(called_type(callee.type, types, self._dims), result)

    def _function_named(self, name: str) -> AnyFunction:
        if name not in self._mod:
            raise Malformed(f"no function {name!r}", among(name, self._mod))
        return self._mod[name]

    def _type_of(self, v: Value) -> Type:
        """The type of a value; for a GlobalRef, the type of the function it refers to."""
        return function_type(self._mod[v.name]) if isinstance(v, GlobalRef) else v.type

    def _attrs(self, attrs: Attrs) -> None:
        for key, value in attrs.items_:
            with step(f".attrs.{key}"):
                self._attr(value)
                problem = problem_of(CALL_ATTRS, "", key, value) if key == DEPENDENCIES else None
                if problem is not None:
                    raise Malformed(*problem)

    def _attr(self, value: object) -> None:
        if isinstance(value, tuple):
            for x in value:
                self._attr(x)
        elif isinstance(value, Expr):
            self._number(value)


def _no_value(v: object) -> Malformed:
    name = type(v).__name__
    hint = f"values are {listed(_VALUE_NAMES)}"
    if isinstance(v, Call | TupleItem | If | Lambda | MatchCast):
        hint = f"bind the {name} to a variable of its own, and use that"
    return Malformed(f"{name} is not a value", hint)


def _field(item: TupleItem) -> Type:
    t = item.value.type
    if not isinstance(t, TupleType) or not 0 <= item.index < len(t.fields):
        hint = f"{show(t)} has no items: only a tuple has them"
        if isinstance(t, TupleType):
            hint = f"items are 0 to {len(t.fields) - 1}" if t.fields else "it has no items"
        raise Malformed(f"item {item.index} of {show(t)}", hint)
    return t.fields[item.index]
