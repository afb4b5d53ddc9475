"""Fused attention: scores never leave the first-level cache.

A tile of queries goes through the keys block by block. The products q k^T and the weighted sums of
values keep a few vectors per row of the tile in registers; the softmax between them works row by
row. Where keys and values of a head are larger than half of the second-level cache, several tiles
take a block before the next block: 1500 queries and keys of 64 features take 0.81 of the time, 1024
of 128 0.82, 600 of 64 0.89 (EPYC, Zen 3, one thread). The program is in program.py.
"""

from __future__ import annotations

import math

from tensorkiln.families.attention.program import Attention, attention_program
from tensorkiln.families.attention.tiles import tiled_program
from tensorkiln.ir.expr import int_value
from tensorkiln.schedule.group import Group
from tensorkiln.schedule.primitives import Schedule
from tensorkiln.schedule.register_tile import (
    FEW_TASKS,
    in_lanes,
    nest_of,
    row_tiles,
    share,
    sink,
    steps_of,
)
from tensorkiln.schedule.tile_sums import put_in_tiles
from tensorkiln.target import Target

# Buffers of registers, of the softmax and of the products of vectors.
_REGISTERS, _OF_VECTORS = ("best", "part", "new", "inv"), ("dot", "sums")


def schedule(group: Group, target: Target, check: bool = False) -> Schedule:
    """Attention with injective prologues (split heads) and epilogues (merge heads)."""
    c = Attention(group, target)
    s = Schedule((tiled_program if c.in_tiles else attention_program)(c), check=check)
    tasks = s.loops(role="task")
    few = int_value(c.rows) is not None and _are_few(s, tasks)
    if not few:
        share(s, tasks)
    # Steps that are the same for every row tile come first, before the tiles are copies.
    registers = [*_REGISTERS, *(() if c.single_block else ("alpha",))]
    for name in registers if c.in_tiles else [*_OF_VECTORS, *registers]:
        s.set_scope(name, "register")
    for loop in s.loops(role="lane"):
        in_lanes(s, loop)
    if c.in_tiles:
        put_in_tiles(s)
    else:
        _register_tiles(s, group, c)
    if few and target.has_threads:
        _share_tiles(s)
    return s


def _register_tiles(s: Schedule, group: Group, c: Attention) -> None:
    """Cut queries into tiles, which keep a few vectors per row in registers."""
    if (terms := group.knob("terms")) > 1:
        for loop in s.loops(role="term"):
            steps_of(s, loop, terms)
    for role in ("keys", "columns"):
        for vectors in _several(s, role, group.knob("vectors")):
            sink(s, vectors)
    (rows,) = s.loops(role="row")
    before_blocks = (0 if c.single_block else 3) + (c.together > 1)
    for tile in _row_tiles(s, rows, c):
        for tiles in _tiles_together(s, tile, group.knob("tiles", 1)):
            _tile(s, tile if tiles is None else s.children(tiles)[0], tiles, before_blocks)


def _are_few(s: Schedule, tasks: list[str]) -> bool:
    """Whether the iterations of loops are constant and too few for threads to share them evenly."""
    sizes = [int_value(s.loop(task).extent) for task in tasks]
    return all(n is not None for n in sizes) and math.prod(n or 0 for n in sizes) < FEW_TASKS


def _row_tiles(s: Schedule, rows: str, c: Attention) -> list[str]:
    """The loops over the rows of a tile. With `causal` all tiles but the last have `c.tile_rows`
    rows, by which the program knows the keys that a tile sees."""
    if not c.causal or int_value(c.rows) is None:
        return row_tiles(s, rows, c.tile_rows)
    tiles = s.split(rows, c.tile_rows, tail="peel")
    return [tiles.inner] + (row_tiles(s, tiles.tail, c.tile_rows) if tiles.tail else [])


def _share_tiles(s: Schedule) -> None:
    """Divide the tiles of rows of all heads, which are few, among threads."""
    for task in reversed(s.loops(role="task")):
        if len(s.children(task)) > 1:  # tiles of two sizes
            s.fission(task)
    tiles = [x for x in s.loops(role="row") if s.loop(x).kind == "serial"]
    for tile in tiles:
        around = s.parent(tile)
        if around is None or s.role(around) == "task":
            share(s, nest_of(s, tile))


def _several(s: Schedule, role: str, count: int) -> list[str]:
    """Split a loop over vectors into groups of several vectors, and single ones for the rest;
    return the loops over the vectors of a group."""
    (loop,) = s.loops(role=role)
    size, roles = count if s.reaches(loop, count) else 1, (role, "vector")
    groups = s.split(loop, size, (f"{loop}_0", f"o_{loop}"), "peel", roles)
    if (tail := groups.tail) is None:
        return [groups.inner]
    return [groups.inner, s.split(tail, 1, (f"{tail}_0", f"o_{tail}"), roles=roles).inner]


def _tiles_together(s: Schedule, rows: str, count: int) -> list[str | None]:
    """The loops over tiles, of the loop `rows` each, that take a block of keys in turn: `count`
    tiles, and those that remain; each in a loop over such groups, which threads share. None for a
    tile by itself."""
    tiles = s.parent(rows)
    if count < 2 or tiles is None or not s.reaches(tiles, count):
        return [None]
    groups = s.split(tiles, count, tail="peel")
    if (tail := groups.tail) is None:
        return [groups.inner]
    return [groups.inner, s.split(tail, int_value(s.loop(tail).extent) or 1).inner]


def _tile(s: Schedule, rows: str, tiles: str | None, before_blocks: int) -> None:
    """Keep the sums of a tile of rows in registers over the loops over keys, then over values; each
    block of keys for all of `tiles` before the next block. So many statements of a row are before
    the loop over blocks of keys."""
    parts = s.fission(rows).parts
    if tiles is not None:
        parts = s.fission(tiles).parts
    outer = [parts[before_blocks]]
    if tiles is not None:
        outer += s.children(outer[0])
    inside = s.children(outer[-1])
    if s.role(inside[0]) == "block":
        s.reorder(inside[0], *outer)
    for part in s.fission(outer[-1]).parts:
        inner = s.children(part)[0]
        if s.role(inner) in ("keys", "columns"):
            s.reorder(inner, part)
            sink(s, part)
