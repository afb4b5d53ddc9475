"""Fused attention: scores never leave the first-level cache.

A tile of queries goes through the keys block by block. The products q k^T and the weighted sums of
values keep two vectors per row of the tile in registers; the softmax between them works row by row.
The program is in attention_program.py.
"""

from __future__ import annotations

from tensorkiln.schedule.attention_program import Attention, attention_program
from tensorkiln.schedule.group import Group
from tensorkiln.schedule.primitives import Schedule
from tensorkiln.schedule.register_tile import is_role, made, row_tiles, sink, steps_of_four
from tensorkiln.target import Target
from tensorkiln.target.registers import max_rows

# Vectors per row of a register tile: of keys in q k^T, of the head's columns in scores v.
_VECTORS = 2
_REGISTERS = ("dot", "best", "part", "new", "alpha", "sums", "inv")


def schedule_attention(group: Group, target: Target, check: bool = False) -> Schedule:
    """Attention with injective prologues (split heads) and epilogues (merge heads)."""
    c = Attention(group, target)
    s = Schedule(attention_program(c), check=check)
    heads = [loop for loop in ("b", "h") if loop in s.loops()]
    if heads:
        s.parallel(made(s.fuse(*heads))[0] if len(heads) > 1 else heads[0])
    # Steps that are the same for every row tile come first, before the tiles are copies.
    for name in _REGISTERS:
        s.set_scope(name, "register")
    for loop in s.loops():
        if is_role(loop, "l"):
            s.vectorize(loop)
    if target.multiplies_by_lane:  # four neighbours are one load
        for loop in ("d", "t_sum"):
            steps_of_four(s, loop)
    for name in ("j", "column"):
        for vectors in _pairs(s, name):
            sink(s, vectors)
    for rows in row_tiles(s, "row", max_rows(target, _VECTORS)):
        _tile(s, rows)
    return s


def _pairs(s: Schedule, loop: str) -> list[str]:
    """Split a loop over vectors into pairs and a last odd vector; return the inner loops."""
    names = (f"{loop}_0", f"o_{loop}")
    s.split(loop, _VECTORS if s.reaches(loop, _VECTORS) else 1, names, tail="peel")
    if (rest := f"{loop}_tail") not in s.loops():
        return [names[1]]
    s.split(rest, 1, (f"{rest}_0", f"o_{rest}"))
    return [names[1], f"o_{rest}"]


def _tile(s: Schedule, rows: str) -> None:
    """Keep the sums of a tile of rows in registers over the loops over keys, then over values."""
    blocks = [rows, *made(s.fission(rows))][3]
    inside = s.children(blocks)
    if is_role(inside[0], "block"):
        s.reorder(inside[0], blocks)
    for part in (blocks, *made(s.fission(blocks))):
        outer = s.children(part)[0]
        if is_role(outer, "j") or is_role(outer, "column"):
            s.reorder(outer, part)
            sink(s, part)
