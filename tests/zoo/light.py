"""The nine networks whose graphs ship inside the `onnx` package, with random weights filled in.

Their files hold the weights as ConstantOfShape nodes and small placeholder initializers. Every one
of them is replaced by an initializer drawn for its role (convolution, batch norm, bias, scale), so
that activations neither vanish nor explode. Needs numpy and onnx only.
"""

from __future__ import annotations

import math
import os
import zlib
from pathlib import Path

import numpy as np
import onnx
from onnx import ModelProto, helper, numpy_helper

Array = np.ndarray

NAMES = (
    "bvlc_alexnet",
    "densenet121",
    "inception_v1",
    "inception_v2",
    "resnet50",
    "shufflenet",
    "squeezenet",
    "vgg19",
    "zfnet512",
)

# Sums of branches and scale layers pile up differently in each network; these gains on the last
# layer bring the scores to about unit deviation, so that the softmax does not saturate.
SCORE_GAINS = {
    "bvlc_alexnet": 0.5,
    "inception_v1": 0.3,
    "inception_v2": 0.1,
    "resnet50": 0.2,
    "shufflenet": 0.006,
    "vgg19": 0.6,
}


def light_model(name: str, seed: int = 0) -> ModelProto:
    """The network `light_<name>.onnx` with random weights; the graph's other nodes unchanged."""
    folder = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"
    model = onnx.load(folder / f"light_{name}.onnx")
    graph = model.graph
    roles = _roles(graph)
    filled: dict[str, Array] = {}
    shapes = {t.name: numpy_helper.to_array(t) for t in graph.initializer}
    for node in list(graph.node):
        if node.op_type == "ConstantOfShape":
            dims = tuple(int(d) for d in shapes[node.input[0]])
            filled[node.output[0]] = _draw(node.output[0], dims, roles, seed)
            graph.node.remove(node)
    for tensor in graph.initializer:
        if tensor.data_type == onnx.TensorProto.FLOAT and tensor.name in roles:
            filled[tensor.name] = _draw(tensor.name, tuple(tensor.dims), roles, seed)
    _scale_scores(graph, filled, SCORE_GAINS.get(name, 1.0))
    _replace_initializers(graph, filled)
    return model


def light_path(name: str) -> Path:
    """The filled network as a file in the zoo's cache folder; written on first use."""
    root = os.environ.get("MODEL_ZOO_DIR", "")
    folder = Path(root) if root else Path.home() / ".cache" / "tensorkiln-zoo"
    folder.mkdir(parents=True, exist_ok=True)
    key = zlib.crc32(Path(__file__).read_bytes() + onnx.__version__.encode())
    path = folder / f"light_{name}-{key:08x}.onnx"
    if not path.exists():
        partial = folder / f".{path.name}.{os.getpid()}"
        onnx.save(light_model(name), partial)
        partial.replace(path)
    return path


def input_spec(model: ModelProto) -> dict[str, tuple[int, ...]]:
    """Name -> shape of the inputs that are not initializers."""
    weights = {tensor.name for tensor in model.graph.initializer}
    return {
        entry.name: tuple(d.dim_value for d in entry.type.tensor_type.shape.dim)
        for entry in model.graph.input
        if entry.name not in weights
    }


def _roles(graph: onnx.GraphProto) -> dict[str, str]:
    """Value name -> what its consumer uses it for."""
    roles: dict[str, str] = {}
    slots = {
        "Conv": ("", "weight", "bias"),
        "Gemm": ("", "dense", "bias"),
        "BatchNormalization": ("", "scale", "bias", "mean", "variance"),
    }
    before_sum = {name for node in graph.node if node.op_type == "Sum" for name in node.input}
    source = _moved(graph)
    for node in graph.node:
        for role, name in zip(slots.get(node.op_type, ()), node.input, strict=False):
            if role == "scale" and node.output[0] in before_sum:
                role = "branch scale"
            if role:
                roles[source.get(name, name)] = role
        if node.op_type in ("Mul", "Add"):
            role = "scale" if node.op_type == "Mul" else "bias"
            roles |= {source[name]: role for name in node.input if name in source}
    return roles


def _moved(graph: onnx.GraphProto) -> dict[str, str]:
    """Value -> the value it only changes the shape of."""
    moved = ("Unsqueeze", "Reshape")
    return {node.output[0]: node.input[0] for node in graph.node if node.op_type in moved}


def _scale_scores(graph: onnx.GraphProto, filled: dict[str, Array], gain: float) -> None:
    """Scales the weights of the last Gemm."""
    dense = [node.input[1] for node in graph.node if node.op_type == "Gemm"]
    if dense:
        name = _moved(graph).get(dense[-1], dense[-1])
        filled[name] = filled[name] * np.float32(gain)


def _draw(name: str, dims: tuple[int, ...], roles: dict[str, str], seed: int) -> Array:
    generator = np.random.default_rng([seed, zlib.crc32(name.encode())])
    role = roles.get(name)
    if role in ("weight", "dense"):
        # Every Gemm of the nine has transB=1, so the last axis is its fan-in.
        fan_in = math.prod(dims[1:]) if role == "weight" else dims[-1]
        deviation = math.sqrt((2.0 if role == "weight" else 1.0) / fan_in)
        values = generator.standard_normal(dims, dtype=np.float32) * np.float32(deviation)
    elif role in ("scale", "branch scale", "variance"):
        gain = 0.5 if role == "branch scale" else 1.0
        values = generator.uniform(0.6 * gain, 1.4 * gain, dims)
    elif role in ("bias", "mean"):
        values = generator.normal(0.0, 0.1, dims)
    else:
        raise ValueError(f"no role known for {name!r} of shape {dims}")
    return values.astype(np.float32)


def _replace_initializers(graph: onnx.GraphProto, filled: dict[str, Array]) -> None:
    """Puts `filled` in; these files are IR version 3, where an initializer is an input as well."""
    input_names = {name for node in graph.node for name in node.input}
    remaining = [t for t in graph.initializer if t.name in input_names and t.name not in filled]
    dropped = {t.name for t in graph.initializer} - {t.name for t in remaining}
    entries = [entry for entry in graph.input if entry.name not in dropped]
    del graph.initializer[:], graph.input[:]
    graph.initializer.extend(remaining)
    graph.input.extend(entries)
    for name, values in filled.items():
        graph.initializer.append(numpy_helper.from_array(values, name))
        graph.input.append(helper.make_tensor_value_info(name, 1, values.shape))
