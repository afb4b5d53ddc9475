"""The steps most schedules share: a tile of accumulators that stays in registers over a whole sum.

    for r, q:                                  for r, q: acc[r, q, :] = start
        acc[:] = start                         for k:
        for k:                       ->            for r, q: acc[r, q, :] += x[r, q, k] * w[k, :]
            acc[:] += x[r, q, k] * w[k, :]     for r, q: out[r, q, :] = acc[r, q, :]
        out[r, q, :] = acc[:]

Plain programs give role "vector" to loops over vectors, and "lane" to loops over the lanes of a
vector. Every other loop inside a tile belongs to a sum; "dot" is the loop over the few numbers
whose products one dot-product instruction sums, or two of which an instruction multiplies, and
"small_dot" the same of weights that are at most 64 in magnitude. "sum"
is the loop over sums of such pairs that join totals (schedule/accumulate.py), "total" over those
that start totals.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from tensorkiln.arith import simplify_stmt
from tensorkiln.ir.buffer import Buffer
from tensorkiln.ir.expr import int_value
from tensorkiln.ir.stmt import PrimFunc, Store
from tensorkiln.ir.visit import loads, walk_stmt
from tensorkiln.kernels.knobs import NEXT_PANEL, TERMS
from tensorkiln.schedule.group import static
from tensorkiln.schedule.intrin.dot import dot_name
from tensorkiln.schedule.primitives import Schedule
from tensorkiln.schedule.roles import without_roles


def sink(s: Schedule, *tile: str) -> None:
    """Move the loops of a tile inside the loops of its sums, unroll them, and vectorize the loops
    over lanes below. The tile's loops are perfectly nested, and given outermost first."""
    inside = s.children(tile[-1])
    if len(inside) > 1:
        copies = [s.fission(t).parts for t in reversed(tile)]
        for column in zip(*reversed(copies), strict=True):
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
    nest, loops = [], set(s.loops())
    while loop in loops and s.role(loop) not in ("vector", "lane"):
        nest.append(loop)
        inside = s.children(loop)
        if len(inside) > 1:
            break
        loop = inside[0]
    return nest


def lanes(s: Schedule, parent: str) -> None:
    """Unroll the loops over vectors below `parent`, and vectorize those over lanes."""
    for inside in s.children(parent):
        role = s.role(inside)
        if role == "vector":
            if s.loop(inside).kind == "serial":
                s.unroll(inside)
            lanes(s, inside)
        elif role == "lane" and s.loop(inside).kind == "serial":
            in_lanes(s, inside)


def in_lanes(s: Schedule, lane: str) -> None:
    """Vectorize a loop over lanes. If each lane sums a few products of narrow numbers, or has two
    products of float32 (the loop inside has role "dot"), replace both loops by an instruction, and
    so where two sums join a total (role "sum") or start one ("total")."""
    inside, *siblings = s.children(lane)
    role = "" if siblings else s.role(inside)
    if role in ("sum", "total"):
        s.tensorize(lane, f"pair_{role}s_{static(s.loop(inside).extent, 'lanes') * 2}")
    elif role in ("dot", "small_dot"):
        lanes, count = (static(s.loop(x).extent, "lanes") for x in (lane, inside))
        steps = (x for x in walk_stmt(s.loop(inside)) if isinstance(x, Store))
        factors = (x.dtype for step in steps for x in loads(step.value))
        narrow = next((t.name for t in factors if t.bits < 32), None)
        pairs = f"pair_products_{lanes * count}"
        small = role == "small_dot"
        s.tensorize(lane, dot_name(narrow, lanes, count, small) if narrow else pairs)
    else:
        s.vectorize(lane)


def row_tiles(s: Schedule, rows: str, limit: int) -> list[str]:
    """Cut a loop over rows into tiles of at most `limit` rows. A constant number of rows is cut
    evenly; a symbolic number into tiles of `limit`, then of 4, then single rows. Returns the loop
    over the rows of a tile, for each kind of tile."""
    if int_value(s.loop(rows).extent) is not None:
        return [part.inner for part in s.split_even(rows, limit).parts]
    tiles = []
    for size in (limit, 4) if limit > 4 else (limit,):
        if not s.reaches(rows, size):
            continue
        pieces = s.split(rows, size, tail="peel")
        tiles.append(pieces.inner)
        if pieces.tail is None:
            return tiles
        rows = pieces.tail
    return [*tiles, s.split(rows, 1).inner]


def steps_of(s: Schedule, k: str, terms: int = TERMS) -> None:
    """Unroll the loop of a sum by a number of terms. Shorter loops, and remainders, are unrolled in
    full if their number of terms is constant."""
    extent = int_value(s.loop(k).extent)
    if not s.reaches(k, terms):
        if extent is not None:
            s.unroll(k)
        return
    pieces = s.split(k, terms, tail="peel")
    s.unroll(pieces.inner)
    if extent is not None and pieces.tail is not None:
        s.unroll(pieces.tail)


def nest_of(s: Schedule, loop: str) -> list[str]:
    """The loops around a loop, outermost first, and itself."""
    nest = [loop]
    while (around := s.parent(nest[0])) is not None:
        nest.insert(0, around)
    return nest


# With fewer tasks than this, an uneven number of them leaves threads waiting.
FEW_TASKS = 8
# The assumed number of iterations of a loop of unknown extent.
_MANY = 1000


def with_inner(s: Schedule, nest: Sequence[str]) -> list[str]:
    """A nest of loops, extended by the loops perfectly nested in it until it has FEW_TASKS
    iterations."""
    loops = list(nest)
    while loops:
        extents = [int_value(s.loop(x).extent) or _MANY for x in loops]
        inside = [x for x in s.children(loops[-1]) if x in s.loops()]
        if math.prod(extents) >= FEW_TASKS or len(s.children(loops[-1])) != 1 or not inside:
            break
        if s.loop(inside[0]).kind != "serial":
            break
        loops += inside
    return loops


def share(s: Schedule, nest: Sequence[str]) -> None:
    """Divide the iterations of a nest of loops among threads; does nothing for an empty nest."""
    if nest:
        s.parallel(s.fuse(*nest) if len(nest) > 1 else nest[0])


def fetch_ahead(
    s: Schedule, weights: Buffer, size: int, role: str = "channel", panels: Sequence[str] = ()
) -> None:
    """Prefetch weights into the second-level cache, about `size` bytes ahead of the loops of role
    `role` that read them; nothing for size 0. For NEXT_PANEL, prefetch instead what the next
    iteration of the loops `panels` reads (by default those of role "panel"). Weights must lie in
    memory in the order in which sums read them."""
    sums = [x for x in s.loops(role=role) if s.loop(x).kind == "serial"]
    if size == NEXT_PANEL:
        step_loops = [x for x in sums if int_value(s.loop(x).extent) != 1]
        for panel in panels or s.loops(role="panel"):
            if any(panel in nest_of(s, x)[:-1] for x in step_loops):
                s.prefetch_next(panel, weights.name)
        return
    for name in sums if size else ():
        *_, terms = s.children(name)
        if s.role(terms) == f"{role}.inner":
            count = static(s.loop(terms).extent, "terms of a step")
            step = count * static(weights.shape[-1], "panel") * weights.dtype.bytes
            s.prefetch(name, weights.name, max(1, size // step))


def finished(s: Schedule) -> PrimFunc:
    """The scheduled function, simplified: without the loops that run once, and without roles."""
    return replace(s.func, body=without_roles(simplify_stmt(s.func.body, {})))
