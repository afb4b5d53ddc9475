"""What a function made inside an outer function uses of it: values and symbolic dimensions."""

from __future__ import annotations

from collections.abc import Iterator

from tensorkiln.ir.expr import Expr, Var
from tensorkiln.ir.relax import (
    Binding,
    Bound,
    Call,
    Function,
    If,
    Lambda,
    MatchCast,
    PrimValue,
    RVar,
    ShapeValue,
    TensorType,
    Tuple,
    TupleItem,
    TupleType,
    Type,
    Value,
)
from tensorkiln.ir.visit import free_vars


def bindings_in(bindings: tuple[Binding, ...]) -> Iterator[Binding]:
    """All bindings, those of branches and of functions made here included, in order."""
    for b in bindings:
        yield b
        if isinstance(b.value, If):
            yield from bindings_in(b.value.then.bindings)
            yield from bindings_in(b.value.orelse.bindings)
        elif isinstance(b.value, Lambda):
            yield from bindings_in(b.value.function.bindings)


def captured_values(f: Function) -> tuple[RVar, ...]:
    """Variables that a function uses and does not bind, in the order of their first use."""
    bound = set(f.params) | {b.var for b in bindings_in(f.bindings)}
    for b in bindings_in(f.bindings):
        if isinstance(b.value, Lambda):
            bound.update(b.value.function.params)
    used = dict.fromkeys(v for v in _values_of(f) if isinstance(v, RVar))
    return tuple(v for v in used if v not in bound)


def captured_symbols(f: Function, known: set[Var]) -> tuple[Var, ...]:
    """Of the dimensions known outside, those that the function mentions, by order of mention."""
    found = dict.fromkeys(v for e in _sizes_of(f) for v in free_vars(e))
    return tuple(v for v in found if v in known)


def _values_of(f: Function) -> Iterator[Value]:
    for b in bindings_in(f.bindings):
        for v in _operands(b.value):
            yield from _flat(v)
    yield from _flat(f.result)


def _operands(bound: Bound) -> Iterator[Value]:
    match bound:
        case Call(callee, args):
            if isinstance(callee, RVar):
                yield callee
            yield from args
        case TupleItem(value) | MatchCast(value):
            yield value
        case If(cond, then, orelse):
            yield from (cond, then.result, orelse.result)
        case Lambda(function):
            yield function.result
        case _:
            yield bound


def _flat(v: Value) -> Iterator[Value]:
    yield v
    if isinstance(v, Tuple):
        for x in v.fields:
            yield from _flat(x)


def _sizes_of(f: Function) -> Iterator[Expr]:
    for p in f.params:
        yield from type_sizes(p.type)
    for b in bindings_in(f.bindings):
        yield from type_sizes(b.var.type)
        if isinstance(b.value, MatchCast):
            yield from type_sizes(b.value.type)
        if isinstance(b.value, Lambda):
            for p in b.value.function.params:
                yield from type_sizes(p.type)
    for v in _values_of(f):
        if isinstance(v, ShapeValue):
            yield from v.values
        elif isinstance(v, PrimValue):
            yield v.value


def type_sizes(t: Type) -> Iterator[Expr]:
    """The dimensions that a type mentions; not those of values that a function would take."""
    if isinstance(t, TensorType):
        yield from t.shape
    elif isinstance(t, TupleType):
        for x in t.fields:
            yield from type_sizes(x)


__all__ = ["bindings_in", "captured_symbols", "captured_values", "type_sizes"]
