"""Divide storages among the pools of a target's memory. Part of `plan_memory`.

A storage goes into the fastest pool in which it fits. Those that gain most go first: of which most
bytes are read and written, for each byte and each kernel call that they occupy. Where the places
that are taken leave no gap, the pool is packed anew, largest first. What fits nowhere is put into
the last pool, behind everything else, so that its size tells how much is missing; `compile` refuses
a pool that is larger than the target has it. If that happens and packing by size alone avoids it,
storages are placed largest first instead.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction

from tensorkiln.arith import simplify
from tensorkiln.ir.expr import Expr, as_expr
from tensorkiln.target import MemoryPool
from tensorkiln.transform.relax.storages import (
    PlacedPart,
    StorageParts,
    lowest_offset,
    place_symbolic,
    placed_parts,
)

_LINE = 64  # storages of unknown size begin at its multiples, as in a workspace without pools


@dataclass(slots=True)
class PooledStorages:
    """The storages in one pool. `size` is what they take of it, in bytes."""

    pool: MemoryPool
    storages: list[StorageParts] = field(default_factory=list)
    offsets: list[int] = field(default_factory=list)
    size: Expr = field(default_factory=lambda: as_expr(0))

    @property
    def end(self) -> int:
        """The bytes up to the end of the last storage of known size."""
        return _end(self.storages, self.offsets)

    def add(self, s: StorageParts) -> bool:
        """Place a storage, packing the pool anew if that is needed; False if it does not fit."""
        offset = lowest_offset(s, _parts(self.storages, self.offsets), self.pool.align)
        room = self.pool.size
        if room is None or offset + s.bytes <= room:
            self.storages.append(s)
            self.offsets.append(offset)
            return True
        together = [*self.storages, s]
        if _most_live(together) > room:
            return False
        offsets = _packed(together, self.pool.align)
        if _end(together, offsets) > room:
            return False
        self.storages, self.offsets = together, offsets
        return True

    def append(self, s: StorageParts) -> None:
        """Place a storage at the lowest offset, even if that is behind the end of the pool."""
        self.offsets.append(lowest_offset(s, _parts(self.storages, self.offsets), self.pool.align))
        self.storages.append(s)


def divide(storages: Sequence[StorageParts], pools: Sequence[MemoryPool]) -> list[PooledStorages]:
    """Set the pool and the offset of every storage. `pools` are those for intermediate results,
    fastest first; each is returned with what is in it.

    Storages of which a part has a symbolic size are put into the last pool.
    """
    fixed = [s for s in storages if not s.symbolic]
    by_gain = sorted(fixed, key=lambda s: (-_gain(s), -s.bytes, s.start))
    plan = _divided(by_gain, pools)
    if _overflows(plan):
        by_size = sorted(fixed, key=lambda s: (-s.bytes, s.start))
        plan_by_size = _divided(by_size, pools)
        plan = plan_by_size if plan_by_size[-1].end < plan[-1].end else plan
    for p in plan:
        for s, offset in zip(p.storages, p.offsets, strict=True):
            s.pool, s.offset = p.pool.name, as_expr(offset)
        p.size = as_expr(p.end)
    unknown = [s for s in storages if s.symbolic]
    if unknown:
        last = plan[-1]
        start = -(-last.end // _LINE) * _LINE
        last.size = simplify(place_symbolic(unknown, start))
        for s in unknown:
            s.pool = last.pool.name
    return plan


def _divided(order: Sequence[StorageParts], pools: Sequence[MemoryPool]) -> list[PooledStorages]:
    plan = [PooledStorages(p) for p in pools]
    overflow = [s for s in order if not any(p.add(s) for p in plan)]
    for s in overflow:
        plan[-1].append(s)
    return plan


def _overflows(plan: Sequence[PooledStorages]) -> bool:
    return any(p.pool.size is not None and p.end > p.pool.size for p in plan)


def _gain(s: StorageParts) -> Fraction:
    """Bytes read and written for each byte and call that a storage occupies."""
    return Fraction(s.traffic, max(1, s.bytes) * (s.end - s.start + 1))


def _packed(storages: Sequence[StorageParts], align: int) -> list[int]:
    """Offsets of storages placed largest first, each at the lowest free one."""
    offset_of: dict[int, int] = {}
    placed: list[PlacedPart] = []
    for i in sorted(range(len(storages)), key=lambda i: (-storages[i].bytes, storages[i].start)):
        offset_of[i] = lowest_offset(storages[i], placed, align)
        placed += placed_parts(storages[i], offset_of[i])
    return [offset_of[i] for i in range(len(storages))]


def _parts(storages: Sequence[StorageParts], offsets: Sequence[int]) -> list[PlacedPart]:
    pairs = zip(storages, offsets, strict=True)
    return [part for s, offset in pairs for part in placed_parts(s, offset)]


def _end(storages: Sequence[StorageParts], offsets: Sequence[int]) -> int:
    return max((offset + s.bytes for s, offset in zip(storages, offsets, strict=True)), default=0)


def _most_live(storages: Sequence[StorageParts]) -> int:
    """The most bytes of parts that are live at once: no plan needs less."""
    change: dict[int, int] = {}
    for p in (p for s in storages for p in s.parts):
        change[p.start] = change.get(p.start, 0) + p.bytes
        change[p.end + 1] = change.get(p.end + 1, 0) - p.bytes
    live = peak = 0
    for step in sorted(change):
        live += change[step]
        peak = max(peak, live)
    return peak
