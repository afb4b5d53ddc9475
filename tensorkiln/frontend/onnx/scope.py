"""The values of names inside one graph, branch or function body."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from tensorkiln.frontend.onnx.graph_values import GraphValue
from tensorkiln.frontend.onnx.proto import AttributeProto, NodeProto, TensorProto, TypeProto


class Unknown:
    """The value of an output whose node could not be imported, and whose type nothing tells; see
    `UNKNOWN`. Of a node that reads it, only what does not depend on types is checked."""


UNKNOWN = Unknown()


@dataclass(slots=True)
class GraphScope:
    """The names of one graph, function body or branch of `If`.

    `outer` is the enclosing scope, whose names a branch can read (None for a function body).
    `opsets` maps a domain to its version, `attrs` holds the attributes of a function's call,
    `used` the names that nodes or results read; `prefix` is put before labels of nodes. `infos` are
    the graph's value_info, undecoded, and `declared` what is in them once that is asked; `doubtful`
    are the names of values that depend on sizes which nothing tells (`stand_ins.py`).
    """

    opsets: Mapping[str, int]
    prefix: str = ""
    depth: int = 0
    outer: GraphScope | None = None
    attrs: Mapping[str, AttributeProto] = field(default_factory=dict)
    values: dict[str, GraphValue | TensorProto | Unknown] = field(default_factory=dict)
    used: set[str] = field(default_factory=set)
    infos: Sequence[memoryview] = ()
    declared: dict[str, TypeProto] | None = None
    doubtful: set[str] = field(default_factory=set)

    def find(self, name: str) -> GraphValue | TensorProto | Unknown | None:
        """The value of a name in this scope or an enclosing one; None if it is not defined.

        A TensorProto is an initializer that has not been converted to an array yet.
        """
        scope: GraphScope | None = self
        while scope is not None:
            if name in scope.values:
                return scope.values[name]
            scope = scope.outer
        return None

    def is_doubtful(self, name: str) -> bool:
        """Whether the value of a name in this scope or an enclosing one depends on sizes that
        nothing tells."""
        scope: GraphScope | None = self
        while scope is not None:
            if name in scope.values:
                return name in scope.doubtful
            scope = scope.outer
        return False


def resolved(attr: AttributeProto, scope: GraphScope) -> AttributeProto | None:
    """`attr`, or if it refers to an attribute of the function's call, that attribute's value.

    None if it refers to an attribute that neither the call nor the function's defaults give.
    """
    if not attr.ref:
        return attr
    argument = scope.attrs.get(attr.ref)
    return None if argument is None else replace(argument, name=attr.name, ref="")


def without_optional(nodes: Sequence[NodeProto], absent: set[str]) -> Sequence[NodeProto]:
    """The nodes of a function body, with the names in `absent` (parameters for which the call has
    no operand) replaced by empty names among their operands."""
    if not absent:
        return nodes
    return [
        replace(n, input=tuple("" if i in absent else i for i in n.input))
        if absent & set(n.input)
        else n
        for n in nodes
    ]
