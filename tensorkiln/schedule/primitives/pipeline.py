"""Copy for later rounds of a loop while it computes."""

from __future__ import annotations

from dataclasses import replace

from tensorkiln.arith import simplify
from tensorkiln.ir.attrs import Attrs
from tensorkiln.ir.buffer import Buffer
from tensorkiln.ir.expr import Expr, Var, binary, const, int_value, minimum
from tensorkiln.ir.rings import PARTS, PRODUCERS, TENSOR_MAPS
from tensorkiln.ir.stmt import Alloc, For, If, PrimFunc, Seq, Stmt, Store, seq
from tensorkiln.ir.visit import walk_stmt
from tensorkiln.schedule.primitives.results import Primitive
from tensorkiln.schedule.proofs.legality import require_order
from tensorkiln.schedule.tree.boxes import Around
from tensorkiln.schedule.tree.program import Place, count_of, dims_of, open_loop
from tensorkiln.schedule.tree.reindex import Indices, Move, reindex, require_visible
from tensorkiln.schedule.tree.rewrite import rewrite
from tensorkiln.schedule.tree.surgery import path_to, put, renewed
from tensorkiln.schedule.tree.threads import require_shared_by_block


@Primitive
def pipeline(
    f: PrimFunc,
    loop: str,
    stages: int = 2,
    producers: int = 0,
    tensor_maps: bool = False,
    check: bool = True,
) -> tuple[PrimFunc, str]:
    """Fill the shared buffers of a loop `stages - 1` rounds ahead of the round that uses them.

        for k in range(8):                         S = T.alloc_buffer((2, 32), scope="shared")
            S = T.alloc_buffer((32,), "shared")    for k_ahead in range(1):
            for i in range(32):                        for i_1 in range(32):
                S[i] = A[k, i]            ->               S[k_ahead % 2, i_1] = A[k_ahead, i_1]
            for j in range(32):                    for k in range(8):
                C[k, j] = S[31 - j]                    if k + 1 < 8:
                                                           for i in range(32):
                                                               S[(k + 1) % 2, i] = A[k + 1, i]
                                                       for j in range(32):
                                                           C[k, j] = S[k % 2, 31 - j]

    The buffers are those that the loop allocates in scope "shared", as `cache_read(..., at=loop)`
    does; each gets a part for every stage. The statements that fill them come first in the loop.
    The condition leaves out the copies for rounds that there are not. A round of
    two stages needs one barrier, where copying in place needs two. `storage_align` comes after it.

    With `producers`, a multiple of 32, no copy moves: as many threads of their own make the copies,
    and run ahead by themselves where the device can do that (`ir/rings.py`). Divide the copies
    among these threads; the loop itself is what comes back. With `tensor_maps`, a device that has
    hardware for it (TMA) makes those that copy a box of a tensor as one, with one thread.
    """
    loop_place, s = open_loop(f, loop, "pipeline")
    if not isinstance(stages, int) or isinstance(stages, bool) or stages < 2:
        raise loop_place.fail(f"stages={stages!r}", "a number from 2 on")
    if s.kind != "serial":
        raise loop_place.fail(
            f"the loop is {s.kind}", "a serial loop, whose rounds follow each other"
        )
    if not isinstance(producers, int) or isinstance(producers, bool) or producers % 32:
        raise loop_place.fail(f"producers={producers!r}", "a multiple of 32, or 0")
    if tensor_maps and not producers:
        raise loop_place.fail(
            "tensor_maps without producers", "producers=32: one of them begins the copies"
        )
    rounds = int_value(s.extent)
    if rounds is not None and rounds < stages:
        raise loop_place.fail(
            f"{stages} stages for {rounds} rounds", "at most as many as there are rounds"
        )
    buffers, copies, consumers = _parts(loop_place, s)
    lo = s.lo
    # First with a part for each stage, the rounds in order; the proof compares with that.
    expanded = loop_place.func
    body: Stmt = replace(s, body=seq(*copies, *consumers))
    stage_buffers = [replace(b, shape=(const(stages), *b.shape)) for b in buffers]
    for b in stage_buffers:
        body = Alloc(b, body)
    expanded = replace(expanded, body=put(loop_place.path, body))
    for old, new in zip(buffers, stage_buffers, strict=True):
        around = Around(known=loop_place.bounds.dims(dims_of(f)))
        move = _at_stage(s.var, lo, stages)
        expanded = replace(
            expanded, body=reindex(expanded.body, around, old, new, move, loop_place.what)
        )
    path = path_to(expanded.body, loop)
    assert path is not None
    if producers:
        if check:
            require_order(loop_place.func, expanded, loop_place.what)
        settings = {
            PARTS: stages,
            PRODUCERS: producers,
            **({TENSOR_MAPS: True} if tensor_maps else {}),
        }
        marks = Attrs.of(**{**s.attrs, **settings})
        loop_there = Place(expanded, path, loop_place.what).stmt
        assert isinstance(loop_there, For)
        marked = put(path, replace(loop_there, attrs=marks))
        return require_shared_by_block(replace(expanded, body=marked), loop_place.what), loop
    place = Place(expanded, path, loop_place.what)
    after, first = _ahead(place, len(copies), stages - 1)
    if check:
        require_order(expanded, after, loop_place.what)
    return require_shared_by_block(after, loop_place.what), first


def _parts(place: Place, s: For) -> tuple[list[Buffer], list[Stmt], list[Stmt]]:
    """(the shared buffers of a loop, the statements that fill them, the other statements)."""
    loop_buffers, stmts = _flat(s.body)
    buffers = [b for b in loop_buffers if b.scope == "shared"]
    unshared = [b for b in loop_buffers if b.scope != "shared"]
    if not buffers:
        raise place.fail(
            "it allocates no shared buffer", f"cache_read(..., 'shared', at={s.var.name!r})"
        )
    if unshared:
        text = f"{unshared[0].name!r}, which it allocates too, is {unshared[0].scope}"
        raise place.fail(text, "allocate it outside of the loop, or further in")
    for b in buffers:
        require_visible(s.body, b, place.what)
        if b.strides_given is not None:
            raise place.fail(f"{b.name!r} has strides of its own", "storage_align after it")
    fills = [bool(_written(t) & set(buffers)) for t in stmts]
    count = fills.index(False) if False in fills else len(fills)
    if count == len(fills) or True in fills[count:]:
        text = (
            "nothing uses what it copies"
            if count == len(fills)
            else ("it fills a shared buffer after it began to compute")
        )
        raise place.fail(text, "copies come first in the loop, then what uses them")
    missing = set(buffers) - {b for t in stmts[:count] for b in _written(t)}
    if missing or count == 0:
        raise place.fail(f"nothing fills {buffers[0].name!r}", "copies come first in the loop")
    return buffers, stmts[:count], stmts[count:]


def _flat(s: Stmt) -> tuple[list[Buffer], list[Stmt]]:
    """(the buffers that are allocated in a statement for what is left of it, its parts)."""
    if isinstance(s, Alloc):
        buffers, stmts = _flat(s.body)
        return [s.buffer, *buffers], stmts
    if isinstance(s, Seq) and isinstance(s.stmts[-1], Alloc):
        buffers, stmts = _flat(s.stmts[-1])
        return buffers, [*s.stmts[:-1], *stmts]
    return [], list(s.stmts) if isinstance(s, Seq) else [s]


def _written(s: Stmt) -> set[Buffer]:
    return {t.buffer for t in walk_stmt(s) if isinstance(t, Store)}


def _at_stage(var: Var, lo: Expr, stages: int) -> Move:
    def move(indices: Indices, bounds: object) -> Indices:
        return (simplify((var - lo) % stages), *indices)

    return move


def _ahead(place: Place, count: int, ahead: int) -> tuple[PrimFunc, str]:
    """The program in which the first `count` statements of a loop run `ahead` rounds earlier than
    the others, and the name of the loop over the first of these rounds."""
    s = place.stmt
    assert isinstance(s, For) and isinstance(s.body, Seq)
    copies, consumers = seq(*s.body.stmts[:count]), s.body.stmts[count:]
    end = simplify(s.lo + s.extent, place.bounds)
    later = simplify(s.var + ahead)
    inside = binary("lt", later, end)
    bounds = place.bounds.with_loop(s.var, s.lo, s.extent)
    main = rewrite(copies, {s.var: later}, bounds.given(inside))
    first = Var(place.name(f"{s.var.name}_ahead"), s.var.dtype)
    extent = simplify(minimum(count_of(place, s), const(ahead, s.extent.dtype)), place.bounds)
    before = rewrite(copies, {s.var: first}, place.bounds.with_loop(first, s.lo, extent))
    prologue = For(first, s.lo, extent, "serial", renewed(before, place.name))
    body = replace(s, body=seq(If(inside, main), *consumers))
    return place.close(seq(prologue, body)), first.name
