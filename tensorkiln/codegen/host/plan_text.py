"""The plan of a compile for people: which kernel runs when, for which node, on which memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

from tensorkiln.artifact.metadata import ConstantInfo
from tensorkiln.codegen.host.devices import NO_DEVICES, HostDevices
from tensorkiln.codegen.host.function import HostFunction, Param, Ptr
from tensorkiln.ir.module import AnyFunction, IRModule
from tensorkiln.ir.stmt import TensorProgram
from tensorkiln.ir.tensor_bytes import known_bytes

_HEAD = """\
Which kernels run, in this order, and on which memory. `+4096` is a byte of the workspace, where
intermediate results lie; weights have the names of host/weights.json, and `@offset` where several
share one. Of a kernel FOLDER/NAME the code is in files of that name (.ll: LLVM IR, .s: assembly),
and `def NAME` in ir/module.py is the tensor program that it was made of.
"""
# Kernels as C share files.
_OF_C = ("in files of that name (.ll: LLVM IR, .s: assembly)", "in the C files of that folder")
_OF_DEVICES = "`gpu+4096` is a byte of what device gpu has for intermediate results.\n"
_TITLES = ("step", "kernel", "node of the model", "reads", "writes", "bytes")


def plan_text(
    functions: Sequence[HostFunction],
    mod: IRModule,
    constants: Iterable[ConstantInfo],
    folders: Mapping[str, str],
    devices: HostDevices = NO_DEVICES,
) -> str:
    """A table for each graph function; `folders` says where a kernel's files are."""
    constant_names = {c.offset: c.name for c in constants}
    often = Counter(constant_names.values())
    constant_names = {
        offset: name if often[name] == 1 else f"{name}@{offset}"
        for offset, name in constant_names.items()
    }
    names = {(0, offset): name for offset, name in constant_names.items()}
    for key, rows in devices.weights.items():
        names |= {
            (devices.number(key), to): constant_names[offset]
            for offset, (to, _) in rows.items()
            if offset in constant_names
        }
    graphs = [f for f in functions if f.info.kind == "graph"]
    head = _HEAD.replace(*_OF_C) if "c" in folders.values() else _HEAD
    head += _OF_DEVICES if devices.kinds else ""
    return "\n".join([head, *("\n".join(_function(f, mod, names, folders)) for f in graphs)])


def _function(
    f: HostFunction,
    mod: IRModule,
    names: Mapping[tuple[int, int], str],
    folders: Mapping[str, str],
) -> Iterator[str]:
    yield f"{f.info.name}: {len(f.calls)} steps, {f.workspace_bytes} bytes of workspace"
    for i, p in enumerate(f.params):
        yield f"  {'takes' if i < len(f.info.inputs) else 'gives'} {_typed(p)}"
    for symbol, name in f.symbols.items():
        yield f"  s_{symbol} is the size {name}"
    for s in f.storages:
        if s.device:
            yield f"  {s.size} bytes on device {s.pool}"
    if any((s.pool and not s.device) or not isinstance(s.start, int) for s in f.storages):
        for i, s in enumerate(f.storages):
            pool = f"pool {s.pool}, " if s.pool else ""
            yield f"  storage {i} is at +{s.start}, {pool}{s.size} bytes"
    for c in f.checks:
        checked, extent = f.params[c.indices.place.index].info.name, c.indices.extent
        yield f"  {checked}: indices of a dimension of {extent}, checked for {c.span or 'a take'}"
    yield ""
    rows = [_TITLES]
    for i, call in enumerate(f.calls, 1):
        *read, written = (_place(a, f, names) for a in call.args if isinstance(a, Ptr))
        folder = folders.get(call.symbol, "")
        kernel = f"{folder}/{call.symbol}" if folder else call.symbol
        size = _bytes_written(mod[call.symbol])
        rows.append((str(i), kernel, call.span, ", ".join(read), written, size))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        yield "  ".join(text.ljust(n) for text, n in zip(row, widths, strict=True)).rstrip()
    yield ""


def _typed(p: Param) -> str:
    dims = "" if p.dims is None else f"[{', '.join(map(str, p.dims))}]"
    return f"{p.info.name}: {p.info.dtype}{dims}" + (
        f", on device {p.info.device}" if p.info.device else ""
    )


def _place(p: Ptr, f: HostFunction, names: Mapping[tuple[int, int], str]) -> str:
    if p.base == "weights":
        name = names.get((p.index, p.offset)) if isinstance(p.offset, int) else None
        return name or f"weights+{p.offset}"
    if p.base == "arg":
        return f.params[p.index].info.name + (f"+{p.offset}" if p.offset else "")
    start = f.storages[p.index].start
    if f.storages[p.index].device:
        return f"{f.storages[p.index].pool}+{p.offset}"
    if isinstance(start, int) and isinstance(p.offset, int):
        return f"+{start + p.offset}"
    return f"+{p.offset} of storage {p.index}" if start else f"+{p.offset}"


def _bytes_written(f: AnyFunction) -> str:
    """The size of the kernel's output in bytes, padding included; empty if it is symbolic."""
    if not isinstance(f, TensorProgram):
        return ""
    out = f.buffers[-1]
    size = known_bytes(out.dtype, out.shape)
    return "" if size is None else str(size)
