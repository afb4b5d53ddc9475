"""Modules with outer functions, written as nodes: short names for the tests of this room."""

from __future__ import annotations

from typing import Any

import numpy as np

import tensorkiln as tk
from tensorkiln.ir.attrs import Attrs
from tensorkiln.ir.expr import FloatImm, IntImm, Var
from tensorkiln.ir.module import IRModule
from tensorkiln.ir.relax import (
    AnyTensorType,
    Binding,
    Body,
    Bound,
    Call,
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
    Tuple,
    TupleItem,
    TupleType,
    Type,
    Value,
    constant,
    tensor,
)
from tensorkiln.ir.stmt import PrimFunc

OBJECT, STRING = ObjectType(), StringType()
SCALAR, BOOL = tensor((), "float32"), tensor((), "bool")
ANY = FuncType(None, ObjectType())
FUNC = FuncType((SCALAR,), SCALAR)


class F:
    """One function under construction: each method adds a binding and returns its variable."""

    def __init__(self, name: str, **params: Type):
        self.name = name
        self.params = tuple(RVar(n, t) for n, t in params.items())
        self.bindings: list[Binding] = []

    def __getitem__(self, name: str) -> RVar:
        return next(p for p in self.params if p.name == name)

    def let(self, name: str, t: Type, value: Bound) -> RVar:
        var = RVar(name, t)
        self.bindings.append(Binding(var, value))
        return var

    def call(
        self, var: str, t: Type, callee: str | RVar | GlobalRef, *args: Value, **attrs: Any
    ) -> RVar:
        return self.let(var, t, Call(callee, args, Attrs.of(**attrs)))

    def packed(self, var: str, t: Type, function: str, *args: Value) -> RVar:
        return self.call(var, t, "call_packed", *args, name=function)

    def body(self, result: Value) -> Body:
        return Body(tuple(self.bindings), result)

    def done(self, result: Value, **attrs: Any) -> Function:
        return Function(self.name, self.params, tuple(self.bindings), result, Attrs.of(**attrs))

    def outer(self, result: Value, **attrs: Any) -> Function:
        return self.done(result, outer=True, **attrs)


def unary(name: str, op: str, t: TensorType = SCALAR, result: TensorType | None = None) -> Function:
    """A graph function of one operator on one tensor."""
    f = F(name, x=t)
    return f.done(f.call("y", result or t, op, f["x"]))


def binary(
    name: str, op: str, t: TensorType = SCALAR, result: TensorType | None = None
) -> Function:
    """A graph function of one operator on two tensors."""
    f = F(name, a=t, b=t)
    return f.done(f.call("y", result or t, op, f["a"], f["b"]))


def number(value: float) -> Any:
    """A float32 constant without dimensions."""
    return constant(np.array(value, np.float32))


def library(*functions: Function | PrimFunc, name: str = "outer") -> Any:
    """The functions, compiled and loaded."""
    return tk.compile(IRModule(functions, name), "llvm").jit()


def executor(*functions: Function | PrimFunc) -> Any:
    """The functions in an executor."""
    return tk.runtime.Executor(library(*functions), tk.cpu())


__all__ = [
    "ANY",
    "BOOL",
    "FUNC",
    "OBJECT",
    "SCALAR",
    "STRING",
    "AnyTensorType",
    "F",
    "FloatImm",
    "FuncType",
    "GlobalRef",
    "If",
    "IntImm",
    "Lambda",
    "MatchCast",
    "PrimType",
    "PrimValue",
    "ShapeType",
    "StringValue",
    "Tuple",
    "TupleItem",
    "TupleType",
    "Var",
    "binary",
    "constant",
    "executor",
    "library",
    "number",
    "tensor",
    "unary",
]
