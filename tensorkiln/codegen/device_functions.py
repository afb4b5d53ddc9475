"""Device functions before they are printed in any language: refusals, and what a launch must know.

What no device runs is refused here, once for all languages: assertions, calls of C functions or of
other kernels, tiles of a CPU, and blocks beyond the limits of the target.
"""

from __future__ import annotations

from collections.abc import Iterator

from tensorkiln.base.errors import UnsupportedError
from tensorkiln.codegen.host.devices import DeviceFunction
from tensorkiln.ir.buffer import Buffer
from tensorkiln.ir.expr import DEVICE_INSTRUCTIONS, Intrin
from tensorkiln.ir.launch import launch_of
from tensorkiln.ir.stmt import Assert, CallKernel, PrimFunc
from tensorkiln.ir.tiles import tile_buffers
from tensorkiln.ir.visit import extern_names, stmt_exprs, walk, walk_stmt
from tensorkiln.target import Target

SHARED = "max_shared_memory_per_block"


def require_runnable(f: PrimFunc) -> None:
    """Raise UnsupportedError for what no device runs: assertions, calls of C functions, calls of
    other kernels, tiles of a CPU."""
    fault = hint = ""
    if any(isinstance(s, Assert) for s in walk_stmt(f.body)):
        fault = "a device function cannot report a failed assertion"
        hint = "assert before the launch, in a host function"
    elif called := sorted(extern_names(f)):
        fault = f"a device function calls the C function {called[0]!r}, which the device lacks"
    elif any(isinstance(s, CallKernel) for s in walk_stmt(f.body)):
        fault = "a device function calls another kernel"
    elif tiles := list(tile_buffers(f.body)):
        fault = f"buffer {tiles[0].name} is in tiles, which only CPUs have"
        hint = "'local', 'register' and 'shared' are scopes of a device"
    if fault:
        raise UnsupportedError(fault, where=f.name, hint=hint)


def instructions_in(f: PrimFunc) -> Iterator[Intrin]:
    """The device instructions of a function (`ir/device_instructions.py`)."""
    for s in walk_stmt(f.body):
        for e in stmt_exprs(s):
            for x in walk(e):
                if isinstance(x, Intrin) and x.name in DEVICE_INSTRUCTIONS:
                    yield x


def described(
    f: PrimFunc, target: Target, extensions: tuple[str, ...] = (), shared: str = SHARED
) -> DeviceFunction:
    """What a launch of `f` needs to know. Raises UnsupportedError for a block of more threads or
    shared memory than the target has; `shared` is the target's option for the latter."""
    params = ["buffer" if isinstance(p, Buffer) else p.dtype.name for p in f.params]
    launch = launch_of(f)
    x, y, z = launch.block
    for noun, count, option in (
        ("threads in a block", x * y * z, "max_num_threads"),
        ("bytes of shared memory", launch.shared_bytes, shared),
    ):
        limit = target[option]
        if isinstance(limit, int) and count > limit:
            message = f"a device function needs {count} {noun}, and the target has {limit}"
            raise UnsupportedError(message, where=f.name, hint=f"the target's option {option}")
    return DeviceFunction(f.name, tuple(params), launch.block, launch.shared_bytes, extensions)


__all__ = ["described", "instructions_in", "require_runnable"]
