"""The primitive `pad_loop`: round a loop's extent up, so that a split of it becomes exact."""

from __future__ import annotations

from dataclasses import replace

from tensorkiln.arith import Bounds, prove, simplify
from tensorkiln.ir.expr import Expr, Var, binary
from tensorkiln.ir.stmt import Block, BlockIter, For, If, PrimFunc, Stmt
from tensorkiln.ir.visit import free_vars, map_stmt, walk_stmt
from tensorkiln.schedule.tree.boxes import Access, Around, accesses, box_of, inside, union
from tensorkiln.schedule.tree.places import around_of
from tensorkiln.schedule.tree.program import Place, dims_of, open_loop


def pad_loop(f: PrimFunc, loop: str, factor: int) -> PrimFunc:
    """Round the extent of a loop up to a multiple of `factor`.

        for i in range(10):                     for i in range(16):
            T_[i] = A[i] + 1           ->           if i < 10:
                                                        T_[i] = A[i] + 1

    The condition is left out if the new iterations read only elements that exist, write only
    allocated buffers that are large enough (`pad`), and nothing else reads what they write.
    """
    place, s = open_loop(f, loop, "pad_loop")
    if not isinstance(factor, int) or factor < 1:
        raise place.fail(f"factor={factor!r}", "a positive number")
    if s.kind not in ("serial", "parallel"):
        raise place.fail(f"the loop is {s.kind}", "pad it before it is marked")
    extent = simplify((s.extent + (factor - 1)) // factor * factor, place.bounds)
    if prove(binary("eq", extent, s.extent), place.bounds):
        return place.func
    long = replace(s, extent=extent)
    harmless = _grown(long) if _harmless(place, s, long) else None
    if harmless is not None:
        return place.close(harmless)
    cond = binary("lt", s.var, simplify(s.lo + s.extent, place.bounds))
    return place.close(replace(long, body=If(cond, s.body)))


def _grown(s: For) -> For | None:
    """The longer loop, with the extents of the iteration variables that follow it increased as
    well. None if such a variable is not spatial, or has another value than the loop variable."""
    bounds = Bounds().with_loop(s.var, s.lo, s.extent)
    end = simplify(s.lo + s.extent, bounds)
    failed: list[Block] = []

    def iteration(i: BlockIter, b: Block) -> BlockIter:
        if s.var not in free_vars(i.value):
            return i
        if i.kind != "spatial" or i.value is not s.var:
            failed.append(b)
        return replace(i, extent=end)

    def stmt(t: Stmt) -> Stmt:
        t = map_stmt(t, lambda e: e, stmt)
        if isinstance(t, Block):
            return replace(t, iters=tuple(iteration(i, t) for i in t.iters))
        return t

    grown = stmt(s)
    assert isinstance(grown, For)
    return None if failed else grown


def _harmless(place: Place, s: For, long: For) -> bool:
    """Whether the additional iterations access only elements that exist, and write none that is
    read by others."""
    around = around_of(place.func, place.path)
    if any(isinstance(t, If) for t in walk_stmt(s)):
        return False
    long_accesses = accesses(long, around)
    if not all(_exists(a) for a in long_accesses if _moves(a, s.var)):
        return False
    written = [a for a in long_accesses if a.write]
    if any(a.buffer in place.func.params or not _moves(a, s.var) for a in written):
        return False
    short = {a.buffer: [] for a in written}  # type: ignore[var-annotated]
    for a in accesses(s, around):
        if a.write:
            short[a.buffer].append(a)
    everywhere = accesses(place.func.body, Around(known=Bounds.dims(dims_of(place.func))))
    for a in everywhere:
        if a.write or a.buffer not in short:
            continue
        if any(x.var is s.var for x in a.around.loops):
            mine = [w.indices for w in written if w.buffer is a.buffer]
            if a.indices not in mine:
                return False
        elif not inside(
            box_of(a), union([box_of(w) for w in short[a.buffer]], around.known), around.known
        ):
            return False
    return True


def _moves(a: Access, var: Var) -> bool:
    return a.indices is None or any(var in free_vars(e) for e in a.indices)


def _exists(a: Access) -> bool:
    """Whether every index is within the buffer."""
    if a.indices is None:
        return False
    bounds = a.around.bounds
    return all(_within(e, size, bounds) for e, size in zip(a.indices, a.buffer.shape, strict=True))


def _within(e: Expr, size: Expr, bounds: Bounds) -> bool:
    if e.dtype.lanes > 1:
        return False
    return prove(binary("ge", e, 0), bounds) and prove(binary("lt", e, size), bounds)
