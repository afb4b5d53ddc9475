"""The protobuf messages of an ONNX file, with the fields that an import needs, and their schemas.

Names, field numbers and types are those of onnx.proto. A field that is absent has its default.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from tensorkiln.frontend.onnx.wire import Field, Schema

NO_INTS = np.zeros(0, np.int64)
NO_FLOATS = np.zeros(0, np.float32)
NO_DOUBLES = np.zeros(0, np.float64)


@dataclass(frozen=True, slots=True)
class StringEntry:
    """StringStringEntryProto."""

    key: str = ""
    value: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class TensorProto:
    """TensorProto. `raw_data` is a view of the file, little-endian; `location` 1 means that the
    elements are in the file that `external_data` names."""

    dims: np.ndarray = field(default_factory=lambda: NO_INTS)
    data_type: int = 0
    float_data: np.ndarray = field(default_factory=lambda: NO_FLOATS)
    int32_data: np.ndarray = field(default_factory=lambda: NO_INTS)
    int64_data: np.ndarray = field(default_factory=lambda: NO_INTS)
    double_data: np.ndarray = field(default_factory=lambda: NO_DOUBLES)
    uint64_data: np.ndarray = field(default_factory=lambda: NO_INTS)
    name: str = ""
    raw_data: memoryview | None = None
    external_data: tuple[StringEntry, ...] = ()
    location: int = 0


@dataclass(frozen=True, slots=True)
class Dim:
    """One declared dimension: a number (`value`), a name (`param`), or neither if unknown."""

    value: int | None = None
    param: str = ""


@dataclass(frozen=True, slots=True)
class OnnxShape:
    """TensorShapeProto."""

    dim: tuple[Dim, ...] = ()


@dataclass(frozen=True, slots=True)
class TensorTypeProto:
    """TypeProto.Tensor: element type number and declared shape (None: unknown rank)."""

    elem_type: int = 0
    shape: OnnxShape | None = None


@dataclass(frozen=True, slots=True)
class TypeProto:
    """TypeProto; `tensor` is None for sequences, maps, optionals and sparse tensors."""

    tensor: TensorTypeProto | None = None


@dataclass(frozen=True, slots=True)
class ValueInfo:
    """ValueInfoProto: the name and type of a graph's input or output."""

    name: str = ""
    type: TypeProto | None = None


@dataclass(frozen=True, slots=True, eq=False)
class AttributeProto:
    """AttributeProto. In a function body, `ref` (ref_attr_name) names the attribute of the calling
    node that gives the value."""

    name: str = ""
    ref: str = ""
    type: int = 0
    f: float | None = None
    i: int | None = None
    s: memoryview | None = None
    t: TensorProto | None = None
    g: OnnxGraph | None = None
    floats: np.ndarray = field(default_factory=lambda: NO_FLOATS)
    ints: np.ndarray = field(default_factory=lambda: NO_INTS)
    strings: tuple[memoryview, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class NodeProto:
    """NodeProto; an empty name in `input` or `output` is an operand or output left out. `doc` and
    `metadata` are not decoded: only errors ask what is in them."""

    input: tuple[str, ...] = ()
    output: tuple[str, ...] = ()
    name: str = ""
    op_type: str = ""
    attribute: tuple[AttributeProto, ...] = ()
    domain: str = ""
    overload: str = ""
    doc: memoryview | None = None
    metadata: tuple[memoryview, ...] = ()  # each a StringStringEntryProto

    @property
    def operands(self) -> tuple[str, ...]:
        """The names of its operands, without those left out at the end."""
        count = len(self.input)
        while count and not self.input[count - 1]:
            count -= 1
        return self.input[:count]

    @property
    def label(self) -> str:
        """The node's name, or `Op:first_output` if it has no name."""
        return self.name or f"{self.op_type}:{next((o for o in self.output if o), '')}"


@dataclass(frozen=True, slots=True, eq=False)
class OnnxGraph:
    """GraphProto, without fields that an import does not need (doc_string, ...). `value_info` is
    not decoded: only errors ask what is in it."""

    node: tuple[NodeProto, ...] = ()
    name: str = ""
    initializer: tuple[TensorProto, ...] = ()
    sparse_initializer: tuple[memoryview, ...] = ()
    input: tuple[ValueInfo, ...] = ()
    output: tuple[ValueInfo, ...] = ()
    value_info: tuple[memoryview, ...] = ()  # each a ValueInfoProto


@dataclass(frozen=True, slots=True)
class OpsetId:
    """OperatorSetIdProto: the version of one operator domain that a model or function uses."""

    domain: str = ""
    version: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class FunctionProto:
    """FunctionProto: a model-local function; `attribute_proto` has the defaults of attributes."""

    name: str = ""
    input: tuple[str, ...] = ()
    output: tuple[str, ...] = ()
    attribute_proto: tuple[AttributeProto, ...] = ()
    node: tuple[NodeProto, ...] = ()
    opset_import: tuple[OpsetId, ...] = ()
    domain: str = ""
    overload: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class OnnxModel:
    """ModelProto, without fields that an import does not need (metadata_props, doc_string, ...)."""

    opset_import: tuple[OpsetId, ...] = ()
    graph: OnnxGraph | None = None
    functions: tuple[FunctionProto, ...] = ()


ENTRY = Schema(
    "StringStringEntryProto", StringEntry, {1: Field("key", "str"), 2: Field("value", "str")}
)
_TENSOR = Schema(
    "TensorProto",
    TensorProto,
    {
        1: Field("dims", "varints"),
        2: Field("data_type", "int"),
        4: Field("float_data", "floats"),
        5: Field("int32_data", "varints"),
        7: Field("int64_data", "varints"),
        8: Field("name", "str"),
        9: Field("raw_data", "bytes"),
        10: Field("double_data", "doubles"),
        11: Field("uint64_data", "varints"),
        13: Field("external_data", "message", True, lambda: ENTRY),
        14: Field("location", "int"),
    },
)
_DIM = Schema("Dimension", Dim, {1: Field("value", "int"), 2: Field("param", "str")})
_SHAPE = Schema("TensorShapeProto", OnnxShape, {1: Field("dim", "message", True, lambda: _DIM)})
_TENSOR_TYPE = Schema(
    "TypeProto.Tensor",
    TensorTypeProto,
    {1: Field("elem_type", "int"), 2: Field("shape", "message", False, lambda: _SHAPE)},
)
TYPE = Schema("TypeProto", TypeProto, {1: Field("tensor", "message", False, lambda: _TENSOR_TYPE)})
VALUE_INFO = Schema(
    "ValueInfoProto",
    ValueInfo,
    {1: Field("name", "str"), 2: Field("type", "message", False, lambda: TYPE)},
)
ATTRIBUTE = Schema(
    "AttributeProto",
    AttributeProto,
    {
        1: Field("name", "str"),
        2: Field("f", "float"),
        3: Field("i", "int"),
        4: Field("s", "bytes"),
        5: Field("t", "message", False, lambda: _TENSOR),
        6: Field("g", "message", False, lambda: _GRAPH),
        7: Field("floats", "floats"),
        8: Field("ints", "varints"),
        9: Field("strings", "bytes", True),
        20: Field("type", "int"),
        21: Field("ref", "str"),
    },
)
NODE = Schema(
    "NodeProto",
    NodeProto,
    {
        1: Field("input", "str", True),
        2: Field("output", "str", True),
        3: Field("name", "str"),
        4: Field("op_type", "str"),
        5: Field("attribute", "message", True, lambda: ATTRIBUTE),
        6: Field("doc", "bytes"),
        7: Field("domain", "str"),
        8: Field("overload", "str"),
        9: Field("metadata", "bytes", True),
    },
)
_GRAPH: Schema = Schema(
    "GraphProto",
    OnnxGraph,
    {
        1: Field("node", "message", True, lambda: NODE),
        2: Field("name", "str"),
        5: Field("initializer", "message", True, lambda: _TENSOR),
        11: Field("input", "message", True, lambda: VALUE_INFO),
        12: Field("output", "message", True, lambda: VALUE_INFO),
        13: Field("value_info", "bytes", True),
        15: Field("sparse_initializer", "bytes", True),
    },
)
_OPSET = Schema(
    "OperatorSetIdProto", OpsetId, {1: Field("domain", "str"), 2: Field("version", "int")}
)
FUNCTION = Schema(
    "FunctionProto",
    FunctionProto,
    {
        1: Field("name", "str"),
        4: Field("input", "str", True),
        5: Field("output", "str", True),
        7: Field("node", "message", True, lambda: NODE),
        9: Field("opset_import", "message", True, lambda: _OPSET),
        10: Field("domain", "str"),
        11: Field("attribute_proto", "message", True, lambda: ATTRIBUTE),
        13: Field("overload", "str"),
    },
)
MODEL = Schema(
    "ModelProto",
    OnnxModel,
    {
        7: Field("graph", "message", False, lambda: _GRAPH),
        8: Field("opset_import", "message", True, lambda: _OPSET),
        25: Field("functions", "message", True, lambda: FUNCTION),
    },
)
