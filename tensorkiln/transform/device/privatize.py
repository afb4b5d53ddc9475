"""Memory of single threads that lasts for a whole block.

    sums = T.alloc_buffer((32, 4), scope="register")         sums = T.alloc_buffer((4,), ...)
    for t in T.thread_binding(32, thread="threadIdx.x"):     for t in ...:
        for i in T.unroll(4): sums[t, i] = 0             ->      for i in ...: sums[i] = 0
    for k in range(m):                                       for k in range(m):
        for t in T.thread_binding(32, ...):                      for t in ...:
            for i in T.unroll(4): sums[t, i] += ...                  for i in ...: sums[i] += ...

If each thread accesses only the elements with its own index, it needs only those, and the index
goes. Where a condition leaves one thread, as in `if t < 1: sums[0, i] = 1`, the index may be a
number.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from tensorkiln.arith import Bounds, bound
from tensorkiln.ir.buffer import AddressOf, Buffer, Load
from tensorkiln.ir.expr import Expr, Var, int_value
from tensorkiln.ir.launch import thread_of
from tensorkiln.ir.stmt import THREAD_INDICES, Alloc, For, If, MatchBuffer, Prefetch, Stmt, Store
from tensorkiln.ir.visit import map_children, map_stmt, stmt_exprs, substmts, walk, walk_stmt


def private_part(s: Alloc) -> Alloc | None:
    """The allocation of the elements of one thread, with its accesses; None if threads may access
    elements of each other."""
    buf = s.buffer
    if buf.strides_given is not None or _is_viewed(s.body, buf):
        return None
    used = {i for t in walk_stmt(s.body) if (i := thread_of(t)) in THREAD_INDICES}
    dims: dict[int, frozenset[str]] | None = None  # by dimension, the threads whose index it has
    for indices, threads, known in _accesses(s.body, buf, {}, Bounds()):
        mine = {d: _threads_at(e, threads, known) for d, e in enumerate(indices)}
        dims = mine if dims is None else {d: own & mine[d] for d, own in dims.items()}
    dims = {d: own for d, own in (dims or {}).items() if len(own) == 1}
    if not dims or frozenset().union(*dims.values()) != used:
        return None
    kept = [d for d in range(len(buf.shape)) if d not in dims]
    new = replace(buf, shape=tuple(buf.shape[d] for d in kept))
    return Alloc(new, _replaced(s.body, buf, new, kept))


def _is_viewed(s: Stmt, buf: Buffer) -> bool:
    """Whether a buffer is used other than by loads and stores."""
    for t in walk_stmt(s):
        if isinstance(t, MatchBuffer) and t.source is buf:
            return True
        if isinstance(t, Prefetch) and t.buffer is buf:
            return True
        for e in stmt_exprs(t):
            if any(isinstance(x, AddressOf) and x.buffer is buf for x in walk(e)):
                return True
    return False


_Threads = Mapping[Var, str]


def _threads_at(e: Expr, threads: _Threads, known: Bounds) -> frozenset[str]:
    """The thread indices whose value an index certainly has."""
    if isinstance(e, Var):
        return frozenset([threads[e]] if e in threads else [])
    n = int_value(e)
    return frozenset(i for v, i in threads.items() if n is not None and bound(v, known) == (n, n))


def _accesses(
    s: Stmt, buf: Buffer, threads: _Threads, known: Bounds
) -> Iterator[tuple[tuple[Expr, ...], _Threads, Bounds]]:
    """For each access to a buffer: its indices, the variables that are the index of a thread, and
    what is known of these. A loop from 2 on is left out, because it begins in thread 0."""
    if isinstance(s, For) and thread_of(s) in THREAD_INDICES and int_value(s.lo) == 0:
        threads, known = {**threads, s.var: thread_of(s)}, known.with_loop(s.var, s.lo, s.extent)
    if isinstance(s, Store) and s.buffer is buf:
        yield s.indices, threads, known
    for e in stmt_exprs(s):
        for x in walk(e):
            if isinstance(x, Load) and x.buffer is buf:
                yield x.indices, threads, known
    for t in substmts(s):
        inside = known.given(s.cond) if isinstance(s, If) and t is s.then else known
        yield from _accesses(t, buf, threads, inside)


def _replaced(s: Stmt, old: Buffer, new: Buffer, kept: list[int]) -> Stmt:
    def value(e: Expr) -> Expr:
        found = map_children(e, value)
        if isinstance(found, Load) and found.buffer is old:
            return Load(new, tuple(found.indices[d] for d in kept))
        return found

    def stmt(t: Stmt) -> Stmt:
        found = map_stmt(t, value, stmt)
        if isinstance(found, Store) and found.buffer is old:
            return replace(found, buffer=new, indices=tuple(found.indices[d] for d in kept))
        return found

    return stmt(s)
