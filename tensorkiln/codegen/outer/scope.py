"""What closures in an outer function capture of it, values and symbolic dimensions, and where each
variable of a function is used last."""

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
    """Yield all bindings in order, including those of branches and of closures."""
    for b in bindings:
        yield b
        if isinstance(b.value, If):
            yield from bindings_in(b.value.then.bindings)
            yield from bindings_in(b.value.orelse.bindings)
        elif isinstance(b.value, Lambda):
            yield from bindings_in(b.value.function.bindings)


def captured_values(f: Function) -> tuple[RVar, ...]:
    """The free variables of a function, in the order of their first use."""
    bound = set(f.params) | {b.var for b in bindings_in(f.bindings)}
    for b in bindings_in(f.bindings):
        if isinstance(b.value, Lambda):
            bound.update(b.value.function.params)
    used = dict.fromkeys(v for v in _values_of(f) if isinstance(v, RVar))
    return tuple(v for v in used if v not in bound)


def captured_symbols(f: Function, known: set[Var]) -> tuple[Var, ...]:
    """The dimensions in `known` that the function mentions, in the order of their first mention."""
    found = dict.fromkeys(v for e in _sizes_of(f) for v in free_vars(e))
    return tuple(v for v in found if v in known)


def last_uses(f: Function) -> list[list[RVar]]:
    """For each binding, the variables that are dead after it: neither a later binding nor the
    result uses them. A use in a branch or closure counts as one by the binding that contains it."""
    last: dict[RVar, int] = dict.fromkeys(f.params, 0)
    for i, b in enumerate(f.bindings):
        last[b.var] = i
        for inner in bindings_in((b,)):
            for v in _operands(inner.value):
                last.update((x, i) for x in _flat(v) if isinstance(x, RVar) and x in last)
    for v in _flat(f.result):
        if isinstance(v, RVar):
            last.pop(v, None)
    return [[v for v, at in last.items() if at == i] for i in range(len(f.bindings))]


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
    """Yield the dimensions of a tensor type or of the fields of a tuple type; not those in the
    parameters of a function type."""
    if isinstance(t, TensorType):
        yield from t.shape
    elif isinstance(t, TupleType):
        for x in t.fields:
            yield from type_sizes(x)


__all__ = ["bindings_in", "captured_symbols", "captured_values", "last_uses", "type_sizes"]
