"""Check that a module is lowered far enough for code generation; errors name the missing passes."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from tensorkiln.base.errors import Issue, UnsupportedError, UserError
from tensorkiln.codegen.kernel_names import name_issues
from tensorkiln.codegen.stack import require_stack
from tensorkiln.ir.expr import DEVICE_INSTRUCTIONS, TILE_DOTS, CallExtern, Intrin, Reduce
from tensorkiln.ir.known_kernel import KnownKernel
from tensorkiln.ir.module import AnyFunction, AnyKernel, IRModule
from tensorkiln.ir.relax import Call, Function
from tensorkiln.ir.stmt import Alloc, Block, CallKernel, For, PrimFunc, Store, Sync
from tensorkiln.ir.tiles import tile_buffers
from tensorkiln.ir.type_devices import has_devices
from tensorkiln.ir.visit import stmt_exprs, walk, walk_stmt
from tensorkiln.ir.visit_graph import bindings_in
from tensorkiln.target import Target
from tensorkiln.target.dots import has_tiles, multiplies_tiles

_SHOWN = 8


def require_lowered(mod: IRModule) -> None:
    """Raise UserError (code `not-lowered`) that lists everything that is not lowered, with the
    passes that would lower it; for a lowered module, the errors of `require_stack`."""
    faults = [sentence for f in mod.functions for sentence in _faults(f)]
    if not faults:
        require_stack(mod)
        return
    ellipsis = [f"... and {len(faults) - _SHOWN} more"] if len(faults) > _SHOWN else []
    lines = "\n  ".join([*faults[:_SHOWN], *ellipsis])
    raise UserError(
        f"the module is not lowered:\n  {lines}",
        code="not-lowered",
        hint='"auto" pipelines run every pass; None runs none',
    )


def _faults(f: AnyFunction) -> Iterator[str]:
    if isinstance(f, KnownKernel):
        return  # checked by the compile that made it
    if isinstance(f, PrimFunc):
        if any(isinstance(s, For) and s.kind == "vectorized" for s in walk_stmt(f.body)):
            yield f"{f.name}: a loop is still vectorized: run vectorize_loops"
        if any(isinstance(s, Block) for s in walk_stmt(f.body)):
            yield f"{f.name}: there are blocks: run lower_blocks"
        return
    if has_devices(f):
        yield f"{f.name}: its types name devices: run pin_devices"
    if f.is_primitive:
        if not f.external:
            yield f"{f.name}: a fused group without loops: run lower_groups"
        return
    if f.is_planned or f.makes_storages:
        return
    if f.is_outer:
        yield from _outer_faults(f)
        return
    before = f"{f.name}: "
    for b in f.bindings:
        call = b.value
        if not isinstance(call, Call):
            yield f"{before}{b.var.name} is not a kernel call: run canonicalize"
        elif call.op and call.op not in ("reshape", "fit", "concat"):
            call_text = f"{b.var.name} = {call.op}(...)"
            yield f"{before}{call_text} is an operator: run fuse_ops, lower_groups"
    if "homes" not in f.attrs:
        yield f"{before}its values have no place in memory: run plan_memory, partial_graph_aot"
    else:
        yield f"{before}no run function calls its kernels: run partial_graph_aot"


def require_cpu_programs(
    mod: IRModule, kernels: Sequence[AnyKernel], runtime_calls: Collection[str], target: Target
) -> None:
    """Raise UnsupportedError that lists what in `kernels` cannot be compiled for a CPU: loops bound
    to the threads of a device, parameters with explicit strides, T.reduce expressions, kernel names
    that are taken (`runtime_calls` are the C functions that the runtime calls), calls of C
    functions with 16-bit floats, and tiles that the target lacks."""
    issues = [*name_issues(mod, runtime_calls)]
    issues += [i for f in kernels if isinstance(f, PrimFunc) for i in _cpu_issues(f)]
    issues += [i for f in kernels if isinstance(f, PrimFunc) for i in _tile_issues(f, target)]
    hosts = [f for f in mod.functions if isinstance(f, PrimFunc) and f.is_host]
    programs = [f for f in kernels if isinstance(f, PrimFunc)]
    issues += [i for f in (*programs, *hosts) for i in _device_issues(f)]
    if issues:
        raise UnsupportedError(issues)


def _cpu_issues(f: PrimFunc) -> Iterator[Issue]:
    def issue(message: str, hint: str) -> Issue:
        return Issue("tensor-program", f.name, "", message, hint)

    for b in f.buffers:
        if b.strides_given is not None:
            hint = f"T.match_buffer gives a strided view of {b.name} inside the program"
            yield issue(f"parameter {b.name} has strides of its own", hint)
    for s in walk_stmt(f.body):
        parts = [x for e in stmt_exprs(s) for x in walk(e)]
        if any(isinstance(x, Reduce) for x in parts):
            hint = "write it as a loop, or as a block with T.axis.reduce and T.init"
            yield issue("T.reduce stands for a sum that has no loops yet", hint)
        for call in (x for x in parts if isinstance(x, CallExtern)):
            types = (call.dtype, *(a.dtype for a in call.args))
            if any(t.is_half for t in types):
                message = f"C function {call.name} takes or returns 16-bit floats"
                yield issue(message, 'convert to float32 with T.Cast("float32", x)')


def _tile_issues(f: PrimFunc, target: Target) -> Iterator[Issue]:
    tile_buffer = next(tile_buffers(f.body), None)
    hint = "a target of kind 'llvm' for a processor that has them, such as mcpu='sapphirerapids'"
    if tile_buffer is not None and not has_tiles(target):
        message = f"buffer {tile_buffer.name} is in tiles, which the target lacks"
        yield Issue("tensor-program", f.name, "", message, hint)
        return
    for s in walk_stmt(f.body) if tile_buffer is not None else ():
        value = s.value if isinstance(s, Store) else None
        if isinstance(value, Intrin) and value.name in TILE_DOTS:
            right = value.args[2].dtype.element.name
            if not multiplies_tiles(target, right):
                message = f"T.{value.name} multiplies tiles of {right}, which the target cannot"
                yield Issue("tensor-program", f.name, "", message, hint)


def _device_issues(f: PrimFunc) -> Iterator[Issue]:
    """Issues for what only a device with threads of its own can run."""
    for s in walk_stmt(f.body):
        message = ""
        match s:
            case For(kind="thread"):
                message = f"loop {s.var.name} is bound to {s.attrs['thread']}"
                hint = "T.serial or T.parallel run on a CPU"
            case Alloc(buffer) if buffer.scope == "shared":
                message = f"buffer {buffer.name} is shared by the threads of a device's block"
                hint = 'scope="local" is memory of a CPU'
            case Sync():
                message = "T.sync waits for the threads of a device's block"
                hint = "leave it out: loops of a CPU have no barriers"
            case CallKernel() if s.grid:
                message = f"{s.name} is launched on a device"
                hint = "call a program that runs on a CPU, without grid and block"
        for x in (x for e in stmt_exprs(s) for x in walk(e)):
            if isinstance(x, Intrin) and x.name in DEVICE_INSTRUCTIONS:
                message = f"T.{x.name} is an instruction of a device's threads"
                hint = "tensorize programs for a CPU with instructions of its own"
        if message:
            yield Issue("tensor-program", f.name, "", message, hint)


def _outer_faults(f: Function) -> Iterator[str]:
    from tensorkiln.codegen.outer.calls import HOST_STEPS

    for b in bindings_in(f.bindings):
        if isinstance(b.value, Call) and b.value.op and b.value.op not in HOST_STEPS:
            call_text = f"{b.var.name} = {b.value.op}(...)"
            yield f"{f.name}: {call_text} is an operator in an outer function: run outline_dataflow"


__all__ = ["require_cpu_programs", "require_lowered"]
