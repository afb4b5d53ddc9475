"""A ResNet-18 as an ONNX model with random weights, for `kiln demo`; needs numpy and onnx only."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from onnx import ModelProto, NodeProto, TensorProto

OPSET = 17
STAGE_WIDTHS = (64, 128, 256, 512)
BLOCKS_PER_STAGE = 2
CLASSES = 1000


@dataclass(slots=True)
class _ModelGraph:
    """The nodes and weights so far; every value is named after the layer that produces it."""

    generator: np.random.Generator
    nodes: list[NodeProto] = field(default_factory=list)
    weights: list[TensorProto] = field(default_factory=list)

    def add(self, op: str, name: str, inputs: list[str], **attributes: Any) -> str:
        """Append a node with one output of the node's name; the name."""
        from onnx import helper

        self.nodes.append(helper.make_node(op, inputs, [name], name, **attributes))
        return name

    def weight(self, name: str, values: np.ndarray) -> str:
        """Append an initializer, stored as float32; its name."""
        from onnx import numpy_helper

        self.weights.append(numpy_helper.from_array(values.astype(np.float32), name))
        return name

    def conv_bn(
        self,
        x: str,
        name: str,
        channels: tuple[int, int],
        kernel: int,
        stride: int,
        gain: float,
    ) -> str:
        """Convolution without bias, then batch norm, whose output `gain` scales. `channels`: input
        and output channels."""
        draw, (inputs, outputs) = self.generator, channels
        deviation = math.sqrt(2.0 / (inputs * kernel * kernel))
        weight = draw.standard_normal((outputs, inputs, kernel, kernel)) * deviation
        norm = {
            "scale": draw.uniform(0.6 * gain, 1.4 * gain, outputs),
            "bias": draw.normal(0.0, 0.1, outputs),
            "mean": draw.normal(0.0, 0.2, outputs),
            "var": draw.uniform(0.6, 1.8, outputs),
        }
        pad = kernel // 2
        x = self.add(
            "Conv",
            f"{name}.conv",
            [x, self.weight(f"{name}.conv.weight", weight)],
            kernel_shape=[kernel, kernel],
            strides=[stride, stride],
            pads=[pad, pad, pad, pad],
        )
        inputs_of_norm = [
            x,
            *(self.weight(f"{name}.bn.{k}", v) for k, v in norm.items()),
        ]
        return self.add("BatchNormalization", f"{name}.bn", inputs_of_norm, epsilon=1e-5)

    def block(self, x: str, name: str, inputs: int, outputs: int, stride: int) -> str:
        """Two 3x3 convolutions and a shortcut, which is projected if the shape changes."""
        shortcut = x
        if stride != 1 or inputs != outputs:
            shortcut = self.conv_bn(x, f"{name}.downsample", (inputs, outputs), 1, stride, 1.0)
        x = self.conv_bn(x, f"{name}.1", (inputs, outputs), 3, stride, 1.0)
        x = self.add("Relu", f"{name}.1.relu", [x])
        x = self.conv_bn(x, f"{name}.2", (outputs, outputs), 3, 1, 0.5)
        x = self.add("Add", f"{name}.add", [x, shortcut])
        return self.add("Relu", f"{name}.relu", [x])


def resnet18(*, batch: int | str = 1, image: int = 224, seed: int = 0) -> ModelProto:
    """ResNet-18 with batch norms kept: `image` [batch, 3, image, image] -> `logits` [batch, 1000].

    `batch` is a size, or a name that makes the dimension symbolic. The same seed gives the same
    bytes on every machine.
    """
    from onnx import TensorProto, helper

    graph = _ModelGraph(np.random.default_rng(seed))
    x = graph.conv_bn("image", "stem", (3, STAGE_WIDTHS[0]), 7, 2, 1.0)
    x = graph.add("Relu", "stem.relu", [x])
    x = graph.add(
        "MaxPool",
        "stem.pool",
        [x],
        kernel_shape=[3, 3],
        strides=[2, 2],
        pads=[1, 1, 1, 1],
    )
    inputs = STAGE_WIDTHS[0]
    for stage, width in enumerate(STAGE_WIDTHS):
        for index in range(BLOCKS_PER_STAGE):
            stride = 2 if stage > 0 and index == 0 else 1
            x = graph.block(x, f"stage{stage + 1}.{index}", inputs, width, stride)
            inputs = width
    x = graph.add("GlobalAveragePool", "head.pool", [x])
    x = graph.add("Flatten", "head.flatten", [x], axis=1)
    weight = graph.generator.standard_normal((CLASSES, inputs)) / math.sqrt(inputs)
    bias = graph.generator.normal(0.0, 0.1, CLASSES)
    dense = [
        x,
        graph.weight("head.fc.weight", weight),
        graph.weight("head.fc.bias", bias),
    ]
    graph.add("Gemm", "logits", dense, transB=1)
    proto = helper.make_graph(
        graph.nodes,
        "resnet18",
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, [batch, 3, image, image])],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, [batch, CLASSES])],
        graph.weights,
    )
    opsets = [helper.make_opsetid("", OPSET)]
    return helper.make_model(proto, opset_imports=opsets, ir_version=8, producer_name="kiln demo")
