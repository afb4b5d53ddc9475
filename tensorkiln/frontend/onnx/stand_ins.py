"""Stand-ins: tensors in place of those that a refused node would compute, so that what reads them
is checked too.

Their types are those that the model declares (`value_info`), or that the package `onnx` infers from
the operator's schema. Sizes that these do not tell are unlike any other, so a stand-in with one can
make nodes behind it fail that would not: of these only issues of kinds `BY_NAME` count.
"""

from __future__ import annotations

from collections.abc import Sequence

from tensorkiln.frontend.graph.context import Context
from tensorkiln.frontend.graph.issues import NodeProblem
from tensorkiln.frontend.graph.values import Val
from tensorkiln.frontend.onnx import bodies
from tensorkiln.frontend.onnx.inputs import input_type
from tensorkiln.frontend.onnx.narrow import Narrow
from tensorkiln.frontend.onnx.proto import VALUE_INFO, NodeProto, TypeProto, ValueInfo
from tensorkiln.frontend.onnx.scope import UNKNOWN, GraphScope, Unknown
from tensorkiln.frontend.onnx.wire import WireError, decode
from tensorkiln.ir.relax import RVar

# Kinds of issues that no size can make wrong.
BY_NAME = ("operator", "opset")


def declared_types(scope: GraphScope) -> dict[str, TypeProto]:
    """The types that the scope's graph declares for values of its nodes, by name."""
    if scope.declared is None:
        infos: list[ValueInfo] = []
        for data in scope.infos:
            try:
                infos.append(decode(VALUE_INFO, data))
            except WireError:
                continue
        scope.declared = {v.name: v.type for v in infos if v.type is not None}
    return scope.declared


def stand_ins(g: Context, node: NodeProto, scope: GraphScope) -> list[Val | Narrow | Unknown]:
    """A stand-in for each output of a node that is refused; UNKNOWN where nothing tells its type.
    The names of those without static shape are added to `scope.doubtful`."""
    types = declared_types(scope)
    if any(o and o not in types for o in node.output):
        operands = [scope.find(name) for name in node.operands]
        tensor_types = [v.tensor if isinstance(v, Val) else None for v in operands]
        if all(
            t is not None or not name for t, name in zip(tensor_types, node.operands, strict=True)
        ):
            types = {**bodies.inferred_types(node, tensor_types, scope.opsets), **types}
    outputs: list[Val | Narrow | Unknown] = []
    for name in node.output:
        value = _stand_in(g, name, types.get(name)) if name else UNKNOWN
        if not isinstance(value, Unknown) and _static_shape(value) is None:
            scope.doubtful.add(name)
        outputs.append(value)
    return outputs


def _static_shape(value: Val | Narrow) -> tuple[int, ...] | None:
    """The shape of a tensor as numbers; None if it is symbolic."""
    stored = value.stored if isinstance(value, Narrow) else value
    return stored.tensor.static_shape()


def _stand_in(g: Context, name: str, type_: TypeProto | None) -> Val | Narrow | Unknown:
    try:
        tensor_type, format = input_type(ValueInfo(name, type_), set(), g.dims)
    except NodeProblem:
        return UNKNOWN
    variable = RVar("stand_in", tensor_type)
    return variable if format is None else Narrow(variable, format)


def is_doubtful(names: Sequence[str], scope: GraphScope) -> bool:
    """Whether a node that reads these values looks at types, and one depends on a stand-in that has
    sizes which nothing tells."""
    unknown = any(isinstance(scope.find(name), Unknown) for name in names)
    return not unknown and any(map(scope.is_doubtful, names))


__all__ = ["BY_NAME", "declared_types", "is_doubtful", "stand_ins"]
