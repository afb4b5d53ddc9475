"""Which values a planned graph keeps in its storages, where, and for how long.

A planned graph is a list of kernel calls on addresses (`ir/planned.py`). What a kernel writes is a
value; it lives until the last call that reads any of its bytes before they are written again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from tensorkiln.arith import simplify
from tensorkiln.ir.buffer import Buffer
from tensorkiln.ir.dtype import DType
from tensorkiln.ir.expr import Expr, IntImm, Var, int_value
from tensorkiln.ir.module import IRModule
from tensorkiln.ir.planned import Address, PlannedCall, PlannedGraph, result_types
from tensorkiln.ir.relax import size_symbols
from tensorkiln.ir.stmt import TensorProgram
from tensorkiln.ir.tensor_bytes import bytes_of
from tensorkiln.ir.visit import free_vars, substitute

Sizes = Mapping[Var, int]


@dataclass(frozen=True, slots=True)
class Access:
    """A tensor that a call reads or writes: its place, and its shape as it lies in memory.

    All expressions are over the symbolic dimensions of the graph.
    """

    call: int
    at: Address
    dtype: DType
    shape: tuple[Expr, ...]
    written: bool

    @property
    def end(self) -> Expr:
        """Where it ends in its storage, constant or tensor."""
        return self.at.offset + self.bytes

    @property
    def bytes(self) -> Expr:
        """The bytes from its first element to its last, padding included."""
        return simplify(bytes_of(self.dtype, self.shape))


@dataclass(slots=True, eq=False)
class Span:
    """A value in memory at given sizes: bytes `start` to `end - 1` of a storage, from the call that
    writes it to the last call that reads it (`last`, the same call if none does).

    `result` is its number among the results of its call, of which there are `results`.
    """

    access: Access
    result: int
    results: int
    start: int
    end: int
    last: int
    kept: list[tuple[int, int]]  # bytes that no later call has written yet

    @property
    def first(self) -> int:
        """The number of the call that writes it."""
        return self.access.call

    @property
    def storage(self) -> int:
        """The number of its storage."""
        return self.access.at.index

    def lives(self, call: int) -> bool:
        """Whether it is in use during a call."""
        return self.first <= call <= self.last

    def overwrite(self, lo: int, hi: int) -> None:
        """Take away bytes `lo` to `hi - 1`, which another value has from now on."""
        parts = [p for x, y in self.kept for p in ((x, min(y, lo)), (max(x, hi), y))]
        self.kept = [(x, y) for x, y in parts if x < y]


def accesses(plan: PlannedGraph, mod: IRModule) -> tuple[tuple[Access, ...], ...]:
    """For each call, the tensors that its kernel reads, then those that it writes."""
    return tuple(tuple(_accesses(i, c, mod)) for i, c in enumerate(plan.calls))


def _accesses(call_number: int, call: PlannedCall, mod: IRModule) -> Iterator[Access]:
    kernel = mod[call.name]
    tensors: list[tuple[Address, DType, tuple[Expr, ...]]] = []
    known: dict[Var, Expr] = {}
    if isinstance(kernel, TensorProgram):
        outputs = kernel.outputs
        for p, a in zip(kernel.params, call.args, strict=True):
            if isinstance(p, Buffer) and isinstance(a, Address):
                tensors.append((a, p.dtype, p.shape))
            elif isinstance(p, Var) and isinstance(a, Expr):
                known[p] = a
    else:
        results = result_types(kernel)
        types = (*(p.tensor for p in kernel.params), *results)
        outputs = len(results)
        places = [a for a in call.args if isinstance(a, Address)]
        numbers = [a for a in call.args if isinstance(a, Expr)]
        tensors = [(a, t.dtype, t.physical_shape) for a, t in zip(places, types, strict=True)]
        known = dict(zip(size_symbols(kernel), numbers, strict=True))
    for k, (at, dtype, shape) in enumerate(tensors):
        own = tuple(simplify(substitute(d, known)) if free_vars(d) else d for d in shape)
        yield Access(call_number, at, dtype, own, k >= len(tensors) - outputs)


def number(e: Expr, sizes: Sizes) -> int:
    """The value of a size where every symbolic dimension is in `sizes`."""
    found = int_value(e)
    if found is None:
        by: dict[Var, Expr] = {v: IntImm(sizes[v]) for v in free_vars(e)}
        found = int_value(simplify(substitute(e, by)))
    assert found is not None, e
    return found


def spans(calls: tuple[tuple[Access, ...], ...], sizes: Sizes) -> list[Span]:
    """Every value that a call writes into a storage, in the order of the calls."""
    found: list[Span] = []
    there: dict[int, list[Span]] = {}  # per storage: the values that still have bytes in it
    for tensors in calls:
        for a in tensors:
            if a.at.base == "storage" and not a.written:
                for s in _touched(there, a, *_range(a, sizes)):
                    s.last = a.call
        results = [a for a in tensors if a.written]
        for k, a in enumerate(results):
            if a.at.base == "storage":
                lo, hi = _range(a, sizes)
                for s in _touched(there, a, lo, hi):
                    s.overwrite(lo, hi)
                found.append(Span(a, k, len(results), lo, hi, a.call, [(lo, hi)]))
                others = (s for s in there.get(a.at.index, ()) if s.kept)
                there[a.at.index] = [*others, found[-1]]
    return found


def _range(a: Access, sizes: Sizes) -> tuple[int, int]:
    start = number(a.at.offset, sizes)
    return start, start + number(a.bytes, sizes)


def _touched(there: Mapping[int, list[Span]], a: Access, lo: int, hi: int) -> list[Span]:
    """The values of which `a` accesses a byte."""
    values = there.get(a.at.index, ())
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
