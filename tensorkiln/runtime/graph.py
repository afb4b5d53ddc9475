"""Graph functions in an executor: tensors in, tensors out."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable, Sequence
from functools import partial
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
    output_maker,
    view_of,
)

_MAX_RANK = 16
_SHAPES_KEPT = 1024  # output shapes remembered per function with symbolic dimensions
Result = Tensor | tuple[Tensor, ...]
# What exports of read-only arrays, of other types, and of objects that have none raise.
_NO_EXPORT = (AttributeError, BufferError, TypeError, ValueError, RuntimeError)


def _address(capsule: object) -> int:
    """Of the DLTensor in a capsule."""
    return int(capsule_pointer(capsule, b"dltensor"))


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
        self._inputs, self._count = len(info.inputs), len(info.inputs) + len(info.outputs)
        self._pointers: Callable[..., object] = ctypes.c_void_p * self._count
        self._dtypes = [dtype_named(p.dtype) for p in info.outputs]
        self._new = self._makers()
        self._fast, self._kept = library.fast_call(info.name, memory.handle)
        self._exported = all(dtype.kind in "iufb" for dtype in self._dtypes)  # not bfloat16
        self._shapes: dict[tuple[object, ...], list[tuple[int, ...]]] = {}

    def _makers(self) -> list[Callable[[], Array]] | None:
        """What makes room for each output; None when a size depends on the inputs."""
        made: list[Callable[[], Array]] = []
        for param, dtype in zip(self.info.outputs, self._dtypes, strict=True):
            shape = param.shape or ()
            if not all(isinstance(size, int) for size in shape):
                return None
            sizes = cast("tuple[int, ...]", shape)
            nbytes = dtype.itemsize * int(np.prod(sizes))
            made.append(partial(output_maker(nbytes), sizes, dtype))
        return made

    def __call__(self, /, *inputs: Any, out: Any = None, **named: Any) -> Result:
        """Run on tensors (NumPy, torch, ours, anything with DLPack), by position or input name.

        Returns a Tensor, or a tuple of them when there are several outputs; with `out` (one
        tensor, or a sequence of them) fills and returns that. Wrong arguments raise UserErrors
        that are ValueErrors or TypeErrors and name the input, what was expected and what came.
        """
        if named:
            inputs = in_order(self.info, inputs, named)
        elif len(inputs) != self._inputs:
            raise wrong_count(self.info, len(inputs))
        if out is not None:
            self._fill(inputs, out)
            return out  # type: ignore[no-any-return]
        if self._exported and not self._library.closed:
            try:
                capsules = [value.__dlpack__() for value in inputs]
                if self._new is not None:
                    arrays = [make() for make in self._new]
                else:
                    arrays = self._outputs(inputs, lambda: map(_address, capsules))
                code = self._fast(*capsules, *[array.__dlpack__() for array in arrays])
            except _NO_EXPORT:
                pass  # nothing has run
            else:
                if code:
                    self._library.check(code)
                return self._result(arrays)
        return self._call_slowly(inputs)

    def _call_slowly(self, inputs: Sequence[Any]) -> Result:
        """With descriptions of our own for what DLPack does not export."""
        addresses, kept = self._views(inputs)
        arrays = self._outputs(inputs, lambda: addresses)
        for array in arrays:
            address, owner = view_of(array, "output")
            addresses.append(address)
            kept.append(owner)
        self._run(addresses)
        return self._result(arrays)

    def _run(self, addresses: Sequence[int]) -> None:
        pointers = self._pointers(*addresses)
        code = self._library.run(self._handle, self._index, pointers, self._count)
        self._library.check(code)

    @staticmethod
    def _result(arrays: Sequence[Array]) -> Result:
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

    def _fill(self, inputs: Sequence[Any], out: Any) -> None:
        """Run into tensors of the caller's."""
        outputs = list(out) if isinstance(out, list | tuple) else [out]
        if len(outputs) != len(self.info.outputs):
            raise ArgumentTypeError(
                f"{self.name}: expected {len(self.info.outputs)} tensors in out=, "
                f"received {len(outputs)}",
                code="argument-count",
            )
        if not self._library.closed:
            try:  # a read-only array refuses this way of export
                code = self._fast(*[value.__dlpack__() for value in (*inputs, *outputs)])
            except _NO_EXPORT:
                pass
            else:
                return self._library.check(code)
        addresses, kept = self._views(inputs)
        for value, param in zip(outputs, self.info.outputs, strict=True):
            what = f"{self.name}: output {param.name!r}"
            address, owner = view_of(value, what, writable=True)
            addresses.append(address)
            kept.append(owner)
        self._run(addresses)
        return None

    def new_outputs(self, inputs: Sequence[Any]) -> list[Tensor]:
        """Room for every output of a call with these inputs."""
        addresses, kept = ([], []) if self._new is not None else self._views(inputs)
        made = [Tensor(array) for array in self._outputs(inputs, lambda: addresses)]
        del kept  # the addresses were of these
        return made

    def _outputs(
        self, inputs: Sequence[Any], addresses: Callable[[], Iterable[int]]
    ) -> list[Array]:
        """New arrays for all outputs; `addresses` of the inputs are asked for when shapes that
        depend on theirs are not known yet."""
        if self._new is not None:
            return [make() for make in self._new]
        try:
            key: tuple[object, ...] | None = tuple([tuple(value.shape) for value in inputs])
        except (AttributeError, TypeError):  # DLPack alone promises no `.shape`
            key = None
        shapes = None if key is None else self._shapes.get(key)
        if shapes is None:
            asked = list(addresses())
            shapes = [self._ask_shape(asked, k) for k in range(len(self._dtypes))]
            if len(self._shapes) >= _SHAPES_KEPT:
                self._shapes.clear()
            if key is not None:
                self._shapes[key] = shapes
        made = []
        for shape, dtype in zip(shapes, self._dtypes, strict=True):
            nbytes = dtype.itemsize
            for size in shape:
                nbytes *= size
            made.append(output_maker(nbytes)(shape, dtype))
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
