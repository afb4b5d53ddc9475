"""Scopes in functions with control flow: the values and symbolic dimensions that a closure
captures, and where each variable is used last.
"""

from __future__ import annotations

from collections.abc import Iterator

from tensorkiln.ir.expr import Expr, Var
from tensorkiln.ir.relax import (
    Function,
    Lambda,
    MatchCast,
    PrimValue,
    RVar,
    ShapeValue,
    TensorType,
    TupleType,
    Type,
    Value,
)
from tensorkiln.ir.visit import free_vars
from tensorkiln.ir.visit_graph import bindings_in, values_in


def captured_values(f: Function) -> tuple[RVar, ...]:
    """The free variables of a function, in the order of their first use."""
    local_vars = set(f.params) | {b.var for b in bindings_in(f.bindings)}
    for b in bindings_in(f.bindings):
        if isinstance(b.value, Lambda):
            local_vars.update(b.value.function.params)
    variables = dict.fromkeys(v for v in _values_of(f) if isinstance(v, RVar))
    return tuple(v for v in variables if v not in local_vars)


def captured_symbols(f: Function, outer_dims: set[Var]) -> tuple[Var, ...]:
    """Those of `outer_dims` that the function mentions, in the order of their first mention."""
    dims = dict.fromkeys(v for e in _sizes_of(f) for v in free_vars(e))
    return tuple(v for v in dims if v in outer_dims)


def last_uses(f: Function) -> list[list[RVar]]:
    """For each binding, the variables that are dead after it: neither a later binding nor the
    result uses them. A use in a branch or closure counts as one by the binding that contains it."""
    last: dict[RVar, int] = dict.fromkeys(f.params, 0)
    for i, b in enumerate(f.bindings):
        last[b.var] = i
        for inner in bindings_in((b,)):
            last.update((v, i) for v in values_in(inner.value) if isinstance(v, RVar) and v in last)
    for v in values_in(f.result):
        if isinstance(v, RVar):
            last.pop(v, None)
    return [[v for v, use in last.items() if use == i] for i in range(len(f.bindings))]


def _values_of(f: Function) -> Iterator[Value]:
    for b in bindings_in(f.bindings):
        yield from values_in(b.value)
    yield from values_in(f.result)


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


__all__ = ["captured_symbols", "captured_values", "last_uses", "type_sizes"]
