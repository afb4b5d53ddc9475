"""What a fused group has to do at least: floating point operations and bytes, by definition.

Operations are those of the textbook formula, so a transformed convolution may beat the peak and
padding is not paid for. Bytes are each operand and the result once, without padding.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from tensorkiln import ops
from tensorkiln.base.errors import UnsupportedError
from tensorkiln.ir.expr import int_value
from tensorkiln.ir.relax import Call, Function, RVar, TensorType
from tensorkiln.passes import Instrument, Step

# Operations per element of operators that pass over their operand several times.
PER_ELEMENT: Mapping[str, int] = {"softmax": 4, "log_softmax": 4, "layer_norm": 7, "lrn": 7}


@dataclass(slots=True)
class Groups(Instrument):
    """Collects fused groups by the names of the kernels they become."""

    functions: dict[str, Function] = field(default_factory=dict)

    def after(self, step: Step) -> None:
        """Keep the last form of each: with its layouts."""
        for f in step.before.functions:
            if isinstance(f, Function) and f.is_primitive:
                self.functions[f.name] = f


@dataclass(frozen=True, slots=True)
class Work:
    """Operations, bytes of each parameter in order, and of the result; and the type of the factors
    of most products: bfloat16, int8, or float32 for all others."""

    flops: float
    reads: tuple[float, ...]
    writes: float
    unit: str


def work_of(group: Function) -> Work:
    """The least work of a group; UnsupportedError for symbolic sizes."""
    calls = [(b.var, b.value) for b in group.bindings if isinstance(b.value, Call)]
    reads = tuple(_read(p, calls) for p in group.params)
    assert isinstance(group.result, RVar)
    flops = [_flops(v, c) for v, c in calls]
    costliest = max(zip(flops, calls, strict=True), key=lambda pair: pair[0])[1][1]
    return Work(sum(flops), reads, _bytes(group.result.tensor), _unit(costliest))


def _unit(call: Call) -> str:
    """The type of a call's factors: of its second operand, which the weights are."""
    types = [a.tensor.dtype.name for a in call.args if isinstance(a, RVar)]
    factors = types[1] if len(types) > 1 else ""
    return {"bfloat16": "bfloat16", "int8": "int8", "uint8": "int8"}.get(factors, "float32")


def _elements(t: TensorType) -> float:
    sizes = [int_value(d) for d in t.shape]
    if None in sizes:
        raise UnsupportedError("work of symbolic sizes", hint="NAME=N makes a dimension static")
    return float(math.prod(s for s in sizes if s is not None))


def _bytes(t: TensorType) -> float:
    return _elements(t) * t.dtype.bytes


def _read(param: RVar, calls: list[tuple[RVar, Call]]) -> float:
    """All of it, or what slices and gathers take out of it."""
    users = [(var, call) for var, call in calls if param in call.args]
    if users and all(ops.get(call.op).pattern == "injective" for _, call in users):
        read_bytes = sum(_elements(var.tensor) for var, _ in users) * param.tensor.dtype.bytes
        return min(_bytes(param.tensor), read_bytes)
    return _bytes(param.tensor)


def _flops(var: RVar, call: Call) -> float:
    count = _elements(var.tensor)
    types = [a.tensor for a in call.args if isinstance(a, RVar)]
    pattern = ops.get(call.op).pattern
    match call.op:
        case "conv2d":
            _, *window = types[1].shape
            return count * 2 * math.prod(int_value(d) or 1 for d in window)
        case "conv2d_transpose":  # each element of the image is multiplied by every weight
            _, *window = types[1].shape
            return _elements(types[0]) * 2 * math.prod(int_value(d) or 1 for d in window)
        case "winograd_conv2d":
            return count * 2 * 9 * (int_value(types[1].shape[1]) or 1)
        case "linear":
            return count * 2 * (int_value(types[0].shape[-1]) or 1)
        case "strassen_linear":  # as many as the direct sums, so that rates compare
            return count * 2 * (int_value(types[1].shape[0]) or 1)
        case "matmul":
            axis = -2 if call.attrs.get("transpose_a") else -1
            return count * 2 * (int_value(types[0].shape[axis]) or 1)
        case "attention":
            *_, queries, width = (int_value(d) or 1 for d in types[0].shape)
            keys, depth = (int_value(d) or 1 for d in types[2].shape[-2:])
            keys_read = keys - (queries - 1) / 2 if call.attrs.get("causal") else keys
            return count / depth * keys_read * (2 * width + 2 * depth + PER_ELEMENT["softmax"])
    if call.op in PER_ELEMENT:
        return count * PER_ELEMENT[call.op]
    if pattern == "reduction":
        window = math.prod(call.attrs.get("kernel", ()) or (1,))
        return max(_elements(types[0]) if window == 1 else 0, count * window)
    return 0.0 if pattern == "injective" else count
