"""The four networks of MLPerf Tiny as ONNX, with random weights, in float32 and in int8.

Shapes and strides are those of the benchmark's reference models; padding is TensorFlow's "same", so
it is uneven where the stride is 2. Batch normalisation stands as an operator of its own, as it does
in a model that somebody trained. In int8, inputs and outputs are integers too, as on a
microcontroller: weights are symmetric per channel, activations have a zero point.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

Array = np.ndarray
OPSET = 17
SEED = 20  # of every weight; inputs have seeds of their own
PRECISIONS = ("float32", "int8")


class Network:
    """Nodes and weights in the order in which they are added; `last` is the latest value."""

    def __init__(self, name: str, shape: Sequence[int]):
        self.name, self.shape = name, tuple(shape)
        self.last, self.channels = "input", shape[1]
        self.size = tuple(shape[2:])
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []
        self.random = np.random.default_rng(SEED)

    def node(self, op: str, *operands: str, output: str = "", **attributes: object) -> str:
        """Append a node of one result, named after its operator and place."""
        name = f"{op.lower()}_{len(self.nodes)}"
        self.last = output or name
        made = helper.make_node(op, operands, [self.last], name=name, **attributes)
        self.nodes.append(made)
        return self.last

    def weight(self, kind: str, value: Array) -> str:
        """Add a constant."""
        name = f"{kind}_{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(value.astype(np.float32), name))
        return name

    def _normal(self, *shape: int, fan_in: int) -> Array:
        return self.random.standard_normal(shape) * np.sqrt(2 / fan_in)

    def norm(self, relu: bool = True) -> str:
        """Batch normalisation of the latest value, and ReLU."""
        c = self.channels
        named = {
            "scale": self.random.uniform(0.7, 1.3, c),
            "bias": self.random.normal(0, 0.2, c),
            "mean": self.random.normal(0, 0.2, c),
            "variance": self.random.uniform(0.7, 1.3, c),
        }
        operands = [self.weight(kind, value) for kind, value in named.items()]
        self.node("BatchNormalization", self.last, *operands, epsilon=1e-3)
        return self.node("Relu", self.last) if relu else self.last

    def conv(
        self, channels: int, kernel: Sequence[int], stride: int = 1, depthwise: bool = False
    ) -> str:
        """A convolution without bias, "same" padded, of the latest value."""
        inner = 1 if depthwise else self.channels
        w = self._normal(channels, inner, *kernel, fan_in=inner * int(np.prod(kernel)))
        begins, ends = [], []
        for size, k in zip(self.size, kernel, strict=True):
            total = max((-(-size // stride) - 1) * stride + k - size, 0)
            begins.append(total // 2)
            ends.append(total - total // 2)
        attributes = {"kernel_shape": kernel, "strides": [stride] * 2, "pads": begins + ends}
        group = self.channels if depthwise else 1
        self.channels, self.size = channels, tuple(-(-s // stride) for s in self.size)
        return self.node("Conv", self.last, self.weight("kernel", w), group=group, **attributes)

    def dense(self, units: int) -> str:
        """A fully connected layer with bias."""
        w = self._normal(units, self.channels, fan_in=self.channels)
        b = self.random.normal(0, 0.1, units)
        self.channels = units
        operands = self.weight("weights", w), self.weight("bias", b)
        return self.node("Gemm", self.last, *operands, transB=1)

    def classify(self, classes: int) -> None:
        """The mean over all places, a dense layer and softmax."""
        self.node("AveragePool", self.last, kernel_shape=self.size)
        self.node("Flatten", self.last)
        self.dense(classes)
        self.node("Softmax", self.last, axis=-1)

    def model(self) -> onnx.ModelProto:
        """The finished model, checked; its result is `output`."""
        self.nodes[-1].output[0] = "output"
        value = helper.make_tensor_value_info
        graph = helper.make_graph(
            self.nodes,
            self.name,
            [value("input", TensorProto.FLOAT, self.shape)],
            [value("output", TensorProto.FLOAT, (1, self.channels))],
            self.weights,
        )
        opsets = [helper.make_opsetid("", OPSET)]
        model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
        onnx.checker.check_model(model, full_check=True)
        return model


def keywords() -> Network:
    """DS-CNN: 12 spoken words of 49 x 10 coefficients."""
    net = Network("keywords", (1, 1, 49, 10))
    net.conv(64, (10, 4), stride=2)
    net.norm()
    for _ in range(4):
        net.conv(64, (3, 3), depthwise=True)
        net.norm()
        net.conv(64, (1, 1))
        net.norm()
    net.classify(12)
    return net


def person() -> Network:
    """MobileNetV1 of a quarter width: whether somebody is in an image of 96 x 96."""
    net = Network("person", (1, 3, 96, 96))
    net.conv(8, (3, 3), stride=2)
    net.norm()
    blocks = [(16, 1), (32, 2), (32, 1), (64, 2), (64, 1), (128, 2), *[(128, 1)] * 5, (256, 2)]
    for channels, stride in [*blocks, (256, 1)]:
        net.conv(net.channels, (3, 3), stride=stride, depthwise=True)
        net.norm()
        net.conv(channels, (1, 1))
        net.norm()
    net.classify(2)
    return net


def anomaly() -> Network:
    """An autoencoder of dense layers over 640 features of a machine's sound."""
    net = Network("anomaly", (1, 640))
    for units in [*[128] * 4, 8, *[128] * 4]:
        net.dense(units)
        net.norm()
    net.dense(640)
    return net


def images() -> Network:
    """ResNet-8: 10 classes of images of 32 x 32."""
    net = Network("images", (1, 3, 32, 32))
    net.conv(16, (3, 3))
    net.norm()
    for channels, stride in ((16, 1), (32, 2), (64, 2)):
        shortcut, before, size = net.last, net.channels, net.size
        net.conv(channels, (3, 3), stride=stride)
        net.norm()
        net.conv(channels, (3, 3))
        inner = net.norm(relu=False)
        if stride != 1:
            net.last, net.channels, net.size = shortcut, before, size
            shortcut = net.conv(channels, (1, 1), stride=stride)
        net.node("Add", inner, shortcut)
        net.node("Relu", net.last)
    net.classify(10)
    return net


NETWORKS: dict[str, Callable[[], Network]] = {
    "keywords": keywords,
    "person": person,
    "anomaly": anomaly,
    "images": images,
}


@cache
def model(network: str, precision: str) -> onnx.ModelProto:
    """A network in one of PRECISIONS; the same bytes each time."""
    made = NETWORKS[network]().model()
    return made if precision == "float32" else _quantised(made)


def inputs(network: str, precision: str, seed: int) -> Array:
    """One random input, of the type that the model takes."""
    m = model(network, precision)
    shape = [d.dim_value for d in m.graph.input[0].type.tensor_type.shape.dim]
    values = np.random.default_rng(seed).standard_normal(shape).astype(np.float32)
    if precision == "float32":
        return values
    first = next(n for n in m.graph.node if n.input[0] == "input")
    constants = {w.name: numpy_helper.to_array(w) for w in m.graph.initializer}
    scale, zero = (constants[name] for name in first.input[1:])
    return np.clip(np.rint(values / scale) + zero, -128, 127).astype(np.int8)


def folded(model: onnx.ModelProto) -> onnx.ModelProto:
    """The same function without batch normalisation."""
    from onnxruntime.quantization.shape_inference import quant_pre_process

    with tempfile.TemporaryDirectory(prefix="kiln-firmware-") as temporary:
        before, after = Path(temporary) / "before.onnx", Path(temporary) / "after.onnx"
        onnx.save(_without_norms_of_dense(model), before)
        quant_pre_process(str(before), str(after))
        return onnx.load(after)


def _quantised(model: onnx.ModelProto) -> onnx.ModelProto:
    """Static quantisation by ONNX Runtime's tool, calibrated with random inputs."""
    from onnxruntime.quantization import (
        CalibrationDataReader,
        QuantFormat,
        QuantType,
        quantize_static,
    )

    shape = [d.dim_value for d in model.graph.input[0].type.tensor_type.shape.dim]

    class Calibration(CalibrationDataReader):  # type: ignore[misc]
        def __init__(self) -> None:
            random = np.random.default_rng(SEED + 1)
            self.left: Iterator[dict[str, Array]] = (
                {"input": random.standard_normal(shape).astype(np.float32)} for _ in range(4)
            )

        def get_next(self) -> dict[str, Array] | None:
            return next(self.left, None)

    with tempfile.TemporaryDirectory(prefix="kiln-firmware-") as temporary:
        folder = Path(temporary)
        onnx.save(folded(model), folder / "prepared.onnx")
        quantize_static(
            str(folder / "prepared.onnx"),
            str(folder / "int8.onnx"),
            Calibration(),
            quant_format=QuantFormat.QDQ,
            per_channel=True,
            activation_type=QuantType.QInt8,
            weight_type=QuantType.QInt8,
        )
        made = onnx.load(folder / "int8.onnx")
    _take_integers(made.graph)
    onnx.checker.check_model(made, full_check=True)
    return made


def _without_norms_of_dense(model: onnx.ModelProto) -> onnx.ModelProto:
    """The same function with batch normalisation multiplied into the dense layer before it. The
    tool does that for convolutions only, and would quantise the rest by itself."""
    made = onnx.ModelProto()
    made.CopyFrom(model)
    weights = {w.name: w for w in made.graph.initializer}
    before = {n.output[0]: n for n in made.graph.node}
    for norm in [n for n in made.graph.node if n.op_type == "BatchNormalization"]:
        dense = before[norm.input[0]]
        if dense.op_type != "Gemm":
            continue
        w, b = (weights[name] for name in dense.input[1:])
        values = (numpy_helper.to_array(weights[name]) for name in norm.input[1:])
        scale, bias, mean, variance = (v.astype(np.float64) for v in values)
        factor = scale / np.sqrt(variance + norm.attribute[0].f)
        new_w = numpy_helper.to_array(w) * factor[:, None]
        new_b = (numpy_helper.to_array(b) - mean) * factor + bias
        for tensor, value in ((w, new_w), (b, new_b)):
            tensor.CopyFrom(numpy_helper.from_array(value.astype(np.float32), tensor.name))
        dense.output[0] = norm.output[0]
        made.graph.node.remove(norm)
        for name in norm.input[1:]:
            made.graph.initializer.remove(weights[name])
    return made


def _take_integers(graph: onnx.GraphProto) -> None:
    """Let the graph take and return the integers behind its first and last conversion."""
    first = next(n for n in graph.node if n.input[0] == graph.input[0].name)
    last = next(n for n in graph.node if n.output[0] == graph.output[0].name)
    assert first.op_type == "QuantizeLinear" and last.op_type == "DequantizeLinear"
    for node in graph.node:
        node.input[:] = ["input" if name == first.output[0] else name for name in node.input]
        node.output[:] = ["output" if name == last.input[0] else name for name in node.output]
    assert sum(list(node.input).count("input") for node in graph.node) == 2  # first, and its reader
    for node in (first, last):
        graph.node.remove(node)
    for value in (*graph.input, *graph.output):
        value.type.tensor_type.elem_type = TensorProto.INT8
    del graph.value_info[:]
