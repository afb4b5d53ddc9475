"""Permute the elements of a shared buffer's rows, so that columns of it lie in different banks."""

from __future__ import annotations

from tensorkiln.ir.buffer import Buffer
from tensorkiln.ir.expr import int_value
from tensorkiln.ir.stmt import PrimFunc
from tensorkiln.ir.visit import free_vars
from tensorkiln.schedule.primitives.layout import transform_layout
from tensorkiln.schedule.tree.boxes import accesses
from tensorkiln.schedule.tree.errors import ScheduleError
from tensorkiln.schedule.tree.normalise import normal
from tensorkiln.schedule.tree.places import copies_of

_BANKS = 128  # bytes of one word of each bank of shared memory


def swizzle(f: PrimFunc, buffer: str, vector: int = 1, period: int | None = None) -> PrimFunc:
    """Permute the elements of each row of a shared buffer, in vectors of `vector` elements, so that
    the vectors of a column lie in different banks.

        S = T.alloc_buffer((32, 32), scope="shared")         S = T.alloc_buffer((32, 32), ...)
        for j in T.thread_binding(32, "threadIdx.x"):   ->   for j in T.thread_binding(...):
            S[j, i] = A[j, i]                                    S[j, i ^ (j & 31)] = A[j, i]

    Vector c of row r moves to c ^ (r & (period - 1)), which stays within the row and is one to one;
    all accesses follow. `period` is a power of two that divides the vectors of a row: by default
    the largest whose vectors, at most 128 bytes, have a bank each. Vectorized
    loops along a row must be within a vector. `storage_align` is the other way, which takes memory.
    """
    f = normal(f)
    call = f"swizzle({buffer!r})"
    copies = copies_of(f, buffer, call, "cache_read with scope 'shared' makes a buffer to permute")
    buf = copies[0]
    if buf.scope != "shared":
        raise ScheduleError(
            f"{buffer!r} is {buf.scope}: only shared memory has banks",
            where=call,
            hint="cache_read or set_scope with 'shared'",
        )
    columns = int_value(buf.shape[-1]) if buf.shape else None
    if len(buf.shape) < 2 or columns is None:
        hint = "transform_layout to rows and columns"
        raise ScheduleError(f"{buffer!r} has no rows", where=call, hint=hint)
    if not _is_power(vector) or columns % vector != 0:
        raise ScheduleError(
            f"vector={vector!r} for rows of {columns} elements",
            where=call,
            hint="a power of two that divides the row",
        )
    count = columns // vector
    max_period = min(count & -count, max(1, _BANKS // (vector * buf.dtype.bytes)))
    period = max_period if period is None else period
    if not _is_power(period) or period < 2 or count % period != 0:
        raise ScheduleError(
            f"period={period!r} for rows of {count} vectors",
            where=call,
            hint="a power of two from 2 on that divides them; storage_align pads other rows",
        )
    for buf in copies:
        _require_lanes(f, buf, vector, call)
    names = [f"i{d}" for d in range(len(buf.shape))]
    row, column = names[-2:]
    moved = f"({column} // {vector} ^ ({row} & {period - 1})) * {vector} + {column} % {vector}"
    try:
        return transform_layout(
            f, buffer, f"{', '.join(names)} -> {', '.join(names[:-1])}, {moved}"
        )
    except ScheduleError as e:
        raise ScheduleError(e.message, where=call, hint=e.hint) from None


def _is_power(n: object) -> bool:
    return isinstance(n, int) and not isinstance(n, bool) and n > 0 and n & (n - 1) == 0


def _require_lanes(f: PrimFunc, buf: Buffer, vector: int, call: str) -> None:
    """Raise ScheduleError if lanes of a vectorized loop would be torn apart."""
    for a in accesses(f.body):
        for loop in a.around.loops:
            along = a.indices is not None and loop.var in free_vars(a.indices[-1])
            if a.buffer is buf and loop.kind == "vectorized" and along:
                lanes = int_value(loop.extent) or 0
                if lanes == 0 or vector % lanes != 0:
                    raise ScheduleError(
                        f"the {lanes} lanes of loop {loop.var.name!r} would be torn apart",
                        where=call,
                        hint=f"vector={lanes}, or another layout",
                    )
