"""Function bodies: how the ONNX standard defines an operator by other operators.

The package `onnx` has the schema of each operator of each opset, many with a body, so an operator
that has no importer here, or one in a newer opset than our importers know, can be imported as the
nodes of its body. It is loaded when the first such operator is met; without it there are no bodies.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from types import ModuleType
from typing import Any

from tensorkiln.base.errors import nearest
from tensorkiln.base.packages import install_line
from tensorkiln.frontend.graph.issues import malformed, unsupported
from tensorkiln.frontend.onnx.dispatch import attribute_kind
from tensorkiln.frontend.onnx.order import reads
from tensorkiln.frontend.onnx.proto import (
    ATTRIBUTE,
    FUNCTION,
    NODE,
    TYPE,
    AttributeProto,
    Dim,
    FunctionProto,
    NodeProto,
    OnnxShape,
    OpsetId,
    TensorTypeProto,
    TypeProto,
)
from tensorkiln.frontend.onnx.standard import STANDARD
from tensorkiln.frontend.onnx.tensors import DTYPES
from tensorkiln.frontend.onnx.wire import decode, encode
from tensorkiln.ir.expr import int_value
from tensorkiln.ir.relax import TensorType

_CODES = {name: code for code, name in DTYPES.items()}
# Names of element types in type constraints that differ from ours.
_ONNX_NAMES = {"float32": "float", "float64": "double"}

# The package `onnx` takes versions as int32, a file has them as int64.
_LAST_VERSION = (1 << 31) - 1


def newest_opset() -> int:
    """The newest opset of the package `onnx`; 0 if it is not installed."""
    defs = _defs()
    return 0 if defs is None else int(defs.onnx_opset_version())


def hint_for(op: str) -> str:
    """What may help with an operator that has no importer: the package `onnx`, if it is missing."""
    if _defs() is None and op in STANDARD:
        benefit = "operators that the standard defines by others are then imported"
        return f"{install_line('onnx')}: {benefit}"
    return ""


def schema_of(op: str, domain: str, opset: int) -> Any | None:
    """The `onnx.defs.OpSchema` of an operator's definition that is in force in `opset`; None if
    there is none, or the package `onnx` is not installed."""
    defs = _defs()
    if defs is None:
        return None
    try:
        return defs.get_schema(op, min(max(opset, 0), _LAST_VERSION), domain)
    except defs.SchemaError:
        return None


def check_known(op: str, opset: int, newest: int) -> None:
    """Raise NodeProblem if the definition of an operator in `opset` is newer than `newest`."""
    schema = schema_of(op, "", opset)
    if schema is not None and schema.since_version > newest:
        raise unsupported(
            f"opset {schema.since_version} defines the operator anew",
            f"opsets up to {newest} are known; "
            "onnx.version_converter.convert_version converts models",
            "opset",
        )


def body_of(
    schema: Any, node: NodeProto, types: Sequence[TensorType | None], opset: int
) -> FunctionProto | None:
    """The body that defines a node, None if its definition has no body.

    `types` are those of the node's operands, None for one that is left out; `opset` is the version
    of the operator's domain in the model. The body imports the opsets that it is written for, which
    may be others than the model's. NodeProblem if the node does not fit the operator's schema.
    """
    dependent_versions = schema.context_dependent_function_opset_versions
    fixed = schema.function_opset_versions if schema.has_function else []
    if not dependent_versions and not fixed:
        return None
    _check(schema, node, types)
    if dependent_versions:
        version = _in_force(dependent_versions, opset)
        operands = [b"" if t is None else encode(TYPE, _type_proto(t)) for t in types]
        # What is raised for operands that do not fit each other depends on the operator.
        try:
            data = schema.get_context_dependent_function_with_opset_version(
                version, encode(NODE, node), operands
            )
        except Exception as error:
            raise malformed(f"the package onnx cannot make its body: {error}") from error
    else:
        version = _in_force(fixed, opset)
        data = schema.get_function_with_opset_version(version)
    if not data:
        raise unsupported("the standard defines no body for this use of it", kind="operator")
    body: FunctionProto = decode(FUNCTION, memoryview(data))
    defaults = [
        decode(ATTRIBUTE, memoryview(a.default_value.SerializeToString()))
        for a in schema.attributes.values()
        if a.default_value.name
    ]
    imports = body.opset_import or (OpsetId("", version),)
    return replace(body, attribute_proto=tuple(defaults), opset_import=imports)


def inferred_types(
    node: NodeProto, types: Sequence[TensorType | None], opsets: Mapping[str, int]
) -> dict[str, TypeProto]:
    """The types of a node's outputs, by name, that follow from its operands' and the operator's
    schema; none if the package `onnx` is not installed, or cannot tell."""
    domain = "" if node.domain == "ai.onnx" else node.domain
    schema = schema_of(node.op_type, domain, opsets.get(domain, 1))
    large = any((a.i or 0) > 1 << 16 for a in node.attribute)  # `num_outputs` types are made
    if schema is None or large:
        return {}
    from onnx import NodeProto as Theirs
    from onnx import TypeProto as TheirType
    from onnx.shape_inference import infer_node_outputs

    operands = {
        name: TheirType.FromString(encode(TYPE, _type_proto(t)))
        for name, t in zip(node.operands, types, strict=True)
        if t is not None
    }
    try:
        output_types = infer_node_outputs(schema, Theirs.FromString(encode(NODE, node)), operands)
    except Exception:  # what is raised for a node that does not fit its schema depends on it
        return {}
    return {k: decode(TYPE, memoryview(t.SerializeToString())) for k, t in output_types.items()}


def check_attributes(schema: Any, attributes: Sequence[AttributeProto]) -> None:
    """Raise NodeProblem unless the attributes are those of a schema."""
    by_name = {a.name: a for a in attributes}
    for name, attr in by_name.items():
        if name not in schema.attributes:
            hint = nearest(name, list(schema.attributes))
            raise unsupported(f"attribute {name!r} is not supported", hint)
        _check_kind(attr, schema.attributes[name])
    for name, row in schema.attributes.items():
        if row.required and name not in by_name:
            raise malformed(f"attribute {name!r} is missing")


def has_body(schema: Any) -> bool:
    """Whether the standard defines an operator by others."""
    return bool(schema.has_function or schema.context_dependent_function_opset_versions)


def needed_nodes(body: FunctionProto, results: Sequence[str]) -> list[NodeProto]:
    """The nodes of a body on which `results` depend, in the body's order."""
    maker = {out: i for i, node in enumerate(body.node) for out in node.output if out}
    node_indices: set[int] = set()
    names = list(results)
    while names:
        made_by = maker.get(names.pop())
        if made_by is not None and made_by not in node_indices:
            node_indices.add(made_by)
            names.extend(reads(body.node[made_by]))
    return [node for i, node in enumerate(body.node) if i in node_indices]


@cache
def _defs() -> ModuleType | None:
    try:
        from onnx import defs
    except ImportError:
        return None
    module: ModuleType = defs
    return module


def _in_force(versions: Sequence[int], opset: int) -> int:
    """The newest version up to `opset`; the oldest if all are newer, which a body may be that was
    written after its operator."""
    return max((v for v in versions if v <= opset), default=min(versions))


def _type_proto(t: TensorType) -> TypeProto:
    extents = [int_value(d) for d in t.shape]
    dims = tuple(Dim(value=n) if n is not None else Dim() for n in extents)
    return TypeProto(TensorTypeProto(_CODES[t.dtype.name], OnnxShape(dims)))


def _check(schema: Any, node: NodeProto, types: Sequence[TensorType | None]) -> None:
    """Raise NodeProblem unless attributes and operands are those of the schema."""
    check_attributes(schema, node.attribute)
    if not schema.min_input <= len(types) <= schema.max_input:
        limit = schema.max_input if schema.max_input < 1 << 30 else "or more"
        raise malformed(f"expected {schema.min_input} to {limit} operands, got {len(types)}")
    if len(node.output) > schema.max_output:
        raise malformed(f"it has {len(node.output)} outputs, expected {schema.max_output}")
    type_variables: dict[str, str] = {}
    for k, t in enumerate(types):
        formal = schema.inputs[min(k, len(schema.inputs) - 1)]
        if t is None:
            if k < len(schema.inputs) and formal.option.name == "Single":
                raise malformed(f"operand {formal.name!r} is required")
            continue
        _check_type(formal, t, type_variables)


def _check_kind(attr: AttributeProto, row: Any) -> None:
    kind = {"Array": "TENSOR", "Body": "GRAPH", "Str": "STRING", "Strs": "STRINGS"}.get(
        attr_kind := attribute_kind(attr), attr_kind.upper()
    )
    if kind != row.type.name:
        raise malformed(f"attribute {attr.name!r} has type {kind}, expected {row.type.name}")


def _check_type(formal: Any, t: TensorType, type_variables: dict[str, str]) -> None:
    """Raise NodeProblem unless an operand has a type that its schema allows, and the one that other
    operands of the same type variable have; `type_variables` maps type variables to types."""
    dtype = t.dtype.name
    if formal.types and f"tensor({_ONNX_NAMES.get(dtype, dtype)})" not in formal.types:
        allowed = ", ".join(sorted(formal.types))
        raise malformed(f"operand {formal.name!r} is a tensor of {dtype}, expected {allowed}")
    if formal.is_homogeneous and type_variables.setdefault(formal.type_str, dtype) != dtype:
        raise malformed(
            f"operand {formal.name!r} is a tensor of {dtype}, expected "
            f"{type_variables[formal.type_str]} as of other operands"
        )
