"""Find the importer of a node and check the node against it. Its Python signature is its schema:

    def conv(g, x, w, b=None, *, auto_pad: Str = "NOTSET", group: Int = 1, ...)

Positional parameters are operands (optional if they have a default, variadic as `*xs`);
keyword-only parameters are attributes, annotated with their type. Tables map an operator to
{first opset: importer}: `{"Pad": {2: pad_2, 11: pad_11}}` uses `pad_2` for opsets 2 to 10.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from tensorkiln.base.errors import nearest
from tensorkiln.frontend.graph.issues import malformed, unsupported
from tensorkiln.frontend.onnx.graph_values import GraphValue
from tensorkiln.frontend.onnx.narrow import Narrow
from tensorkiln.frontend.onnx.proto import AttributeProto, OnnxGraph, TensorProto
from tensorkiln.frontend.onnx.standard import HINTS, STANDARD
from tensorkiln.frontend.onnx.tensors import ExternalFiles, to_array, to_constant
from tensorkiln.ir.relax import Constant

# Types of attributes in importers' annotations, which `parameters_of` reads by name.
Int = int
Float = float
Str = str
Ints = tuple[int, ...]
Floats = tuple[float, ...]
Strs = tuple[str, ...]
Array = np.ndarray
Tensor = Constant | Narrow
Body = OnnxGraph
TypeOf = type(None)  # a type: no importer needs it, since values have theirs

Importer = Callable[..., GraphValue | Sequence[GraphValue]]
Table = Mapping[str, Mapping[int, Importer]]

# AttributeProto.AttributeType -> the annotation of a parameter that accepts it
_KINDS = {
    1: "Float",
    2: "Int",
    3: "Str",
    4: "Array",
    5: "Body",
    6: "Floats",
    7: "Ints",
    8: "Strs",
    13: "TypeOf",
}
KINDS_OF_ATTRIBUTES = frozenset({*_KINDS.values(), "Tensor"})
# Python's names for the types of attributes.
_PLAIN = {
    "float": "Float",
    "int": "Int",
    "str": "Str",
    "np.ndarray": "Array",
    "numpy.ndarray": "Array",
    "tuple[float, ...]": "Floats",
    "tuple[int, ...]": "Ints",
    "tuple[str, ...]": "Strs",
}
_MISSING = inspect.Parameter.empty


@dataclass(frozen=True, slots=True)
class Parameters:
    """What an importer accepts: `least` to `most` operands (None: any number), and for each
    attribute its (type, default), where the default of a required attribute is `_MISSING`."""

    least: int
    most: int | None
    attrs: Mapping[str, tuple[str, Any]]


@cache
def parameters_of(importer: Importer) -> Parameters:
    """The schema in an importer's parameters, without the first, which is the Context."""
    minimum, maximum = 0, 0
    variadic = False
    attrs: dict[str, tuple[str, Any]] = {}
    for p in list(inspect.signature(importer).parameters.values())[1:]:
        if p.kind is p.KEYWORD_ONLY:
            attrs[p.name] = (kind_of(p.annotation), p.default)
        elif p.kind is p.VAR_POSITIONAL:
            variadic = True
        else:
            maximum += 1
            minimum += p.default is _MISSING
    return Parameters(minimum, None if variadic else maximum, attrs)


def kind_of(annotation: object) -> str:
    """The type of an attribute in a parameter's annotation, which is text where its module says
    `from __future__ import annotations`; empty if there is none."""
    if annotation is _MISSING:
        return ""
    text = annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
    text = text.removesuffix(" | None")
    return _PLAIN.get(text, text)


def find(table: Table, op_type: str, opset: int) -> Importer:
    """The importer for the operator's definition that is in force in `opset`.

    NodeProblem if the operator is not in the table or is newer than `opset`.
    """
    versions = table.get(op_type)
    if versions is None:
        hint = HINTS.get(op_type, "") if op_type in STANDARD else nearest(op_type, table)
        raise unsupported("the operator is not supported", hint, "operator")
    fitting = [v for v in versions if v <= opset]
    if not fitting:
        raise unsupported(
            f"the operator appears in opset {min(versions)}, the model declares opset {opset}",
            kind="opset",
        )
    return versions[max(fitting)]


def attributes(
    importer: Importer, protos: Sequence[AttributeProto], files: ExternalFiles
) -> dict[str, Any]:
    """The Python values of a node's attributes, without defaults.

    NodeProblem if an attribute is unknown, has the wrong type, or is required and missing.
    """
    schema = parameters_of(importer).attrs
    values: dict[str, Any] = {}
    for attr in protos:
        if attr.name not in schema:
            hint = nearest(attr.name, schema)
            raise unsupported(f"attribute {attr.name!r} is not supported", hint)
        expected = schema[attr.name][0]
        kind = attribute_kind(attr)
        matches = kind == expected or (kind, expected) == ("Array", "Tensor")
        if not matches and not _empty_list(attr, expected):
            raise malformed(
                f"attribute {attr.name!r} has type {kind.upper()}, expected {expected.upper()}"
            )
        values[attr.name] = attribute_value(attr, expected, files)
    for name, (_, default) in schema.items():
        if name not in values and default is _MISSING:
            raise malformed(f"attribute {name!r} is missing")
    return values


def attribute_kind(attr: AttributeProto) -> str:
    """The attribute's declared type; for IR version 1, which has no `type`, the field that is set.

    An attribute without a value counts as "Ints".
    """
    if attr.type:
        return _KINDS.get(attr.type, f"type {attr.type}")
    for name, kind in (("f", "Float"), ("i", "Int"), ("s", "Str"), ("t", "Array"), ("g", "Body")):
        if getattr(attr, name) is not None:
            return kind
    if attr.floats.size:
        return "Floats"
    return "Strs" if attr.strings else "Ints"


def _empty_list(attr: AttributeProto, expected: str) -> bool:
    """Whether an attribute without declared type or elements may stand for the expected list."""
    empty = not (attr.floats.size or attr.ints.size or attr.strings)
    return not attr.type and empty and expected.endswith("s")


def attribute_value(attr: AttributeProto, kind: str, files: ExternalFiles) -> Any:
    """The Python value of an attribute of kind `kind` (`_KINDS`); NodeProblem if malformed."""
    match kind:
        case "Float":
            return attr.f or 0.0
        case "Int":
            return attr.i or 0
        case "Str":
            return _text(attr.s, attr.name)
        case "Array" | "Tensor":
            if not isinstance(attr.t, TensorProto):
                raise malformed(f"attribute {attr.name!r} holds no tensor")
            return (to_array if kind == "Array" else to_constant)(attr.t, files)
        case "Body":
            if attr.g is None:
                raise malformed(f"attribute {attr.name!r} holds no graph")
            return attr.g
        case "TypeOf":
            return None
        case "Floats":
            return tuple(attr.floats.tolist())
        case "Ints":
            return tuple(attr.ints.tolist())
        case "Strs":
            return tuple(_text(s, attr.name) for s in attr.strings)
    raise malformed(f"attribute {attr.name!r} has {kind}")


def _text(data: memoryview | None, name: str) -> str:
    try:
        return str(data, "utf-8") if data is not None else ""
    except UnicodeDecodeError:
        raise malformed(f"attribute {name!r} is not UTF-8 text") from None


def check_operands(importer: Importer, operands: Sequence[str]) -> None:
    """Raise NodeProblem if the number of operands is wrong or a required one is left out ("")."""
    s = parameters_of(importer)
    if len(operands) < s.least or (s.most is not None and len(operands) > s.most):
        limit = "or more" if s.most is None else f"to {s.most}"
        expected = str(s.least) if s.most == s.least else f"{s.least} {limit}"
        raise malformed(f"expected {expected} operand(s), got {len(operands)}")
    for i, name in enumerate(operands[: s.least]):
        if not name:
            raise malformed(f"operand {i} is required")
