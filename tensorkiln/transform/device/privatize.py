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
    thread_indices = {i for t in walk_stmt(s.body) if (i := thread_of(t)) in THREAD_INDICES}
    dims: dict[int, frozenset[str]] | None = None  # by dimension, the threads whose index it has
    for indices, threads, bounds in _accesses(s.body, buf, {}, Bounds()):
        mine = {d: _threads_at(e, threads, bounds) for d, e in enumerate(indices)}
        dims = mine if dims is None else {d: names & mine[d] for d, names in dims.items()}
    dims = {d: names for d, names in (dims or {}).items() if len(names) == 1}
    if not dims or frozenset().union(*dims.values()) != thread_indices:
        return None
    shared_dims = [d for d in range(len(buf.shape)) if d not in dims]
    new = replace(buf, shape=tuple(buf.shape[d] for d in shared_dims))
    return Alloc(new, _replaced(s.body, buf, new, shared_dims))


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


def _threads_at(e: Expr, threads: _Threads, bounds: Bounds) -> frozenset[str]:
    """The thread indices whose value an index certainly has."""
    if isinstance(e, Var):
        return frozenset([threads[e]] if e in threads else [])
    n = int_value(e)
    return frozenset(i for v, i in threads.items() if n is not None and bound(v, bounds) == (n, n))


def _accesses(
    s: Stmt, buf: Buffer, threads: _Threads, bounds: Bounds
) -> Iterator[tuple[tuple[Expr, ...], _Threads, Bounds]]:
    """For each access to a buffer: its indices, the variables that are the index of a thread, and
    what is known of these. A loop from 2 on is left out, because it begins in thread 0."""
    if isinstance(s, For) and thread_of(s) in THREAD_INDICES and int_value(s.lo) == 0:
        threads, bounds = {**threads, s.var: thread_of(s)}, bounds.with_loop(s.var, s.lo, s.extent)
    if isinstance(s, Store) and s.buffer is buf:
        yield s.indices, threads, bounds
    for e in stmt_exprs(s):
        for x in walk(e):
            if isinstance(x, Load) and x.buffer is buf:
                yield x.indices, threads, bounds
    for t in substmts(s):
        inside = bounds.given(s.cond) if isinstance(s, If) and t is s.then else bounds
        yield from _accesses(t, buf, threads, inside)


def _replaced(s: Stmt, old: Buffer, new: Buffer, dims: list[int]) -> Stmt:
    def value(e: Expr) -> Expr:
        new_expr = map_children(e, value)
        if isinstance(new_expr, Load) and new_expr.buffer is old:
            return Load(new, tuple(new_expr.indices[d] for d in dims))
        return new_expr

    def stmt(t: Stmt) -> Stmt:
        new_stmt = map_stmt(t, value, stmt)
        if isinstance(new_stmt, Store) and new_stmt.buffer is old:
            return replace(new_stmt, buffer=new, indices=tuple(new_stmt.indices[d] for d in dims))
        return new_stmt

    return stmt(s)
