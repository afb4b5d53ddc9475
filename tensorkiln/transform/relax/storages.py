"""Assign offsets in a workspace to storages, such that values that are live at once do not overlap.
Part of `plan_memory`.

A storage is memory whose parts are at fixed distances: the operands of a concatenation, side by
side, or a value and the result that overwrites it. Each part has its own live range. Storages of
known size are placed first, in order of falling size, each at the lowest free offset. Those of
symbolic size lie behind all others, in slots: storages that are never live at once share one, which
is as large as the largest of them turns out to be.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from tensorkiln.arith import prove, simplify
from tensorkiln.arith.ranges import Bounds
from tensorkiln.ir.expr import Expr, as_expr, binary, int_value, maximum
from tensorkiln.ir.visit import free_vars
from tensorkiln.kernels.estimates import expected


@dataclass(slots=True)
class StoragePart:
    """`size` bytes at byte `offset` of a storage, live from binding `start` to binding `end`,
    both included."""

    offset: int
    size: Expr
    start: int
    end: int

    @property
    def bytes(self) -> int:
        """The size as a number, 0 if it is symbolic."""
        return int_value(self.size) or 0


@dataclass(slots=True, eq=False)
class StorageParts:
    """Parts at fixed distances. Parts of symbolic size all begin at byte 0.

    `place_storages` sets `offset`, the byte offset in the workspace; `divide` (pools.py) sets
    `pool`, and the offset in that pool. `traffic` are the bytes that kernels read and write.
    """

    parts: list[StoragePart] = field(default_factory=list)
    offset: Expr | None = None
    pool: str = ""
    traffic: int = 0

    @property
    def start(self) -> int:
        """The first binding that uses it."""
        return min(p.start for p in self.parts)

    @property
    def end(self) -> int:
        """The last binding that uses it."""
        return max(p.end for p in self.parts)

    @property
    def bytes(self) -> int:
        """The number of bytes up to the end of the last part; symbolic parts count as 0."""
        return max(p.offset + p.bytes for p in self.parts)

    @property
    def symbolic(self) -> bool:
        """Whether a part has a symbolic size."""
        return any(int_value(p.size) is None for p in self.parts)


class PlacedPart(NamedTuple):
    """Bytes `low` to `high` of a memory, live from binding `start` to `end`, both included."""

    low: int
    high: int
    start: int
    end: int


def place_storages(storages: Iterable[StorageParts]) -> Expr:
    """Set the offset of every storage, and return the size of the workspace in bytes."""
    order = list(storages)
    fixed = [s for s in order if not s.symbolic]
    fixed.sort(key=lambda s: (-s.bytes, s.start))
    placed: list[PlacedPart] = []
    end = 0
    for s in fixed:
        offset = lowest_offset(s, placed)
        s.offset = as_expr(offset)
        placed += placed_parts(s, offset)
        end = max(end, offset + s.bytes)
    return place_symbolic([s for s in order if s.symbolic], end)


def placed_parts(s: StorageParts, offset: int) -> list[PlacedPart]:
    """The parts of a storage at byte `offset`."""
    starts = ((offset + p.offset, p) for p in s.parts)
    return [PlacedPart(low, low + p.bytes, p.start, p.end) for low, p in starts]


def lowest_offset(s: StorageParts, placed: Iterable[PlacedPart], align: int = 1) -> int:
    """The lowest multiple of `align` at which no part of `s` overlaps a placed part that is live at
    the same time. Sizes that are multiples of the alignment need none."""
    overlaps: list[tuple[int, int]] = []  # offsets strictly between these overlap
    for p in s.parts:
        start, end, first, last = p.start, p.end, p.offset, p.offset + p.bytes
        overlaps += [
            (low - last, high - first)
            for low, high, other_start, other_end in placed
            if start <= other_end and other_start <= end
        ]
    offset = 0
    for after, before in sorted(overlaps):
        if offset <= after:
            break
        offset = max(offset, -(-before // align) * align)
    return offset


def place_symbolic(storages: list[StorageParts], start: int) -> Expr:
    """Set the offsets of storages of symbolic size, from byte `start` on; the bytes up to the end
    of the last one.

    Storages that are never live at once share a slot, which is as large as the largest of them,
    whichever that is. They are taken in order of falling expected size, each into the slot that it
    fits most closely.
    """
    slots: list[list[StorageParts]] = []
    sizes = {s: expected(s.parts[0].size) for s in storages}
    for s in sorted(storages, key=lambda s: (-sizes[s], s.start)):
        free = [slot for slot in slots if not any(_meet(s, member) for member in slot)]
        if free:
            min(free, key=lambda slot: sizes[slot[0]]).append(s)
        else:
            slots.append([s])
    total: Expr = as_expr(start)
    for slot in slots:
        size = slot[0].parts[0].size
        for s in slot:
            s.offset = total
            size = _larger(size, s.parts[0].size)
        total = simplify(total + size)
    return total


def _meet(s: StorageParts, t: StorageParts) -> bool:
    """Whether two storages are live at once."""
    return s.start <= t.end and t.start <= s.end


def _larger(a: Expr, b: Expr) -> Expr:
    """max(a, b), which is one of them if that can be proved."""
    bounds = Bounds.dims([*free_vars(a), *free_vars(b)])
    if prove(binary("ge", a, b), bounds):
        return a
    return b if prove(binary("ge", b, a), bounds) else maximum(a, b)
