"""Executor: functions of a module, bound to devices, with their memory and state."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, cast

from tensorkiln.base.errors import UnsupportedError
from tensorkiln.runtime.arguments import thread_count
from tensorkiln.runtime.device import Device, device_list
from tensorkiln.runtime.failures import ArgumentTypeError
from tensorkiln.runtime.given import is_a
from tensorkiln.runtime.graph import GraphFunction
from tensorkiln.runtime.module import Module, TensorFunction
from tensorkiln.runtime.native import ExecutorMemory
from tensorkiln.runtime.outer import OuterFunction
from tensorkiln.runtime.state import FunctionState


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
