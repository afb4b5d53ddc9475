"""Tensor functions: the caller passes every tensor and number, results included."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import cast

import numpy as np

from tensorkiln.artifact.metadata import FunctionInfo, ParamInfo
from tensorkiln.runtime.actual_types import is_a
from tensorkiln.runtime.arguments import in_order
from tensorkiln.runtime.failures import ArgumentTypeError
from tensorkiln.runtime.fast_call import CallSignature
from tensorkiln.runtime.native import NativeLibrary, Value
from tensorkiln.runtime.numbers import TENSOR, not_a_number, put_number
from tensorkiln.runtime.tensor import DEFAULT_STREAM, tensor_hint, view_of, view_of_set


class _SlowTensorCall:
    """Calls through ctypes, for arguments that the builtin in C cannot take: numbers, and arrays
    that NumPy does not export (read-only, bfloat16)."""

    def __init__(self, library: NativeLibrary, info: FunctionInfo):
        self.info = info
        self.index = library.index(info.name)
        self._library = library

    def __call__(self, /, *arguments: object, **named: object) -> None:
        """Convert the arguments and call; errors name the argument."""
        if named:
            arguments = in_order(self.info, arguments, named)
        values = (Value * len(arguments))()
        owners = []
        if len(arguments) == len(self.info.inputs):  # else kiln_call() reports the count
            for value, param, argument in zip(values, self.info.inputs, arguments, strict=True):
                owners.append(self._fill(value, param, argument))
        library = self._library
        with library.using:
            library.check(library.dll.kiln_call(self.index, values, len(values)))

    def _fill(self, value: Value, param: ParamInfo, argument: object) -> object:
        """Write one argument into `value`; return what must stay alive during the call."""
        label = f"{self.info.name}: argument {param.name!r}"
        if param.role == "scalar":
            if put_number(value, argument, label, param.dtype):
                return None
            raise not_a_number(label, param.dtype, argument)
        if is_a(argument, bool, int, float) and not is_a(argument, np.generic):
            raise ArgumentTypeError(  # the same message as in crt
                f"{label} must be a tensor of shape {param.shape_text}, "
                "received a value that is not a tensor",
                code="argument-kind",
                hint=tensor_hint(argument),
            )
        if param.dtype == "handle" and is_a(argument, tuple, list):
            address, owner = view_of_set(tuple(cast("Sequence[object]", argument)), label)
        else:
            writes = param.role in ("out", "inout")
            stream = DEFAULT_STREAM if param.device else None
            address, owner = view_of(argument, label, writable=writes, stream=stream)
        value.kind, value.payload.pointer = TENSOR, address
        return owner


class TensorFunction:
    """A tensor function: the caller passes every parameter, tensors and numbers, by position or
    name; results are written in place."""

    # `__call__` is a builtin per object, as in GraphFunction.
    __slots__ = ("__call__", "__weakref__", "info", "name")
    __call__: Callable[..., None]

    def __init__(self, library: NativeLibrary, info: FunctionInfo):
        self.info = info
        self.name = info.name
        call = _SlowTensorCall(library, info)
        signature = CallSignature(len(info.inputs))
        # The builtins take no numbers, and know no streams of tensors on devices.
        is_slow = any(p.role == "scalar" or p.device for p in info.inputs)
        self.__call__ = call if is_slow else library.calls.bind(call.index, signature, call)

    def __repr__(self) -> str:
        """Name and parameters."""
        return f"<tensor function {self.name}({', '.join(p.name for p in self.info.inputs)})>"
