"""Module: a loaded library, its functions by name. Executor: these functions bound to devices, with
their memory and state.

Both are in one file because each makes or takes the other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, cast

from tensorkiln.artifact.dependency import merge_dependencies
from tensorkiln.artifact.metadata import EXT_DEV, FunctionInfo, read_dependencies
from tensorkiln.base.dependency import ExternalDependency
from tensorkiln.base.errors import UnsupportedError, UserError, nearest
from tensorkiln.base.text import listed
from tensorkiln.runtime.actual_types import is_a, text_bytes
from tensorkiln.runtime.arguments import thread_count
from tensorkiln.runtime.callbacks import add_library, remove_library
from tensorkiln.runtime.device import (
    Device,
    Devices,
    assign_devices,
    example_devices,
)
from tensorkiln.runtime.failures import ArgumentTypeError, FunctionLookupError
from tensorkiln.runtime.fallback import Candidates, candidates, open_first
from tensorkiln.runtime.graph import GraphFunction
from tensorkiln.runtime.native import ExecutorMemory, NativeLibrary
from tensorkiln.runtime.outer import OuterFunction
from tensorkiln.runtime.state import FunctionState
from tensorkiln.runtime.tensor import DEFAULT_STREAM
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
        self.imports: list[Any] = []  # modules that loaders made (runtime/imported.py)
        self.keep: object = None  # kept alive as well: the folder of a temporary library
        self._callables: dict[str, TensorFunction] = {}
        # By number: those of executors and calls that choose none; set by load_module.
        self.devices: tuple[Device, ...] | None = None
        self.fallback: Devices = None  # as in load_module
        self._opened = False

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

    def get_external_dependencies(self) -> tuple[ExternalDependency, ...]:
        """The software that the library and all modules imported into it need, each once, sorted by
        name. Raises UserError (code `dependency-clash`) if two of one name differ, and those of
        the modules' own `get_external_dependencies`."""
        label = f"library {str(self.path)!r}"
        declared = [(label, d) for d in read_dependencies(self.metadata, label)]
        for module in self.imports:
            declared += [(repr(m), d) for m in module.below() for d in m.own_dependencies()]
        return merge_dependencies(declared)

    def info(self, name: str) -> FunctionInfo:
        """A function's parameters; FunctionLookupError with the nearest name for an unknown one."""
        data = text_bytes(name, "the name of a function")
        function = self.library.functions.get(name)
        if function is None:
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
        return function

    def __getitem__(self, name: str) -> TensorFunction:
        """A tensor function by name; FunctionLookupError for one that needs an Executor."""
        if type(name) is str and (function := self._callables.get(name)) is not None:
            return function
        info = self.info(name)
        if info.kind in ("graph", "outer"):
            raise FunctionLookupError(
                f"{name!r} is {_KINDS[info.kind]}: it runs in an Executor, which owns its memory",
                code="needs-executor",
                hint=f'Executor(lib, {example_devices(self.library.devices)})["{name}"]',
            )
        if any(p.device for p in info.inputs) and not self._opened:
            with self.library.using:
                open_first(self.library, None, self.by_number(self.assigned(None), None))
            self._opened = True
        tensor_function = self._callables[name] = TensorFunction(self.library, info)
        return tensor_function

    def assigned(self, devices: Devices) -> tuple[Device, ...]:
        """The device of each row of the library's table of devices; errors of `assign_devices`."""
        if devices is None and self.devices is not None:
            return self.devices
        return assign_devices(self.library.devices, devices, f"library {str(self.path)!r}")

    def by_number(self, devices: Sequence[Device], fallback: Devices) -> Candidates:
        """For each number of a device with memory of its own, the device that `assigned` returns
        for it, and those that replace it if it is not available. Raises the errors of
        `candidates`."""
        fallback = self.fallback if fallback is None else fallback
        return candidates(self.library.devices, devices, fallback, f"library {str(self.path)!r}")

    def create_executor(
        self, devices: Devices = None, *, fallback: Devices = None, graphs: bool = False
    ) -> Executor:
        """A new Executor of the functions on `devices`, with its own memory; see Executor."""
        return Executor(self, devices, fallback=fallback, graphs=graphs)

    def set_num_threads(self, threads: int) -> None:
        """Set how many threads a call may use, up to 4096; 0 means the default."""
        self.library.dll.kiln_set_num_threads(thread_count(threads))

    @property
    def num_threads(self) -> int:
        """Threads that a call may use, the calling thread included."""
        return int(self.library.dll.kiln_get_num_threads())

    def use_pool(self, parallel_for: Any) -> None:
        """Let parallel loops of all calls of this library run on a thread pool of the caller's.

        `parallel_for` is the C function `void (kiln_body body, void *closure, int64_t n, int
        threads)` of kiln.h: a function of a ctypes library, or its address. It is called without
        the interpreter lock, by several threads at once. None returns to the built-in pool. What it
        belongs to must stay loaded until another one is set and no call that began before is
        running; a function of ctypes is kept alive. Raises ArgumentTypeError for anything else, a
        function of Python among them: it would take the interpreter lock in each loop.
        """
        self.library.use_pool(parallel_for)

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
    executor.

    `devices` says which devices run the library's code: one, a list of them, or a mapping
    `{target_key: device or devices}`; None: what the module was loaded with, else the first of each
    kind. They are opened here. `fallback` names further devices of their kinds, or by target key,
    which are tried in order in the place of one that cannot be had; None: what the module was
    loaded with, else none. Afterwards `devices` are those that are used. `graphs` as `set_graphs`.

    Raises UserError (code `device`) for devices that do not fit the library's code, and DeviceError
    (codes `no-driver`, `no-device`, `device-capability`, `device-memory`, `device-build`) where a
    device cannot run it; the first three are those for which `fallback` is asked.
    """

    def __init__(
        self,
        lib: Module | Jittable,
        devices: Devices = None,
        *,
        fallback: Devices = None,
        graphs: bool = False,
    ):
        self.module = _module_of(lib)
        row_devices = self.module.assigned(devices)
        numbered = self.module.by_number(row_devices, fallback)
        self._require_loaded_with(row_devices)
        self._asked, self._fallback = devices, fallback
        self._memory = ExecutorMemory(self.module.library, numbered)
        rows, device_of_number = self.module.library.devices or (None,), self._memory.devices
        self.devices = tuple(
            device_of_number.get(row.number, device) if row else device
            for row, device in zip(rows, row_devices, strict=True)
        )
        self._functions: dict[str, GraphFunction | OuterFunction | TensorFunction] = {}
        self._states: dict[str, FunctionState] = {}
        self._limited: dict[int, Executor] = {}
        self._graphs = graphs
        if graphs is not False:
            self.set_graphs(graphs)

    def __getitem__(self, name: str) -> Callable[..., Any]:
        """A function by name; FunctionLookupError with the nearest name for an unknown one."""
        try:
            function = self._functions.get(name)
        except TypeError:  # not hashable, so not a name: info() raises
            function = None
        if function is None:
            info = self.module.info(name)
            if info.kind == "graph":
                function = GraphFunction(self._memory, info)
            elif info.kind == "outer":
                function = OuterFunction(self._memory, info)
            else:
                if any(p.device for p in info.inputs):
                    self._require_default(name)
                function = self.module[name]
            self._functions[name] = function
        return function

    def _require_loaded_with(self, devices: tuple[Device, ...]) -> None:
        """Raise UnsupportedError for another device of a loader than it has made its module for."""
        loaded = self.module.assigned(None)
        for row, device, loader_device in zip(
            self.module.library.devices, devices, loaded, strict=False
        ):
            if row.kind == EXT_DEV and device != loader_device:
                raise UnsupportedError(
                    f"the loader of target key {row.target_key!r} was called for "
                    f"{loader_device}, not for {device}",
                    hint="choose its device in load_module(path, devices), or jit(devices=...)",
                )

    def _require_default(self, name: str) -> None:
        if self.devices != self.module.assigned(None):
            raise UnsupportedError(
                f"{name} is a tensor function, which runs on the devices of its module: "
                f"{', '.join(map(str, self.module.assigned(None)))}",
                hint="choose the devices in load_module()",
            )

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
            state = self._states.get(name)
        except TypeError:  # as in __getitem__
            state = None
        if state is None:
            function = self[name]
            if isinstance(function, TensorFunction):
                raise ArgumentTypeError(
                    f"{name} is a tensor function: it writes into its arguments and has no state",
                    code="no-state",
                    hint=f'executor["{name}"](...)',
                )
            state = self._states[name] = FunctionState(function)
        return state

    def set_stream(self, stream: Any, device: Device | None = None) -> None:
        """Let calls queue what they do on a CUDA device in a stream: its address as an int, an
        object with `cuda_stream` (torch.cuda.Stream), or None for that of the call's tensors or of
        the library. `device` may be left out where the executor uses one CUDA device.

        Such calls return before the device is done, unless they copy from or to the host; a result
        waits when it is read. Raises ArgumentTypeError for anything else, and UserError (code
        `device`) for a device that the executor does not use.
        """
        address = 0 if stream is None else getattr(stream, "cuda_stream", stream)
        if not is_a(address, int) or is_a(address, bool) or address < 0:
            raise ArgumentTypeError(
                f"a stream is an address or has `cuda_stream`, received {type(stream).__name__}",
                code="argument-kind",
            )
        if device is not None and not is_a(device, Device):
            raise ArgumentTypeError(
                f"a stream's device is tk.cuda(i), received {type(device).__name__}",
                code="argument-kind",
            )
        cuda = {n: d for n, d in self._memory.devices.items() if d.kind == "cuda"}
        cuda_names = sorted({str(d) for d in cuda.values()})
        if stream is not None and device is None and len(cuda_names) != 1:
            raise UserError(
                f"a stream is of one CUDA device; this executor uses "
                f"{', '.join(cuda_names) or 'none'}",
                code="device",
                hint=f"set_stream(stream, tk.{cuda_names[0].replace(':', '(')}))"
                if cuda_names
                else "",
            )
        if device is not None and str(device) not in cuda_names:
            raise UserError(
                f"a stream is of a CUDA device of the executor, which uses "
                f"{', '.join(cuda_names) or 'none'}, received {device}",
                code="device",
            )
        if stream is not None:
            address = address or DEFAULT_STREAM  # torch calls the default stream 0
        with self.module.library.using:
            for number, cuda_device in cuda.items():
                if device is None or cuda_device == device:
                    self._memory.set_stream(number, address)

    def set_graphs(self, on: bool) -> None:
        """Let runs be CUDA graphs, or let them not.

        What a run launches between two copies from or to the host is then one graph. It is made
        when a function first runs with its sizes; later runs update the nodes whose parameters have
        changed. Results are the same. The graphs of the 16 runs that were last used are kept.
        Raises ArgumentTypeError for anything but a bool, UserError (code `device`) without a CUDA
        device, and DeviceError (code `no-driver`) with a driver older than CUDA 11.4.
        """
        if not is_a(on, bool):
            raise ArgumentTypeError(
                f"graphs: expected True or False, received {type(on).__name__}",
                code="argument-kind",
            )
        if on and not any(d.kind == "cuda" for d in self._memory.devices.values()):
            raise UserError(
                f"graphs are of CUDA devices; this executor uses "
                f"{', '.join(sorted({str(d) for d in self.devices}))}",
                code="device",
            )
        with self.module.library.using:
            self._memory.set_graphs(on)
        self._graphs = on

    @property
    def graph_counts(self) -> Mapping[str, int]:
        """Counters of `set_graphs`: graphs that were `launched` and `made`, nodes that were
        `updated`, and runs whose graphs were `dropped` to make room for others. Then what ran
        without a graph or split into several: runs in a stream that the caller `captured`, launches
        outside of a graph (`single`), and further graphs of one run where the `host` computes in
        between."""
        return self._memory.graph_counts()

    def set_num_threads(self, threads: int) -> None:
        """Set how many threads a call may use, the caller included; 0: the library's number."""
        set_threads = self.module.library.dll.kiln_executor_set_num_threads
        set_threads(self._memory.handle, thread_count(threads))

    def with_threads(self, threads: int) -> Executor:
        """An Executor of the same functions on the same devices, whose calls use at most `threads`
        threads, the caller included; 0: the library's own number. It has memory of its own; it is
        made at the first request for a number, and kept. The settings of streams are not copied.

        Raises ArgumentTypeError, ArgumentValueError for an invalid number of threads.
        """
        count = thread_count(threads)
        executor = self._limited.get(count)
        if executor is None:
            limited_executor = self.module.create_executor(
                self._asked, fallback=self._fallback, graphs=self._graphs
            )
            executor = self._limited.setdefault(count, limited_executor)
        executor.set_num_threads(count)  # again, since it could have been changed meanwhile
        return executor

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
    module = jit()
    if not isinstance(module, Module):
        raise ArgumentTypeError(f".jit() returned {type(module).__name__}, expected a Module")
    return module
