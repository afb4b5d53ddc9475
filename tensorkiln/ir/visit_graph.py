"""Traversals of graph functions: the values that bindings read, nested bindings, substitution.

As in `visit.py`, the fields of nodes are named in their classes only. The values of an If or a
Lambda are its own and, after them, those of the bindings in its branches or its body.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeVar, get_args

from tensorkiln.ir.fields import Readers, Rewriters
from tensorkiln.ir.relax import Binding, Bound, Call, Function, RVar, Tuple, Value

_VALUES, _BINDINGS = Readers(Value), Readers(Binding)
_MAP_VALUES, _MAP_BINDINGS = Rewriters(Value), Rewriters(Binding)
_IS_VALUE = frozenset(get_args(Value))

Node = TypeVar("Node", bound="Bound | Function")


def bindings_in(bindings: Sequence[Binding]) -> Iterator[Binding]:
    """Yield all bindings in order, including those of branches and of closures."""
    for b in bindings:
        yield b
        yield from bindings_in(_BINDINGS[type(b.value)](b.value))


def values_in(v: Bound | Function) -> Iterator[Value]:
    """Yield every value that `v` is or reads, in pre-order, without those of nested bindings."""
    if type(v) in _IS_VALUE:
        yield v  # type: ignore[misc]
    for x in _VALUES[type(v)](v):
        yield from values_in(x)


def variables(v: Bound | Function) -> list[RVar]:
    """The variables that a value or a binding's right side reads, with repetition.

    Reads inside the branches of an If and the function of a Lambda are included, those of variables
    that are bound there too.
    """
    if type(v) is RVar:
        return [v]
    if type(v) is Call:  # by hand, since every pass asks for every call
        reads = [v.callee] if type(v.callee) is RVar else []
        for a in v.args:
            if type(a) is RVar:
                reads.append(a)
            elif type(a) is Tuple:
                reads += variables(a)
        return reads
    reads = [x for value in _VALUES[type(v)](v) for x in variables(value)]
    for b in _BINDINGS[type(v)](v):
        reads += variables(b.value)
    return reads


def map_values(node: Node, f: Callable[[Value], Value]) -> Node:
    """`node` with `f` applied to the values that it reads directly, and to those of its nested
    bindings; `node` itself if none changed."""

    def binding(b: Binding) -> Binding:
        value = map_bound(b.value, f)
        return b if value is b.value else Binding(b.var, value)

    new: Node = _MAP_VALUES[type(node)](node, f)
    new = _MAP_BINDINGS[type(node)](new, binding)
    return new


def map_bound(definition: Bound, f: Callable[[Value], Value]) -> Bound:
    """The right side of a binding, with `f` applied to itself if it is a value, else to the values
    that it reads."""
    return f(definition) if type(definition) in _IS_VALUE else map_values(definition, f)  # type: ignore[arg-type]


def substitute_value(v: Value, by: Mapping[RVar, Value]) -> Value:
    """`v` with variables replaced; `v` itself when it mentions none of them."""
    if isinstance(v, RVar):
        return by.get(v, v)
    return map_values(v, lambda x: substitute_value(x, by))


def substitute(definition: Bound, by: Mapping[RVar, Value]) -> Bound:
    """The right side of a binding, with variables replaced; `definition` itself if nothing
    changed."""
    return map_bound(definition, lambda v: substitute_value(v, by)) if by else definition
