"""The layers that CMSIS-NN computes, recognised in a graph of QDQ form.

`layer(binding, graph)` describes the layer whose operator is at `binding`. It reads the graph of a
model as well as the body of an external function made of it, so that the emitter needs no other
description of a layer than the function.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from tensorkiln.external.cmsis_nn.fixed_point import FixedPointFactor
from tensorkiln.external.cmsis_nn.quantised import (
    Activation,
    NotTaken,
    QuantizedWeights,
    Result,
    activation,
    bias,
    result,
    weights,
)
from tensorkiln.external.match import Definitions
from tensorkiln.ir.relax import Binding, Call, Constant, RVar

ADD_SHIFT = 20  # operands of an addition are multiplied by 2**20 before they are rescaled
PROBABILITY = 2.0**-8  # the scale of the results of the library's softmax; their zero is -128
MAX_COLUMNS = (1 << 12) - 1  # of a softmax: its sum has 19 fractional bits of 31


@dataclass(frozen=True, slots=True)
class CmsisLayer:
    """One call of CMSIS-NN. Extents are those of the model: images are N, C, H, W.

    `kind` is the end of the function's name; `factors` rescale the sums, one or one per channel
    (an addition has three: of both operands and of the result); `attrs` are the operator's, with
    `kernel` and `count` filled in for windows that cover the whole image.
    """

    kind: str
    inputs: tuple[Activation, ...]
    result: Result
    bindings: tuple[Binding, ...]
    attrs: dict[str, Any]
    factors: tuple[FixedPointFactor, ...] = ()
    weights: QuantizedWeights | None = None
    bias: Constant | RVar | None = None

    @property
    def output(self) -> Activation:
        """The int8 tensor that the layer computes."""
        return self.result.activation


def layer(b: Binding, graph: Definitions) -> CmsisLayer | None:
    """The layer whose operator is at `b`; None for an operator that CMSIS-NN has nothing for.
    Raises NotTaken."""
    call = b.value
    read = READERS.get(call.op) if isinstance(call, Call) else None
    return read(b, call, graph) if read is not None and isinstance(call, Call) else None


def _conv2d(b: Binding, call: Call, graph: Definitions) -> CmsisLayer:
    x, dx = activation(graph, call.args[0], "its input")
    w, dw = weights(graph, call.args[1], axis=0)
    channels, (out, per_group) = x.shape[1], w.shape[:2]
    attrs = dict(call.attrs)
    depthwise = attrs["groups"] == channels and channels > 1
    if "channel_window" in attrs:
        raise NotTaken("its weights are stored for the windows of a kernel")
    if attrs["groups"] > 1 and not depthwise:
        raise NotTaken(f"it has {attrs['groups']} groups of {per_group} channels each")
    bias_value, bias_bindings = (
        bias(graph, call.args[2], x, w, out) if len(call.args) > 2 else (None, ())
    )
    after = result(graph, b)
    kind = "depthwise_conv2d" if depthwise else "conv2d"
    bindings = (dx, dw, *bias_bindings, b, *after.bindings)
    factors = _factors(x, w, bias_value, after.activation, axis=0)
    return CmsisLayer(kind, (x,), after, bindings, attrs, factors, w, bias_value)


def _matmul(b: Binding, call: Call, graph: Definitions) -> CmsisLayer:
    x, dx = activation(graph, call.args[0], "its input")
    if call.attrs.transpose_a or len(x.shape) < 2:
        raise NotTaken("its left operand is a transposed matrix or a vector")
    rows_first = bool(call.attrs.transpose_b)  # weights are [N, K]
    w, dw = weights(graph, call.args[1], axis=0 if rows_first else 1)
    if len(w.shape) != 2:
        raise NotTaken(f"its weights have {len(w.shape)} dimensions")
    out = w.shape[0 if rows_first else 1]
    end, inner_bindings, bias_value = b, [], None
    reader = graph.reader(b.var)
    if reader is not None and isinstance(reader.value, Call) and reader.value.op == "add":
        terms = [a for a in reader.value.args if a is not b.var]
        bias_value, bias_bindings = bias(graph, terms[0], x, w, out) if terms else (None, ())
        inner_bindings, end = [*bias_bindings, b, reader], reader
    after = result(graph, end)
    bindings = (dx, dw, *(inner_bindings or [b]), *after.bindings)
    factors = _factors(x, w, bias_value, after.activation, axis=0 if rows_first else 1)
    attrs = {"rows_first": rows_first}
    return CmsisLayer("fully_connected", (x,), after, bindings, attrs, factors, w, bias_value)


def _pool(kind: str) -> Callable[[Binding, Call, Definitions], CmsisLayer]:
    def read(b: Binding, call: Call, graph: Definitions) -> CmsisLayer:
        x, dx = activation(graph, call.args[0], "its input")
        attrs = dict(call.attrs)
        if "kernel" not in attrs:  # a reduction
            if len(x.shape) != 4 or attrs["axes"] != (2, 3):
                raise NotTaken("it does not reduce the height and width of images")
            attrs |= {"kernel": x.shape[2:], "strides": (1, 1), "padding": (0, 0, 0, 0)}
        if attrs.get("dilation", (1, 1)) != (1, 1):
            raise NotTaken(f"it has dilation {attrs['dilation']}")
        if attrs.get("count_include_pad") and any(attrs["padding"]):
            raise NotTaken("it counts the padding")
        after = result(graph, b)
        y = after.activation
        if (x.scale, x.zero) != (y.scale, y.zero):
            raise NotTaken("its result has another scale or zero point than its input")
        return CmsisLayer(kind, (x,), after, (dx, b, *after.bindings), attrs)

    return read


def _softmax(b: Binding, call: Call, graph: Definitions) -> CmsisLayer:
    x, dx = activation(graph, call.args[0], "its input")
    rank, axis = len(x.shape), call.attrs.axis
    if axis != rank - 1 and (rank, axis) != (4, 1):
        raise NotTaken(f"it is over dimension {axis} of {rank}, which are not adjacent in memory")
    after = result(graph, b)
    if after.activation.scale < PROBABILITY:
        raise NotTaken("the scale of its result is below 1/256, the step of CMSIS-NN's softmax")
    if len(after.bindings) != 1:
        raise NotTaken(f"its result is not quantised: {_op(after.bindings[0])} reads it")
    if x.shape[axis] > MAX_COLUMNS:
        raise NotTaken(f"it is over {x.shape[axis]} values, more than {MAX_COLUMNS}")
    if not 2.0**-26 < x.scale < 2.0**4:
        raise NotTaken(f"the scale of its input, {x.scale:g}, is outside of (2**-26, 16)")
    factor = FixedPointFactor.of(x.scale * 2.0**26)
    assert factor is not None
    return CmsisLayer("softmax", (x,), after, (dx, b, *after.bindings), {"axis": axis}, (factor,))


def _add(b: Binding, call: Call, graph: Definitions) -> CmsisLayer | None:
    if any(_op(graph.binding(a)) in ("matmul", "linear") for a in call.args):
        return None  # the bias of a matrix product
    (x, dx), (y, dy) = (
        activation(graph, a, f"its {side} operand")
        for a, side in zip(call.args, ("left", "right"), strict=True)
    )
    if x.shape != y.shape:
        raise NotTaken(f"its operands have the shapes {x.shape} and {y.shape}")
    after = result(graph, b)
    largest_scale = 2 * max(x.scale, y.scale)
    last = largest_scale / (2.0**ADD_SHIFT * after.activation.scale)
    factors = tuple(
        map(FixedPointFactor.of, (x.scale / largest_scale, y.scale / largest_scale, last))
    )
    if None in factors or last >= 1:
        raise NotTaken("the ratio of its scales is outside of the range of CMSIS-NN")
    bindings = (dx, dy, b, *after.bindings) if dx is not dy else (dx, b, *after.bindings)
    return CmsisLayer("add", (x, y), after, bindings, {}, factors)  # type: ignore[arg-type]


def _op(b: Binding | None) -> str:
    return b.value.op if b is not None and isinstance(b.value, Call) else ""


def _factors(
    x: Activation, w: QuantizedWeights, bias_value: Constant | RVar | None, y: Activation, axis: int
) -> tuple[FixedPointFactor, ...]:
    """The factor from sums to results per scale of the weights. Raises NotTaken if CMSIS-NN cannot
    apply one to every sum that the weights allow."""
    factors = tuple(FixedPointFactor.of(x.scale * s / y.scale) for s in w.scales)
    valid_factors = tuple(f for f in factors if f is not None)
    if len(valid_factors) != len(factors):
        raise NotTaken("the ratio of its scales is outside of [2**-31, 2**30)")
    if not isinstance(w.value, Constant):
        return valid_factors  # checked in the graph
    reduced_axes = tuple(i for i in range(len(w.shape)) if i != axis)
    widest = max(x.zero + 128, 127 - x.zero)
    largest = np.abs(w.value.array.astype(np.int64)).sum(axis=reduced_axes) * widest
    if isinstance(bias_value, Constant):
        largest += np.abs(bias_value.array.astype(np.int64))
    shifted = largest * np.array([1 << max(f.shift, 0) for f in valid_factors], np.int64)
    if (shifted >= 1 << 31).any():
        raise NotTaken("its sums may exceed 32 bits")
    return valid_factors


Reader = Callable[[Binding, Call, Definitions], CmsisLayer | None]
READERS: dict[str, Reader] = {
    "conv2d": _conv2d,
    "matmul": _matmul,
    "max_pool2d": _pool("max_pool"),
    "avg_pool2d": _pool("avg_pool"),
    "mean": _pool("avg_pool"),
    "max": _pool("max_pool"),
    "softmax": _softmax,
    "add": _add,
}
