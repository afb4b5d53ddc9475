"""Convolutional networks whose pictures or signals may have any size, as ONNX files.

Weights are random, scaled to keep the variance of a signal; a network is built twice with the same
weights, once with sizes left open and once for given ones.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from onnx import TensorProto, helper, numpy_helper

Extent = int | str


class _Graph:
    """Nodes and weights of a network in the making."""

    def __init__(self) -> None:
        self.draw = np.random.default_rng(11)
        self.nodes: list[Any] = []
        self.weights: list[Any] = []

    def node(self, op: str, *operands: str, **attrs: Any) -> str:
        """Append a node; the name of its result."""
        name = f"v{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, operands, [name], **attrs))
        return name

    def weight(self, *shape: int, fan_in: int) -> str:
        """A random weight."""
        values = self.draw.standard_normal(shape) * (1 / fan_in) ** 0.5
        name = f"w{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(values.astype(np.float32), name))
        return name

    def conv(
        self,
        x: str,
        ins: int,
        outs: int,
        kernel: Sequence[int],
        *,
        stride: int = 1,
        dilation: int = 1,
        groups: int = 1,
    ) -> str:
        """A convolution that keeps the extents but for its stride, with a bias."""
        fan_in = ins // groups * int(np.prod(kernel))
        w = self.weight(outs, ins // groups, *kernel, fan_in=fan_in)
        pads = [(k - 1) * dilation // 2 for k in kernel] * 2
        n = len(kernel)
        attrs = {"strides": [stride] * n, "dilations": [dilation] * n, "pads": pads}
        b = self.weight(outs, fan_in=100)
        return self.node("Conv", x, w, b, group=groups, **attrs)

    def upsample(self, x: str, ins: int, outs: int, stride: int) -> str:
        """A transposed convolution along one dimension to `stride` times the length."""
        w = self.weight(ins, outs, 2 * stride, fan_in=2 * ins)
        b = self.weight(outs, fan_in=100)
        pads = [stride // 2, stride - stride // 2]
        return self.node("ConvTranspose", x, w, b, strides=[stride], pads=pads)

    def linear(self, x: str, ins: int, outs: int) -> str:
        """A product with weights and a bias."""
        w, b = self.weight(ins, outs, fan_in=ins), self.weight(outs, fan_in=100)
        return self.node("Add", self.node("MatMul", x, w), b)

    def model(self, shape: Sequence[Extent], result: str, open_rank: int) -> bytes:
        """The file: one float32 parameter x of `shape`."""
        x = helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)
        y = helper.make_tensor_value_info(result, TensorProto.FLOAT, [None] * open_rank)
        graph = helper.make_graph(self.nodes, "g", [x], [y], self.weights)
        opsets = [helper.make_opsetid("", 20)]
        proto = helper.make_model(graph, opset_imports=opsets, ir_version=9)
        return bytes(proto.SerializeToString())


def resnet18(shape: Sequence[Extent]) -> bytes:
    """A ResNet-18 of pictures [1, 3, H, W] with its normalisations folded."""
    g = _Graph()
    x = g.node("Relu", g.conv("x", 3, 64, (7, 7), stride=2))
    x = g.node("MaxPool", x, kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4)
    ins = 64
    for outs in (64, 128, 256, 512):
        for block in range(2):
            stride = 2 if block == 0 and outs > 64 else 1
            y = g.node("Relu", g.conv(x, ins, outs, (3, 3), stride=stride))
            y = g.conv(y, outs, outs, (3, 3))
            shortcut = x if stride == 1 else g.conv(x, ins, outs, (1, 1), stride=stride)
            x, ins = g.node("Relu", g.node("Add", y, shortcut)), outs
    x = g.node("Flatten", g.node("GlobalAveragePool", x))
    return g.model(shape, g.linear(x, 512, 1000), 2)


def mobilenetv2(shape: Sequence[Extent]) -> bytes:
    """A MobileNetV2 of pictures [1, 3, H, W] with its normalisations folded."""
    g = _Graph()

    def relu6(y: str) -> str:
        return g.node("Clip", y, zero, six)

    g.weights += [numpy_helper.from_array(np.float32(v), f"c{v}") for v in (0, 6)]
    zero, six = "c0", "c6"
    x, ins = relu6(g.conv("x", 3, 32, (3, 3), stride=2)), 32
    stages = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1))
    for factor, outs, count, first in (*stages, (6, 160, 3, 2), (6, 320, 1, 1)):
        for block in range(count):
            stride, wide = first if block == 0 else 1, ins * factor
            y = relu6(g.conv(x, ins, wide, (1, 1))) if factor > 1 else x
            y = relu6(g.conv(y, wide, wide, (3, 3), stride=stride, groups=wide))
            y = g.conv(y, wide, outs, (1, 1))
            x, ins = (g.node("Add", x, y) if stride == 1 and ins == outs else y), outs
    x = relu6(g.conv(x, 320, 1280, (1, 1)))
    x = g.node("Flatten", g.node("GlobalAveragePool", x))
    return g.model(shape, g.linear(x, 1280, 1000), 2)


def hifigan(shape: Sequence[Extent]) -> bytes:
    """A vocoder like HiFi-GAN's smaller ones: spectra [1, 80, L] to 256 L samples."""
    g = _Graph()
    g.weights.append(numpy_helper.from_array(np.float32(1 / 3), "third"))
    channels = 128
    x = g.conv("x", 80, channels, (7,))
    for stride in (8, 8, 2, 2):
        x = g.upsample(g.node("LeakyRelu", x, alpha=0.1), channels, channels // 2, stride)
        channels //= 2
        sums = []
        for kernel in (3, 7, 11):
            y = x
            for dilation in (1, 3, 5):
                z = g.node("LeakyRelu", y, alpha=0.1)
                z = g.conv(z, channels, channels, (kernel,), dilation=dilation)
                z = g.node("LeakyRelu", z, alpha=0.1)
                y = g.node("Add", y, g.conv(z, channels, channels, (kernel,)))
            sums.append(y)
        x = g.node("Mul", g.node("Add", g.node("Add", sums[0], sums[1]), sums[2]), "third")
    x = g.conv(g.node("LeakyRelu", x, alpha=0.01), channels, 1, (7,))
    return g.model(shape, g.node("Tanh", x), 3)


def wavenet(shape: Sequence[Extent]) -> bytes:
    """Two stacks of gated dilated convolutions on signals [1, 1, L]."""
    g = _Graph()
    x, skips = g.conv("x", 1, 64, (1,)), []
    for layer in range(16):
        dilation = 2 ** (layer % 8)
        values = g.node("Tanh", g.conv(x, 64, 64, (3,), dilation=dilation))
        gate = g.node("Sigmoid", g.conv(x, 64, 64, (3,), dilation=dilation))
        z = g.node("Mul", values, gate)
        skips.append(g.conv(z, 64, 128, (1,)))
        x = g.node("Add", x, g.conv(z, 64, 64, (1,)))
    total = skips[0]
    for skip in skips[1:]:
        total = g.node("Add", total, skip)
    y = g.node("Relu", g.conv(g.node("Relu", total), 128, 128, (1,)))
    return g.model(shape, g.conv(y, 128, 256, (1,)), 3)


def text_encoder(shape: Sequence[Extent]) -> bytes:
    """Three convolutions with normalisation over channels, as before the attention of speech."""
    g = _Graph()
    x = g.conv("x", 192, 192, (5,))
    for _ in range(3):
        y = g.conv(g.node("Relu", x), 192, 192, (5,))
        y = g.node("Transpose", y, perm=[0, 2, 1])
        scale, bias = g.weight(192, fan_in=1), g.weight(192, fan_in=10)
        y = g.node("LayerNormalization", y, scale, bias, axis=-1)
        x = g.node("Add", x, g.node("Transpose", y, perm=[0, 2, 1]))
    return g.model(shape, g.conv(x, 192, 80, (1,)), 3)


@dataclass(frozen=True, slots=True)
class Network:
    """A network, the shape of its parameter with names for what is open, and five shapes."""

    name: str
    build: Callable[[Sequence[Extent]], bytes]
    shape: tuple[Extent, ...]
    sizes: tuple[tuple[int, ...], ...]

    def shaped(self, size: Sequence[int]) -> tuple[int, ...]:
        """The parameter's shape with numbers for the open extents."""
        numbers = iter(size)
        return tuple(next(numbers) if isinstance(d, str) else d for d in self.shape)


_PICTURE: tuple[Extent, ...] = (1, 3, "H", "W")
_PICTURES = ((224, 224), (160, 160), (256, 320), (199, 301), (130, 98))
NETWORKS = (
    Network("resnet18", resnet18, _PICTURE, _PICTURES),
    Network("mobilenetv2", mobilenetv2, _PICTURE, _PICTURES),
    Network("hifigan", hifigan, (1, 80, "L"), ((7,), (32,), (50,), (101,), (200,))),
    Network("wavenet", wavenet, (1, 1, "L"), ((250,), (1000,), (2048,), (4001,), (16000,))),
    Network("text_encoder", text_encoder, (1, 192, "L"), ((7,), (30,), (64,), (133,), (400,))),
)
