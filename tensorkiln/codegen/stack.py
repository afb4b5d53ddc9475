"""What a kernel keeps on the stack: its local buffers."""

from __future__ import annotations

from tensorkiln.arith import simplify
from tensorkiln.base.errors import UserError
from tensorkiln.ir.buffer import Buffer
from tensorkiln.ir.expr import Expr, const, int_value
from tensorkiln.ir.module import IRModule
from tensorkiln.ir.stmt import Alloc, PrimFunc
from tensorkiln.ir.visit import walk_stmt

# Stacks of threads are 8 MiB on Linux, 512 KiB to 1 MiB elsewhere; the caller needs some too.
STACK_LIMIT = 1 << 20


def elements(buf: Buffer) -> int | None:
    """How many elements of memory a buffer spans, gaps between strides included; None if that is
    not a constant, or if a stride is negative."""
    total: Expr = const(1)
    if any(int_value(extent) == 0 for extent in buf.shape):
        return 0
    for extent, stride in zip(buf.shape, buf.strides, strict=True):
        step = int_value(stride)
        if step is not None and step < 0:
            return None
        total = total + (extent - 1) * stride
    return int_value(simplify(total))


def require_stack(mod: IRModule) -> None:
    """Raise UserError (code `stack`) if the local buffers of a kernel take more than STACK_LIMIT
    bytes together, or if the size of one is not constant."""
    for f in mod.prim_funcs:
        _require(f)


def _require(f: PrimFunc) -> None:
    total = 0
    largest: tuple[int, str] = (0, "")
    for s in walk_stmt(f.body):
        if not isinstance(s, Alloc) or s.buffer.scope == "register":
            continue
        count = elements(s.buffer)
        if count is None:
            raise UserError(
                f"local buffer {s.buffer.name!r} has no constant size with strides >= 0",
                code="stack",
                where=f.name,
                hint="split the loops around it by constants and `compact` it inside them",
            )
        size = count * s.buffer.dtype.bytes
        total, largest = total + size, max(largest, (size, s.buffer.name))
    if total > STACK_LIMIT:
        raise UserError(
            f"local buffers take {total:,} bytes of stack, {largest[0]:,} of them "
            f"{largest[1]!r}; there is room for {STACK_LIMIT:,}",
            code="stack",
            where=f.name,
            hint="compute it in pieces: compute_at, cache_read(..., at=), compact",
        )
