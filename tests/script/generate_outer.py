"""Random outer functions: branches, closures, casts, all types and values, built node by node."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from hypothesis import strategies as st

from tensorkiln.ir.attrs import Attrs
from tensorkiln.ir.dtype import BOOL, DType
from tensorkiln.ir.expr import Binary, FloatImm, IntImm, Var
from tensorkiln.ir.module import IRModule
from tensorkiln.ir.relax import (
    AnyTensorType,
    Binding,
    Body,
    Bound,
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
    StringType,
    StringValue,
    TensorType,
    TupleType,
    Type,
    Value,
)

from .generate import GraphGen
from .generate_runnable import RunnableGen
from .generate_tir import FLOAT_VALUES, NAMES, TirGen


class OuterGen(GraphGen):
    """Draws a function with all that host code does: branches, closures, casts, values."""

    def type(self, depth: int = 1) -> Type:
        """Any type; the extents of tensors are known."""
        kinds = [
            self.tensor_row_major,
            lambda: AnyTensorType(self.pick((None, 0, 2)), self.pick((None, DType("float32")))),
            lambda: ShapeType(self.draw(st.integers(0, 3))),
            lambda: PrimType(DType(self.pick(("int64", "bool", "float64", "int32")))),
            StringType,
            ObjectType,
        ]
        if depth:
            kinds += [lambda: self.tuple_type(depth - 1), lambda: self.func_type(depth - 1)]
        return self.pick(kinds)()

    def tensor_row_major(self) -> TensorType:
        return self.tensor().with_layout(None)

    def tuple_type(self, depth: int) -> Type:
        return TupleType(tuple(self.type(depth) for _ in range(self.draw(st.integers(0, 2)))))

    def func_type(self, depth: int) -> Type:
        dims, known, self.dims, self.known = self.dims, self.known, [], []
        made = self._func_type(depth)
        self.dims, self.known = dims, known
        return made

    def _func_type(self, depth: int) -> Type:
        """Its symbols are its own."""
        if self.draw(st.booleans()):
            return FuncType(None, self.type(depth))
        own = Var(self.pick(("n", "k")))
        first = TensorType((own, IntImm(4)), DType("float32"))
        others = tuple(self.type(depth) for _ in range(self.draw(st.integers(0, 1))))
        return FuncType((first, *others), self.pick((first, self.type(depth))))

    def value(self, depth: int = 2) -> Value:
        kind = self.draw(st.integers(0, 11))
        if kind == 10:
            return self.pick((self.prim(), StringValue(self.pick(("", 'a "b"', "é\n")))))
        if kind == 11 and self.kernels:
            return GlobalRef(self.pick(self.kernels).name)
        return super().value(depth)

    def prim(self) -> PrimValue:
        plain = [
            FloatImm(self.draw(FLOAT_VALUES), DType(self.pick(("float64", "float32")))),
            IntImm(-7, DType("int32")),
            IntImm(1, BOOL),
            Binary("gt", self.number(), IntImm(4)),
        ]
        return PrimValue(self.pick((*plain, self.number())))

    def bound(self) -> tuple[Bound, Type]:
        forms = [super().bound] * 4 + [self.if_, self.closure, self.cast, self.packed, self.widen]
        functions = [
            v for v in self.values if isinstance(v.type, FuncType) and v.type.params is None
        ]
        if functions:
            f = self.pick(functions)
            args = tuple(self.value() for _ in range(self.draw(st.integers(0, 2))))
            forms.append(lambda: (Call(f, args), f.type.result))
        return self.pick(forms)()

    def packed(self) -> tuple[Bound, Type]:
        attrs = Attrs.of(name=self.pick(("f", "my.mod")), key=self.attr())
        args = tuple(self.value() for _ in range(self.draw(st.integers(0, 3))))
        if self.draw(st.booleans()):
            return Call("call_packed", args, attrs, self.pick(("", "n1"))), self.type()
        outs = tuple(self.tensor_row_major() for _ in range(self.draw(st.integers(1, 2))))
        result = outs[0] if len(outs) == 1 and self.draw(st.booleans()) else TupleType(outs)
        return Call("call_dps_packed", args, attrs), result

    def cast(self) -> tuple[Bound, Type]:
        """A cast of an object may be anything, and may bring in a symbol."""
        objects = [v for v in self.values if isinstance(v.type, ObjectType)]
        if not objects:
            return self.packed()
        wanted = self.type()
        if self.draw(st.booleans()):
            self.known.append(Var(self.pick(("n", "q"))))
            wanted = TensorType((self.known[-1], IntImm(2)), DType("float32"))
        return MatchCast(self.pick(objects), wanted), wanted

    def widen(self) -> tuple[Bound, Type]:
        value = self.value()
        return value, self.pick((ObjectType(), value.type))

    def inner(self, count: int) -> tuple[Binding, ...]:
        """Bindings of a block."""
        bindings = []
        for _ in range(self.draw(st.integers(0, count))):
            value, kind = self.bound()
            bindings.append(Binding(RVar(self.pick(NAMES), kind), value))
            self.values.append(bindings[-1].var)
        return tuple(bindings)

    def if_(self) -> tuple[Bound, Type]:
        cond = self.pick(
            (
                self.constant_true(),
                PrimValue(IntImm(1, BOOL)),
                PrimValue(Binary("gt", self.number(), IntImm(4))),
            )
        )
        shared = self.value()
        bodies = []
        for _ in range(2):
            values, known = list(self.values), list(self.known)
            bindings = self.inner(2)
            same = [v for v in self.values if v.type == shared.type]
            bodies.append(Body(bindings, self.pick(same) if same else shared))
            self.values, self.known = values, known
        return If(cond, bodies[0], bodies[1]), shared.type

    def constant_true(self) -> Constant:
        return Constant(np.array([[True]]), TensorType((IntImm(1), IntImm(1)), BOOL))

    def closure(self) -> tuple[Bound, Type]:
        values, known = list(self.values), list(self.known)
        own = Var(self.pick(("n", "k")))
        self.known.append(own)
        params = (RVar(self.pick(NAMES), TensorType((own,), DType("float32"))),)
        params = params[: self.draw(st.integers(0, 1))]
        self.known = self.known if params else list(known)
        self.values += params
        bindings = self.inner(2)
        result = self.pick(self.values) if self.values else self.constant()
        self.values, self.known = values, known
        name = self.pick(("inner", "a.b", "x"))
        value = Lambda(Function(name, params, bindings, result, Attrs()))
        return value, value.type

    def function(self, name: str) -> Function:
        count = self.draw(st.integers(1, 3))
        params = tuple(RVar(self.pick(NAMES), self.type()) for _ in range(count))
        self.values += params
        self.dims = []
        attrs = Attrs.of(outer=True, **self.pick(({}, {"private": True})))
        return Function(name, params, self.inner(5), self.value(), attrs)


@st.composite
def outers(draw: Any) -> IRModule:
    """An outer function, and a kernel it may name."""
    kernel = TirGen(draw).function("k.1")
    return IRModule((kernel, OuterGen(draw, [kernel]).function("main")))


class RealOuterGen(OuterGen):
    """Operators that exist, on operands they take: these modules pass the compiler's passes."""

    def operator(self) -> tuple[Bound, Type]:
        floats = [
            v
            for v in self.values
            if isinstance(v.type, TensorType) and v.type.dtype.is_float and v.type.layout is None
        ]
        if not floats:
            return self.packed()
        x = self.pick(floats)
        same = [v for v in floats if v.type == x.type]
        op = self.pick(("neg", "tanh", "relu", "add", "mul", "maximum"))
        args = (x,) if op in ("neg", "tanh", "relu") else (x, self.pick(same))
        return Call(op, args, span=self.pick(("", "node/1"))), x.type


@st.composite
def real_outers(draw: Any) -> IRModule:
    """An outer function that calls real operators, and a kernel it may name."""
    kernel = replace(RunnableGen(draw).function("k_1"), public=False)
    return IRModule((kernel, RealOuterGen(draw, [kernel]).function("main")))
