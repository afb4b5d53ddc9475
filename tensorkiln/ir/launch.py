"""What a device function consists of: a grid of blocks, the threads of a block, shared memory.

A device function is one launch nest. Outermost are loops over blockIdx, one inside the other. In
them is what a block runs: loops, branches and allocations of shared memory that all threads go
through together, and in these, nests over threadIdx, one after the other: what single threads do.
The loops over threadIdx of a nest stand one directly inside the other.

    for b in T.thread_binding(n, thread="blockIdx.x"):
        tile = T.alloc_buffer((32,), "float32", scope="shared")
        for k in range(m):
            for t in T.thread_binding(32, thread="threadIdx.x"): tile[t] = A[b, 32 * k + t]
            T.sync("block")
            for t in T.thread_binding(32, thread="threadIdx.x"): C[b, t] += tile[31 - t]
            T.sync("block")

A loop over threadIdx of smaller extent than the block's runs in its first threads only; a nest of
them that leaves out an index runs in those threads where this index is 0. Threads that copy for a
loop are behind all others along x (`ir/rings.py`).
"""

from __future__ import annotations

from dataclasses import dataclass

from tensorkiln.ir.buffer import Buffer
from tensorkiln.ir.expr import Expr, IntImm, int_value
from tensorkiln.ir.rings import PARTS, producers_of
from tensorkiln.ir.stmt import (
    BLOCK_INDICES,
    THREAD_INDICES,
    Alloc,
    For,
    PrimFunc,
    Stmt,
)
from tensorkiln.ir.visit import walk_stmt

BARRIER_BYTES = 8  # of one in shared memory


@dataclass(frozen=True, slots=True)
class Launch:
    """The parts of a device function. `loops`: those over blockIdx, outermost first. `body`: what a
    block runs. `block`: threads of a block along x, y and z. `shared`: the buffers in shared
    memory. `ring`: the loop that has producer threads (`ir/rings.py`), if there is one."""

    loops: tuple[For, ...]
    body: Stmt
    block: tuple[int, int, int]
    shared: tuple[Buffer, ...]
    ring: For | None = None

    @property
    def grid(self) -> tuple[Expr, Expr, Expr]:
        """The number of blocks along x, y and z."""
        extents = {s.attrs["thread"]: s.extent for s in self.loops}
        x, y, z = (extents.get(index, IntImm(1)) for index in BLOCK_INDICES)
        return x, y, z

    @property
    def places(self) -> dict[Buffer, int]:
        """Where in the block's memory each shared buffer begins, in bytes."""
        places: dict[Buffer, int] = {}
        end = 0
        for b in self.shared:
            places[b] = -(-end // b.align) * b.align
            end = places[b] + buffer_bytes(b)
        return places

    @property
    def shared_bytes(self) -> int:
        """Bytes of shared memory of a block, with each buffer at its alignment."""
        if self.ring is None:
            return self._end
        return self.barriers + 2 * BARRIER_BYTES * int(str(self.ring.attrs[PARTS]))

    @property
    def _end(self) -> int:
        return max((start + buffer_bytes(b) for b, start in self.places.items()), default=0)

    @property
    def barriers(self) -> int:
        """The offset of a ring's barriers in shared memory: two for each part, *full* and
        *free*."""
        return -(-self._end // BARRIER_BYTES) * BARRIER_BYTES


def launch_of(f: PrimFunc) -> Launch:
    """The parts of a device function."""
    loops, body = block_loops(f.body)
    ring: For | None = None
    thread_counts = dict.fromkeys(THREAD_INDICES, 1)
    shared: list[Buffer] = []
    for s in walk_stmt(body):
        if isinstance(s, Alloc) and s.buffer.scope == "shared":
            shared.append(s.buffer)
        index = thread_of(s)
        if index in thread_counts and isinstance(s, For):
            thread_counts[index] = max(thread_counts[index], int_value(s.extent) or 1)
        elif isinstance(s, For) and producers_of(s):
            ring = s
    x, y, z = thread_counts.values()
    return Launch(loops, body, (x + producers_of(ring), y, z), tuple(dict.fromkeys(shared)), ring)


def block_loops(s: Stmt) -> tuple[tuple[For, ...], Stmt]:
    """(the loops over blockIdx with which `s` begins, one inside the other; what is in them)."""
    loops: list[For] = []
    while isinstance(s, For) and thread_of(s) in BLOCK_INDICES:
        loops.append(s)
        s = s.body
    return tuple(loops), s


def thread_loops(s: Stmt) -> tuple[tuple[For, ...], Stmt]:
    """(the loops over threadIdx with which `s` begins, one inside the other; what is in them)."""
    loops: list[For] = []
    while isinstance(s, For) and thread_of(s) in THREAD_INDICES:
        loops.append(s)
        s = s.body
    return tuple(loops), s


def thread_of(s: Stmt) -> str:
    """The index that a loop is bound to, such as "threadIdx.x"; "" for any other statement."""
    return str(s.attrs["thread"]) if isinstance(s, For) and s.kind == "thread" else ""


def buffer_bytes(b: Buffer) -> int:
    """The bytes from the first to the last element of a buffer of constant shape and strides."""
    last = 0
    for extent, stride in zip(b.shape, b.strides, strict=True):
        count, step = int_value(extent), int_value(stride)
        assert count is not None and step is not None, b
        if count == 0:
            return 0
        last += (count - 1) * step
    return b.dtype.size(last + 1)
