"""Graph functions in an executor: tensors in, tensors out."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any, cast

import numpy as np

from tensorkiln.runtime.arguments import in_order, show, wrong_count
from tensorkiln.runtime.failures import ArgumentTypeError
from tensorkiln.runtime.native import ExecutorMemory, FunctionInfo
from tensorkiln.runtime.tensor import (
    Array,
    Tensor,
    capsule_pointer,
    dtype_named,
    output_array,
    view_of,
)

_MAX_RANK = 16
_SHAPES_KEPT = 1024  # output shapes remembered per function with symbolic dimensions
Result = Tensor | tuple[Tensor, ...]


class GraphFunction:
    """A graph function in an executor: takes inputs, returns new tensors or fills `out`."""

    def __init__(self, memory: ExecutorMemory, info: FunctionInfo):
        library = memory.library
        self.info = info
        self.name = info.name
        self._memory = memory  # keeps it alive
        self._library = library
        self._handle = memory.handle
        self._index = library.index(info.name)
        self._count = len(info.inputs) + len(info.outputs)
        self._pointers: Callable[..., object] = ctypes.c_void_p * self._count
        self._dtypes = [dtype_named(p.dtype) for p in info.outputs]
        self._fixed = self._fixed_outputs()
        self._shapes: dict[tuple[object, ...], list[tuple[int, ...]]] = {}

    def _fixed_outputs(self) -> list[tuple[tuple[int, ...], np.dtype[Any], int]] | None:
        """Shape, type and bytes of each output; None when one depends on the inputs."""
        made = []
        for param, dtype in zip(self.info.outputs, self._dtypes, strict=True):
            shape = param.shape or ()
            if not all(isinstance(size, int) for size in shape):
                return None
            sizes = cast("tuple[int, ...]", shape)
            made.append((sizes, dtype, dtype.itemsize * int(np.prod(sizes))))
        return made

    def __call__(self, /, *inputs: Any, out: Any = None, **named: Any) -> Result:
        """Run on tensors (NumPy, torch, ours, anything with DLPack), by position or input name.

        Returns a Tensor, or a tuple of them when there are several outputs; with `out` (one
        tensor, or a sequence of them) fills and returns that. Wrong arguments raise UserErrors
        that are ValueErrors or TypeErrors and name the input, what was expected and what came.
        """
        if named:
            inputs = in_order(self.info, inputs, named)
        elif len(inputs) != len(self.info.inputs):
            raise wrong_count(self.info, len(inputs))
        if out is not None:
            return cast(Result, self._fill(inputs, out))
        try:
            capsules: list[object] = [value.__dlpack__() for value in inputs]
            addresses = [capsule_pointer(capsule, b"dltensor") for capsule in capsules]
        except (AttributeError, BufferError, TypeError, ValueError, RuntimeError):
            addresses, capsules = self._views(inputs)
        if self._fixed is not None:
            arrays = [output_array(*spec) for spec in self._fixed]
        else:
            arrays = self._sized_outputs(inputs, addresses)
        for array, dtype in zip(arrays, self._dtypes, strict=True):
            if dtype.kind in "iufb":
                capsule: object = array.__dlpack__()
                address = capsule_pointer(capsule, b"dltensor")
            else:  # bfloat16: NumPy does not export it
                address, capsule = view_of(array, "output")
            capsules.append(capsule)
            addresses.append(address)
        code = self._library.run(self._handle, self._index, self._pointers(*addresses), self._count)
        if code:
            self._library.check(code)
        if len(arrays) == 1:
            return Tensor(arrays[0])
        return tuple(Tensor(array) for array in arrays)

    def _views(self, inputs: Sequence[object]) -> tuple[list[int], list[object]]:
        """Addresses and their owners, for values that are not plainly exported by DLPack."""
        pairs = [
            view_of(value, f"{self.name}: input {param.name!r}")
            for value, param in zip(inputs, self.info.inputs, strict=True)
        ]
        return [address for address, _ in pairs], [kept for _, kept in pairs]

    def _fill(self, inputs: Sequence[Any], out: Any) -> object:
        """Run into tensors of the caller's; returns them as given."""
        outputs = list(out) if isinstance(out, list | tuple) else [out]
        if len(outputs) != len(self.info.outputs):
            raise ArgumentTypeError(
                f"{self.name}: expected {len(self.info.outputs)} tensors in out=, "
                f"received {len(outputs)}",
                code="argument-count",
            )
        try:  # a read-only array refuses this way of export
            kept = [value.__dlpack__() for value in (*inputs, *outputs)]
            addresses = [capsule_pointer(capsule, b"dltensor") for capsule in kept]
        except (AttributeError, BufferError, TypeError, ValueError, RuntimeError):
            addresses, kept = self._views(inputs)
            for value, param in zip(outputs, self.info.outputs, strict=True):
                what = f"{self.name}: output {param.name!r}"
                address, owner = view_of(value, what, writable=True)
                addresses.append(address)
                kept.append(owner)
        code = self._library.run(self._handle, self._index, self._pointers(*addresses), self._count)
        self._library.check(code)
        return out

    def new_outputs(self, inputs: Sequence[Any]) -> list[Tensor]:
        """Room for every output of a call with these inputs."""
        if self._fixed is not None:
            return [Tensor(output_array(*spec)) for spec in self._fixed]
        addresses, kept = self._views(inputs)
        made = [Tensor(array) for array in self._sized_outputs(inputs, addresses)]
        del kept  # the addresses were of these
        return made

    def _sized_outputs(self, inputs: Sequence[Any], addresses: Sequence[int]) -> list[Array]:
        """New arrays for outputs whose shapes depend on the inputs'."""
        try:
            key: tuple[object, ...] | None = tuple([tuple(value.shape) for value in inputs])
        except (AttributeError, TypeError):  # DLPack alone promises no `.shape`
            key = None
        shapes = None if key is None else self._shapes.get(key)
        if shapes is None:
            shapes = [self._ask_shape(addresses, k) for k in range(len(self._dtypes))]
            if len(self._shapes) >= _SHAPES_KEPT:
                self._shapes.clear()
            if key is not None:
                self._shapes[key] = shapes
        made = []
        for shape, dtype in zip(shapes, self._dtypes, strict=True):
            nbytes = dtype.itemsize
            for size in shape:
                nbytes *= size
            made.append(output_array(shape, dtype, nbytes))
        return made

    def _ask_shape(self, addresses: Sequence[int], output: int) -> tuple[int, ...]:
        shape, ndim = (ctypes.c_int64 * _MAX_RANK)(), ctypes.c_int()
        pointers = (ctypes.c_void_p * max(1, len(addresses)))(*addresses)
        ask = self._library.dll.kiln_output_shape
        count = len(self.info.inputs)
        self._library.check(ask(self._index, pointers, count, output, shape, ctypes.byref(ndim)))
        return tuple(shape[: ndim.value])

    def __repr__(self) -> str:
        """Name, inputs and outputs."""
        inputs = ", ".join(map(show, self.info.inputs))
        outputs = ", ".join(map(show, self.info.outputs))
        return f"<graph function {self.name}({inputs}) -> {outputs}>"
