"""Binding loops to a grid: which loops become blocks, and which become threads."""

from __future__ import annotations

from collections.abc import Sequence

from tensorkiln.ir.expr import int_value
from tensorkiln.schedule.gpu.block import THREAD
from tensorkiln.schedule.primitives import Schedule, Split
from tensorkiln.target import Target

# Threads of a block where nothing else decides. Several blocks of this size fit the registers of
# one core of any GPU.
_THREADS = 256


def most_threads(target: Target) -> int:
    """The largest power of two that a block may have, at most 256."""
    limit = target["max_num_threads"]
    assert isinstance(limit, int)
    return min(_THREADS, 1 << (limit.bit_length() - 1))


def enough_threads(extent: int | None, limit: int) -> int:
    """The least power of two that is at least `extent`, but not more than `limit`; `limit` if it is
    unknown."""
    return limit if extent is None else min(limit, 1 << max(0, extent - 1).bit_length())


def on_grid(s: Schedule, nest: Sequence[str], target: Target) -> str:
    """Give each iteration of a nest of loops a thread, in blocks along x. Return the loop over the
    threads of a block.

    Fused loops get their indices back by division, which proofs understand only for known divisors.
    So loops around one of unknown extent are not fused with it, but become blocks along y and z.
    """
    inner = _inner(s, nest)
    threads = enough_threads(int_value(s.loop(inner).extent), most_threads(target))
    pieces: Split = s.split(inner, threads, tail="guard")
    s.bind(pieces.outer, "blockIdx.x")
    s.bind(pieces.inner, "threadIdx.x")
    return pieces.inner


def _inner(s: Schedule, nest: Sequence[str]) -> str:
    """Bind all loops of a nest to blocks but the one that goes along x, and return that loop."""
    *outer, inner = _divisible(s, nest)
    for index, loop in zip(("blockIdx.y", "blockIdx.z"), reversed(outer), strict=False):
        s.bind(loop, index)
    return inner


def _divisible(s: Schedule, nest: Sequence[str]) -> list[str]:
    """Fuse a nest to at most three loops. If three suffice, none of them has an unknown extent but
    the outermost of its parts, so that only known extents are divisors."""
    parts: list[list[str]] = [[]]
    for loop in reversed(nest):
        parts[-1].insert(0, loop)
        if int_value(s.loop(loop).extent) is None:
            parts.append([])
    groups = [part for part in reversed(parts) if part]
    groups[:-2] = [[x for part in groups[:-2] for x in part]] if len(groups) > 2 else groups[:-2]
    return [s.fuse(*part) if len(part) > 1 else part[0] for part in groups]


def bind_block(s: Schedule, nest: Sequence[str]) -> None:
    """Give each iteration of a nest of loops a block, whose threads are the iterations of the loops
    with role "thread" inside."""
    s.bind(_inner(s, nest), "blockIdx.x")
    bind_threads(s)


def bind_threads(s: Schedule) -> None:
    """Bind the loops with role "thread"."""
    for loop in s.loops(role=THREAD):
        s.bind(loop, "threadIdx.x")
