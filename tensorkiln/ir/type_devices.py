"""The devices that types of graphs name (`TensorType.device`)."""

from __future__ import annotations

from collections.abc import Iterator

from tensorkiln.ir.module import AnyFunction
from tensorkiln.ir.relax import Function, If, Lambda, MatchCast, TensorType, TupleType, Type
from tensorkiln.ir.visit_graph import bindings_in


def has_devices(f: AnyFunction) -> bool:
    """Whether a type in a function names a device."""
    return isinstance(f, Function) and any(device_of(t) for t in _types(f))


def _types(f: Function) -> Iterator[Type]:
    """The types of a function's parameters and bindings, of all functions and branches in it."""
    yield from (p.type for p in f.params)
    for b in bindings_in(f.bindings):
        yield b.var.type
        if isinstance(b.value, Lambda):
            yield from (p.type for p in b.value.function.params)
        elif isinstance(b.value, MatchCast):
            yield b.value.type
        elif isinstance(b.value, If):
            yield from (b.value.then.result.type, b.value.orelse.result.type)


def device_of(t: Type) -> str:
    """The device that a type names: of a tuple the first of its items'."""
    if isinstance(t, TupleType):
        return next(filter(None, map(device_of, t.fields)), "")
    return t.device if isinstance(t, TensorType) else ""


__all__ = ["device_of", "has_devices"]
