"""The primitives `prefetch` and `prefetch_next`: load what a loop will read into the caches."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from dataclasses import replace
from functools import reduce
from itertools import product
from operator import add

from tensorkiln.arith import simplify
from tensorkiln.ir.buffer import Buffer
from tensorkiln.ir.expr import Expr, IntImm, int_value, minimum
from tensorkiln.ir.stmt import Block, For, Prefetch, PrimFunc, Stmt, seq
from tensorkiln.ir.visit import free_vars, map_stmt, substitute, substmts
from tensorkiln.schedule.tree.boxes import Box, accesses, region
from tensorkiln.schedule.tree.places import around_of, find_buffer
from tensorkiln.schedule.tree.program import Place, open_loop

_LINE = 64  # bytes of a cache line, which one prefetch loads
_MOST = 64  # prefetches in one step
# What an unknown dimension is taken to be.
_UNKNOWN = 64
# Fewer lines than this that are due in a step are fetched in fewer steps of a loop outside, but not
# more than so many together: a core has 10 to 16 buffers for lines under way.
_DUE, _TOGETHER = 0.5, 16
_NONE = IntImm(0)


def prefetch(f: PrimFunc, loop: str, buffer: str, ahead: int, locality: int = 2) -> PrimFunc:
    """At each step of a loop, prefetch what it reads of a parameter `ahead` steps later.

        for k in range(64):                 for k in range(64):
            C[0] += A[k] * B[k, 0]     ->       T.prefetch(B[k + 8, 0], 2, False)
                                                C[0] += A[k] * B[k, 0]

    `locality` is 3 for all caches, 2 for those from the second level on. There is one prefetch for
    each cache line of the box that a step reads. The last steps prefetch memory past what the loop
    reads; a prefetch of any address is allowed and has no effect on results.
    """
    place, s, box = _open(f, loop, buffer, locality, "prefetch")
    if not isinstance(ahead, int) or ahead < 1:
        raise place.fail(f"ahead={ahead!r}", "a positive number of steps")
    starts = _later(s, box, ahead)
    lines = (Prefetch(box.buffer, _plus(starts, line), locality) for line in _lines(place, box))
    return place.close(replace(s, body=seq(*lines, s.body)))


def prefetch_next(f: PrimFunc, loop: str, buffer: str, locality: int = 2) -> PrimFunc:
    """During each step of a loop, prefetch what its next step reads of a parameter, spread evenly
    over the steps of the serial loops inside.

        for p in range(8):                     for p in range(8):
            for i in range(32):                    for i in range(32):
                for j in range(64):                    T.prefetch(B[p + 1, i * 32], 2, False)
                    C[p, i] += B[p, j * 16]   ->       T.prefetch(B[p + 1, i * 32 + 16], 2, False)
                                                       for j in range(64):
                                                           C[p, i] += B[p, j * 16]

    What a step reads must lie in one piece. The innermost loops in whose steps at least half a
    cache line is due get the prefetches, as many as are due, rounded up, at most 64; when all lines
    are fetched, further steps fetch the last ones again. Unknown dimensions are taken to be 64.
    `locality` and what is past the end are as in `prefetch`.
    """
    loop_place, s, box = _open(f, loop, buffer, locality, "prefetch_next")
    size = _piece(loop_place, box)
    line = max(1, _LINE // box.buffer.dtype.bytes)
    count = -(-size // line)
    steps = _steps(s, box.buffer, count)
    if not steps:
        raise loop_place.fail("no serial loop inside reads it", "use prefetch, or split the loop")
    runs = _runs(s.body, steps)
    due = min(-(-count // max(1, _estimate(runs))), _MOST)
    starts, total = _later(s, box, 1), int_value(runs)

    def fetched(position: Expr) -> list[Stmt]:
        first = simplify(position * due)
        if total is None or total * due > count:
            first = minimum(first, max(0, count - due))
        places = (simplify(starts[-1] + (first + n) * line) for n in range(due))
        return [Prefetch(box.buffer, (*starts[:-1], place), locality) for place in places]

    return loop_place.close(replace(s, body=_spread(s.body, IntImm(0), steps, fetched)))


def _open(
    f: PrimFunc, loop: str, buffer: str, locality: int, primitive: str
) -> tuple[Place, For, Box]:
    """The place of a loop, the loop, and the box of a parameter that one of its steps reads."""
    place, s = open_loop(f, loop, primitive)
    buf = find_buffer(place.func, buffer, place.what)
    if buf not in place.func.params:
        raise place.fail(
            f"{buffer!r} is not a parameter", "a buffer made here is already in the caches"
        )
    if locality not in range(4):
        raise place.fail(f"locality={locality!r}", "0 (used once) to 3 (kept in all caches)")
    if s.kind not in ("serial", "parallel"):
        raise place.fail(
            f"the loop is {s.kind}", "choose one around it whose steps follow each other"
        )
    if any(isinstance(t, Block) for t in place.path):
        raise place.fail("it is inside a block", "prefetch before tensorize")
    box = region(s.body, around_of(place.func, place.path).enter(s, s.body), buf, writes=False)
    if box is None:
        raise place.fail(f"nothing here reads {buffer!r}", "name what the loop reads")
    return place, s, box


def _later(s: For, box: Box, ahead: int) -> tuple[Expr, ...]:
    """The first element of a box, that many steps later."""
    later = {s.var: s.var + ahead}
    return tuple(simplify(substitute(lo, later)) for lo, _ in box.ranges)


def _piece(place: Place, box: Box) -> int:
    """The elements of a box that lies in one piece of memory: of its dimensions, those after the
    first of more than one element are whole. ScheduleError for others."""
    extents = [int_value(n) for n in box.shape]
    sizes = [int_value(n) for n in box.buffer.shape]
    inner = next((d for d, n in enumerate(extents) if n != 1), len(extents))
    if any(n is None for n in extents):
        raise place.fail("a step reads a part of no constant size", "split the loops inside it")
    if extents[inner + 1 :] != sizes[inner + 1 :] or box.buffer.strides_given:
        raise place.fail("a step reads several pieces of memory", "use prefetch in a loop inside")
    return math.prod(n or 1 for n in extents)


def _steps(s: For, buf: Buffer, count: int) -> set[str]:
    """The serial loops inside of `s` in whose steps the `count` lines of a parameter are fetched:
    all at one depth, or innermost at a smaller one."""
    readers: dict[int, bool] = {}  # by identity, since each is asked for at every depth

    def reads(loop: For) -> bool:
        if id(loop) not in readers:
            readers[id(loop)] = any(x.buffer is buf for x in accesses(loop))
        return readers[id(loop)]

    depth, steps = 1, _at_depth(s.body, reads, 1)
    while (deeper := _at_depth(s.body, reads, depth + 1)) != steps:
        total, deeper_total = (_estimate(_runs(s.body, x)) for x in (steps, deeper))
        if count < _DUE * deeper_total and count <= _TOGETHER * total:
            break
        depth, steps = depth + 1, deeper
    return steps


def _at_depth(s: Stmt, reads: Callable[[For], bool], depth: int) -> set[str]:
    """The serial loops that read a parameter, `depth` of which are around it, themselves included;
    the innermost where there are fewer. `reads` says which loops read it."""
    serial = isinstance(s, For) and s.kind == "serial" and int_value(s.extent) != 1
    below = depth - 1 if serial else depth
    inner_loops = (
        set().union(*(_at_depth(t, reads, below) for t in substmts(s))) if below else set()
    )
    if isinstance(s, For) and serial and not inner_loops:
        return {s.var.name} if reads(s) else set()
    return inner_loops


def _runs(s: Stmt, steps: Collection[str]) -> Expr:
    """How many steps of these loops run in a statement."""
    if isinstance(s, For) and s.var.name in steps:
        return s.extent
    counts = [n for t in substmts(s) if (n := _runs(t, steps)) is not _NONE]
    if not counts:  # as in all that has no loops
        return _NONE
    count = reduce(add, counts)
    return simplify(s.extent * count if isinstance(s, For) else count)


def _spread(
    s: Stmt, before: Expr, steps: Collection[str], fetched: Callable[[Expr], list[Stmt]]
) -> Stmt:
    """A statement with prefetches in each step of loops, given how many steps ran before."""
    if isinstance(s, For) and s.var.name in steps:
        return replace(s, body=seq(*fetched(before + (s.var - s.lo)), s.body))
    if isinstance(s, For):
        before = before + (s.var - s.lo) * _runs(s.body, steps)
    places = {}
    for t in substmts(s):
        places[id(t)] = before
        before = before + _runs(t, steps)
    return map_stmt(s, lambda e: e, lambda t: _spread(t, places[id(t)], steps, fetched))


def _estimate(runs: Expr) -> int:
    """A number of runs, for a usual size of unknown dimensions."""
    dims = {v: IntImm(_UNKNOWN) for v in free_vars(runs)}
    return int_value(simplify(substitute(runs, dims))) or 0


def _lines(place: Place, box: Box) -> list[tuple[int, ...]]:
    """The indices, relative to the first element of a box, at which its cache lines begin.
    ScheduleError for a box without constant size, or of more than _MOST lines."""
    extents = [int_value(n) for n in box.shape]
    sizes = [n for n in extents if n is not None]
    if len(sizes) < len(extents):
        raise place.fail("a step reads a part of no constant size", "split the loops inside it")
    step = max(1, _LINE // box.buffer.dtype.bytes)
    # Rows that are read as a whole are contiguous, and are divided into lines together.
    width = sizes[-1]
    rows = sizes[-2] if len(sizes) > 1 and int_value(box.buffer.shape[-1]) == width else 1
    lead = sizes[: -2 if rows > 1 else -1]
    starts = [
        (*at_lead, *((k // width, k % width) if rows > 1 else (k,)))
        for at_lead in product(*map(range, lead))
        for k in range(0, rows * width, step)
    ]
    if len(starts) > _MOST:
        raise place.fail(
            f"a step reads {len(starts)} lines", f"at most {_MOST}: choose a loop inside"
        )
    return starts


def _plus(starts: tuple[Expr, ...], offsets: tuple[int, ...]) -> tuple[Expr, ...]:
    return tuple(simplify(a + b) for a, b in zip(starts, offsets, strict=True))
