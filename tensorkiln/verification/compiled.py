"""The compiled function that `tk.verify` gets, an Executable or a library in a file, behind one
interface.

A graph function that was compiled with `debug` has additional outputs: the values between its
kernels (`FunctionInfo.kept` says which). A function with control flow runs on the host; compiled
with `debug`, it passes these values to a function of Python as it computes them.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tensorkiln.artifact.metadata import FunctionInfo, KeptInfo, KernelInfo
from tensorkiln.base.errors import TensorkilnError, UserError, nearest
from tensorkiln.executable import Debug, Executable
from tensorkiln.inspectors.library import inspect_library
from tensorkiln.ir.kept import KEPT_VALUES, kept_of
from tensorkiln.ir.module import IRModule
from tensorkiln.ir.relax import Binding, Call, Function, GlobalRef
from tensorkiln.measure.inputs import arrays_of, in_bytes, typed
from tensorkiln.pipeline import plan_for
from tensorkiln.runtime.callbacks import register_function, unregister_function
from tensorkiln.runtime.device import Devices
from tensorkiln.runtime.load import load_module
from tensorkiln.runtime.locks import ProcessLock
from tensorkiln.runtime.module import Module
from tensorkiln.schedule.choose import trace_of
from tensorkiln.schedule.group import Group
from tensorkiln.schedule.lower import LowerGroups
from tensorkiln.target import Target, schedule_target, target_in

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class FusedGroup:
    """The fused group that a kernel computes: `binding` of `caller` is the call of `function`."""

    module: IRModule
    caller: Function
    binding: Binding
    function: Function


@dataclass(frozen=True, slots=True)
class Event:
    """Values that became known together: `rows` describe them, in the order in which they were
    computed."""

    rows: tuple[KeptInfo, ...]
    values: tuple[Array, ...]


@dataclass(frozen=True, slots=True)
class Ran:
    """The results of a run: the outputs and, in the order of time, the values between kernels."""

    outputs: list[Array]
    events: tuple[Event, ...]


@dataclass(frozen=True, slots=True)
class Compiled:
    """A compiled graph function. `path` is that of its library, empty for an Executable."""

    info: FunctionInfo
    target: Target
    kernels: Mapping[str, KernelInfo]
    module: Module
    devices: Devices = None
    path: str = ""
    executable: Executable | None = None

    def run(self, inputs: Sequence[Array]) -> Ran:
        """Call the function. The outputs include those that only `debug` adds. Elements of types
        that NumPy lacks are returned as their bytes."""
        arrays = list(map(typed, inputs, self.info.inputs))
        call = self.module.create_executor(self.devices)[self.info.name]
        if self.info.kind == "graph":
            outputs = [np.array(in_bytes(a)) for a in arrays_of(call(*arrays))]
            inner = self.info.kept
            return Ran(outputs, (Event(inner, tuple(outputs[k.output] for k in inner)),))
        with _shown() as events:
            outputs = [np.array(a) for a in arrays_of(call(*arrays))]
        rows = {k.output: k for k in self.info.kept}
        return Ran(
            outputs,
            tuple(
                Event(tuple(rows[i] for i in range(first, first + len(values))), values)
                for first, values in events
            ),
        )

    def debug(self, model: IRModule) -> Debug | None:
        """The module of fused groups, and the passes that lead to it from `model`. An Executable
        remembers them; for a library, the passes of its target are run again. None if these do not
        give the kernels that the library has."""
        if self.executable is not None:
            return self.executable.debug
        passes = plan_for(self.target).with_kept_values().relax
        try:
            for p in passes:
                if isinstance(p, LowerGroups):
                    break
                model = p(model)
        except TensorkilnError:
            return None
        f = model.get(self.info.name)
        if not isinstance(f, Function):
            return None
        debug_rows = [
            (k.output, k.names) for k in kept_of(f.attrs)
        ]  # kernels have other names by now
        is_equal = debug_rows == [(k.output, k.names) for k in self.info.kept]
        return Debug(model, passes) if is_equal else None

    def schedule(self, group: FusedGroup) -> str:
        """The trace of the schedule of a group; empty if an external compiled it."""
        if group.function.external or not group.function.is_primitive:
            return ""
        group_target = target_in(schedule_target(self.target), group.function.attrs)
        try:
            return trace_of(Group(group.function, group.function.name, group_target), group_target)
        except TensorkilnError:
            return ""


_shown_lock = ProcessLock(threading.RLock)


@contextmanager
def _shown() -> Iterator[list[tuple[int, tuple[Array, ...]]]]:
    """Collect what functions with control flow report in this thread: for each report the number of
    its first row in `kept`, and the values."""
    events: list[tuple[int, tuple[Array, ...]]] = []
    thread = threading.get_ident()

    def show(first: int, values: Sequence[Any]) -> None:
        if threading.get_ident() == thread:
            events.append((int(first), tuple(np.array(a) for a in arrays_of(tuple(values)))))

    with _shown_lock:  # the function is registered for the whole process
        register_function(KEPT_VALUES, show)
        try:
            yield events
        finally:
            unregister_function(KEPT_VALUES)


def opened(source: object, function: str, devices: Devices) -> Compiled:
    """The function of an Executable, or of the library at a path.

    Raises UserError: `wrong-type` for anything else, `no-function`, `argument-kind` for a function
    whose arguments or results are not all tensors.
    """
    if isinstance(source, Executable):
        outer = source.outer.infos if source.outer else ()
        infos = {f.name: f for f in (*(f.info for f in source.functions), *outer)}
        info = _function(infos, function, source.name)
        kernels = {k.symbol: k for k in source.kernels}
        return Compiled(info, source.target, kernels, source.jit(), devices, executable=source)
    if not isinstance(source, str | Path):
        raise UserError(
            f"verify takes an Executable or the path of a library, not {type(source).__name__}",
            code="wrong-type",
            hint="tk.compile(mod, debug=True) makes an Executable",
        )
    metadata = inspect_library(source).metadata
    info = _function({f.name: f for f in metadata.functions}, function, str(source))
    kernels = {k.symbol: k for k in metadata.kernels}
    target = Target(dict(metadata.target))
    return Compiled(info, target, kernels, load_module(source), devices, path=str(source))


def with_debug(compiled: Compiled, executable: Executable) -> Compiled:
    """The same function, of an Executable that was compiled again with `debug`."""
    debug_build = opened(executable, compiled.info.name, compiled.devices)
    return replace(debug_build, devices=compiled.devices)


def _function(functions: Mapping[str, FunctionInfo], name: str, owner: str) -> FunctionInfo:
    info = functions.get(name)
    if info is None or info.kind == "tensor":
        graphs = [n for n, f in functions.items() if f.kind != "tensor"]
        raise UserError(
            f"{owner!r} has no graph function {name!r}",
            code="no-function",
            hint=nearest(name, graphs) or f"it has: {', '.join(graphs) or 'none'}",
        )
    for tensor in (*info.inputs, *info.outputs):
        if tensor.shape is None and info.kind == "graph":
            raise UserError(f"{name} takes or returns {tensor.dtype}", code="argument-kind")
    for tensor in info.inputs:
        if tensor.shape is None:
            raise UserError(
                f"{name} takes {tensor.name!r}, {tensor.dtype}: only tensors can be passed",
                code="argument-kind",
            )
    return info


def group_of(fused: IRModule, name: str) -> FusedGroup | None:
    """The group that computes the value of this name; None if the value is not the result of a
    group's call."""
    for f in fused.functions:
        if not isinstance(f, Function) or f.is_primitive:
            continue
        for b in f.bindings:
            if b.var.name != name or not isinstance(b.value, Call):
                continue
            callee = b.value.callee
            group = fused.get(callee.name) if isinstance(callee, GlobalRef) else None
            if isinstance(group, Function):
                return FusedGroup(fused, f, b, group)
    return None
