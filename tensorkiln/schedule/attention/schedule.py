"""Fused attention: scores never leave the first-level cache.

A tile of queries goes through the keys block by block. The products q k^T and the weighted sums of
values keep a few vectors per row of the tile in registers; the softmax between them works row by
row. The program is in program.py.
"""

from __future__ import annotations

from tensorkiln.schedule.attention.program import Attention, attention_program
from tensorkiln.schedule.group import Group
from tensorkiln.schedule.primitives import Schedule
from tensorkiln.schedule.register_tile import in_lanes, row_tiles, share, sink, steps_of
from tensorkiln.target import Target

_REGISTERS = ("dot", "best", "part", "new", "alpha", "sums", "inv")


def schedule_attention(group: Group, target: Target, check: bool = False) -> Schedule:
    """Attention with injective prologues (split heads) and epilogues (merge heads)."""
    c = Attention(group, target)
    s = Schedule(attention_program(c), check=check)
    share(s, s.loops(role="task"))
    # Steps that are the same for every row tile come first, before the tiles are copies.
    for name in _REGISTERS:
        s.set_scope(name, "register")
    for loop in s.loops(role="lane"):
        in_lanes(s, loop)
    if (terms := group.knob("terms")) > 1:
        for loop in s.loops(role="term"):
            steps_of(s, loop, terms)
    for role in ("keys", "columns"):
        for vectors in _several(s, role, group.knob("vectors")):
            sink(s, vectors)
    (rows,) = s.loops(role="row")
    for tile in row_tiles(s, rows, group.knob("rows")):
        _tile(s, tile, 3 + (c.together > 1))
    return s


def _several(s: Schedule, role: str, count: int) -> list[str]:
    """Split a loop over vectors into groups of so many, and single ones; return the inner loops."""
    (loop,) = s.loops(role=role)
    size, roles = count if s.reaches(loop, count) else 1, (role, "vector")
    found = s.split(loop, size, (f"{loop}_0", f"o_{loop}"), "peel", roles)
    if (rest := found.tail) is None:
        return [found.inner]
    return [found.inner, s.split(rest, 1, (f"{rest}_0", f"o_{rest}"), roles=roles).inner]


def _tile(s: Schedule, rows: str, first: int) -> None:
    """Keep the sums of a tile of rows in registers over the loops over keys, then over values. The
    loop over blocks of keys is statement `first` of a row."""
    blocks = s.fission(rows).parts[first]
    inside = s.children(blocks)
    if s.role(inside[0]) == "block":
        s.reorder(inside[0], blocks)
    for part in s.fission(blocks).parts:
        outer = s.children(part)[0]
        if s.role(outer) in ("keys", "columns"):
            s.reorder(outer, part)
            sink(s, part)
