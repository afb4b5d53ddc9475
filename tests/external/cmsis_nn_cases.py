"""Quantised layers: each builds its graph in QDQ form and computes its result in exact integers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from tensorkiln.external.cmsis_nn import CMSIS_NN
from tensorkiln.ir.module import IRModule
from tensorkiln.ir.relax import RVar, Value, constant, tensor
from tensorkiln.kernels.case import Graph
from tests.external import cmsis_nn_reference as reference

Array = np.ndarray


@dataclass(frozen=True)
class Q:
    """A scale and a zero point."""

    scale: float = 0.05
    zero: int = 3

    def clamp(self, relu: str) -> tuple[int, int]:
        low, high = -128, 127
        if relu:
            low = max(low, self.zero)
        if relu == "relu6":
            high = min(high, int(np.rint(np.float32(6) / np.float32(self.scale))) + self.zero)
        return low, high


PROBABILITY = Q(2.0**-8, -128)  # of CMSIS-NN's softmax


@dataclass(frozen=True)
class Case:
    """`build(g, *inputs)` makes the graph of int8 inputs, `expected(*arrays)` its exact result.
    `kinds` are the functions that CMSIS-NN makes of it."""

    name: str
    shapes: tuple[tuple[int, ...], ...]
    build: Callable[..., Value]
    expected: Callable[..., Array]
    kinds: tuple[str, ...]

    def inputs(self) -> list[Array]:
        rng = np.random.default_rng(len(self.name) + sum(map(sum, self.shapes)))
        return [rng.integers(-128, 128, s).astype(np.int8) for s in self.shapes]


def scalar(value: float, dtype: str = "float32") -> Value:
    return constant(np.asarray(value, dtype))


def dequantize(g: Graph, v: Value, q: Q, dtype: str = "int8") -> RVar:
    return g.dequantize(v, scalar(q.scale), scalar(q.zero, dtype))


def quantize(g: Graph, v: Value, q: Q, relu: str = "") -> RVar:
    if relu == "relu":
        v = g.relu(v)
    elif relu == "relu6":
        v = g.clip(v, min=0.0, max=6.0)
    return g.quantize(v, scalar(q.scale), scalar(q.zero, "int8"))


def f32(value: float) -> float:
    """A scale as the model has it."""
    return float(np.float32(value))


@dataclass(frozen=True)
class Weights:
    """int8 weights with one scale, or one per element of `axis`, and an int32 bias."""

    shape: tuple[int, ...]
    axis: int
    per_channel: bool
    biased: bool = True
    scale: float = 0.01
    seed: int = 0

    @property
    def values(self) -> Array:
        rng = np.random.default_rng([self.seed, *self.shape])
        return rng.integers(-127, 128, self.shape).astype(np.int8)

    @property
    def scales(self) -> Array:
        n = self.shape[self.axis] if self.per_channel else 1
        rng = np.random.default_rng([self.seed, n])
        return (self.scale * rng.uniform(0.3, 1.7, n)).astype(np.float32)

    def bias(self) -> Array:
        rng = np.random.default_rng(self.seed)
        return rng.integers(-2000, 2000, self.shape[self.axis]).astype(np.int32) * self.biased

    def operands(self, g: Graph, x: Q) -> list[RVar]:
        along = [1] * len(self.shape)
        along[self.axis] = -1
        s = self.scales.reshape(along) if self.per_channel else self.scales.reshape(())
        zeros = np.zeros(s.shape, np.int8)
        w = g.dequantize(constant(self.values), constant(s), constant(zeros))
        if not self.biased:
            return [w]
        t = (np.float32(x.scale) * self.scales).reshape(-1 if self.per_channel else ())
        b = g.dequantize(constant(self.bias()), constant(t), constant(np.zeros(t.shape, np.int32)))
        return [w, b]

    def factors(self, x: Q, y: Q) -> list[float]:
        return [f32(x.scale) * float(s) / f32(y.scale) for s in self.scales]


@dataclass(frozen=True)
class Conv:
    """A convolution; `groups` is that of the model, and the weights are [O, C / groups, kh, kw]."""

    name: str
    x: tuple[int, ...] = (1, 3, 8, 8)
    out: int = 4
    kernel: tuple[int, int] = (3, 3)
    strides: tuple[int, int] = (1, 1)
    padding: tuple[int, int, int, int] = (1, 1, 1, 1)
    dilation: tuple[int, int] = (1, 1)
    groups: int = 1
    per_channel: bool = True
    biased: bool = True
    relu: str = ""
    qx: Q = field(default_factory=Q)
    qy: Q = field(default_factory=lambda: Q(0.2, -7))
    scale: float = 0.01

    def weights(self) -> Weights:
        shape = (self.out, self.x[1] // self.groups, *self.kernel)
        return Weights(shape, 0, self.per_channel, self.biased, self.scale)

    def case(self) -> Case:
        w = self.weights()

        def build(g: Graph, q: RVar) -> Value:
            x = dequantize(g, q, self.qx)
            y = g.conv2d(
                x,
                *w.operands(g, self.qx),
                strides=self.strides,
                padding=self.padding,
                dilation=self.dilation,
                groups=self.groups,
            )
            return quantize(g, y, self.qy, self.relu)

        def expected(q: Array) -> Array:
            size = [
                (
                    self.x[2 + i]
                    + self.padding[i]
                    + self.padding[2 + i]
                    - (self.kernel[i] - 1) * self.dilation[i]
                    - 1
                )
                // self.strides[i]
                + 1
                for i in (0, 1)
            ]
            taps = reference.windows(
                q.astype(np.int64) - self.qx.zero,
                self.kernel,
                self.strides,
                self.padding,
                self.dilation,
                size,
                0,
            )
            values = w.values.astype(np.int64)
            per = self.out // self.groups
            parts = [
                np.einsum("nchwij,ocij->nohw", part, values[i * per : (i + 1) * per])
                for i, part in enumerate(np.split(taps, self.groups, axis=1))
            ]
            sums = np.concatenate(parts, 1) + w.bias().astype(np.int64)[:, None, None]
            scaled = reference.per_channel(sums, w.factors(self.qx, self.qy), 1)
            return reference.finished(scaled, self.qy.zero, *self.qy.clamp(self.relu))

        kind = "depthwise_conv2d" if self.groups > 1 else "conv2d"
        return Case(self.name, (self.x,), build, expected, (kind,))


@dataclass(frozen=True)
class Linear:
    """A matrix product with constant weights, [N, K] if `rows_first`."""

    name: str
    x: tuple[int, ...] = (1, 12)
    out: int = 5
    rows_first: bool = True
    per_channel: bool = False
    biased: bool = True
    relu: str = ""
    qx: Q = field(default_factory=Q)
    qy: Q = field(default_factory=lambda: Q(0.15, 11))
    scale: float = 0.01

    def case(self) -> Case:
        k = self.x[-1]
        shape = (self.out, k) if self.rows_first else (k, self.out)
        w = Weights(shape, 0 if self.rows_first else 1, self.per_channel, self.biased, self.scale)

        def build(g: Graph, q: RVar) -> Value:
            x = dequantize(g, q, self.qx)
            matrix, *bias = w.operands(g, self.qx)
            y = g.matmul(x, matrix, transpose_b=self.rows_first)
            y = g.add(y, bias[0]) if bias else y
            return quantize(g, y, self.qy, self.relu)

        def expected(q: Array) -> Array:
            values = w.values.astype(np.int64)
            matrix = values.T if self.rows_first else values
            sums = (q.astype(np.int64) - self.qx.zero) @ matrix + w.bias()
            scaled = reference.per_channel(sums, w.factors(self.qx, self.qy), sums.ndim - 1)
            return reference.finished(scaled, self.qy.zero, *self.qy.clamp(self.relu))

        return Case(self.name, (self.x,), build, expected, ("fully_connected",))


@dataclass(frozen=True)
class Pool:
    """A maximum or mean over windows; without a kernel, over the whole image."""

    name: str
    kind: str = "max"
    x: tuple[int, ...] = (1, 4, 8, 8)
    kernel: tuple[int, int] | None = (2, 2)
    strides: tuple[int, int] = (2, 2)
    padding: tuple[int, int, int, int] = (0, 0, 0, 0)
    ceil: bool = False
    keepdims: bool = True
    relu: str = ""
    q: Q = field(default_factory=Q)

    def case(self) -> Case:
        def build(g: Graph, q: RVar) -> Value:
            x = dequantize(g, q, self.q)
            if self.kernel is None:
                reduce = g.mean if self.kind == "avg" else g.max
                y = reduce(x, axes=(2, 3), keepdims=self.keepdims)
            else:
                pool = g.max_pool2d if self.kind == "max" else g.avg_pool2d
                y = pool(
                    x,
                    kernel=self.kernel,
                    strides=self.strides,
                    padding=self.padding,
                    ceil_mode=self.ceil,
                )
            return quantize(g, y, self.q, self.relu)

        def expected(q: Array) -> Array:
            kernel, strides = self.kernel or self.x[2:], self.strides if self.kernel else (1, 1)
            size = []
            for i in (0, 1):
                room = self.x[2 + i] + self.padding[i] + self.padding[2 + i] - kernel[i]
                n = -(-room // strides[i]) + 1 if self.ceil else room // strides[i] + 1
                if self.ceil and (n - 1) * strides[i] >= self.x[2 + i] + self.padding[i]:
                    n -= 1
                size.append(n)
            outside = 1000
            taps = reference.windows(q, kernel, strides, self.padding, (1, 1), size, outside)
            inside = taps != outside
            if self.kind == "max":
                y = np.where(inside, taps, -128).max((4, 5))
            else:
                total = np.where(inside, taps, 0).sum((4, 5))
                count = inside.sum((4, 5))
                y = np.sign(total) * ((np.abs(total) + count // 2) // count)
            y = y if self.keepdims else y.reshape(y.shape[:2])
            return reference.finished(y, 0, *self.q.clamp(self.relu))

        return Case(self.name, (self.x,), build, expected, (f"{self.kind}_pool",))


def softmax(name: str, shape: tuple[int, ...], axis: int, q: Q, qy: Q = PROBABILITY) -> Case:
    def build(g: Graph, v: RVar) -> Value:
        return quantize(g, g.softmax(dequantize(g, v, q), axis=axis), qy)

    def expected(v: Array) -> Array:
        rows = np.moveaxis(v, axis, -1)
        scaled = reference.softmax(rows.reshape(-1, shape[axis]), f32(q.scale))
        steps = (scaled.astype(np.float32) + 128) / 256 / np.float32(qy.scale)
        y = reference.finished(np.rint(steps).astype(int), qy.zero, -128, 127)
        return np.moveaxis(y.reshape(rows.shape), -1, axis)

    return Case(name, (shape,), build, expected, ("softmax",))


def add(
    name: str, shape: tuple[int, ...], qa: Q, qb: Q, qy: Q, relu: str = "", doubled: bool = False
) -> Case:
    def build(g: Graph, *vs: RVar) -> Value:
        a = dequantize(g, vs[0], qa)
        return quantize(g, g.add(a, a if doubled else dequantize(g, vs[1], qb)), qy, relu)

    def expected(a: Array, b: Array | None = None) -> Array:
        addend, q = (a, qa) if b is None else (b, qb)
        sa, sb, sy = f32(qa.scale), f32(q.scale), f32(qy.scale)
        input_scale = 2 * max(sa, sb)
        total = sum(
            reference.rescaled((v.astype(np.int64) - z) * 2**20, s / input_scale)
            for v, z, s in ((a, qa.zero, sa), (addend, q.zero, sb))
        )
        scaled = reference.rescaled(np.asarray(total), input_scale / (2.0**20 * sy))
        return reference.finished(scaled, qy.zero, *qy.clamp(relu))

    return Case(name, (shape,) * (1 if doubled else 2), build, expected, ("add",))


def module(cases: Sequence[Case]) -> IRModule:
    """A module with one graph function per case: `case0`, `case1`, ..."""
    functions = []
    for i, case in enumerate(cases):
        g = Graph()
        inputs = [g.param(f"x{k}", tensor(s, "int8")) for k, s in enumerate(case.shapes)]
        functions.append(g.finish(case.build(g, *inputs), f"case{i}"))
    return IRModule(tuple(functions))


__all__ = ["CMSIS_NN", "Case", "Conv", "Linear", "Pool", "Q", "Weights", "add", "module", "softmax"]
