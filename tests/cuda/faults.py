"""Faults that are planted in kernels of devices: rewrites of a device function, or of its LLVM IR,
each of which yields every place where it can be planted, and nothing where it cannot."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace

from tensorkiln.arith import simplify
from tensorkiln.ir.buffer import Buffer, Load
from tensorkiln.ir.expr import Expr, IntImm, Ramp, binary, cast, int_value
from tensorkiln.ir.launch import launch_of, thread_of
from tensorkiln.ir.stmt import (
    BLOCK_INDICES,
    THREAD_INDICES,
    For,
    If,
    PrimFunc,
    Stmt,
    Store,
    Sync,
    seq,
)
from tensorkiln.ir.visit import map_children, map_stmt, stmt_exprs, substitute, walk, walk_stmt
from tests.cuda.emulator.launch import EmulatorFault
from tests.transform.device_programs import barriers, without_barrier

Indices = tuple[Expr, ...]
Change = Callable[[str], str]  # of LLVM IR


def put(old: str, new: str, count: int = 0) -> Change:
    """Replace a pattern, which must be there, by a text: everywhere, or `count` times."""

    def change(ir: str) -> str:
        changed, replacement_count = re.subn(old, new, ir, count=count)
        assert replacement_count, (old, ir)
        return changed

    return change


def require_found(run: Callable[[int], object], kinds: Collection[str]) -> None:
    """Assert that the emulator finds faults of these kinds, and no other, in some of three orders
    of threads, `run(order)`, and that each names its thread."""
    found_kinds = set()
    for order in range(3):
        try:
            run(order)
        except EmulatorFault as fault:
            found_kinds.add(fault.kind)
            assert re.search(r"thread \(\d+, 0, 0\)", str(fault)), str(fault)
    assert found_kinds and found_kinds <= set(kinds), (found_kinds, kinds)


def _changed(
    f: PrimFunc,
    store: Callable[[Store], Stmt] = lambda s: s,
    load: Callable[[Load], Expr] = lambda e: e,
) -> PrimFunc:
    """`f` with its stores and loads rewritten, those of changed parts too."""

    def expr(e: Expr) -> Expr:
        e = map_children(e, expr)
        return load(e) if isinstance(e, Load) else e

    def stmt(s: Stmt) -> Stmt:
        s = map_stmt(s, expr, stmt)
        return store(s) if isinstance(s, Store) else s

    return replace(f, body=stmt(f.body))


def _output(f: PrimFunc) -> Buffer:
    return [p for p in f.params if isinstance(p, Buffer)][-1]


def _loaded(f: PrimFunc) -> dict[Buffer, None]:
    """The buffers that a function reads, in order."""
    parts = (x for s in walk_stmt(f.body) for e in stmt_exprs(s) for x in walk(e))
    return dict.fromkeys(x.buffer for x in parts if isinstance(x, Load))


def _further(indices: Indices, by: int = 1) -> Indices:
    """The same place, rows further on."""
    first, *other_indices = indices
    return (binary("add", first, cast(IntImm(by), first.dtype)), *other_indices)


# ---- barriers ------------------------------------------------------------------------------------


def missing_barrier(f: PrimFunc) -> Iterator[PrimFunc]:
    """Without one of its barriers."""
    for k in range(barriers(f)):
        yield without_barrier(f, k)


def copies_unawaited(f: PrimFunc) -> Iterator[PrimFunc]:
    """All barriers are there, but at one of them threads do not wait for their copies."""
    count = sum(isinstance(s, Sync) and s.scope == "copies" for s in walk_stmt(f.body))
    for chosen_index in range(count):
        sync_index = -1

        def plain(s: Stmt) -> Stmt:
            nonlocal sync_index
            if isinstance(s, Sync) and s.scope == "copies":
                sync_index += 1
                return Sync("block") if sync_index == chosen_index else s  # noqa: B023 - called before the next round
            return map_stmt(s, lambda e: e, plain)

        yield replace(f, body=plain(f.body))


def batch_unawaited(f: PrimFunc) -> Iterator[PrimFunc]:
    """At a barrier threads leave one batch of copies more than those that no one needs yet."""
    count = sum(isinstance(s, Sync) and s.pending > 0 for s in walk_stmt(f.body))
    for chosen_index in range(count):
        sync_index = -1

        def more(s: Stmt) -> Stmt:
            nonlocal sync_index
            if isinstance(s, Sync) and s.pending:
                sync_index += 1
                more_of = Sync(s.scope, s.pending + 1)
                return more_of if sync_index == chosen_index else s  # noqa: B023 - called before the next round
            return map_stmt(s, lambda e: e, more)

        yield replace(f, body=more(f.body))


_BARRIER = "@llvm.nvvm.barrier.cta.sync.aligned.all"
_CALL = f"  call void {_BARRIER}(i32 0)"
_ODD = f"""\
  %fault.tid = call i32 @llvm.nvvm.read.ptx.sreg.tid.x()
  %fault.odd = trunc i32 %fault.tid to i1
  %fault.wait = select i1 %fault.odd, ptr {_BARRIER}, ptr @fault.NAME
  call void %fault.wait(i32 0)"""
_NEEDED = f"""
define internal void @fault.NAME(i32 %number) {{
  ret void
}}
declare i32 @llvm.nvvm.read.ptx.sreg.tid.x()
declare void {_BARRIER}(i32)
"""


def diverging_barrier(ir: str, name: str) -> Iterator[str]:
    """LLVM IR in which every second thread alone comes to one of the barriers, or to one more at
    the end."""
    lines = ir.splitlines()
    places = [i for i, line in enumerate(lines) if line == _CALL]
    end = lines.index("  ret void")
    for k in [*places, end]:
        remaining_lines = lines[k:] if k == end else lines[k + 1 :]
        yield "\n".join([*lines[:k], _ODD, *remaining_lines, _NEEDED]).replace("NAME", name)


# ---- races ---------------------------------------------------------------------------------------


def _stored_at_zero(f: PrimFunc, indices: Sequence[str]) -> PrimFunc:
    """The result stored where the indices of threads or blocks were 0."""
    loops = [s for s in walk_stmt(f.body) if isinstance(s, For) and thread_of(s) in indices]
    zero = {s.var: IntImm(0, s.var.dtype) for s in loops}

    def store(s: Store) -> Stmt:
        moved = tuple(substitute(i, zero) for i in s.indices)
        return replace(s, indices=moved) if s.buffer is _output(f) else s

    return _changed(f, store)


def race_of_threads(f: PrimFunc) -> Iterator[PrimFunc]:
    """Threads of a block write one element."""
    yield _stored_at_zero(f, THREAD_INDICES)


def race_of_blocks(f: PrimFunc) -> Iterator[PrimFunc]:
    """Blocks write one element."""
    yield _stored_at_zero(f, BLOCK_INDICES)


def race_of_reads(f: PrimFunc) -> Iterator[PrimFunc]:
    """A thread adds what its neighbour writes, in a row or in a column."""
    out = _output(f)
    for axis in dict.fromkeys((len(out.shape) - 1, 0)):

        def store(s: Store, axis: int = axis) -> Stmt:
            if s.buffer is not out:
                return s
            indices = list(s.indices)
            indices[axis] = _neighbour(indices[axis], out.shape[axis])
            return replace(s, value=s.value + Load(out, tuple(indices)))

        yield _changed(f, store)


def _neighbour(e: Expr, extent: Expr) -> Expr:
    """The next index, or the next as many, at the end of a row the first again."""
    if isinstance(e, Ramp):
        return Ramp(_neighbour_of(e.base, e.lanes, extent), e.stride, e.lanes)
    return _neighbour_of(e, 1, extent)


def _neighbour_of(e: Expr, by: int, extent: Expr) -> Expr:
    wide = cast(e, extent.dtype)
    return binary("floormod", binary("add", wide, IntImm(by, extent.dtype)), extent)


# ---- bounds --------------------------------------------------------------------------------------


def row_too_far(f: PrimFunc) -> Iterator[PrimFunc]:
    """A tensor is read, or the result written, a row further on."""
    for b in _loaded(f):
        if b.scope == "global" and b.shape:
            yield _moved(f, b, loads=True)
    yield _moved(f, _output(f), loads=False)


def shared_row_too_far(f: PrimFunc) -> Iterator[PrimFunc]:
    """The last shared buffer is read or written a row further on."""
    places = launch_of(f).places
    if places:
        last = max(places, key=lambda b: places[b])
        yield _moved(f, last, loads=True)
        yield _moved(f, last, loads=False)


def _moved(f: PrimFunc, b: Buffer, loads: bool) -> PrimFunc:
    if loads:
        return _changed(
            f,
            load=lambda e: replace(e, indices=_further(e.indices)) if e.buffer is b else e,
        )
    return _changed(f, lambda s: replace(s, indices=_further(s.indices)) if s.buffer is b else s)


def undefined(f: PrimFunc) -> Iterator[PrimFunc]:
    """A shared buffer is read that nobody has written."""
    for b in launch_of(f).shared:
        yield _changed(f, lambda s, b=b: seq() if s.buffer is b else s)  # type: ignore[misc]


def wrong_stage(f: PrimFunc) -> Iterator[PrimFunc]:
    """A copy that runs ahead goes to the stage after its own."""
    for b in launch_of(f).shared:
        if not _has_stages(f, b):
            continue
        stages = int_value(b.shape[0])
        assert stages is not None

        def store(s: Store, b: Buffer = b, stages: int = stages) -> Stmt:
            if s.buffer is not b:
                return s
            (first, *other_indices) = _further(s.indices)
            return replace(
                s, indices=(binary("floormod", first, IntImm(stages, first.dtype)), *other_indices)
            )

        yield _changed(f, store)


def _has_stages(f: PrimFunc, b: Buffer) -> bool:
    """Whether the first index of a shared buffer is a round modulo the number of its stages, of
    which there are a few."""
    if len(b.shape) < 3:
        return False
    loads = [x for s in walk_stmt(f.body) for e in stmt_exprs(s) for x in walk(e)]
    firsts = [x.indices[0] for x in loads if isinstance(x, Load) and x.buffer is b]
    return any(
        getattr(x, "op", "") == "floormod" and int_value(simplify(x.b)) == int_value(b.shape[0])
        for first in firsts
        for x in walk(first)
    )


def dropped_predicate(f: PrimFunc) -> Iterator[PrimFunc]:
    """What a condition guards is done by all."""
    count = sum(isinstance(s, If) for s in walk_stmt(f.body))
    for chosen_index in range(count):
        condition_index = -1

        def cut(s: Stmt) -> Stmt:
            nonlocal condition_index
            if isinstance(s, If):
                condition_index += 1
                if condition_index == chosen_index:  # noqa: B023 - called before the next round
                    return s.then
            return map_stmt(s, lambda e: e, cut)

        yield replace(f, body=cut(f.body))


@dataclass(frozen=True, slots=True)
class Fault:
    """How to plant it; the kinds of faults as which the emulator may find it; the kinds as which a
    proof does, if proofs ask for such; whether all places where it is planted must be found, or
    some: a condition may guard what does no harm, a neighbour be the same thread, and who reads
    what he himself has copied to a wrong stage gets wrong numbers, in order."""

    plant: Callable[[PrimFunc], Iterator[PrimFunc]]
    emulated: tuple[str, ...]
    proved: tuple[str, ...] = ()
    everywhere: bool = True


_BOUNDS = ("buffer out of bounds",)
FAULTS = {
    "missing barrier": Fault(missing_barrier, ("race", "copy"), ("race", "copy")),
    "unawaited copies": Fault(copies_unawaited, ("copy",), ("copy",)),
    "batch unawaited": Fault(batch_unawaited, ("copy",), ("copy",)),
    "race of threads": Fault(race_of_threads, ("race",), ("race",)),
    "race of blocks": Fault(race_of_blocks, ("race",), ("blocks",)),
    "race of reads": Fault(race_of_reads, ("race",), ("race", "blocks"), everywhere=False),
    "row too far": Fault(row_too_far, _BOUNDS, ("bounds",)),
    "shared row too far": Fault(  # a row may be a part that copies fill
        shared_row_too_far, ("shared memory out of bounds", "copy"), ("bounds",)
    ),
    "undefined": Fault(undefined, ("undefined shared memory",)),
    "wrong stage": Fault(
        wrong_stage,
        ("race", "undefined shared memory", "copy"),
        ("race", "copy"),
        everywhere=False,
    ),
    "dropped predicate": Fault(
        dropped_predicate,
        (*_BOUNDS, "race", "shared memory out of bounds", "undefined shared memory"),
        ("bounds", "race", "blocks"),
        everywhere=False,
    ),
}
