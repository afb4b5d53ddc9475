"""A float64 reference of an ONNX model: its graph rewritten to double, run by onnx.reference.

The reference evaluator is the ONNX project's own. Given here, as NumPy or torch float64, are the
operators that it does in Python loops (which would take minutes), that it takes through float32,
or whose older opsets it gets wrong: batch norm before 14 (it trains), softmax before 13 (it does
not flatten), LRN (it walks the batch for the channels). `test_float64.py` checks them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import torch
from onnx import AttributeProto, GraphProto, ModelProto, TensorProto, numpy_helper
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpRun
from torch.nn import functional

Array = np.ndarray
FLOAT, DOUBLE = TensorProto.FLOAT, TensorProto.DOUBLE


def run_float64(model: ModelProto, inputs: Mapping[str, Array]) -> list[Array]:
    """Outputs of the model with every float32 value, weight and input taken as float64."""
    operators = [*_OPERATORS, FlatSoftmax] if _opset(model) < 13 else _OPERATORS
    evaluator = ReferenceEvaluator(to_double(model), new_ops=operators)
    feeds = {k: v.astype(np.float64) if v.dtype == np.float32 else v for k, v in inputs.items()}
    return [np.asarray(value) for value in evaluator.run(None, feeds)]


def _opset(model: ModelProto) -> int:
    return next(entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx"))


def to_double(model: ModelProto) -> ModelProto:
    """A copy in which FLOAT is DOUBLE: types, initializers, constants, Cast targets."""
    copy = ModelProto()
    copy.CopyFrom(model)
    _graph_to_double(copy.graph, _opset(model))
    return copy


def _graph_to_double(graph: GraphProto, opset: int) -> None:
    for entry in [*graph.input, *graph.output, *graph.value_info]:
        if entry.type.tensor_type.elem_type == FLOAT:
            entry.type.tensor_type.elem_type = DOUBLE
    for tensor in graph.initializer:
        _tensor_to_double(tensor)
    for node in graph.node:
        if node.op_type == "Softmax" and opset < 13 and not node.attribute:
            # The evaluator fills in the newest opset's default, which is another.
            node.attribute.append(onnx.helper.make_attribute("axis", 1))
        for attribute in node.attribute:
            _attribute_to_double(node.op_type, attribute, opset)


def _attribute_to_double(op: str, attribute: AttributeProto, opset: int) -> None:
    if attribute.type == AttributeProto.TENSOR:
        _tensor_to_double(attribute.t)
    elif attribute.type == AttributeProto.GRAPH:
        _graph_to_double(attribute.g, opset)
    elif op == "Cast" and attribute.name == "to" and attribute.i == FLOAT:
        attribute.i = DOUBLE
    elif op == "Constant" and attribute.name == "value_float":
        tensor = numpy_helper.from_array(np.array(attribute.f, np.float64))
        attribute.CopyFrom(onnx.helper.make_attribute("value", tensor))


def _tensor_to_double(tensor: TensorProto) -> None:
    if tensor.data_type == FLOAT:
        values = numpy_helper.to_array(tensor).astype(np.float64)
        tensor.CopyFrom(numpy_helper.from_array(values, tensor.name))


def _torch(values: Array) -> torch.Tensor:
    values = np.ascontiguousarray(values)
    return torch.from_numpy(values if values.flags.writeable else values.copy())


def _pads(pads: Sequence[int] | None, rank: int) -> list[int]:
    """ONNX's begins-then-ends as torch's last-axis-first pairs."""
    pads = pads or [0] * (2 * rank)
    return [pads[i + side * rank] for i in reversed(range(rank)) for side in (0, 1)]


def _require(condition: bool, what: str) -> None:
    if not condition:
        raise NotImplementedError(f"float64 reference: {what}")


class Conv(OpRun):
    """Convolution of any rank."""

    op_domain = ""

    def _run(  # type: ignore[override]
        self,
        x: Array,
        weight: Array,
        bias: Array | None = None,
        auto_pad: str = "NOTSET",
        dilations: Sequence[int] | None = None,
        group: int | None = None,
        kernel_shape: Sequence[int] | None = None,
        pads: Sequence[int] | None = None,
        strides: Sequence[int] | None = None,
    ) -> tuple[Array]:
        _require(auto_pad in ("NOTSET", "VALID"), f"Conv with auto_pad={auto_pad}")
        rank = x.ndim - 2
        padded = functional.pad(_torch(x), _pads(pads, rank))
        convolve = (functional.conv1d, functional.conv2d, functional.conv3d)[rank - 1]
        stride, dilation = list(strides or [1] * rank), list(dilations or [1] * rank)
        weights = _torch(weight)
        offset = None if bias is None else _torch(bias)
        out = convolve(padded, weights, offset, stride, 0, dilation, group or 1)
        return (out.numpy(),)


class MaxPool(OpRun):
    """2-D max pooling with one output."""

    op_domain = ""

    def _run(  # type: ignore[override]
        self,
        x: Array,
        auto_pad: str = "NOTSET",
        ceil_mode: int | None = None,
        dilations: Sequence[int] | None = None,
        kernel_shape: Sequence[int] | None = None,
        pads: Sequence[int] | None = None,
        storage_order: int | None = None,
        strides: Sequence[int] | None = None,
    ) -> tuple[Array]:
        _require(auto_pad == "NOTSET", "MaxPool with auto_pad")
        # With padding the two differ on windows that begin in it.
        _require(not (ceil_mode and any(pads or ())), "MaxPool with padding and ceil_mode")
        _require(x.ndim == 4 and kernel_shape is not None, "MaxPool of another rank than 2")
        padded = functional.pad(_torch(x), _pads(pads, 2), value=-np.inf)
        steps, dilation = list(strides or [1, 1]), list(dilations or [1, 1])
        out = functional.max_pool2d(
            padded, list(kernel_shape or ()), steps, 0, dilation, ceil_mode=bool(ceil_mode)
        )
        return (out.numpy(),)


class AveragePool(OpRun):
    """2-D average pooling; padding counts only when `count_include_pad` says so."""

    op_domain = ""

    def _run(  # type: ignore[override]
        self,
        x: Array,
        auto_pad: str = "NOTSET",
        ceil_mode: int | None = None,
        count_include_pad: int | None = None,
        dilations: Sequence[int] | None = None,
        kernel_shape: Sequence[int] | None = None,
        pads: Sequence[int] | None = None,
        strides: Sequence[int] | None = None,
    ) -> tuple[Array]:
        _require(auto_pad == "NOTSET" and not ceil_mode, "AveragePool with auto_pad or ceil_mode")
        _require(x.ndim == 4 and set(dilations or [1]) == {1}, "AveragePool, dilated or not 2-D")
        kernel, steps = list(kernel_shape or ()), list(strides or [1, 1])

        def summed(values: torch.Tensor) -> torch.Tensor:
            padded = functional.pad(values, _pads(pads, 2))
            return functional.avg_pool2d(padded, kernel, steps, divisor_override=1)

        total = summed(_torch(x))
        if count_include_pad:
            return ((total / float(np.prod(kernel))).numpy(),)
        return ((total / summed(torch.ones_like(_torch(x)))).numpy(),)


class LRN(OpRun):
    """Local response normalisation across channels."""

    op_domain = ""

    def _run(  # type: ignore[override]
        self,
        x: Array,
        alpha: float | None = None,
        beta: float | None = None,
        bias: float | None = None,
        size: int | None = None,
    ) -> tuple[Array]:
        assert alpha is not None and beta is not None and bias is not None and size is not None
        before = (size - 1) // 2
        squares = np.pad(x * x, [(0, 0), (before, size - 1 - before)] + [(0, 0)] * (x.ndim - 2))
        window = sum(squares[:, i : i + x.shape[1]] for i in range(size))
        return (x / (bias + alpha / size * window) ** beta,)


class Erf(OpRun):
    """Error function."""

    op_domain = ""

    def _run(self, x: Array) -> tuple[Array]:  # type: ignore[override]
        return (torch.erf(_torch(x)).numpy().reshape(x.shape),)


class Gelu(OpRun):
    """Exact and tanh GELU."""

    op_domain = ""

    def _run(self, x: Array, approximate: str = "none") -> tuple[Array]:  # type: ignore[override]
        return (functional.gelu(_torch(x), approximate=approximate).numpy(),)


class LayerNormalization(OpRun):
    """Layer norm with statistics in float64 (onnx.reference takes them in float32)."""

    op_domain = ""

    def _run(  # type: ignore[override]
        self,
        x: Array,
        scale: Array,
        bias: Array | None = None,
        axis: int | None = None,
        epsilon: float | None = None,
        stash_type: int | None = None,
    ) -> tuple[Array]:
        axis = -1 if axis is None else axis
        axes = tuple(range(axis % x.ndim, x.ndim))
        centred = x - x.mean(axes, keepdims=True)
        variance = (centred * centred).mean(axes, keepdims=True)
        out = centred / np.sqrt(variance + (1e-5 if epsilon is None else epsilon)) * scale
        return (out if bias is None else out + bias,)


class BatchNormalization(OpRun):
    """Batch norm as inference does it, whatever the opset."""

    op_domain = ""

    def _run(  # type: ignore[override]
        self,
        x: Array,
        scale: Array,
        bias: Array,
        mean: Array,
        variance: Array,
        epsilon: float | None = None,
        momentum: float | None = None,
        spatial: int | None = None,
        training_mode: int | None = None,
    ) -> tuple[Array]:
        _require(not training_mode and spatial != 0, "BatchNormalization that trains")
        shape = (1, -1) + (1,) * (x.ndim - 2)
        factor = scale / np.sqrt(variance + (1e-5 if epsilon is None else epsilon))
        return ((x - mean.reshape(shape)) * factor.reshape(shape) + bias.reshape(shape),)


class FlatSoftmax(OpRun):
    """Softmax before opset 13: over everything from `axis` (1 by default) on, flattened."""

    op_domain = ""

    def _run(self, x: Array, axis: int = 1) -> tuple[Array]:  # type: ignore[override]
        rows = x.reshape(int(np.prod(x.shape[:axis])), -1)
        powers = np.exp(rows - rows.max(axis=1, keepdims=True))
        return ((powers / powers.sum(axis=1, keepdims=True)).reshape(x.shape),)


FlatSoftmax.__name__ = "Softmax"  # The evaluator takes operators by class name.

_OPERATORS: list[Any] = [
    Conv,
    MaxPool,
    AveragePool,
    LRN,
    Erf,
    Gelu,
    LayerNormalization,
    BatchNormalization,
]
