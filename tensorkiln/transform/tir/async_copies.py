"""Let copies of a pipelined loop go on while its round computes.

    for k in range(n):                                      for k in range(n):
        if k + 1 < n:                                           if k + 1 < n:
            for t in T.thread_binding(32, "threadIdx.x"):           for t in T.thread_binding(...,
                S[(k + 1) % 2, t] = A[k + 1, t]         ->               {"asynchronous": True}):
        for t in T.thread_binding(32, "threadIdx.x"):                   S[(k + 1) % 2, t] = ...
            C[k, t] = S[k % 2, 31 - t]                          for t in ...: C[k, t] = ...

The primitive `pipeline` makes loops that copy to a shared buffer for later rounds, into a part of
it that depends on the round. Here the nests that do nothing but copy to such buffers become
asynchronous (`ir/copies.py`), on devices that have such copies; `insert_barriers` then derives
where threads wait for them. Where a buffer has more than two parts, copies go on for several
rounds. Conditions around the nests then move into them, so that every round begins the same number
of batches, and threads can wait for a batch by the number of batches after it.

Needs: split_device, and insert_barriers after it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from tensorkiln.ir.attrs import Attrs
from tensorkiln.ir.buffer import Buffer
from tensorkiln.ir.copies import (
    ASYNCHRONOUS,
    LEAST,
    copy_of,
    is_asynchronous,
    other_than_copies,
)
from tensorkiln.ir.expr import Expr, Var, int_value
from tensorkiln.ir.launch import thread_of
from tensorkiln.ir.module import IRModule
from tensorkiln.ir.stmt import THREAD_INDICES, For, If, PrimFunc, Seq, Stmt, Store, seq
from tensorkiln.ir.visit import free_vars, map_stmt, substmts, walk_stmt

_TWO = 2  # parts of a buffer, the copies of whose next round alone go on


@dataclass(frozen=True, slots=True)
class AsyncCopies:
    """`devices`: keys of the devices that have such copies; "" is a function without a device."""

    devices: tuple[str, ...] = ("",)

    def __call__(self, mod: IRModule) -> IRModule:
        """Mark the copies of every device function that runs on one of the devices."""
        if not self.devices:
            return mod
        return mod.map_bodies(self._function)

    def _function(self, f: PrimFunc) -> PrimFunc:
        key = str(f.attrs.get("target", ""))
        return with_async_copies(f) if key in self.devices else f


def with_async_copies(f: PrimFunc) -> PrimFunc:
    """A device function whose copies ahead are asynchronous; `f` itself if it has none."""
    if not f.is_device:
        return f
    ahead = set(_filled_ahead(f.body, ()))
    if not ahead:
        return f

    long = any((int_value(b.shape[0]) or 0) > _TWO for b in ahead)

    def marked(s: Stmt) -> Stmt:
        if isinstance(s, If) and s.orelse is None and long:
            then_body = marked(s.then)
            nests = then_body.stmts if isinstance(then_body, Seq) else (then_body,)
            if all(map(is_asynchronous, nests)):
                return seq(*(_only_if(s.cond, n) for n in nests))
            return s if then_body is s.then else replace(s, then=then_body)
        if thread_of(s) not in THREAD_INDICES or not isinstance(s, For):
            return map_stmt(s, lambda e: e, marked)
        if is_asynchronous(s) or not _only_copies(s, ahead):
            return s
        return replace(s, attrs=Attrs.of(**{**s.attrs, ASYNCHRONOUS: True}))

    body = marked(f.body)
    return f if body is f.body else replace(f, body=body)


def _only_if(cond: Expr, s: Stmt) -> Stmt:
    """A nest over threadIdx whose threads do their work only if a condition holds."""
    if isinstance(s, For) and thread_of(s) in THREAD_INDICES:
        return replace(s, body=_only_if(cond, s.body))
    return If(cond, s)


def _filled_ahead(s: Stmt, rounds: tuple[Var, ...]) -> Iterator[Buffer]:
    """The shared buffers that loops fill ahead: each round of a loop around threads writes a part
    of the buffer that depends on the round."""
    if thread_of(s) in THREAD_INDICES:  # loops of a thread by itself copy no rounds ahead
        for t in walk_stmt(s):
            if isinstance(t, Store) and _depends(t, rounds):
                yield t.buffer
        return
    if isinstance(s, For) and s.kind == "serial":
        rounds = (*rounds, s.var)
    for t in substmts(s):
        yield from _filled_ahead(t, rounds)


def _depends(s: Store, rounds: tuple[Var, ...]) -> bool:
    """Whether the part of a shared buffer that a store fills depends on the round."""
    if s.buffer.scope != "shared" or not s.indices:
        return False
    return not set(rounds).isdisjoint(free_vars(s.indices[0]))


def _only_copies(s: For, ahead: set[Buffer]) -> bool:
    """Whether a nest over threadIdx does nothing but copy to buffers that are filled ahead, in
    pieces large enough for asynchronous copies."""
    if any(True for _ in other_than_copies(s)) or _least_bytes(s, 1) < LEAST:
        return False
    return all(t.buffer in ahead for t in walk_stmt(s) if isinstance(t, Store)) and not any(
        t.kind == "vectorized" and _chosen(t) for t in walk_stmt(s) if isinstance(t, For)
    )


def _least_bytes(s: Stmt, lanes: int) -> int:
    """The least bytes of a store, of which `lanes` become one."""
    if isinstance(s, Store):
        return lanes * s.buffer.dtype.bytes
    if isinstance(s, For) and s.kind == "vectorized":
        lanes = int_value(s.extent) or 1
    return min((_least_bytes(t, lanes) for t in substmts(s)), default=LEAST)


def _chosen(s: For) -> bool:
    """Whether lanes of a vector may be chosen one by one."""
    copies = (copy_of(t) for t in walk_stmt(s))
    return any(c is not None and c.cond is not None and s.var in free_vars(c.cond) for c in copies)


__all__ = ["AsyncCopies", "with_async_copies"]
