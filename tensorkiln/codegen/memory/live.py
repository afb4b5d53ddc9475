"""Which values a planned graph keeps in its storages, where, and for how long.

A planned graph is a list of kernel calls on addresses (`ir/plan.py`). What a kernel writes is a
value; it lives until the last call that reads any of its bytes before they are written again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from tensorkiln.arith import simplify
from tensorkiln.ir.expr import Expr, IntImm, Var, int_value
from tensorkiln.ir.module import IRModule
from tensorkiln.ir.plan import ArgumentAccess, Plan, accesses
from tensorkiln.ir.tensor_bytes import bytes_of
from tensorkiln.ir.visit import free_vars, substitute

Sizes = Mapping[Var, int]


def simple_accesses(plan: Plan, mod: IRModule) -> tuple[tuple[ArgumentAccess, ...], ...]:
    """For each call, the tensors that its kernel reads, then those that it writes; their shapes are
    in their simplest form."""
    return tuple(
        tuple(replace(a, shape=tuple(map(simplify, a.shape))) for a in accesses(c, mod[c.name]))
        for c in plan.calls
    )


def size_of(a: ArgumentAccess) -> Expr:
    """The bytes from the first element of a tensor to its last, padding included."""
    return simplify(bytes_of(a.dtype, a.shape))


def end_of(a: ArgumentAccess) -> Expr:
    """Where a tensor ends in its storage, constant or tensor."""
    return a.place.offset + size_of(a)


@dataclass(slots=True, eq=False)
class Span:
    """A value in memory at given sizes: bytes `start` to `end - 1` of a storage, from the call that
    writes it (`first`) to the last call that reads it (`last`, the same call if none does).

    `result` is its number among the results of its call, of which there are `results`.
    """

    access: ArgumentAccess
    first: int
    result: int
    results: int
    start: int
    end: int
    last: int
    kept: list[tuple[int, int]]  # bytes that no later call has written yet

    @property
    def storage(self) -> int:
        """The number of its storage."""
        return self.access.place.index

    def lives(self, call: int) -> bool:
        """Whether it is in use during a call."""
        return self.first <= call <= self.last

    def overwrite(self, lo: int, hi: int) -> None:
        """Take away bytes `lo` to `hi - 1`, which another value has from now on."""
        parts = [p for x, y in self.kept for p in ((x, min(y, lo)), (max(x, hi), y))]
        self.kept = [(x, y) for x, y in parts if x < y]


def number(e: Expr, sizes: Sizes) -> int:
    """The value of a size where every symbolic dimension is in `sizes`."""
    count = int_value(e)
    if count is None:
        by: dict[Var, Expr] = {v: IntImm(sizes[v]) for v in free_vars(e)}
        count = int_value(simplify(substitute(e, by)))
    assert count is not None, e
    return count


def spans(calls: tuple[tuple[ArgumentAccess, ...], ...], sizes: Sizes) -> list[Span]:
    """Every value that a call writes into a storage, in the order of the calls."""
    values: list[Span] = []
    live_spans: dict[int, list[Span]] = {}  # per storage: the values that still have bytes in it
    for call, tensors in enumerate(calls):
        for a in tensors:
            if a.place.base == "storage" and not a.written:
                for s in _touched(live_spans, a, *_range(a, sizes)):
                    s.last = call
        results = [a for a in tensors if a.written]
        for k, a in enumerate(results):
            if a.place.base == "storage":
                lo, hi = _range(a, sizes)
                for s in _touched(live_spans, a, lo, hi):
                    s.overwrite(lo, hi)
                values.append(Span(a, call, k, len(results), lo, hi, call, [(lo, hi)]))
                survivors = (s for s in live_spans.get(a.place.index, ()) if s.kept)
                live_spans[a.place.index] = [*survivors, values[-1]]
    return values


def _range(a: ArgumentAccess, sizes: Sizes) -> tuple[int, int]:
    start = number(a.place.offset, sizes)
    return start, start + number(size_of(a), sizes)


def _touched(
    live_spans: Mapping[int, list[Span]], a: ArgumentAccess, lo: int, hi: int
) -> list[Span]:
    """The values of which `a` accesses a byte."""
    values = live_spans.get(a.place.index, ())
    return [s for s in values if any(x < hi and lo < y for x, y in s.kept)]


def live_bytes(values: list[Span], call: int) -> int:
    """The bytes in use during a call; a byte that two values have in succession counts once."""
    ranges = sorted((s.storage, s.start, s.end) for s in values if s.lives(call))
    total, storage, reached = 0, -1, 0
    for index, lo, hi in ranges:
        if index != storage:
            storage, reached = index, lo
        total += max(0, hi - max(lo, reached))
        reached = max(reached, hi)
    return total


def is_replaced(s: Span, values: list[Span], call: int) -> bool:
    """Whether the call overwrites the value in its place."""
    return any(
        o is not s
        and o.first == call
        and s.first < call
        and o.storage == s.storage
        and o.start < s.end
        and s.start < o.end
        for o in values
    )
