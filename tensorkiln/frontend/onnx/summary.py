"""What an ONNX file holds, without importing it: for `kiln inspect`."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tensorkiln.base.origin import ModelSource, sha256_of
from tensorkiln.base.record import JsonRecord
from tensorkiln.frontend.onnx.load import load
from tensorkiln.frontend.onnx.proto import NodeProto, OnnxGraph, OnnxModel, TensorProto, ValueInfo
from tensorkiln.frontend.onnx.tensors import DTYPES, NARROW_DTYPES, OTHER_DTYPES, numpy_dtype


@dataclass(frozen=True, slots=True)
class TensorSummary:
    """An input, output or weight: `shape` has names for symbolic extents, `?` for unknown ones, and
    is None where the rank is unknown; `bytes` are those of a weight."""

    name: str
    dtype: str
    shape: tuple[int | str, ...] | None
    bytes: int = 0


@dataclass(frozen=True, slots=True)
class ModelSummary(JsonRecord):
    """A model's graph: `operators` counts nodes by operator, with the domain where that is not
    ONNX's, those of branches, loops and functions included; `weights` are the largest first.
    `files` are those that hold weights, and `absent` those of them that are not there."""

    path: str
    graph: str
    opsets: dict[str, int]
    inputs: tuple[TensorSummary, ...]
    outputs: tuple[TensorSummary, ...]
    nodes: int
    operators: dict[str, int]
    functions: tuple[str, ...]
    weights: tuple[TensorSummary, ...]
    weights_bytes: int
    files: tuple[str, ...]
    absent: tuple[str, ...]


def summary_of(model: Any) -> ModelSummary:
    """The summary of a model: a path, bytes, or an `onnx.ModelProto`. Files of weights are not
    read. Raises UserError as `from_onnx` for what is not a model."""
    source = load(model)
    graph = source.model.graph
    assert graph is not None
    nodes = [*_nodes(graph.node), *(n for f in source.model.functions for n in _nodes(f.node))]
    operators = Counter(_operator(n) for n in nodes)
    initializers = {t.name for t in graph.initializer}
    weights = sorted(map(_weight, graph.initializer), key=lambda t: -t.bytes)
    files = {e.value: None for t in graph.initializer for e in _places(t)}
    source.files.stand_ins = True
    return ModelSummary(
        path=source.where,
        graph=graph.name,
        opsets={o.domain or "ai.onnx": o.version for o in source.model.opset_import},
        inputs=tuple(_value(v) for v in graph.input if v.name not in initializers),
        outputs=tuple(map(_value, graph.output)),
        nodes=len(nodes),
        operators=dict(operators.most_common()),
        functions=tuple(f.name for f in source.model.functions),
        weights=tuple(weights),
        weights_bytes=sum(t.bytes for t in weights),
        files=tuple(files),
        absent=tuple(name for name in files if source.files.lacks(name)),
    )


def hashes_of(model: Any) -> ModelSource:
    """The hash of a model, and those of all files of external data that its tensors name, those in
    branches, loops and functions included. Raises UserError as `from_onnx`, also for a file that is
    missing."""
    source = load(model)
    weights = tuple((name, source.files.hash_of(name)) for name in _files(source.model))
    return ModelSource("onnx", sha256_of(source.data), weights)


def file_names(model: Any) -> tuple[str, ...]:
    """The names of all files of external data that a model's tensors name, sorted; they need not be
    there."""
    return _files(load(model).model)


def _files(model: OnnxModel) -> tuple[str, ...]:
    assert model.graph is not None
    graphs, tensors = [model.graph], list[TensorProto]()
    nodes = [*_nodes(model.graph.node), *(n for f in model.functions for n in _nodes(f.node))]
    for a in (a for n in nodes for a in n.attribute):
        tensors += [a.t] if a.t is not None else []
        graphs += [a.g] if isinstance(a.g, OnnxGraph) else []
    tensors += [t for g in graphs for t in g.initializer]
    return tuple(sorted({place.value for t in tensors for place in _places(t)}))


def is_model(path: Path) -> bool:
    """Whether a file is taken for an ONNX model: by its name."""
    return path.suffix.lower() == ".onnx"


def _nodes(nodes: Sequence[NodeProto]) -> Iterator[NodeProto]:
    """Nodes and those of their branches and bodies."""
    for n in nodes:
        yield n
        for a in n.attribute:
            if isinstance(a.g, OnnxGraph):
                yield from _nodes(a.g.node)


def _operator(n: NodeProto) -> str:
    standard = n.domain in ("", "ai.onnx")
    return n.op_type if standard else f"{n.domain}.{n.op_type}"


def _dtype(code: int) -> str:
    return DTYPES.get(code) or OTHER_DTYPES.get(code) or f"type {code}"


def _value(v: ValueInfo) -> TensorSummary:
    t = v.type.tensor if v.type is not None else None
    if t is None:
        return TensorSummary(v.name, "not a tensor", None)
    shape = None
    if t.shape is not None:
        shape = tuple(d.param or "?" if d.value is None else d.value for d in t.shape.dim)
    return TensorSummary(v.name, _dtype(t.elem_type), shape)


def _weight(t: TensorProto) -> TensorSummary:
    shape = tuple(int(d) for d in t.dims)
    count = math.prod(shape)
    if t.data_type in NARROW_DTYPES:
        size = NARROW_DTYPES[t.data_type].row.size(count)
    elif t.data_type in DTYPES:
        size = count * numpy_dtype(DTYPES[t.data_type]).itemsize
    else:
        size = len(t.raw_data or b"")
    return TensorSummary(t.name, _dtype(t.data_type), shape, size)


def _places(t: TensorProto) -> Iterator[Any]:
    return (e for e in t.external_data if t.location == 1 and e.key == "location")
