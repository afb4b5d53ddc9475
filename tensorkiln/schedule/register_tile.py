"""The steps most schedules share: a tile of accumulators that stays in registers over a whole sum.

    for r, q:                                  for r, q: acc[r, q, :] = start
        acc[:] = start                         for k:
        for k:                       ->            for r, q: acc[r, q, :] += x[r, q, k] * w[k, :]
            acc[:] += x[r, q, k] * w[k, :]     for r, q: out[r, q, :] = acc[r, q, :]
        out[r, q, :] = acc[:]

In plain programs, loops over vectors are called `o...` and loops over the lanes of a vector `l...`.
Every other loop inside a tile belongs to a sum; `b...` is the loop over the few integers whose
products one dot-product instruction sums.
"""

from __future__ import annotations

from dataclasses import replace

from tensorkiln.arith import simplify_stmt
from tensorkiln.ir.buffer import Buffer
from tensorkiln.ir.expr import int_value
from tensorkiln.ir.stmt import PrimFunc
from tensorkiln.schedule.group import static
from tensorkiln.schedule.intrin.dot import dot_name
from tensorkiln.schedule.primitives import Schedule


def made(names: str | tuple[str, ...]) -> tuple[str, ...]:
    """The names that a primitive made, always as a tuple."""
    return (names,) if isinstance(names, str) else names


def is_role(loop: str, role: str) -> bool:
    """Whether the name of a loop up to its first `_` is `role`: `k`, `k_tail_0` and `k_1` have role
    `k`."""
    return loop.split("_")[0] == role


def sink(s: Schedule, *tile: str) -> None:
    """Move the loops of a tile inside the loops of its sums, unroll them, and vectorize the loops
    over lanes below. The tile's loops are perfectly nested, and given outermost first."""
    inside = s.children(tile[-1])
    if len(inside) > 1:
        copies = [(t, *made(s.fission(t))) for t in reversed(tile)]
        loops = set(s.loops())
        rows = [[t for t in names if t in loops] for names in reversed(copies)]
        for column in zip(*rows, strict=True):
            sink(s, *column)
        return
    sums = _sums(s, inside[0])
    if sums:
        s.reorder(*sums, *tile)
        if len(s.children(tile[-1])) > 1:
            sink(s, *tile)
            return
    for t in tile:
        s.unroll(t)
    lanes(s, tile[-1])


def _sums(s: Schedule, loop: str) -> list[str]:
    """The perfectly nested loops of a sum from `loop` inwards."""
    found, loops = [], set(s.loops())
    while loop in loops and not is_role(loop, "o") and not is_role(loop, "l"):
        found.append(loop)
        inside = s.children(loop)
        if len(inside) > 1:
            break
        loop = inside[0]
    return found


def lanes(s: Schedule, parent: str) -> None:
    """Unroll the loops over vectors below `parent`, and vectorize those over lanes."""
    for inside in s.children(parent):
        if inside not in s.loops():
            continue
        if is_role(inside, "o"):
            if s.loop(inside).kind == "serial":
                s.unroll(inside)
            lanes(s, inside)
        elif is_role(inside, "l") and s.loop(inside).kind == "serial":
            in_lanes(s, inside)


def in_lanes(s: Schedule, lane: str) -> None:
    """Vectorize a loop over lanes. If each lane sums a few products of integers (the loop inside
    has role `b`), replace both loops by a dot-product instruction."""
    (inside,) = s.children(lane)
    if is_role(inside, "b") and inside in s.loops():
        lanes, count = (int_value(s.loop(x).extent) for x in (lane, inside))
        assert lanes is not None and count is not None
        s.tensorize(lane, dot_name(lanes, count))
    else:
        s.vectorize(lane)


def row_tiles(s: Schedule, rows: str, limit: int) -> list[str]:
    """Cut a loop over rows into tiles of at most `limit`: a constant number of rows evenly, a
    symbolic number into tiles of `limit`, then of 4, then of single rows. Return the loops over the
    rows of a tile, one for each kind of tile."""
    if int_value(s.loop(rows).extent) is not None:
        return list(made(s.split_even(rows, limit))[1:4:2])  # outer, inner, the same of the tail
    tiles = []
    for size in (limit, 4) if limit > 4 else (limit,):
        if not s.reaches(rows, size):
            continue
        _, tile, *rest = made(s.split(rows, size, tail="peel"))
        tiles.append(tile)
        if not rest:
            return tiles
        rows = rest[0]
    return [*tiles, made(s.split(rows, 1))[1]]


def steps_of_four(s: Schedule, k: str) -> None:
    """Unroll a sum by four terms; fewer than four, and the remainder, are unrolled in full if their
    number is constant.

    Four terms per basic block: with more, LLVM's scheduler hoists loads until it spills.
    """
    extent = int_value(s.loop(k).extent)
    if not s.reaches(k, 4):
        if extent is not None:
            s.unroll(k)
        return
    _, steps, *rest = made(s.split(k, 4, tail="peel"))
    s.unroll(steps)
    if extent is not None and extent % 4:
        s.unroll(rest[0])


def fetch_ahead(s: Schedule, weights: Buffer, size: int) -> None:
    """Prefetch weights into the second-level cache about `size` bytes ahead of the sums that read
    them in steps of four terms. Weights lie in memory in the order in which the sums read them."""
    for name in [name for name in s.loops() if is_role(name, "c")]:
        (*_, terms), loop = s.children(name), s.loop(name)
        if loop.kind == "serial" and is_role(terms, "c"):
            step = 4 * static(weights.shape[-1], "panel") * weights.dtype.bytes
            s.prefetch(name, weights.name, max(1, size // step))


def finished(s: Schedule) -> PrimFunc:
    """The scheduled function, simplified: without the loops that run once."""
    return replace(s.func, body=simplify_stmt(s.func.body, {}))
