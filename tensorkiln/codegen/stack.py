"""What a kernel keeps on the stack: its local buffers."""

from __future__ import annotations

from tensorkiln.base.errors import UserError
from tensorkiln.codegen.expand.offsets import elements
from tensorkiln.ir.known_kernel import KnownKernel
from tensorkiln.ir.module import IRModule
from tensorkiln.ir.stmt import Alloc, CallKernel, PrimFunc
from tensorkiln.ir.visit import walk_stmt

# Stacks of threads are 8 MiB on Linux, 512 KiB to 1 MiB elsewhere; the caller needs some too.
STACK_LIMIT = 1 << 20


def local_bytes(f: PrimFunc) -> int:
    """The bytes of a kernel's local buffers, each from its first element to its last; those of
    unknown size, which code generation refuses, count as 0."""
    return sum(
        s.buffer.dtype.size(elements(s.buffer) or 0)
        for s in walk_stmt(f.body)
        if isinstance(s, Alloc) and s.buffer.scope not in ("register", "tile")
    )


def stack_of(name: str, mod: IRModule, around: tuple[str, ...] = ()) -> int | None:
    """The most bytes of local buffers that are on one thread's stack at a time in a call of kernel
    `name`: its own, and those of a kernel that it calls. None if it calls itself.

    Kernels of externals, whose code is not ours, count as 0. `around` are its callers.
    """
    f = mod[name]
    if name in around:
        return None
    if isinstance(f, KnownKernel):
        return f.stack
    if not isinstance(f, PrimFunc):
        return 0
    callees = dict.fromkeys(s.name for s in walk_stmt(f.body) if isinstance(s, CallKernel))
    deeper = [stack_of(callee, mod, (*around, name)) for callee in callees]
    depths = [d for d in deeper if d is not None]
    return None if len(depths) < len(deeper) else local_bytes(f) + max(depths, default=0)


def require_stack(mod: IRModule) -> None:
    """Raise UserError (code `stack`) if the local buffers of a kernel take more than STACK_LIMIT
    bytes together, or if the size of one is not constant."""
    for f in mod.prim_funcs:
        _require(f)


def _require(f: PrimFunc) -> None:
    total = 0
    largest: tuple[int, str] = (0, "")
    for s in walk_stmt(f.body):
        if not isinstance(s, Alloc) or s.buffer.scope in ("register", "tile"):
            continue
        count = elements(s.buffer)
        if count is None:
            raise UserError(
                f"local buffer {s.buffer.name!r} has no constant size with strides >= 0",
                code="stack",
                where=f.name,
                hint="split the loops around it by constants, then compute_at its producer in them",
            )
        size = s.buffer.dtype.size(count)
        total, largest = total + size, max(largest, (size, s.buffer.name))
    if total > STACK_LIMIT:
        raise UserError(
            f"local buffers take {total:,} bytes of stack, {largest[0]:,} of them "
            f"{largest[1]!r}; there is room for {STACK_LIMIT:,}",
            code="stack",
            where=f.name,
            hint="compute it in pieces: compute_at, cache_read(..., at=)",
        )
