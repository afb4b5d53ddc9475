"""Rings: pipelined loops in which a warp of its own copies, ahead of the threads that compute.

A loop with the attributes `producers` and `parts` begins with nests that fill shared buffers, whose
first index is the round modulo `parts`; the statements that use them follow. As in every loop, its
rounds are one after the other. Where the nests that fill buffers are asynchronous (`ir/copies.py`),
they run in `producers` threads of their own, behind the other threads of the block, and the loop is
a *ring*: nothing in it waits at barriers of the block. Instead,

- what uses the copies of a round begins when they have arrived;
- the copies of a round begin when all threads have finished the round `parts` before it.

    for k in T.serial(n, annotations={"parts": 4, "producers": 32}):
        for t in T.thread_binding(32, thread="threadIdx.x", annotations={"asynchronous": True}):
            tile[k % 4, t] = X[k, t]
        for t in T.thread_binding(128, thread="threadIdx.x"): ...

On devices without such copies the same threads do both, with barriers in between. With the
attribute `tensor_maps`, a device that copies whole boxes of tensors by hardware (TMA) may do so for
the nests that copy a box. The nests stay in the program: proofs use them, and they run on other
devices and for unaligned tensors.

Schedules make rings with the primitive `pipeline(producers=)`. Their barriers are in
`codegen/ptx/rings.py`, boxes in `codegen/ptx/boxes.py`; proofs ask what may run at the same time in
a ring (`transform/device/conflicts.py`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tensorkiln.ir.copies import is_asynchronous
from tensorkiln.ir.expr import int_value
from tensorkiln.ir.stmt import THREAD_INDICES, Alloc, For, Seq, Stmt
from tensorkiln.ir.visit import walk_stmt

PRODUCERS, PARTS, TENSOR_MAPS = "producers", "parts", "tensor_maps"


@dataclass(frozen=True, slots=True)
class Ring:
    """`copies`: the nests that `producers` run; `consumers`: the nests of the other threads.
    `tensor_maps`: whether hardware may copy boxes of tensors."""

    loop: For
    producers: int
    parts: int
    copies: tuple[For, ...]
    consumers: tuple[For, ...]
    tensor_maps: bool = False


def producers_of(s: Stmt | None) -> int:
    """The producer threads of a loop; 0 for any other statement."""
    count = s.attrs.get(PRODUCERS) if isinstance(s, For) else None
    return count if isinstance(count, int) else 0


def ring_of(s: Stmt | None) -> Ring | None:
    """A loop as a ring; None for any other statement, and if the threads that compute also copy."""
    producers = producers_of(s)
    if not producers or not isinstance(s, For):
        return None
    parts = s.attrs.get(PARTS)
    all_of = list(_flat(s.body))
    nests = [t for t in all_of if isinstance(t, For) and _is_nest(t)]
    count = next((k for k, t in enumerate(nests) if not is_asynchronous(t)), len(nests))
    if not isinstance(parts, int) or not 0 < count < len(nests):
        return None
    if len(nests) != len(all_of) or any(map(is_asynchronous, nests[count:])):
        return None
    copies, consumers = nests[:count], nests[count:]
    # So many threads of a nest that is not asynchronous copy, too, and others wait for them.
    of_producers = [int_value(t.extent) == producers for t in nests]
    if of_producers != [True] * count + [False] * len(consumers) or not all(map(_alone, copies)):
        return None
    return Ring(
        s, producers, parts, tuple(copies), tuple(consumers), bool(s.attrs.get(TENSOR_MAPS))
    )


def _flat(s: Stmt) -> Iterator[Stmt]:
    if isinstance(s, Alloc):  # of shared memory, which is there throughout
        yield from _flat(s.body)
    elif isinstance(s, Seq):
        for t in s.stmts:
            yield from _flat(t)
    else:
        yield s


def _is_nest(s: Stmt) -> bool:
    return isinstance(s, For) and s.kind == "thread" and s.attrs.get("thread") in THREAD_INDICES


def _alone(s: For) -> bool:
    """Whether a nest has a single loop, along x."""
    loops = [t for t in walk_stmt(s) if _is_nest(t)]
    return len(loops) == 1 and s.attrs.get("thread") == THREAD_INDICES[0]


__all__ = ["PARTS", "PRODUCERS", "TENSOR_MAPS", "Ring", "producers_of", "ring_of"]
