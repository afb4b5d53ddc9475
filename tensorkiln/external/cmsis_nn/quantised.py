"""Quantised operands and results of a layer in QDQ form, read off the graph.

Every function raises `NotTaken` with the reason where CMSIS-NN has no function for what it finds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tensorkiln.external.match import Definitions
from tensorkiln.ir.dtype import INT8, INT32
from tensorkiln.ir.relax import Binding, Call, Constant, RVar, TensorType, Value

LOWEST, HIGHEST = -128, 127


class NotTaken(Exception):
    """Why CMSIS-NN does not compute a layer."""


@dataclass(frozen=True, slots=True)
class Activation:
    """An int8 tensor `value` that stands for the numbers (value - zero) * scale."""

    value: RVar
    scale: float
    zero: int

    @property
    def shape(self) -> tuple[int, ...]:
        """The extents, all of them numbers."""
        shape = self.value.tensor.static_shape()
        assert shape is not None
        return shape


@dataclass(frozen=True, slots=True)
class QuantizedWeights:
    """An int8 tensor of the numbers value * scales: one scale, or one per output channel.

    In the graph `value` is a constant; in an external function it comes from a parameter.
    """

    value: Constant | RVar
    scales: tuple[float, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        """The extents, all of them numbers."""
        shape = self.value.tensor.static_shape()
        assert shape is not None
        return shape


@dataclass(frozen=True, slots=True)
class Result:
    """What follows an operator until its QuantizeLinear: the int8 tensor, the range that a Relu or
    Clip leaves, and the bindings on the way, QuantizeLinear last."""

    activation: Activation
    low: int
    high: int
    bindings: tuple[Binding, ...]


def require_static(label: str, t: TensorType) -> None:
    """Raise NotTaken unless all extents are numbers."""
    if t.static_shape() is None:
        raise NotTaken(f"{label} has a symbolic size")


def activation(graph: Definitions, v: Value, label: str) -> tuple[Activation, Binding]:
    """The int8 tensor that the operand `v` dequantises, and the binding of its DequantizeLinear."""
    b, call = _dequantized(graph, v, label)
    if not isinstance(call.args[0], RVar):
        raise NotTaken(f"{label} is a constant")
    return _activation(call, call.args[0], label), b


def weights(graph: Definitions, v: Value, axis: int) -> tuple[QuantizedWeights, Binding]:
    """The int8 weights that the operand `v` dequantises, with one scale or one along `axis`."""
    b, call = _dequantized(graph, v, "its weights")
    value = _given(graph, call.args[0], "its weights")
    if value.tensor.dtype != INT8:
        raise NotTaken(f"its weights are {value.tensor.dtype}; CMSIS-NN computes on int8")
    scale, zero = _parameters(call, "its weights")
    if zero.any():
        raise NotTaken("its weights have a zero point; CMSIS-NN has none")
    require_static("its weights", value.tensor)
    extents = value.tensor.static_shape() or ()
    along = tuple(n if i == axis else 1 for i, n in enumerate(extents))
    if scale.size != 1 and scale.shape != along:
        raise NotTaken("its weights have scales along another dimension than output channels")
    return QuantizedWeights(value, tuple(map(float, scale.reshape(-1)))), b


def bias(
    graph: Definitions, v: Value, x: Activation, w: QuantizedWeights, channels: int
) -> tuple[Constant | RVar, tuple[Binding, ...]]:
    """The int32 bias that the operand `v` dequantises, in units of the scale of the products."""
    b, call = _dequantized(graph, v, "its bias")
    value = _given(graph, call.args[0], "its bias")
    if value.tensor.dtype != INT32 or value.tensor.static_shape() != (channels,):
        raise NotTaken("its bias is not one int32 per output channel")
    scale, zero = _parameters(call, "its bias")
    expected = np.float64(x.scale) * np.asarray(w.scales)
    if zero.any() or not np.allclose(scale.reshape(-1), expected, rtol=1e-6, atol=0):
        raise NotTaken("its bias is not in units of the input's scale times the weights' scale")
    return value, (b,)


def result(graph: Definitions, b: Binding) -> Result:
    """Follow the only reader of an operator's result: Relu or Clip, then QuantizeLinear."""
    chain: list[Binding] = []
    bounds: list[tuple[float | None, float | None]] = []
    var = b.var
    while True:
        reader = graph.reader(var)
        call = reader.value if reader is not None else None
        if reader is None or not isinstance(call, Call) or call.args[0] is not var:
            raise NotTaken("its result is read before it is quantised")
        chain.append(reader)
        if call.op == "quantize":
            return _quantised(reader, call, bounds, chain)
        if call.op not in ("relu", "clip"):
            raise NotTaken(f"its result is not quantised: {call.op} reads it")
        bounds.append((0.0, None) if call.op == "relu" else (call.attrs.min, call.attrs.max))
        var = reader.var


def _quantised(
    b: Binding,
    call: Call,
    bounds: Sequence[tuple[float | None, float | None]],
    chain: Sequence[Binding],
) -> Result:
    output = _activation(call, b.var, "its result")
    low, high = LOWEST, HIGHEST
    for lower, upper in bounds:
        low = low if lower is None else max(low, _step(lower, output))
        high = high if upper is None else min(high, _step(upper, output))
    if low > high:
        raise NotTaken("the bounds of its Clip leave no value")
    return Result(output, low, high, tuple(chain))


def _step(limit: float, y: Activation) -> int:
    """The integer for a bound, as QuantizeLinear computes it, within the range of int8."""
    steps = np.rint(np.float32(limit) / np.float32(y.scale)) + y.zero
    return int(min(max(steps, LOWEST), HIGHEST))


def _dequantized(graph: Definitions, v: Value, label: str) -> tuple[Binding, Call]:
    """The binding of the DequantizeLinear that `v` is the result of, and its call."""
    b, call = graph.binding(v), graph.call(v)
    if b is None or call is None or call.op != "dequantize":
        raise NotTaken(f"no DequantizeLinear makes {label}")
    return b, call


def _given(graph: Definitions, v: Value, label: str) -> Constant | RVar:
    """The constant or parameter `v`."""
    if isinstance(v, Constant):
        return v
    if not is_parameter(graph, v):
        raise NotTaken(f"the model computes {label}")
    assert isinstance(v, RVar)
    return v


def _activation(call: Call, v: RVar, label: str) -> Activation:
    """The int8 tensor `v` that the conversion `call` reads or makes."""
    scale, zero = _parameters(call, label)
    if scale.size != 1:
        raise NotTaken(f"{label} has {scale.size} scales; CMSIS-NN has one for a whole activation")
    if v.tensor.dtype != INT8:
        raise NotTaken(f"{label} is {v.tensor.dtype}; CMSIS-NN computes on int8")
    require_static(label, v.tensor)
    return Activation(v, float(scale.reshape(())), int(zero.reshape(-1)[0]))


def _parameters(call: Call, label: str) -> tuple[np.ndarray, np.ndarray]:
    """The constant scale and zero point of a conversion."""
    arrays = [a.array for a in call.args[1:] if isinstance(a, Constant)]
    if len(arrays) != 2:
        raise NotTaken(f"the model computes the scale of {label}")
    scale, zero = arrays
    if not (np.isfinite(scale).all() and (scale > 0).all()):
        raise NotTaken(f"the scale of {label} is not a positive number")
    return scale, zero


def is_parameter(graph: Definitions, v: Value) -> bool:
    """Whether `v` is a parameter of an external function, or a transpose of one."""
    return isinstance(v, RVar) and graph.is_external and parameter_of(graph, v) is not None


def parameter_of(graph: Definitions, v: Value) -> RVar | None:
    """The parameter that `v` is, or is a transpose of; None for a value that is computed."""
    call = graph.call(v)
    if call is not None and call.op == "transpose":
        return parameter_of(graph, call.args[0])
    return v if isinstance(v, RVar) and v in graph.parameters else None
