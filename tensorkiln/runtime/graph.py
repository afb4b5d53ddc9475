"""Graph functions in an executor: tensors in, tensors out."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any, cast

from tensorkiln.artifact.metadata import FunctionInfo, ParamInfo
from tensorkiln.base.element_types import program_type
from tensorkiln.runtime.actual_types import is_a
from tensorkiln.runtime.arguments import in_order, show, wrong_count
from tensorkiln.runtime.device import Device
from tensorkiln.runtime.device_tensor import DeviceTensor, empty
from tensorkiln.runtime.failures import WorkspaceMemoryError
from tensorkiln.runtime.fast_call import CallSignature, NewResult
from tensorkiln.runtime.native import ExecutorMemory
from tensorkiln.runtime.streams import current_stream
from tensorkiln.runtime.tensor import (
    DEFAULT_STREAM,
    Tensor,
    as_passed,
    dtype_named,
    is_byte_wise,
    view_of,
)

_MAX_RANK = 16
AnyTensor = Tensor | DeviceTensor
Result = AnyTensor | tuple[AnyTensor, ...]


class _SlowFill:
    """Calls through ctypes with all tensors, inputs then outputs, as DLTensors made in Python."""

    def __init__(self, memory: ExecutorMemory, info: FunctionInfo):
        self.info = info
        self.library = memory.library
        self.index = memory.library.index(info.name)
        self.count = len(info.inputs) + len(info.outputs)
        params = (*info.inputs, *info.outputs)
        self.on_device = any(p.device for p in params)
        self.has_bytes = any(is_byte_wise(p.dtype) for p in params)
        self._memory = memory  # keeps the C executor alive
        self._input_labels, self._output_labels = (
            [f"{info.name}: {role} {p.name!r}" for p in role_params]
            for role, role_params in (("input", info.inputs), ("output", info.outputs))
        )
        self._pointers: Callable[..., object] = ctypes.c_void_p * self.count

    def __call__(self, *tensors: Any) -> None:
        """Describe the tensors and run; errors name the tensor."""
        inputs = len(self.info.inputs)
        stream = self.stream_of_call(tensors)
        addresses, owners = self.views(tensors[:inputs], stream)
        for value, param, label in zip(
            tensors[inputs:], self.info.outputs, self._output_labels, strict=True
        ):
            param_stream = self._used_in(param, stream)
            place = as_passed(value, param.dtype, label)
            address, owner = view_of(place, label, writable=True, stream=param_stream)
            addresses.append(address)
            owners.append(owner)
        self.run(addresses, stream)
        self.queued(tensors[inputs:], stream)

    def views(self, inputs: Sequence[object], stream: int) -> tuple[list[int], list[object]]:
        """Addresses of DLTensors for the inputs, and the objects that keep these alive. `stream` is
        that of the call."""
        pairs = []
        for value, param, label in zip(inputs, self.info.inputs, self._input_labels, strict=True):
            passed = as_passed(value, param.dtype, label)
            pairs.append(view_of(passed, label, stream=self._used_in(param, stream)))
        return [address for address, _ in pairs], [owner for _, owner in pairs]

    def stream_of_call(self, tensors: Sequence[object]) -> int:
        """The stream that the caller of this function uses; 0: the executor has one, the caller
        does not say, no parameter is on a CUDA device, or the executor uses several."""
        if not self.on_device or any(self._memory.streams.values()):
            return 0
        cuda = {n: d for n, d in self._memory.devices.items() if d.kind == "cuda"}
        devices = {
            cuda[p.device] for p in (*self.info.inputs, *self.info.outputs) if p.device in cuda
        }
        if len(devices) != 1 or devices != set(cuda.values()):
            return 0
        return current_stream(devices.pop(), tensors)

    def _used_in(self, param: ParamInfo, stream: int) -> int | None:
        """Where a parameter on a device is used; None for one on the host."""
        if not param.device:
            return None
        return stream or self._memory.streams.get(param.device) or DEFAULT_STREAM

    def queued(self, results: Sequence[object], stream: int) -> None:
        """Note that results are there once the stream in which they are made has got to them."""
        for tensor, param in zip(results, self.info.outputs, strict=True):
            if isinstance(tensor, DeviceTensor):
                tensor.queued_in(stream or self._memory.streams.get(param.device, 0))

    def device(self, number: int) -> Device:
        """The device that the executor has chosen for a number in compiled code."""
        return self._memory.devices[number]

    def run(self, addresses: Sequence[int], stream: int) -> None:
        """Run on the DLTensors at `addresses`: inputs, then outputs. `stream` 0: the executor's."""
        pointers = self._pointers(*addresses)
        library = self.library
        with library.using:
            handle, dll = self._memory.handle, library.dll
            if stream:
                code = dll.kiln_executor_run_in_stream(
                    handle, self.index, pointers, self.count, stream
                )
            else:
                code = dll.kiln_executor_run(handle, self.index, pointers, self.count)
            library.check(code)

    def ask_shape(self, addresses: Sequence[int], output: int) -> tuple[int, ...]:
        """The shape of output number `output`, given the DLTensors of the inputs."""
        shape, ndim = (ctypes.c_int64 * _MAX_RANK)(), ctypes.c_int()
        pointers = (ctypes.c_void_p * max(1, len(addresses)))(*addresses)
        ask = self.library.dll.kiln_output_shape
        count = len(self.info.inputs)
        self.library.check(ask(self.index, pointers, count, output, shape, ctypes.byref(ndim)))
        return tuple(shape[: ndim.value])


class _SlowGraphCall:
    """The slow path of a GraphFunction: for named inputs, lists of outputs, and arrays that NumPy
    does not export."""

    def __init__(self, slow: _SlowFill, fill: Callable[..., None]):
        """`fill` is the builtin that takes inputs and outputs, `slow` its slow path."""
        self.info = slow.info
        self._slow = slow
        self._fill = fill
        self.results = [_new_result(param) for param in slow.info.outputs]
        self.places = [param.device for param in slow.info.outputs]

    def __call__(self, /, *inputs: Any, out: Any = None, **named: Any) -> Any:
        """As GraphFunction's `__call__`."""
        info = self.info
        if named:
            inputs = in_order(info, inputs, named)
        elif len(inputs) != len(info.inputs):
            raise wrong_count(info, len(inputs))
        if out is None:
            return self._new(inputs)
        outputs = tuple(out) if is_a(out, list, tuple) else (out,)
        if len(outputs) != len(info.outputs):
            raise wrong_count(info, len(outputs), "output")
        self._fill(*inputs, *outputs)
        return out

    def _new(self, inputs: Sequence[Any]) -> Result:
        stream = self._slow.stream_of_call(inputs)
        addresses, owners = self._slow.views(inputs, stream)
        outputs = self.tensors(addresses)
        for tensor, param in zip(outputs, self.info.outputs, strict=True):
            address, owner = view_of(as_passed(tensor, param.dtype, "output"), "output")
            addresses.append(address)
            owners.append(owner)
        self._slow.run(addresses, stream)
        self._slow.queued(outputs, stream)
        return outputs[0] if len(outputs) == 1 else tuple(outputs)

    def tensors(self, addresses: Sequence[int]) -> list[AnyTensor]:
        """New tensors for all outputs, given the DLTensors of the inputs."""
        outputs = list[AnyTensor]()
        for i, r in enumerate(self.results):
            shape = self._slow.ask_shape(addresses, i) if r.shape is None else r.shape
            try:
                if place := self.places[i]:
                    outputs.append(empty(shape, r.dtype, self._slow.device(place)))
                else:
                    outputs.append(Tensor(r.array(shape)))
            except (MemoryError, ValueError) as error:
                label = f"{self.info.name}: output {self.info.outputs[i].name!r}"
                message = f"out of memory for {label}, {r.dtype} {list(shape)}"
                raise WorkspaceMemoryError(message, code="out-of-memory") from error
        return outputs

    def new_outputs(self, inputs: Sequence[Any]) -> list[AnyTensor]:
        """As GraphFunction's `new_outputs`."""
        addresses, owners = self._slow.views(inputs, self._slow.stream_of_call(inputs))
        outputs = self.tensors(addresses)
        del owners  # they kept the DLTensors at `addresses` alive
        return outputs


def _new_result(param: ParamInfo) -> NewResult:
    shape = param.shape or ()
    is_static = all(isinstance(size, int) for size in shape)
    dtype = param.dtype
    if param.device and is_byte_wise(dtype):
        dtype = program_type(dtype)  # what DLPack has for it; NumPy never sees the memory
    return NewResult(cast("tuple[int, ...]", shape) if is_static else None, dtype_named(dtype))


class GraphFunction:
    """A graph function in an executor: takes inputs, returns new tensors or fills `out`.

    `f(*inputs, out=None, **named)` runs on tensors (NumPy, torch, ours, anything with DLPack), by
    position or input name. Returns a Tensor, or a tuple of them when there are several outputs;
    with `out` (one tensor, or a sequence of them) fills and returns that. Wrong arguments raise
    ArgumentTypeError or ArgumentValueError, which name the input, what was expected and what was
    received.
    """

    # `__call__` is a builtin per object: entering a Python method would take as long as the rest of
    # a short call. The builtin does not refer back to this object: a cycle would delay the release
    # of the executor's memory.
    __slots__ = ("__call__", "__weakref__", "_call", "info", "name")
    __call__: Callable[..., Any]

    def __init__(self, memory: ExecutorMemory, info: FunctionInfo):
        self.info = info
        self.name = info.name
        slow = _SlowFill(memory, info)

        def fast(signature: CallSignature, otherwise: Callable[..., Any]) -> Callable[..., Any]:
            # The builtins know no streams of tensors on devices, and no types of less than a byte.
            if slow.on_device or slow.has_bytes:
                return otherwise
            return memory.library.calls.bind(slow.index, signature, otherwise, memory)

        self._call = call = _SlowGraphCall(slow, fast(CallSignature(slow.count), slow))
        # NumPy exports no other dtypes, such as bfloat16; C makes no tensors on devices.
        exported = all(r.dtype.isbuiltin == 1 for r in call.results) and not any(call.places)
        names = [p.name for p in info.inputs]
        self.__call__ = (
            fast(CallSignature(len(names), names, call.results), call) if exported else call
        )

    def new_outputs(self, inputs: Sequence[Any]) -> list[AnyTensor]:
        """New uninitialised tensors for all outputs of a call with these inputs."""
        return self._call.new_outputs(inputs)

    def __repr__(self) -> str:
        """Name, inputs and outputs."""
        inputs = ", ".join(map(show, self.info.inputs))
        outputs = ", ".join(map(show, self.info.outputs))
        return f"<graph function {self.name}({inputs}) -> {outputs}>"
