"""Pairs of accesses of a device function that conflict: two threads access the same element, one of
them writes, and no barrier lies between. Each is a set of integers that isl has to find empty.

In a ring (`ir/rings.py`) no barrier of the block stands; there the question is which rounds may run
at the same time (`_in_ring`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import zip_longest

from tensorkiln.arith.affine_text import TRUE, at
from tensorkiln.arith.integer_sets import GaveUp, Sets
from tensorkiln.ir.copies import is_asynchronous
from tensorkiln.ir.expr import int_value
from tensorkiln.ir.launch import launch_of
from tensorkiln.ir.stmt import PrimFunc
from tensorkiln.transform.device.accesses import DeviceAccess, FunctionAccesses
from tensorkiln.transform.device.phases import Piece, Point, Segment, Sequence

Values = dict[str, int]
_DIM = re.compile(r"\b[xy]\d+\b")  # a coordinate of an instance
# Iterations are told apart up to this many parts of a buffer; _MORE of them stand for any greater
# number.
_MOST_PARTS, _MORE = 8, 16


@dataclass(frozen=True, slots=True)
class Meeting:
    """A path that a run may take from segment `a` to segment `b`. `conds` are conditions on the
    iterations of the loops around both, of instance x of `a` and y of `b`. `sure` are the points
    that threads certainly pass on it, `maybe` all that they may pass."""

    a: Segment
    b: Segment
    conds: tuple[str, ...]
    sure: frozenset[Point]
    maybe: frozenset[Point]
    at_once: bool = False  # different threads in one run of a segment, which nothing orders
    sure_events: tuple[Piece, ...] = ()  # of copies: those that certainly happen on the path
    maybe_events: tuple[Piece, ...] = ()  # all that may


@dataclass(frozen=True, slots=True)
class Conflict:
    """Two accesses that may conflict: at `values` of the coordinates (of x and y) and of
    parameters, or None if isl gave up. `certain`: they do conflict there."""

    m: DeviceAccess
    n: DeviceAccess
    values: Values | None
    certain: bool


class Conflicts:
    """Finds the conflicts of one device function."""

    def __init__(self, f: PrimFunc):
        self.of = FunctionAccesses(f, launch_of(f))
        self.phases, self.text = self.of.phases, self.of.text
        self._overlaps: dict[tuple[tuple[str, ...], tuple[str, ...]], bool] = {}

    @property
    def any_late(self) -> bool:
        """Whether there are asynchronous copies."""
        return any(s.nest and is_asynchronous(s.stmt) for s in self.phases.segments)

    # ---- within a block ----------------------------------------------------------------------

    def meetings(self) -> Iterator[Meeting]:
        """Every path from a segment to one that runs later in the same block, or at the same time
        as it."""
        for a in self.phases.segments:
            for b in self.phases.segments:
                if a.nest or b.nest:  # control flow only reads
                    yield from self._ways(a, b, 2)

    def from_copies(self) -> Iterator[Meeting]:
        """Every path that begins with asynchronous copies. Iterations of a loop are told apart as
        far as copies run ahead."""
        copies = [s for s in self.phases.segments if s.nest and is_asynchronous(s.stmt)]
        for a in copies:
            for b in self.phases.segments:
                yield from self._ways(a, b, self.parts + 1)

    @cached_property
    def parts(self) -> int:
        """The largest number of parts of a buffer that asynchronous copies fill."""
        homes = {
            m.home
            for accesses in self.of.accesses.values()
            for m in accesses
            if m.late and m.write and m.home.shape
        }
        parts = (int_value(b.shape[0]) or 1 for b in homes)
        return min(max(parts, default=1), _MOST_PARTS)

    def _ways(self, a: Segment, b: Segment, apart: int) -> Iterator[Meeting]:
        """The paths from `a` to `b`: one for each distance in iterations of a loop, up to `apart`;
        greater distances are one path."""
        pieces = self.phases.pieces
        loops = [p for p, q in zip(a.loops, b.loops, strict=False) if p is q]
        if any(s.is_ring for s in loops):
            yield from self._in_ring(a, b, next(s for s in loops if s.is_ring))
            return
        dims = [self.of.rounds[s] for s in loops]
        equal = [f"{at(d, 'x')} = {at(d, 'y')}" for d in dims]
        if a is b:
            yield Meeting(a, b, tuple(equal), frozenset(), frozenset(), True)
        sure, maybe = self.phases.forward(a, b), self.phases.forward(a, b, False)
        if sure is not None and maybe is not None:
            events = (pieces(a, b, None, 0, sure) for sure in (True, False))
            path = Meeting(a, b, tuple(equal), frozenset(sure), frozenset(maybe), False, *events)
            yield from self._rounds(path, *self.phases.own_loops(a, b), apart)
        for k, loop in enumerate(loops):
            x, y = at(dims[k], "x"), at(dims[k], "y")
            for distance in range(1, apart + 1):
                last = distance == apart
                cond = f"{y} {'>=' if last else '='} {x} + {distance}"
                sure = self.phases.around(a, b, loop, distance > 1)
                maybe = self.phases.around(a, b, loop, distance > 1, False)
                sure_events = pieces(a, b, loop, distance - 1, True)
                maybe_events = pieces(a, b, loop, distance - 1 + _MORE * last, False)
                path = Meeting(
                    a,
                    b,
                    (*equal[:k], cond),
                    frozenset(sure),
                    frozenset(maybe),
                    False,
                    sure_events,
                    maybe_events,
                )
                yield from self._rounds(path, *self.phases.own_loops(a, b, loop), apart)

    def _in_ring(self, a: Segment, b: Segment, loop: Sequence) -> Iterator[Meeting]:
        """The pairs of iterations of a ring that may run at the same time, since no barrier of the
        block orders them: copies run ahead of the threads that use others, and these of each other,
        by at most as many iterations as there are parts."""
        assert loop.ring is not None
        x, y = (at(self.of.rounds[loop], letter) for letter in "xy")
        nothing = frozenset[Point]()
        if a is b:
            yield Meeting(a, b, (f"{x} = {y}",), nothing, nothing, True)
        uses_a, uses_b = (not is_asynchronous(s.stmt) for s in (a, b))
        if uses_b and not uses_a:  # threads that use copies have waited for them
            return
        last = f"{y} < {x} + {loop.ring.parts}"
        same_role = a is not b and uses_a == uses_b
        yield Meeting(a, b, (f"{y} {'>=' if same_role else '>'} {x}", last), nothing, nothing)

    def _rounds(
        self, path: Meeting, ends: list[Sequence], begins: list[Sequence], apart: int
    ) -> Iterator[Meeting]:
        """The variants of a path by the iterations in which it leaves the loops that end on it, and
        enters those that begin: in the last (or first) iteration, or with further ones after (or
        before) it."""
        if not ends and not begins:
            yield path
            return
        if not self.may_conflict(path):
            return
        is_end, loop = bool(ends), (ends or begins)[0]
        letter = "x" if is_end else "y"
        dim, (lo, end) = at(self.of.rounds[loop], letter), self.of.bounds[loop]
        limit = end if is_end else lo
        whole, all_of = self.phases.whole(loop, True), self.phases.whole(loop, False)
        further_loops = (ends[1:], begins) if is_end else (ends, begins[1:])
        longer = self.phases.with_rounds
        if limit is None:
            maybe_events = longer(path.maybe_events, loop, not is_end, _MORE, False)
            yield from self._rounds(
                replace(path, maybe=path.maybe | all_of, maybe_events=maybe_events),
                *further_loops,
                apart,
            )
            return
        limit = at(limit, letter)
        for count in range(apart):
            last = count == apart - 1
            if is_end:
                cond = f"{dim} {'<=' if last and count else '='} {limit} - {1 + count}"
                cond = f"{dim} >= {limit} - 1" if not count else cond
            else:
                cond = f"{dim} {'>=' if last and count else '='} {limit} + {count}"
                cond = f"{dim} <= {limit}" if not count else cond
            yield from self._rounds(
                replace(
                    path,
                    conds=(*path.conds, cond),
                    sure=path.sure | whole if count else path.sure,
                    maybe=path.maybe | all_of if count else path.maybe,
                    sure_events=longer(path.sure_events, loop, not is_end, count, True),
                    maybe_events=longer(
                        path.maybe_events, loop, not is_end, count + _MORE * last, False
                    ),
                ),
                *further_loops,
                apart,
            )

    def any_conflict(self, path: Meeting, late: bool) -> bool:
        """Whether there may be a conflict as `conflicts` finds them."""
        return any(True for _ in self.conflicts(path, late, False))

    def conflicts(
        self, path: Meeting, late: bool | None = None, sample: bool = True
    ) -> Iterator[Conflict]:
        """The conflicts between accesses of different threads on a path. `late`: only those whose
        first access is an asynchronous copy, or only the others. `sample`: whether to find values
        at which they conflict.

        An asynchronous copy may also conflict with what its own thread does before and after it.
        """
        same_block = [f"{at(d, 'x')} = {at(d, 'y')}" for d in self.of.blocks.values()]
        for m, n in self._pairs(path.a, path.b):
            if late is not None and m.late != late:
                continue
            if not self._in_rounds(m, n, path.conds):
                continue
            conds = [*path.conds, *same_block]
            if path.at_once or not (m.late or n.late):
                threads = zip(m.threads, n.threads, strict=True)
                conds.append(" or ".join(f"{at(s, 'x')} != {at(t, 'y')}" for s, t in threads))
            conflict = self._meet(m, n, conds, sample)
            if conflict is not None:
                yield conflict

    def may_conflict(self, path: Meeting) -> bool:
        """Whether accesses may conflict on a path, judged by the iterations of loops alone."""
        return any(self._in_rounds(m, n, path.conds) for m, n in self._pairs(path.a, path.b))

    def _in_rounds(self, m: DeviceAccess, n: DeviceAccess, conds: tuple[str, ...]) -> bool:
        """Whether two accesses may be to the same first index. Asked before all else, because it
        takes little arithmetic to tell that two iterations use different parts of a buffer."""
        if not conds or not m.index or m.index[0] is None or n.index[0] is None:
            return True
        texts = [*self.text.equations(m.index[0], "x", n.index[0], "y"), *conds]
        domain = [at(c, "x") for c in m.conds] + [at(c, "y") for c in n.conds]
        dims = {d for t in texts for d in _DIM.findall(t)}
        texts += [c for c in domain if dims.issuperset(_DIM.findall(c))]
        key = (tuple(sorted(dims)), tuple(texts))
        if key not in self._overlaps:
            self._overlaps[key] = self.point(list(key[0]), texts, False)[0]
        return self._overlaps[key]

    # ---- between blocks ----------------------------------------------------------------------

    def of_blocks(self) -> Iterator[Conflict]:
        """The conflicts between accesses of different blocks, which may run at any time."""
        segments = self.phases.segments
        other_block = " or ".join(f"{at(d, 'x')} != {at(d, 'y')}" for d in self.of.blocks.values())
        for i, a in enumerate(segments):
            for b in segments[i:]:
                for m, n in self._pairs(a, b):
                    conflict = None
                    if m.home.scope == "global":
                        conflict = self._meet(m, n, [other_block])
                    if conflict is not None:
                        yield conflict

    def _pairs(self, a: Segment, b: Segment) -> Iterator[tuple[DeviceAccess, DeviceAccess]]:
        """Pairs of accesses to the same shared or global memory, one of them a write."""
        first, second = self.of.accesses[a], self.of.accesses[b]
        for m in first:
            for n in second:
                if m.home is n.home and (m.write or n.write) and not m.private:
                    yield m, n

    def _meet(
        self, m: DeviceAccess, n: DeviceAccess, conds: list[str], sample: bool = True
    ) -> Conflict | None:
        """The conflict of two accesses under conditions; None if there is provably none."""
        same_element = [
            cond
            for i, j in zip_longest(m.index, n.index)
            if i is not None and j is not None
            for cond in self.text.equations(i, "x", j, "y")
        ]
        dims = [at(d, "x") for d in m.dims] + [at(d, "y") for d in n.dims]
        domain = [at(c, "x") for c in m.conds] + [at(c, "y") for c in n.conds]
        is_possible, values = self.point(
            dims, [*same_element, *(c or TRUE for c in conds), *domain], sample
        )
        if not is_possible:
            return None
        return Conflict(m, n, values, m.exact and n.exact and values is not None)

    # ---- bounds ------------------------------------------------------------------------------

    def outside(self, m: DeviceAccess) -> Conflict | None:
        """The access as a conflict if it may be outside of its buffer; None if it is provably
        inside."""
        wrong = []
        is_complete = len(m.index) == len(m.home.shape)
        for index, extent in zip(m.index, m.home.shape, strict=True):
            size = self.text.maybe(extent)
            if index is None or size is None:
                is_complete = False
                continue
            if not self.text.below(index, extent):
                wrong.append(f"{at(index, 'x')} < 0 or {at(index, 'x')} >= {size}")
        dims, domain = [at(d, "x") for d in m.dims], [at(c, "x") for c in m.conds]
        cond = " or ".join(f"({c})" for c in wrong)
        is_possible, values = self.point(dims, [*domain, cond]) if wrong else (False, None)
        if not is_possible:
            return None if is_complete else Conflict(m, m, None, False)
        return Conflict(m, m, values, m.exact and values is not None)

    def point(
        self, dims: list[str], conds: list[str], sample: bool = True
    ) -> tuple[bool, Values | None]:
        """(whether all conditions may hold somewhere, the values where they do). The values include
        those of parameters; None if the conditions cannot hold, no `sample` is asked for, or isl
        gave up."""
        try:
            sets = Sets(list(self.text.params.values()), self.text.param_facts)
            point_set = sets.make(dims, conds)
            if sets.empty(point_set):
                return False, None
            return True, sets.sample(point_set, dims) if sample else None
        except GaveUp:
            return True, None

    def value(self, text: str, letter: str, values: Values) -> int:
        """The value of an affine text at a point."""
        sets = Sets([], [])
        fixed = [f"{k} = {v}" for k, v in values.items()]
        body = sets.make([*values, "found"], [*fixed, f"found = {at(text, letter)}"])
        return sets.sample(body, [*values, "found"])["found"]
