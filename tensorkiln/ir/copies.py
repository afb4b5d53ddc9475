"""Asynchronous copies to shared memory, which go on while the threads that began them compute.

A nest over threadIdx with the attribute `asynchronous` consists of copies: elements of global
memory, or zeros where a condition does not hold. Each may happen at any time until all threads of
the block have passed a `Sync("copies")`. Until then no thread may read or write what they write, or
write what they read. On a device without such copies they happen at once, and so do those of less
than 4 bytes.

Each run of such a nest is a batch. `Sync("copies", pending)` waits until at most the last `pending`
batches are in flight (like `cp.async.wait_group`), so that the copies of several rounds of a loop
can go on while threads compute.

    for t in T.thread_binding(32, thread="threadIdx.x", annotations={"asynchronous": True}):
        if k * 32 + t < n:
            tile[k % 2, t] = X[k * 32 + t]
        else:
            tile[k % 2, t] = 0

Schedules make them with the primitive `pipeline`; `transform/tir/async_copies.py` marks the nests,
`transform/tir/insert_barriers.py` derives the waits, and `codegen/ptx/copies.py` uses cp.async. The
emulator of CUDA in the tests copies as early and as late as these rules allow.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tensorkiln.ir.buffer import Load
from tensorkiln.ir.expr import Broadcast, Expr, FloatImm, IntImm, Select, logical_and
from tensorkiln.ir.stmt import For, If, Let, Seq, Stmt, Store
from tensorkiln.ir.visit import substmts

ASYNCHRONOUS = "asynchronous"
LEAST = 4  # bytes of a copy that goes on; what is less is copied at once


@dataclass(frozen=True, slots=True)
class Copy:
    """`store` copies `load` where `cond` holds, and zero elsewhere; None is always."""

    store: Store
    load: Load
    cond: Expr | None


def is_asynchronous(s: Stmt) -> bool:
    """Whether a statement is a nest of such copies."""
    return isinstance(s, For) and bool(s.attrs.get(ASYNCHRONOUS))


def copy_of(s: Stmt) -> Copy | None:
    """A statement as a copy, if it is a store, or a branch with a store on either side, that only
    copies; else None."""
    match s:
        case Store(_, _, Select(cond, Load() as load, fill_value)):
            if cond.dtype.lanes == 1 and _is_zero(fill_value) and _can_be_copied(s, load):
                return Copy(s, load, cond)
        case Store(_, _, Load() as load) if _can_be_copied(s, load):
            return Copy(s, load, None)
        case If(cond, Store() as then_store, Store() as zero) if _is_zero(zero.value):
            copy = copy_of(then_store)
            if copy is not None and (then_store.buffer, then_store.indices) == (
                zero.buffer,
                zero.indices,
            ):
                conjunction = cond if copy.cond is None else logical_and(cond, copy.cond)
                return Copy(then_store, copy.load, conjunction)
    return None


def copies_in(s: Stmt) -> Iterator[Copy]:
    """The copies in a statement."""
    copy = copy_of(s)
    if copy is not None:
        yield copy
        return
    for t in substmts(s):
        yield from copies_in(t)


def other_than_copies(s: Stmt) -> Iterator[Stmt]:
    """The statements in a nest over threadIdx that are not copies."""
    if copy_of(s) is not None:
        return
    match s:
        case For(_, _, _, _, body) | Let(_, _, body) | If(_, body, None):
            yield from other_than_copies(body)
        case Seq(stmts):
            for t in stmts:
                yield from other_than_copies(t)
        case _:
            yield s


def _can_be_copied(store: Store, load: Load) -> bool:
    into, dtype = store.buffer, load.buffer.dtype
    between = load.buffer.scope == "global" and into.scope == "shared"
    return between and dtype == into.dtype and not dtype.is_bool


def _is_zero(e: Expr) -> bool:
    """Whether all bits of a constant are 0."""
    if isinstance(e, Broadcast):
        return _is_zero(e.a)
    return isinstance(e, IntImm | FloatImm) and str(e.value) in ("0", "0.0")
