"""The primitive `fission`, which gives each statement of a loop a loop of its own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TypeVar

from tensorkiln.arith import simplify
from tensorkiln.ir.buffer import AddressOf, Buffer, Load
from tensorkiln.ir.expr import Expr, IntImm, Var, int_value
from tensorkiln.ir.stmt import Alloc, Block, BlockIter, For, PrimFunc, Region, Seq, Stmt, Store, seq
from tensorkiln.ir.visit import map_children, map_stmt, walk_stmt
from tensorkiln.schedule.primitives.results import Fission, Primitive
from tensorkiln.schedule.proofs.legality import require_order
from tensorkiln.schedule.tree.program import Place, open_loop
from tensorkiln.schedule.tree.rewrite import rewrite
from tensorkiln.schedule.tree.surgery import expressions, put

_D = TypeVar("_D")


@Primitive
def fission(f: PrimFunc, loop: str, check: bool = True) -> tuple[PrimFunc, Fission]:
    """Give each statement of a loop's body a loop of its own.

        for i in range(4):                   t = T.alloc_buffer((4, 8))
            t = T.alloc_buffer((8,))         for i in range(4):
            for j in range(8):                   for j in range(8):
                t[j] = A[i, j]        ->             t[i, j] = A[i, j]
            for k in range(8):               for i_1 in range(4):
                C[i] = C[i] + t[k]               for k in range(8):
                                                     C[i] = C[i] + t[i_1, k]

    Buffers allocated in the body get a leading dimension for the loop; a buffer of one element gets
    it as its only dimension.
    """
    place, s = open_loop(f, loop, "fission")
    buffers: list[Buffer] = []
    body = s.body
    while isinstance(body, Alloc):
        buffers.append(body.buffer)
        body = body.body
    if not isinstance(body, Seq) or len(body.stmts) < 2:
        raise place.fail("its body is a single statement", "reorder moves a loop into another")
    wide = {b: replace(b, shape=(s.extent, *_kept(b.shape, b))) for b in buffers}
    if any(b.strides_given is not None for b in buffers):
        raise place.fail("a buffer made in its body has strides", "make it row-major")
    for b in wide.values():
        if b.scope != "global" and any(int_value(d) is None for d in b.shape):
            raise place.fail(
                f"{b.name!r} would have no constant size in scope {b.scope!r}",
                f"set_scope({b.name!r}, 'global') before",
            )
    position = simplify(s.var - s.lo)
    parts = [_expanded(t, s, position, wide, place) for t in body.stmts]
    joined = _around(wide, replace(s, body=seq(*parts)))
    apart = [_own_loop(s, t, k, place) for k, t in enumerate(parts)]
    after = place.close(_around(wide, seq(*apart)))
    if check:
        # Checked with one variable for all the loops: the loops then identify an instance, which
        # makes proofs short.
        parted = _around(wide, seq(*(replace(s, body=t) for t in parts)))
        require_order(
            place.close(joined), replace(place.func, body=put(place.path, parted)), place.what
        )
    return after, Fission(tuple(t.var.name for t in apart))


def _around(wide: Mapping[Buffer, Buffer], s: Stmt) -> Stmt:
    for b in reversed(tuple(wide.values())):
        s = Alloc(b, s)
    return s


def _own_loop(s: For, part: Stmt, k: int, place: Place) -> For:
    """The loop of statement `k`: the first keeps the name."""
    if k == 0:
        return replace(s, body=part)
    var = Var(place.name(s.var.name), s.var.dtype)
    bounds = place.bounds.with_loop(var, s.lo, s.extent)
    return replace(s, var=var, body=rewrite(part, {s.var: var}, bounds))


def _expanded(
    s: Stmt, loop: For, position: Expr, wide: Mapping[Buffer, Buffer], place: Place
) -> Stmt:
    """`s` with accesses of widened buffers at `position`; a block that has such accesses gets an
    iteration variable for it."""
    if not wide:
        return s
    if isinstance(s, Block):
        if not _mentions(s, wide):
            return s
        var = Var(loop.var.name, loop.var.dtype)
        inner = _accesses(replace(s, iters=()), var, wide)
        assert isinstance(inner, Block)
        step = BlockIter(var, loop.extent, "spatial", position)
        return replace(inner, iters=(*s.iters, step))
    if not isinstance(s, For | Seq | Alloc):
        return _accesses(s, position, wide)
    return map_stmt(s, lambda e: e, lambda t: _expanded(t, loop, position, wide, place))


def _kept(dims: tuple[_D, ...], buffer: Buffer) -> tuple[_D, ...]:
    """The dimensions (or indices) after the new one: none for a buffer of one element."""
    return () if all(int_value(d) == 1 for d in buffer.shape) else dims


def _mentions(s: Stmt, buffers: Mapping[Buffer, Buffer]) -> bool:
    stored = any(isinstance(t, Store) and t.buffer in buffers for t in walk_stmt(s))
    read = (x for x in expressions(s) if isinstance(x, Load | AddressOf))
    return stored or any(x.buffer in buffers for x in read)


def _accesses(s: Stmt, position: Expr, wide: Mapping[Buffer, Buffer]) -> Stmt:
    """`s` reading and writing the widened buffers at `position`."""

    def ex(e: Expr) -> Expr:
        e = map_children(e, ex)
        if isinstance(e, Load | AddressOf) and e.buffer in wide:
            indices = (position, *_kept(e.indices, e.buffer))
            return replace(e, buffer=wide[e.buffer], indices=indices)
        return e

    def region(r: Region) -> Region:
        if r.buffer not in wide:
            return r
        return Region(wide[r.buffer], ((position, IntImm(1)), *_kept(r.ranges, r.buffer)))

    def st(t: Stmt) -> Stmt:
        t = map_stmt(t, ex, st)
        if isinstance(t, Store) and t.buffer in wide:
            indices = (position, *_kept(t.indices, t.buffer))
            return replace(t, buffer=wide[t.buffer], indices=indices)
        if isinstance(t, Block):
            reads, writes = tuple(map(region, t.reads)), tuple(map(region, t.writes))
            return replace(t, reads=reads, writes=writes)
        return t

    return st(s)
