"""Instrument every kernel call of a model with C code, such as a clock.

A kernel timed alone finds its weights in the cache. Here the host code that calls the kernels is
compiled with a clock around each call, so that each kernel runs in the cache state of a real run.
"""

from __future__ import annotations

import ctypes
import dataclasses
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tensorkiln.artifact import Artifact, ArtifactSet
from tensorkiln.base.errors import InternalError, UnsupportedError, UserError, nearest
from tensorkiln.base.text import listed
from tensorkiln.base.trust import private_temporary
from tensorkiln.codegen.host.devices import DEVICE_TABLE
from tensorkiln.codegen.host.function import HostFunction
from tensorkiln.codegen.host.run_c import prototypes
from tensorkiln.executable import Executable
from tensorkiln.runtime import Executor, load_module
from tensorkiln.runtime.tensor import Array

_CLOCK = "clock.c"
_TICKS = "kiln_ticks"


@dataclass(frozen=True, slots=True)
class CallTime:
    """One kernel call of a function: the least (`micros`) and the median microseconds over all
    runs, and the model's node that it computes."""

    symbol: str
    node: str
    micros: float
    median: float


@dataclass(frozen=True, slots=True)
class RunTime:
    """Microseconds of the fastest of `runs` whole runs, measured in Python, and the times of each
    kernel call in execution order."""

    micros: float
    runs: int
    calls: tuple[CallTime, ...]


def around_calls(
    exe: Executable, before: str, after: str, head: str = "", files: Mapping[str, str] = {}
) -> Executable:
    """A copy of `exe` whose host code runs the C statements `before` and `after` around each call
    of a kernel, those of host steps (branches, loops) included.

    In both, `SYMBOL` is replaced by the kernel's name as a C string. `head` is C text that precedes
    them in `entry.c`, and what launches device functions there, such as declarations; `files` are
    further C files. Raises UnsupportedError for target llvmjit, whose host code is an object.
    """
    entries = [a for a in exe.artifacts if a.name == "host/entry.c" and isinstance(a, Artifact)]
    if not entries:
        raise UnsupportedError(
            "host code of target llvmjit is compiled already", hint="a target of kind llvm"
        )
    (entry,) = entries
    functions = host_functions(exe)
    declared = prototypes(functions)
    symbols = dict.fromkeys(call.symbol for f in functions for call in f.calls)
    macros = [_macro(s, before, after) for s in symbols]  # C expands no macro in itself
    text = entry.text()
    if declared:
        if text.count(declared) != 1:
            raise InternalError("entry.c does not declare its kernels as it should")
        text = text.replace(declared, f"{declared}\n{head}\n")
        position = text.index(declared) + len(declared)
        devices = text.find(
            DEVICE_TABLE, position
        )  # behind the kernels that launch device functions
        position = (
            text.index("\n};\n", devices) + 4
            if devices >= 0
            else text.index(head, position) + len(head)
        )
        text = "\n".join([text[:position], *macros, text[position:]])
    changed = dataclasses.replace(entry, content=text.encode())
    artifacts = [changed if a is entry else a for a in exe.artifacts]
    artifacts += [Artifact("host", "native", name, c.encode()) for name, c in files.items()]
    return dataclasses.replace(
        exe,
        artifacts=ArtifactSet(tuple(artifacts), exe.artifacts.imports),
        _loaded=None,
        _model=None,
    )


def host_functions(exe: Executable) -> tuple[HostFunction, ...]:
    """All functions with a call plan: the public ones, then those that host steps call."""
    return (*exe.functions, *(exe.outer.helpers if exe.outer else ()))


def _macro(symbol: str, before: str, after: str) -> str:
    body = f"{before}; {symbol}(__VA_ARGS__); {after};".replace("SYMBOL", f'"{symbol}"')
    return f"#define {symbol}(...) do {{ {body} }} while (0)"


def _clock_c(calls: int, clock: str) -> str:
    """C that fills `kiln_ticks`: a count, then clock readings in nanoseconds, two for each call."""
    return f"""#define _POSIX_C_SOURCE 199309L
#include <stdint.h>
#include <time.h>

__attribute__((visibility("default"))) int64_t {_TICKS}[{1 + 2 * calls}];

void kiln_tick(void);
void kiln_tick(void)
{{
    struct timespec now;
    clock_gettime({clock}, &now);
    {_TICKS}[1 + {_TICKS}[0]++] = now.tv_sec * INT64_C(1000000000) + now.tv_nsec;
}}
"""


def graph_function(exe: Executable, name: str) -> HostFunction:
    """The host function `name`, with its kernel calls; UserError if it is not a graph function."""
    graphs = {f.info.name: f for f in exe.functions if f.info.kind == "graph"}
    if name not in graphs:
        hint = nearest(name, graphs) or "graph functions: " + listed(sorted(graphs))
        raise UserError(f"no graph function is called {name!r}", code="unknown-function", hint=hint)
    return graphs[name]


def time_calls(
    exe: Executable,
    inputs: Mapping[str, Array],
    seconds: float = 1.0,
    threads: int = 1,
    function: str = "main",
) -> RunTime:
    """Run a function on `inputs` for at least `seconds` and return the time of each kernel call.

    `inputs` are in the order of the function's parameters. With one thread, its CPU time is
    measured, so that other load on the machine disturbs less; with several, wall-clock time.
    """
    plan = graph_function(exe, function)
    count = len(plan.calls)
    name, clock = (
        ("CLOCK_THREAD_CPUTIME_ID", time.thread_time)
        if threads == 1
        else ("CLOCK_MONOTONIC", time.perf_counter)
    )
    source = _clock_c(count, name)
    timed = around_calls(
        exe, "kiln_tick()", "kiln_tick()", "void kiln_tick(void);", {_CLOCK: source}
    )
    with private_temporary("kiln-calls-") as folder:
        library = load_module(timed.export_library(Path(folder) / "calls.so", exports=[_TICKS]))
        library.set_num_threads(threads)
        ticks = (ctypes.c_int64 * (1 + 2 * count)).in_dll(library.library.dll, _TICKS)
        run = Executor(library)[function]
        walls, spans = _runs(lambda: run(*inputs.values()), ticks, count, seconds, clock)
    minima, medians = spans.min(axis=0), np.median(spans, axis=0)
    calls = (
        CallTime(c.symbol, c.span, float(a), float(b))
        for c, a, b in zip(plan.calls, minima, medians, strict=True)
    )
    return RunTime(min(walls), len(walls), tuple(calls))


def _runs(
    run: Callable[[], object],
    ticks: ctypes.Array[ctypes.c_int64],
    count: int,
    seconds: float,
    clock: Callable[[], float],
) -> tuple[list[float], Array]:
    """Microseconds of each run, and of each call as an array [runs, calls]; at least three runs."""
    run()
    walls: list[float] = []
    spans: list[Array] = []
    end = time.perf_counter() + seconds
    while len(walls) < 3 or time.perf_counter() < end:
        ticks[0] = 0
        start = clock()
        run()
        walls.append((clock() - start) * 1e6)
        if ticks[0] != 2 * count:
            raise InternalError(f"{ticks[0]} ticks of {count} calls")
        marks = np.array(ticks[1:], np.int64).reshape(count, 2)
        spans.append((marks[:, 1] - marks[:, 0]) / 1e3)
    return walls, np.array(spans)
