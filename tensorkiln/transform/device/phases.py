"""The program points of a device function at which barriers stand, or could stand, and which of
them lie between two accesses.

What all threads of a block go through is a tree of sequences. Its leaves are the *segments*: loops
over threadIdx, and what control flow reads from memory. A sequence of n statements has n + 1 gaps
in which a barrier could stand. A *point* is a gap, or a barrier that is
there. From one segment to another, threads certainly pass some points and may pass more, as on the
way there is a branch, or a loop that may have no rounds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from operator import is_

from tensorkiln.ir.copies import is_asynchronous
from tensorkiln.ir.expr import int_value
from tensorkiln.ir.launch import thread_of
from tensorkiln.ir.rings import Ring, ring_of
from tensorkiln.ir.stmt import (
    Alloc,
    For,
    If,
    Let,
    MatchBuffer,
    Seq,
    Stmt,
    Sync,
    While,
    seq,
)
from tensorkiln.ir.visit import map_stmt


@dataclass(frozen=True, slots=True, order=True)
class Point:
    """The gap before statement `index` of sequence number `sequence` or, with `is_barrier`, that
    statement itself, which is a barrier."""

    sequence: int
    index: int
    is_barrier: bool = False


@dataclass(slots=True, eq=False)
class Sequence:
    """Consecutive statements: the body of `owner`, which is None for the body of a block. `loops`
    is the number of loops around it; `sure` says whether it runs whenever the statements around its
    owner do."""

    number: int
    owner: Stmt | None
    stmt: Stmt
    stmts: tuple[Stmt, ...]
    loops: int
    sure: bool
    ring: Ring | None = None
    inner: dict[int, list[Sequence]] = field(default_factory=dict)  # by statement: its bodies

    @property
    def is_ring(self) -> bool:
        """Whether it is the body of a ring, whose threads do not wait at barriers of the block."""
        return self.ring is not None

    @property
    def repeats(self) -> bool:
        """Whether it is the body of a loop."""
        return isinstance(self.owner, For | While)


@dataclass(frozen=True, slots=True, eq=False)
class Segment:
    """`stmt` is a nest over threadIdx, or a statement whose conditions or bounds are read. `path`
    are the sequences around it, outermost first, each with the index of the statement in it; -1 is
    before the first statement."""

    stmt: Stmt
    nest: bool
    path: tuple[tuple[Sequence, int], ...]

    @property
    def loops(self) -> tuple[Sequence, ...]:
        """The bodies of loops around, outermost first."""
        return tuple(s for s, _ in self.path if s.repeats)


# The events on a path that concern copies, in order: None where a batch begins, and each barrier at
# which threads wait for copies.
Events = tuple[Point | None, ...]


@dataclass(frozen=True, slots=True)
class Piece:
    """The events of a path within one sequence. If the sequence is the body of a loop that begins
    (`begins`) or ends on the path, further iterations may add events before or after them."""

    sequence: Sequence
    events: Events
    begins: bool


class BlockPhases:
    """The sequences, segments and points of what a block runs."""

    def __init__(self, body: Stmt):
        self.sequences: list[Sequence] = []
        self.segments: list[Segment] = []
        self.root = self._sequence(None, body, (), 0, True)

    def _sequence(
        self,
        owner: Stmt | None,
        s: Stmt,
        path: tuple[tuple[Sequence, int], ...],
        loops: int,
        sure: bool,
    ) -> Sequence:
        stmts = tuple(_flat(s))
        sequence = Sequence(len(self.sequences), owner, s, stmts, loops, sure, ring_of(owner))
        self.sequences.append(sequence)
        if isinstance(owner, While):  # its condition is read before each round
            self.segments.append(Segment(owner, False, (*path, (sequence, -1))))
        for k, t in enumerate(stmts):
            self._statement(sequence, k, t, (*path, (sequence, k)), loops)
        return sequence

    def _statement(
        self,
        around: Sequence,
        k: int,
        s: Stmt,
        path: tuple[tuple[Sequence, int], ...],
        loops: int,
    ) -> None:
        if thread_of(s):
            self.segments.append(Segment(s, True, path))
            return
        if not isinstance(s, While | Sync):
            self.segments.append(Segment(s, False, path))
        for body, loop_count, sure in _bodies(s):
            body_sequence = self._sequence(s, body, path, loops + loop_count, sure)
            around.inner.setdefault(k, []).append(body_sequence)

    # ---- paths -------------------------------------------------------------------------------

    def whole(self, s: Sequence, sure: bool) -> set[Point]:
        """The points that one run of a sequence certainly passes; without `sure`, all that it may
        pass."""
        return self._between(s, -1, len(s.stmts), sure)

    def _between(self, s: Sequence, first: int, last: int, sure: bool) -> set[Point]:
        """The points after statement `first` and before statement `last` of a sequence; there are
        none in a ring."""
        if s.is_ring:
            return set()
        points = {Point(s.number, k) for k in range(first + 1, last + 1)}
        for k in range(first + 1, last):
            if isinstance(s.stmts[k], Sync):
                points.add(Point(s.number, k, True))
            for inner in s.inner.get(k, ()):
                if inner.sure or not sure:
                    points |= self.whole(inner, sure)
        return points

    def _tail(self, path: tuple[tuple[Sequence, int], ...], sure: bool) -> set[Point]:
        """The points from the end of a path to the end of its outermost sequence."""
        points: set[Point] = set()
        for s, k in path:
            points |= self._between(s, k, len(s.stmts), sure)
        return points

    def _head(self, path: tuple[tuple[Sequence, int], ...], sure: bool) -> set[Point]:
        """The points from the start of the outermost sequence of a path to the end of the path."""
        points: set[Point] = set()
        for s, k in path:
            points |= self._between(s, -1, k, sure)
        return points

    def forward(self, a: Segment, b: Segment, sure: bool = True) -> set[Point] | None:
        """The points between two segments in the same iterations of the loops around both; None if
        `b` does not come after `a` there."""
        level = _parted(a, b)
        if level == len(a.path):  # `a` is read by what is around `b`
            return self._head(b.path[level:], sure) if level < len(b.path) else None
        if level == len(b.path) or a.path[level][0] is not b.path[level][0]:
            return None
        (s, i), (_, j) = a.path[level], b.path[level]
        if i >= j:
            return None
        points = self._tail(a.path[level + 1 :], sure) | self._head(b.path[level + 1 :], sure)
        return points | self._between(s, i, j, sure)

    def around(
        self, a: Segment, b: Segment, loop: Sequence, later: bool, sure: bool = True
    ) -> set[Point]:
        """The points from `a` to `b` in the next iteration of a loop around both; if `later`, in an
        iteration after that."""
        level = next(k for k, (s, _) in enumerate(a.path) if s is loop)
        points = self._tail(a.path[level:], sure) | self._head(b.path[level:], sure)
        return points | self.whole(loop, sure) if later else points

    # ---- copies ------------------------------------------------------------------------------

    def events(self, s: Sequence, first: int, last: int, sure: bool) -> Events:
        """The events after statement `first` and before statement `last` of a sequence: those that
        certainly happen, or all that may. Of a loop inside, those of one iteration."""
        events: list[Point | None] = []
        for k in range(first + 1, last):
            t = s.stmts[k]
            if isinstance(t, Sync) and t.scope == "copies":
                events.append(Point(s.number, k, True))
            elif is_asynchronous(t):
                events.append(None)
            for inner in s.inner.get(k, ()):
                if inner.sure or not sure:
                    events += self.events(inner, -1, len(inner.stmts), sure)
        return tuple(events)

    def round_of(self, loop: Sequence, sure: bool) -> Events:
        """The events of one iteration of a loop."""
        return self.events(loop, -1, len(loop.stmts), sure)

    def pieces(
        self, a: Segment, b: Segment, loop: Sequence | None, rounds: int, sure: bool
    ) -> tuple[Piece, ...]:
        """The events from `a` to `b`: in the same iterations of the loops around both, or from one
        iteration of `loop` to a later one, with `rounds` iterations in between."""
        if loop is None:
            level = _parted(a, b)
            inner = min(level + 1, len(a.path))
            middle: list[Piece] = []
            if level < min(len(a.path), len(b.path)):
                (s, i), (_, j) = a.path[level], b.path[level]
                middle = [Piece(s, self.events(s, i, j, sure), True)]
            begin = level if level == len(a.path) else level + 1
        else:
            inner = level = next(k for k, (s, _) in enumerate(a.path) if s is loop)
            middle = [Piece(self.root, self.round_of(loop, sure) * rounds, True)]
            begin = level
        tail = [
            Piece(s, self.events(s, k, len(s.stmts), sure), False)
            for s, k in reversed(a.path[inner:])
        ]
        head = [Piece(s, self.events(s, -1, k, sure), True) for s, k in b.path[begin:]]
        return (*tail, *middle, *head)

    def with_rounds(
        self, pieces: tuple[Piece, ...], loop: Sequence, begins: bool, count: int, sure: bool
    ) -> tuple[Piece, ...]:
        """The pieces with `count` more iterations of a loop that begins, or ends, on the path."""
        round_events = self.round_of(loop, sure) * count
        return tuple(
            Piece(
                p.sequence, round_events + p.events if begins else p.events + round_events, begins
            )
            if p.sequence is loop and p.begins == begins
            else p
            for p in pieces
        )

    def pending(self) -> dict[Point, int]:
        """For each barrier at which threads wait for copies, the batches that may still be in
        flight after it."""
        return {
            Point(s.number, k, True): t.pending
            for s in self.sequences
            for k, t in enumerate(s.stmts)
            if isinstance(t, Sync) and t.scope == "copies"
        }

    # ---- loops and barriers ------------------------------------------------------------------

    def own_loops(
        self, a: Segment, b: Segment, loop: Sequence | None = None
    ) -> tuple[list[Sequence], list[Sequence]]:
        """(bodies of loops that end between `a` and `b`, bodies of loops that begin there): in the
        same iterations of the loops around both, or from one iteration of `loop` to a later one."""
        if loop is None:
            level = _parted(a, b)
        else:
            level = next(k for k, (s, _) in enumerate(a.path) if s is loop)
        inner = level if loop is None and level == len(a.path) else level + 1
        ends = [s for s, _ in a.path[level + 1 :] if s.repeats]
        return ends, [s for s, _ in b.path[inner:] if s.repeats]

    def barriers(self) -> set[Point]:
        """The barriers that the program has."""
        return {
            Point(s.number, k, True)
            for s in self.sequences
            for k, t in enumerate(s.stmts)
            if isinstance(t, Sync)
        }

    # ---- changes -----------------------------------------------------------------------------

    def with_barriers(self, points: Mapping[Point, str]) -> Stmt:
        """The statement with barriers in some gaps, each of the scope that `points` maps it to; the
        same object without any."""
        return self._rebuilt(self.root, points)

    def with_pending(self, pending: Mapping[Point, int]) -> Stmt:
        """The statement with other numbers of batches in flight after its barriers for copies."""

        def rebuilt(s: Sequence) -> Stmt:
            items: list[Stmt] = []
            for k, t in enumerate(s.stmts):
                if (point := Point(s.number, k, True)) in pending:
                    items.append(Sync("copies", pending[point]))
                else:
                    items.append(_with_bodies(t, s.inner.get(k, []), rebuilt))
            return seq(*items)

        return rebuilt(self.root)

    def _rebuilt(self, s: Sequence, points: Mapping[Point, str]) -> Stmt:
        items: list[Stmt] = []
        for k, t in enumerate(s.stmts):
            if Point(s.number, k) in points:
                items.append(Sync(points[Point(s.number, k)]))
            items.append(_with_bodies(t, s.inner.get(k, []), lambda x: self._rebuilt(x, points)))
        if (end := Point(s.number, len(s.stmts))) in points:
            items.append(Sync(points[end]))
        is_unchanged = len(items) == len(s.stmts) and all(map(is_, items, s.stmts))
        return s.stmt if is_unchanged else seq(*items)


def waited(pieces: tuple[Piece, ...], pending: Mapping[Point, int]) -> bool:
    """Whether a batch that began before a path has arrived by its end: on the path is a barrier
    that leaves at most as many batches in flight as began on the path before it."""
    begun = 0
    for event in (e for p in pieces for e in p.events):
        if event is None:
            begun += 1
        elif begun >= pending[event]:
            return True
    return False


def _bodies(s: Stmt) -> Iterator[tuple[Stmt, int, bool]]:
    """(a body of a statement, the loops that the statement adds around it, whether it certainly
    runs)"""
    match s:
        case For(_, _, extent, _, body):
            yield body, 1, (int_value(extent) or 0) > 0
        case While(_, body):
            yield body, 1, False
        case If(_, then_body, orelse):
            yield then_body, 0, False
            if orelse is not None:
                yield orelse, 0, False
        case Alloc(_, body) | Let(_, _, body) | MatchBuffer(_, _, _, body):
            yield body, 0, True


def _with_bodies(s: Stmt, bodies: list[Sequence], rebuilt: Callable[[Sequence], Stmt]) -> Stmt:
    sequences = iter(bodies)
    return map_stmt(s, lambda e: e, lambda t: rebuilt(next(sequences))) if bodies else s


def _flat(s: Stmt) -> Iterator[Stmt]:
    """The statements of a sequence, and of sequences nested in it."""
    if not isinstance(s, Seq):
        yield s
        return
    for t in s.stmts:
        yield from _flat(t)


def _parted(a: Segment, b: Segment) -> int:
    """The level at which the paths of two segments diverge: the first with another sequence or
    another index."""
    for k, (p, q) in enumerate(zip(a.path, b.path, strict=False)):
        if p[0] is not q[0] or p[1] != q[1]:
            return k
    return min(len(a.path), len(b.path))
