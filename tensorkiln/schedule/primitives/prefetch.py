"""The primitive `prefetch`: load what a loop will read into the caches."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

from tensorkiln.arith import simplify
from tensorkiln.ir.expr import Expr, int_value
from tensorkiln.ir.stmt import Block, Prefetch, PrimFunc, seq
from tensorkiln.ir.visit import substitute
from tensorkiln.schedule.tree.boxes import Box, region
from tensorkiln.schedule.tree.places import around_of, find_buffer
from tensorkiln.schedule.tree.program import Place, open_loop

_LINE = 64  # bytes of a cache line, which one prefetch loads
_MOST = 64  # prefetches in one step


def prefetch(f: PrimFunc, loop: str, buffer: str, ahead: int, locality: int = 2) -> PrimFunc:
    """At each step of a loop, prefetch what it reads of a parameter `ahead` steps later.

        for k in range(64):                 for k in range(64):
            C[0] += A[k] * B[k, 0]     ->       T.prefetch(B[k + 8, 0], 2, False)
                                                C[0] += A[k] * B[k, 0]

    `locality` is 3 for all caches, 2 for those from the second level on. There is one prefetch for
    each cache line of the box that a step reads. The last steps prefetch memory past what the loop
    reads; a prefetch of any address is allowed and has no effect on results.
    """
    at, s = open_loop(f, loop, "prefetch")
    buf = find_buffer(at.func, buffer, at.what)
    if buf not in at.func.params:
        raise at.fail(
            f"{buffer!r} is not a parameter", "a buffer made here is already in the caches"
        )
    if not isinstance(ahead, int) or ahead < 1:
        raise at.fail(f"ahead={ahead!r}", "a positive number of steps")
    if locality not in range(4):
        raise at.fail(f"locality={locality!r}", "0 (used once) to 3 (kept in all caches)")
    if s.kind not in ("serial", "parallel"):
        raise at.fail(f"the loop is {s.kind}", "choose one around it whose steps follow each other")
    if any(isinstance(t, Block) for t in at.path):
        raise at.fail("it is inside a block", "prefetch before blockize")
    around = around_of(at.func, at.path).enter(s, s.body)
    box = region(s.body, around, buf, writes=False)
    if box is None:
        raise at.fail(f"nothing here reads {buffer!r}", "name what the loop reads")
    later = {s.var: s.var + ahead}
    starts = tuple(simplify(substitute(lo, later)) for lo, _ in box.ranges)
    lines = (Prefetch(buf, _plus(starts, line), locality) for line in _lines(at, box))
    return at.close(replace(s, body=seq(*lines, s.body)))


def _lines(at: Place, box: Box) -> list[tuple[int, ...]]:
    """The indices, relative to the first element of a box, at which its cache lines begin.
    ScheduleError for a box without constant size, or of more than _MOST lines."""
    extents = [int_value(n) for n in box.shape]
    known = [n for n in extents if n is not None]
    if len(known) < len(extents):
        raise at.fail("a step reads a part of no constant size", "split the loops inside it")
    step = max(1, _LINE // box.buffer.dtype.bytes)
    # Rows that are read as a whole are contiguous, and are divided into lines together.
    width = known[-1]
    rows = known[-2] if len(known) > 1 and int_value(box.buffer.shape[-1]) == width else 1
    lead = known[: -2 if rows > 1 else -1]
    found = [
        (*at_lead, *((k // width, k % width) if rows > 1 else (k,)))
        for at_lead in product(*map(range, lead))
        for k in range(0, rows * width, step)
    ]
    if len(found) > _MOST:
        raise at.fail(f"a step reads {len(found)} lines", f"at most {_MOST}: choose a loop inside")
    return found


def _plus(starts: tuple[Expr, ...], offsets: tuple[int, ...]) -> tuple[Expr, ...]:
    return tuple(simplify(a + b) for a, b in zip(starts, offsets, strict=True))
