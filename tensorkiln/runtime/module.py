"""Module: a loaded library, its functions by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from tensorkiln.artifact.metadata import FunctionInfo, ParamInfo
from tensorkiln.base.errors import UserError, nearest
from tensorkiln.base.text import listed
from tensorkiln.runtime.arguments import in_order, thread_count
from tensorkiln.runtime.callbacks import add_library, remove_library
from tensorkiln.runtime.failures import ArgumentTypeError, FunctionLookupError
from tensorkiln.runtime.fast_call import Signature
from tensorkiln.runtime.given import is_a, text_bytes
from tensorkiln.runtime.native import NativeLibrary, Value
from tensorkiln.runtime.numbers import TENSOR, not_a_number, put_number
from tensorkiln.runtime.tensor import tensor_hint, view_of, view_of_set

if TYPE_CHECKING:
    from tensorkiln.runtime.device import Device
    from tensorkiln.runtime.executor import Executor

_KINDS = {"graph": "a graph function", "outer": "an outer function"}


class _Call:
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
        kept = []
        if len(arguments) == len(self.info.inputs):  # else kiln_call() reports the count
            for value, param, argument in zip(values, self.info.inputs, arguments, strict=True):
                kept.append(self._fill(value, param, argument))
        library = self._library
        with library.using:
            library.check(library.dll.kiln_call(self.index, values, len(values)))

    def _fill(self, value: Value, param: ParamInfo, argument: object) -> object:
        """Write one argument into `value`; return what must stay alive during the call."""
        what = f"{self.info.name}: argument {param.name!r}"
        if param.role == "scalar":
            if put_number(value, argument, what, param.dtype):
                return None
            raise not_a_number(what, param.dtype, argument)
        if is_a(argument, bool, int, float) and not is_a(argument, np.generic):
            shape = ", ".join(map(str, param.shape or ()))
            raise ArgumentTypeError(  # the same message as in crt
                f"{what} must be a tensor of shape [{shape}], "
                "received a value that is not a tensor",
                code="argument-kind",
                hint=tensor_hint(argument),
            )
        if param.dtype == "handle" and is_a(argument, tuple, list):
            address, kept = view_of_set(tuple(cast("Sequence[object]", argument)), what)
        else:
            writes = param.role in ("out", "inout")
            address, kept = view_of(argument, what, writable=writes)
        value.kind, value.payload.pointer = TENSOR, address
        return kept


class TensorFunction:
    """A tensor function: the caller passes every parameter, tensors and numbers, by position or
    name; results are written in place."""

    # `__call__` is a builtin per object, as in GraphFunction.
    __slots__ = ("__call__", "__weakref__", "info", "name")
    __call__: Callable[..., None]

    def __init__(self, library: NativeLibrary, info: FunctionInfo):
        self.info = info
        self.name = info.name
        call = _Call(library, info)
        signature = Signature(len(info.inputs))
        takes_numbers = any(p.role == "scalar" for p in info.inputs)
        self.__call__ = call if takes_numbers else library.calls.bind(call.index, signature, call)

    def __repr__(self) -> str:
        """Name and parameters."""
        return f"<tensor function {self.name}({', '.join(p.name for p in self.info.inputs)})>"


class Module:
    """A loaded library. `module["add_one"](x, y)` calls a tensor function; graph functions need
    an Executor, which owns the memory for their intermediate results.

    The library is unloaded by `close`, or when the Module, its functions and executors, and the
    values that it returned are no longer referenced.
    """

    # The loader of host code is `native`; what it makes is a module of kind `library`.
    kind = "library"
    type_key = "library"

    def __init__(self, library: NativeLibrary):
        self.library = library
        self.imports: list[Any] = []  # modules that loaders made (runtime/load.py)
        self.keep: object = None  # kept alive as well: the folder of a temporary library
        self._callables: dict[str, TensorFunction] = {}

    @property
    def imported_modules(self) -> list[Any]:
        """The same as `imports`."""
        return self.imports

    @property
    def path(self) -> Path:
        """The library's file; `<name in memory>` for one that was linked in memory."""
        return self.library.path

    @property
    def metadata(self) -> Mapping[str, Any]:
        """The library's metadata (docs/formats/library.md)."""
        return self.library.metadata

    @property
    def functions(self) -> Mapping[str, FunctionInfo]:
        """All functions by name, with their parameters."""
        return self.library.functions

    def __contains__(self, name: object) -> bool:
        """Whether the library has a function of that name."""
        return is_a(name, str) and name in self.library.functions

    def info(self, name: str) -> FunctionInfo:
        """A function's parameters; FunctionLookupError with the nearest name for an unknown one."""
        data = text_bytes(name, "the name of a function")
        found = self.library.functions.get(name)
        if found is None:
            # In C a zero byte would end the name, and the rest of it would be ignored.
            if self.library.index(data.replace(b"\0", b"\\0")) >= 0:
                raise UserError(
                    f"{str(self.path)!r} is not a Tensorkiln library: its metadata is damaged",
                    code="not-a-library",
                )
            raise FunctionLookupError(
                self.library.dll.kiln_last_error().decode(errors="replace"),
                code="no-function",
                hint=nearest(name, self.library.functions),
            )
        return found

    def __getitem__(self, name: str) -> TensorFunction:
        """A tensor function by name; FunctionLookupError for one that needs an Executor."""
        if type(name) is str and (known := self._callables.get(name)) is not None:
            return known
        info = self.info(name)
        if info.kind in ("graph", "outer"):
            raise FunctionLookupError(
                f"{name!r} is {_KINDS[info.kind]}: it runs in an Executor, which owns its memory",
                code="needs-executor",
                hint=f'Executor(lib, tk.cpu())["{name}"]',
            )
        made = self._callables[name] = TensorFunction(self.library, info)
        return made

    def create_executor(self, devices: Device | Sequence[Device] | None = None) -> Executor:
        """A new Executor of the functions on `devices` (None: the CPU), with its own workspace."""
        from tensorkiln.runtime.executor import Executor

        return Executor(self, devices)

    def set_num_threads(self, threads: int) -> None:
        """Set how many threads a call may use, up to 4096; 0 means the default."""
        self.library.dll.kiln_set_num_threads(thread_count(threads))

    @property
    def num_threads(self) -> int:
        """Threads that a call may use, the calling thread included."""
        return int(self.library.dll.kiln_get_num_threads())

    def close(self, *, wait: bool = False) -> None:
        """Unload the library. Executors and functions of it raise UserErrors from then on.

        Raises UserError (code `in-use`), and leaves the library loaded, while a call is running or
        a value that it returned is alive, whose memory would be freed. With `wait`, running calls
        of other threads are waited for, and new ones raise. Within a call of this thread, in a
        callback or in `__dlpack__` of an argument, `close` raises even with `wait`.
        """
        library = self.library
        if library.has_values:
            library.close(
                wait=wait,
                forget=lambda: remove_library(library),
                recall=lambda: add_library(library),
            )
        else:
            library.close(wait=wait)

    def __repr__(self) -> str:
        """File and function names."""
        return f"<Module {str(self.path)!r}: {listed(self.functions, 8)}>"
