"""Module: a loaded library, its functions by name. Executor: these functions bound to devices, with
their memory and state.

Both are in one file because each makes or takes the other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, cast

from tensorkiln.artifact.metadata import FunctionInfo
from tensorkiln.base.errors import UnsupportedError, UserError, nearest
from tensorkiln.base.text import listed
from tensorkiln.runtime.actual_types import is_a, text_bytes
from tensorkiln.runtime.arguments import thread_count
from tensorkiln.runtime.callbacks import add_library, remove_library
from tensorkiln.runtime.device import Device, device_list
from tensorkiln.runtime.failures import ArgumentTypeError, FunctionLookupError
from tensorkiln.runtime.graph import GraphFunction
from tensorkiln.runtime.native import ExecutorMemory, NativeLibrary
from tensorkiln.runtime.outer import OuterFunction
from tensorkiln.runtime.state import FunctionState
from tensorkiln.runtime.tensor_function import TensorFunction

_KINDS = {"graph": "a graph function", "outer": "an outer function"}


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


class Jittable(Protocol):
    """Something that becomes a Module, such as what `compile` returns."""

    def jit(self) -> Module:
        """The loaded module."""
        ...


class Executor:
    """`Executor(lib, tk.cpu())["main"](x)`: functions of a module on devices.

    `lib` is a Module or anything with `.jit()`. An executor owns the memory for intermediate
    results, which grows on demand. Calls release the interpreter lock; several threads may call at
    once, and a callback may call again. The state of `set_input`, `set_output`, `invoke` and
    `get_outputs` exists once per function: to use it from several threads, give each its own
    executor. Raises UnsupportedError for devices other than the CPU.
    """

    def __init__(self, lib: Module | Jittable, devices: Device | Sequence[Device] | None = None):
        self.module = _module_of(lib)
        self.devices = _cpu_only(device_list(devices))
        self._memory = ExecutorMemory(self.module.library)
        self._functions: dict[str, GraphFunction | OuterFunction | TensorFunction] = {}
        self._states: dict[str, FunctionState] = {}

    def __getitem__(self, name: str) -> Callable[..., Any]:
        """A function by name; FunctionLookupError with the nearest name for an unknown one."""
        try:
            found = self._functions.get(name)
        except TypeError:  # not hashable, so not a name: info() raises
            found = None
        if found is None:
            info = self.module.info(name)
            if info.kind == "graph":
                found = GraphFunction(self._memory, info)
            elif info.kind == "outer":
                found = OuterFunction(self._memory, info)
            else:
                found = self.module[name]
            self._functions[name] = found
        return found

    def set_input(self, function: str, /, *inputs: Any, **named: Any) -> None:
        """Set all inputs of a function, by position or name, for `invoke`. Nothing is copied."""
        self._state(function).set_input(inputs, named)

    def set_output(self, function: str, index: int, place: Any) -> None:
        """Let `invoke` write output `index` into the caller's tensor `place`; None unbinds it.

        Kernels of a graph function write there directly. Output k of an outer function is item k
        of its result tuple, or the whole result if k is 0 and it is not a tuple; it is copied.
        """
        self._state(function).set_output(index, place)

    def invoke(self, function: str) -> None:
        """Run a function on the inputs that were set."""
        self._state(function).invoke()

    def get_outputs(self, function: str) -> Any:
        """The result of the last `invoke`; a bound output is the very tensor that was bound."""
        return self._state(function).outputs()

    def _state(self, name: str) -> FunctionState:
        try:
            found = self._states.get(name)
        except TypeError:  # as in __getitem__
            found = None
        if found is None:
            function = self[name]
            if isinstance(function, TensorFunction):
                raise ArgumentTypeError(
                    f"{name} is a tensor function: it writes into its arguments and has no state",
                    code="no-state",
                    hint=f'executor["{name}"](...)',
                )
            found = self._states[name] = FunctionState(function)
        return found

    def set_num_threads(self, threads: int) -> None:
        """Set how many threads a call may use, the caller included; 0: the library's number."""
        set_threads = self.module.library.dll.kiln_executor_set_num_threads
        set_threads(self._memory.handle, thread_count(threads))

    @property
    def workspace_bytes(self) -> int:
        """Planned bytes of intermediate results, the maximum over all calls so far."""
        return int(self.module.library.dll.kiln_executor_workspace_bytes(self._memory.handle))

    def __repr__(self) -> str:
        """Module and devices."""
        return f"<Executor of {self.module!r} on {', '.join(map(str, self.devices))}>"


def _module_of(lib: Module | Jittable) -> Module:
    if is_a(lib, Module):
        return cast("Module", lib)
    jit = getattr(lib, "jit", None)
    if not callable(jit):
        raise ArgumentTypeError(
            f"an Executor takes a Module or what compile() returns, received {type(lib).__name__}",
            code="argument-kind",
        )
    made = jit()
    if not isinstance(made, Module):
        raise ArgumentTypeError(f".jit() returned {type(made).__name__}, expected a Module")
    return made


def _cpu_only(devices: tuple[Device, ...]) -> tuple[Device, ...]:
    for device in devices:
        if device.kind != "cpu":
            raise UnsupportedError(f"no executor for {device} yet", hint="tk.cpu()")
    return devices
