"""Verifier of calls between tensor programs, and of the memory that planned graphs access."""

from __future__ import annotations

from collections.abc import Mapping

from tensorkiln.ir.buffer import AddressOf, Buffer
from tensorkiln.ir.dtype import HANDLE, INT64
from tensorkiln.ir.expr import int_value
from tensorkiln.ir.hints import among
from tensorkiln.ir.malformed import Malformed, listed, step, stored
from tensorkiln.ir.module import AnyFunction, IRModule
from tensorkiln.ir.outputs import outputs_of
from tensorkiln.ir.plan import Address, ArgumentAccess, Plan, accesses
from tensorkiln.ir.relax import Function
from tensorkiln.ir.stmt import CallKernel, MatchBuffer, PrimFunc, TensorProgram
from tensorkiln.ir.tensor_bytes import known_bytes
from tensorkiln.ir.visit import walk_stmt


def check_kernel_calls(f: PrimFunc, mod: IRModule) -> tuple[str, ...]:
    """Raise Malformed if a CallKernel in `f` names no function, has arguments that do not fit its
    parameters, or passes a read-only buffer of `f` to a parameter that is written. Return the names
    of the functions that it calls.

    The last check leaves out host programs: `check_planned` covers what those may write.
    """
    callees: dict[str, None] = {}
    writable: dict[Buffer, bool] = dict.fromkeys(f.buffers, False) | dict.fromkeys(
        outputs_of(f), True
    )
    for s in walk_stmt(f.body):
        if isinstance(s, MatchBuffer) and s.source in writable:
            writable[s.buffer] = writable[s.source]
        if isinstance(s, CallKernel):
            callees[s.name] = None
            with step(f".body.call({s.name})"):
                _check_arguments(s, mod)
                if not f.is_host:
                    _check_written(s, mod[s.name], writable)
    return tuple(callees)


def check_recursion(callees: Mapping[str, tuple[str, ...]]) -> None:
    """Raise Malformed for a program that calls itself, directly or through others: its stack would
    have no bound. `callees` has what each program calls."""
    acyclic: set[str] = set()
    for name in callees:
        _descend(name, (), callees, acyclic)


def _descend(
    name: str, around: tuple[str, ...], callees: Mapping[str, tuple[str, ...]], acyclic: set[str]
) -> None:
    if name in around:
        cycle = [*around[around.index(name) :], name]
        with step(f"{around[-1]}.body.call({name})"):
            route = f", through {listed(cycle[1:-1])}" if cycle[1:-1] else ""
            raise Malformed(f"{name} calls itself{route}", "a loop repeats statements")
    if name not in acyclic:
        for callee in callees.get(name, ()):
            _descend(callee, (*around, name), callees, acyclic)
        acyclic.add(name)


def _check_written(s: CallKernel, callee: AnyFunction, writable: Mapping[Buffer, bool]) -> None:
    """Check that buffers which are read-only in the caller are passed to read-only parameters.

    `writable` maps the caller's buffers to whether they may be written.
    """
    if not isinstance(callee, TensorProgram):
        return
    written = outputs_of(callee)
    for p, a in zip(callee.params, s.args, strict=True):
        if p in written and isinstance(a, AddressOf) and not writable.get(a.buffer, True):
            message = f"{s.name} writes {p.name}, which is {a.buffer.name}: it is only read here"
            raise Malformed(message, stored(dict(writable)))


def _check_arguments(s: CallKernel, mod: IRModule) -> None:
    if s.name not in mod:
        raise Malformed(f"no function {s.name!r}", among(s.name, mod))
    callee = mod[s.name]
    if isinstance(callee, TensorProgram):
        kinds = ["address" if isinstance(p, Buffer) else str(p.dtype) for p in callee.params]
    elif callee.external:
        count = len(callee.params) + len(callee.result_types)
        kinds = ["address"] * count + ["int64"] * max(0, len(s.args) - count)
    else:
        fits = [f.name for f in mod.values() if isinstance(f, TensorProgram) or f.external]
        hint = f"it calls tensor programs and externals: {listed(fits) or 'none yet'}"
        message = f"{s.name} is a graph function, which a tensor program cannot call"
        raise Malformed(message, hint)
    is_device = isinstance(callee, TensorProgram) and callee.is_device
    if bool(s.grid) != is_device:
        message = f"{s.name} is a device function, which a plain call cannot run"
        hint = "launch it, with grid=(x, y, z) and block=(x, y, z)"
        if not is_device:
            message = f"{s.name} is launched, but it is no device function"
            hint = "leave out grid and block; split_device makes device functions"
        raise Malformed(message, hint)
    if len(kinds) != len(s.args):
        message = f"{s.name} takes {len(kinds)} arguments, the call gives {len(s.args)}"
        raise Malformed(message, f"in order: {', '.join(kinds) or 'none'}")
    for i, (kind, a) in enumerate(zip(kinds, s.args, strict=True)):
        arg_kind = "address" if a.dtype == HANDLE else str(a.dtype)
        if arg_kind != kind and not (kind.startswith("int") and a.dtype == INT64):
            message = f"argument {i} of {s.name} is {kind}, the call gives {arg_kind}"
            hint = "an AddressOf of a buffer, or an item of a set"
            if kind != "address":
                hint = f"a value of {kind}{', or int64' if kind.startswith('int') else ''}"
            raise Malformed(message, hint)


def check_planned(f: Function, mod: IRModule) -> None:
    """Raise Malformed if `f` does not have the form of a plan (`ir/plan_form.py`), or if a kernel
    would write anything but results and storages, or access bytes outside of its storage, constant
    or tensor. Only constant sizes and offsets are compared."""
    plan = mod.plan(f.name)
    for i, call in enumerate(plan.calls):
        with step(f".calls[{i}]({call.name})"):
            for a in accesses(call, mod[call.name]):
                with step(f".args[{a.argument}]"):
                    _check_memory(a, plan)


def _room(place: Address, plan: Plan) -> int | None:
    """The bytes of a storage, a constant or a tensor; None if that is symbolic."""
    if place.base == "storage":
        return int_value(plan.storages[place.index].size)
    if place.base == "constant":
        return plan.constants[place.index].data.nbytes
    t = (*plan.inputs, *plan.results)[place.index]
    return known_bytes(t.dtype, t.physical_shape)


def _check_memory(a: ArgumentAccess, plan: Plan) -> None:
    place, size = a.place, known_bytes(a.dtype, a.shape)
    start, have = int_value(place.offset), _room(place, plan)
    is_result = place.base == "tensor" and place.index >= len(plan.inputs)
    if a.written and not (place.base == "storage" or is_result):
        hint = "results and storages are what a planned graph writes"
        raise Malformed(f"the kernel writes {place}, which is only read", hint)
    if start is not None and start < 0:
        raise Malformed(f"byte {start} of {place}", "offsets count from 0, where it starts")
    if start is not None and have is not None and size is not None and start + size > have:
        hint = f"the kernel takes {size} bytes: no offset is right"
        if size <= have:
            hint = f"its {size} bytes start at 0 to {have - size}"
        message = f"bytes {start}..{start + size - 1} of {place}, which has {have}"
        raise Malformed(message, hint)


__all__ = ["check_kernel_calls", "check_planned", "check_recursion"]
