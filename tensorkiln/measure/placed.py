"""A trace of one run: which kernel calls it made, and on which device each ran.
`Executable.placement` says the same for all kernels without a run.
"""

from __future__ import annotations

import ctypes
import dataclasses
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tensorkiln.artifact import Artifact, ArtifactSet
from tensorkiln.base.errors import InternalError, UserError, nearest, require
from tensorkiln.base.text import listed
from tensorkiln.codegen.host.function import HostFunction
from tensorkiln.executable import Executable
from tensorkiln.link.artifacts import LINK_PLAN, LinkPlan
from tensorkiln.measure.calls import around_calls, host_functions
from tensorkiln.runtime.device import Devices
from tensorkiln.runtime.loaded import LoadedModel
from tensorkiln.runtime.module import Module
from tensorkiln.target import HOST, accelerators, devices_of

_HOOK, _SOURCE, _HEADER = "kiln_traced", "traced.c", "kiln_traced_call"
# What the host code reports: the start of a kernel in a function; a launch on a device, by number;
# a call of a loader's module, by target key.
_CALL, _LAUNCH, _IMPORT = 0, 1, 2
_DECLARED = f"""
#if !defined(KILN_TRACED)
#define KILN_TRACED
#include <stdint.h>
void {_HEADER}(int, const char *, const char *, int64_t);
#endif
"""
_FUNCTION = ctypes.CFUNCTYPE(
    None, ctypes.c_int, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_int64, use_errno=False
)


@dataclass(frozen=True, slots=True)
class KernelRun:
    """One call of a kernel in a run: the function of the library that called it (for control flow
    the part without branches), the kernel's symbol and class, the model's node that it computed
    (empty if none has a name), and the device that it ran on, by its target key, `host` or `cpu`
    as in `Placement`."""

    function: str
    kernel: str
    kernel_class: str
    device: str
    node: str


def trace(
    executable: Executable,
    /,
    *arguments: Any,
    function: str | None = None,
    devices: Devices = None,
) -> tuple[KernelRun, ...]:
    """Run a function once, and return its kernel calls in the order in which they ran.

    `arguments` are those of a call, by position or as one dictionary by name; `function` is by
    default the entry, and `devices` as for Executor. The host code is linked again with a report of
    each call: kernels are the same, and so is the plan. Where a kernel ran is what ran says: a
    launch names its device, a loader's kernel its module, another one the artifact with its code.
    Copies between devices are in `Executable.copies`.

    Raises the errors of the call; UserError (code `unknown-function`); UnsupportedError for target
    llvmjit.
    """
    require(executable, Executable, "executable")
    name = executable.entry if function is None else function
    require(name, str, "function")
    plans = {f.info.name: f for f in host_functions(executable)}
    infos = {f.name: f for f in executable._infos()}
    if name not in infos:
        hint = nearest(name, infos) or "functions: " + listed(infos)
        raise UserError(f"no function is called {name!r}", code="unknown-function", hint=hint)
    events = list[tuple[int, str, str, int]]()

    def report(kind: int, first: bytes, second: bytes, number: int) -> None:
        events.append((kind, first.decode(), second.decode(), number))

    callback = _FUNCTION(report)
    module = _reporting(executable).jit()
    try:
        hook = ctypes.c_void_p.in_dll(module.library.dll, _HOOK)
        hook.value = ctypes.cast(callback, ctypes.c_void_p).value
        _call(module, name, infos[name].kind, arguments, devices)
        hook.value = None
        numbers = {d.number: d.target_key for d in module.library.devices}
    finally:
        module.close()
    return tuple(_rows(executable, plans, numbers, events))


def _call(module: Module, name: str, kind: str, arguments: Sequence[Any], devices: Devices) -> None:
    model = LoadedModel(module, module.create_executor(devices), None)
    model[name](*arguments)


def _reporting(exe: Executable) -> Executable:
    """A copy of `exe` whose host code calls `*kiln_traced` for what it runs."""
    launch = (
        f'#define kiln_launch(f, ...) do {{ {_HEADER}({_LAUNCH}, "", "", (f)->device); '
        "kiln_launch(f, __VA_ARGS__); } while (0)\n"
    )
    head = _DECLARED + (launch if accelerators(exe.target) else "")
    before = f"{_HEADER}({_CALL}, __func__, SYMBOL, 0)"
    source = f"""{_DECLARED}
__attribute__((visibility("default"))) void (*{_HOOK})(int, const char *, const char *, int64_t);

void {_HEADER}(int what, const char *first, const char *second, int64_t number)
{{
    if ({_HOOK} != 0)
        {_HOOK}(what, first, second, number);
}}
"""
    instrumented = around_calls(exe, before, "(void)0", head, {_SOURCE: source})
    plan = LinkPlan.of(exe.artifacts)
    exports = dataclasses.replace(plan, exports=(*plan.exports, _HOOK)).to_bytes()
    artifacts = [
        _changed(a, exports) if isinstance(a, Artifact) else a for a in instrumented.artifacts
    ]
    return dataclasses.replace(
        instrumented, artifacts=ArtifactSet(tuple(artifacts), instrumented.artifacts.imports)
    )


def _changed(a: Artifact, plan: bytes) -> Artifact:
    if a.name == f"host/{LINK_PLAN}":
        return dataclasses.replace(a, content=plan)
    if a.name == "host/imports.c":  # each kernel of a loader is a call of this function
        report = (
            f"{_DECLARED}#define kiln_import_kernel(loader, key, ...) do {{ "
            f"{_HEADER}({_IMPORT}, loader, key, 0); kiln_import_kernel(loader, key, __VA_ARGS__); "
            "} while (0)\n"
        )
        include = '#include "loader.h"\n'
        return dataclasses.replace(
            a, content=a.text().replace(include, include + report, 1).encode()
        )
    return a


def _rows(
    exe: Executable,
    plans: Mapping[str, HostFunction],
    numbers: Mapping[int, str],
    events: Sequence[tuple[int, str, str, int]],
) -> list[KernelRun]:
    host = HOST if devices_of(exe.target) else "cpu"
    classes = {k.symbol: k.kernel_class for k in exe.kernels}
    homes = {
        a.file_name.rpartition(".")[0]: a.target_key or host
        for a in exe.artifacts
        if a.loader == "native"
    }
    copies = {f.name for f in exe.module.copies}
    positions, runs = Counter[str](), list[KernelRun]()
    for kind, first, second, number in events:
        if kind == _CALL:
            name = first.removeprefix("run_")
            calls = plans[name].calls
            call = calls[positions[name] % len(calls)]
            positions[name] += 1
            if call.symbol != second:
                raise InternalError(f"{name} ran {second}, its plan says {call.symbol}")
            if second in copies:
                continue
            device = homes.get(second, host)
            runs.append(KernelRun(name, second, classes.get(second, ""), device, call.span))
        elif runs:
            device = numbers[number] if kind == _LAUNCH else second or host
            runs[-1] = dataclasses.replace(runs[-1], device=device)
    return runs


__all__ = ["KernelRun", "trace"]
