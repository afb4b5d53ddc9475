"""Executor: graph functions of a module, bound to devices, with their memory."""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Callable, Sequence
from typing import Any, Protocol, cast

import numpy as np

from tensorkiln.base.errors import UnsupportedError, UserError, nearest
from tensorkiln.runtime.device import Device, cpu
from tensorkiln.runtime.failures import ArgumentTypeError
from tensorkiln.runtime.module import Module, TensorFunction
from tensorkiln.runtime.native import FunctionInfo, NativeLibrary, ParamInfo
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


class Jittable(Protocol):
    """Something that becomes a Module, such as what `compile` returns."""

    def jit(self) -> Module:
        """The loaded module."""
        ...


class _Memory:
    """The C executor; freed when neither the Executor nor a function of it is left."""

    def __init__(self, library: NativeLibrary):
        self.library = library
        self.handle = ctypes.c_void_p()
        library.check(library.dll.kiln_executor_create(ctypes.byref(self.handle)))
        weakref.finalize(self, library.dll.kiln_executor_destroy, self.handle)


class GraphFunction:
    """A graph function in an executor: takes inputs, returns new tensors or fills `out`."""

    def __init__(self, memory: _Memory, info: FunctionInfo):
        library = memory.library
        self.info = info
        self.name = info.name
        self._memory = memory  # keeps it alive
        self._library = library
        self._handle = memory.handle
        self._index = library.index(info.name)
        self._run: Callable[..., int] = library.dll.kiln_executor_run
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
            inputs = self._order(inputs, named)
        elif len(inputs) != len(self.info.inputs):
            raise self._wrong_count(len(inputs))
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
        code = self._run(self._handle, self._index, self._pointers(*addresses), self._count)
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
        code = self._run(self._handle, self._index, self._pointers(*addresses), self._count)
        self._library.check(code)
        return out

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

    def _order(self, inputs: tuple[Any, ...], named: dict[str, Any]) -> tuple[Any, ...]:
        """Positional and named inputs as one row."""
        names = [param.name for param in self.info.inputs]
        for name in named:
            if name not in names:
                raise ArgumentTypeError(
                    f"{self.name} has no input {name!r}; it has {', '.join(names)}",
                    code="unknown-input",
                    hint=nearest(name, names),
                )
            if name in names[: len(inputs)]:
                raise ArgumentTypeError(
                    f"{self.name}: input {name!r} is given twice", code="argument-count"
                )
        missing = [name for name in names[len(inputs) :] if name not in named]
        if missing or len(inputs) + len(named) != len(names):
            raise self._wrong_count(len(inputs) + len(named), missing)
        return inputs + tuple(named[name] for name in names[len(inputs) :])

    def _wrong_count(self, count: int, missing: Sequence[str] = ()) -> ArgumentTypeError:
        names = ", ".join(_show(param) for param in self.info.inputs) or "none"
        tail = f"; missing {', '.join(missing)}" if missing else ""
        expected = len(self.info.inputs)
        return ArgumentTypeError(
            f"{self.name}: expected {expected} input{'' if expected == 1 else 's'} ({names}), "
            f"received {count}{tail}",
            code="argument-count",
        )

    def __repr__(self) -> str:
        """Name, inputs and outputs."""
        inputs = ", ".join(map(_show, self.info.inputs))
        outputs = ", ".join(map(_show, self.info.outputs))
        return f"<graph function {self.name}({inputs}) -> {outputs}>"


def _show(param: ParamInfo) -> str:
    shape = ", ".join(map(str, param.shape or ()))
    return f"{param.name}: {param.dtype} [{shape}]"


class Executor:
    """`Executor(lib, tk.cpu())["main"](x)`: graph functions of a module on devices.

    `lib` is a Module or anything with `.jit()`. An executor owns the memory for intermediate
    results, which grows on demand. Calls release the interpreter lock and may come from several
    threads.
    """

    def __init__(self, lib: Module | Jittable, devices: Device | Sequence[Device] | None = None):
        self.module = _module_of(lib)
        self.devices = _device_list(devices)
        self._memory = _Memory(self.module.library)
        self._functions: dict[str, GraphFunction | TensorFunction] = {}

    def __getitem__(self, name: str) -> Callable[..., Any]:
        """A function by name."""
        found = self._functions.get(name)
        if found is None:
            info = self.module.info(name)
            graph = info.kind == "graph"
            found = GraphFunction(self._memory, info) if graph else self.module[name]
            self._functions[name] = found
        return found

    def set_num_threads(self, threads: int) -> None:
        """Threads that one call may use, the calling one included; 0 means the library's."""
        self.module.library.dll.kiln_executor_set_num_threads(self._memory.handle, threads)

    @property
    def workspace_bytes(self) -> int:
        """Bytes held now for intermediate results."""
        return int(self.module.library.dll.kiln_executor_workspace_bytes(self._memory.handle))

    def __repr__(self) -> str:
        """Module and devices."""
        return f"<Executor of {self.module!r} on {', '.join(map(str, self.devices))}>"


def _module_of(lib: Module | Jittable) -> Module:
    if isinstance(lib, Module):
        return lib
    jit = getattr(lib, "jit", None)
    if jit is None:
        raise ArgumentTypeError(
            f"an Executor takes a Module or what compile() returns, received {type(lib).__name__}",
            code="argument-kind",
        )
    made = jit()
    if not isinstance(made, Module):
        raise ArgumentTypeError(f".jit() returned {type(made).__name__}, expected a Module")
    return made


def _device_list(devices: Device | Sequence[Device] | None) -> tuple[Device, ...]:
    found = (cpu(),) if devices is None else (devices,) if isinstance(devices, Device) else devices
    for device in found:
        if not isinstance(device, Device):
            raise ArgumentTypeError(
                f"devices are made by tk.cpu(), received {type(device).__name__}", code="device"
            )
        if device.kind != "cpu":
            raise UnsupportedError(f"no executor for {device} yet", hint="tk.cpu()")
    if not found:
        raise UserError("an Executor needs a device", code="device", hint="tk.cpu()")
    return tuple(found)
