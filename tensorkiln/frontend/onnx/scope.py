"""Names and their values inside one graph or function body."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from tensorkiln.frontend.onnx.known import Val
from tensorkiln.frontend.onnx.proto import Attribute, Node, Tensor


class Unknown:
    """The value of an output whose node could not be imported."""


UNKNOWN = Unknown()


@dataclass(slots=True)
class Scope:
    """Names of one graph or function body; `outer` is visible from a branch of `If`."""

    opsets: Mapping[str, int]
    prefix: str = ""
    depth: int = 0
    outer: Scope | None = None
    attrs: Mapping[str, Attribute] = field(default_factory=dict)
    values: dict[str, Val | Tensor | Unknown] = field(default_factory=dict)
    used: set[str] = field(default_factory=set)

    def find(self, name: str) -> Val | Tensor | Unknown | None:
        """The value of a name, here or outside; a Tensor is an initializer not yet read."""
        scope: Scope | None = self
        while scope is not None:
            if name in scope.values:
                return scope.values[name]
            scope = scope.outer
        return None


def resolved(attr: Attribute, scope: Scope) -> Attribute | None:
    """In a function body an attribute may refer to one of the call; absent ones are left out."""
    if not attr.ref:
        return attr
    found = scope.attrs.get(attr.ref)
    return None if found is None else replace(found, name=attr.name, ref="")


def without_optional(nodes: Sequence[Node], absent: set[str]) -> Sequence[Node]:
    """Operands of the body that the call left out become empty names."""
    if not absent:
        return nodes
    return [
        replace(n, input=tuple("" if i in absent else i for i in n.input))
        if absent & set(n.input)
        else n
        for n in nodes
    ]
