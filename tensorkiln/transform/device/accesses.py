"""The memory accesses of a device function, as text for the integer set library (isl).

An access is a set of points, one for each time it happens. The coordinates of a point are the
block, the iterations of the loops around, and the thread; they are written `@1`, `@2`, ...
(`arith/affine_text.py`).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from tensorkiln.arith.affine_text import AffineText, NotAffine
from tensorkiln.ir.buffer import AddressOf, Buffer, Load
from tensorkiln.ir.copies import is_asynchronous
from tensorkiln.ir.expr import (
    Expr,
    IntImm,
    Var,
    binary,
)
from tensorkiln.ir.lanes import lane_of
from tensorkiln.ir.launch import Launch, thread_of
from tensorkiln.ir.stmt import (
    THREAD_INDICES,
    Block,
    For,
    If,
    Let,
    MatchBuffer,
    Prefetch,
    PrimFunc,
    Stmt,
    Store,
    While,
)
from tensorkiln.ir.text.print_tir import TirPrinter
from tensorkiln.ir.visit import children, free_vars, stmt_exprs, substmts
from tensorkiln.transform.device.phases import BlockPhases, Segment, Sequence


@dataclass(frozen=True, slots=True)
class DeviceAccess:
    """One access in the text of a program, and all the times it happens.

    `home` is the buffer whose memory it is, behind views; `index` has a text per dimension of it,
    None for any element. `dims` are all coordinates, `conds` conditions on them; if `exact`, the
    access happens wherever they hold. `threads`: the coordinates of the thread along x, y and z.
    `segment` and `stmt`: where it stands. `indices`: as written. `guards`: the conditions around
    it, each with its truth. `around`: the loops and names around it, outermost first.
    """

    buffer: Buffer
    home: Buffer
    write: bool
    index: tuple[str | None, ...]
    dims: tuple[str, ...]
    conds: tuple[str, ...]
    exact: bool
    threads: tuple[str, str, str]
    segment: Segment
    stmt: Stmt
    indices: tuple[Expr, ...]
    guards: tuple[tuple[Expr, bool], ...]
    around: tuple[For | Let, ...]

    @property
    def late(self) -> bool:
        """Whether it may happen at any time until all threads have waited for copies."""
        return self.segment.nest and is_asynchronous(self.segment.stmt)

    @property
    def private(self) -> bool:
        """Whether it is to memory that each thread has to itself."""
        return self.home.scope in ("local", "register")


class FunctionAccesses:
    """The accesses of a device function by segment, and the coordinates of its blocks."""

    def __init__(self, f: PrimFunc, launch: Launch):
        self.f, self.launch = f, launch
        self.phases = BlockPhases(launch.body)
        # an input in the place of the output changes with it
        written = {*f.buffers[len(f.buffers) - f.outputs :], *(f.params[i] for i in f.inplace)}
        self.text = AffineText([b for b in f.buffers if b not in written])
        for b in f.buffers:
            for v in (v for d in (*b.shape, *b.strides) for v in free_vars(d)):
                self.text.param(v, size=True)
        self.alias: dict[Buffer, Buffer] = {}
        for i in f.inplace:
            p = f.params[i]
            assert isinstance(p, Buffer)
            self.alias[p] = f.buffers[-1]
        self.rounds: dict[Sequence, str] = {}
        self.bounds: dict[Sequence, tuple[str | None, str | None]] = {}  # first round, behind last
        self.blocks: dict[str, str] = {}
        self.accesses: dict[Segment, list[DeviceAccess]] = {}
        around = _Walk(self)
        for s in launch.loops:
            self.blocks[thread_of(s)] = around.enter_loop(s)
        for segment in self.phases.segments:
            self.accesses[segment] = self._segment(segment, around)

    def _segment(self, segment: Segment, around: _Walk) -> list[DeviceAccess]:
        """The accesses of a segment, entered from the blocks' loops."""
        walk = _Walk(self, around)
        walk.segment = segment
        last = len(segment.path) - 1
        for k, (sequence, index) in enumerate(segment.path):
            walk.enter_sequence(sequence)
            if k == last and segment.nest:
                walk.stmt(segment.stmt)
            elif k == last:
                walk.together(segment.stmt)
            elif index >= 0:
                walk.enter_binder(sequence.stmts[index])
        return walk.accesses


class _Walk:
    """Collects accesses; what is around the current place is in its fields."""

    def __init__(self, of: FunctionAccesses, around: _Walk | None = None):
        self.of, self.text = of, of.text
        self.accesses: list[DeviceAccess] = []
        self.segment: Segment | None = None
        self.dims: list[str] = [] if around is None else list(around.dims)
        self.conds: list[str] = [] if around is None else list(around.conds)
        self.exact: bool = around is None or around.exact
        self.threads: dict[str, str] = {}
        self.views: dict[Buffer, Buffer] = {}
        self.guards: list[tuple[Expr, bool]] = []
        self.around: list[For | Let] = [] if around is None else list(around.around)
        self.current: Stmt | None = None

    # ---- what is around ----------------------------------------------------------------------

    def enter_loop(self, s: For, dim: str | None = None) -> str:
        """Enter a loop; return its coordinate, which is a new one unless it is given."""
        dim = self.text.fresh() if dim is None else dim
        self.text.env[s.var] = dim
        self.text.set_range(dim, s.lo, s.extent)
        self.dims.append(dim)
        self.around.append(s)
        lo = self.text.maybe(s.lo)
        if lo is not None:
            self.conds.append(f"{lo} <= {dim}")
        try:
            self.conds.append(self.text.less(dim, binary("add", s.lo, s.extent)))
            self.exact = self.exact and lo is not None
        except NotAffine:
            self.exact = False
        index = thread_of(s)
        if index in THREAD_INDICES:
            self.threads[index] = f"({dim} - {lo})" if lo is not None else dim
        return dim

    def enter_sequence(self, s: Sequence) -> None:
        """Enter the body of a statement that all threads go through."""
        owner = s.owner
        if s.repeats and s not in self.of.rounds:
            self.of.rounds[s] = self.text.fresh()
        match owner:
            case For():
                self.enter_loop(owner, self.of.rounds[s])
                end = self.text.maybe(binary("add", owner.lo, owner.extent))
                self.of.bounds[s] = self.text.maybe(owner.lo), end
            case While():
                self.of.bounds[s] = "0", None
                self.dims.append(self.of.rounds[s])
                self.conds.append(f"0 <= {self.of.rounds[s]}")
                self.exact = False
            case If(cond, then_body):
                self.enter_branch(cond, s.stmt is then_body)

    def enter_binder(self, s: Stmt) -> None:
        """Enter a statement that binds a name, as its body does."""
        match s:
            case Let(var, value):
                self.let(var, value)
                self.around.append(s)
            case MatchBuffer(buffer, source):
                self.views[buffer] = source

    def let(self, var: Var, value: Expr) -> None:
        self.text.env[var] = self.text.maybe(value) if var.dtype.is_int else None

    def enter_branch(self, cond: Expr, truth: bool) -> None:
        conds, exact = self.text.known_part(cond, truth)
        self.conds += conds
        self.exact = self.exact and exact
        self.guards.append((cond, truth))

    @contextmanager
    def inner(self) -> Iterator[None]:
        """A scope: dimensions and conditions that are added inside are removed at its end."""
        lists: list[list[Any]] = [self.dims, self.conds, self.guards, self.around]
        counts, exact, threads = [len(x) for x in lists], self.exact, dict(self.threads)
        yield
        self.exact, self.threads = exact, threads
        for items, count in zip(lists, counts, strict=True):
            del items[count:]

    @contextmanager
    def branch(self, cond: Expr, truth: bool) -> Iterator[None]:
        with self.inner():
            self.enter_branch(cond, truth)
            yield

    # ---- statements --------------------------------------------------------------------------

    def together(self, s: Stmt) -> None:
        """Collect what all threads read for the control flow of `s`, and for the values that it
        binds."""
        with self.inner():
            for index, size in zip(THREAD_INDICES, self.of.launch.block, strict=True):
                thread = self.threads[index] = self.text.fresh()
                self.dims.append(thread)
                self.conds.append(f"0 <= {thread} < {size}")
            self.current = s
            for e in stmt_exprs(s):
                self.expr(e)

    def stmt(self, s: Stmt) -> None:
        """Collect what a thread reads and writes in a statement."""
        self.current = s
        if not isinstance(s, Block | Prefetch):
            for e in stmt_exprs(s):
                self.expr(e)
        match s:
            case For(_, _, _, _, body):
                with self.inner():
                    self.enter_loop(s)
                    self.stmt(body)
            case While(_, body):
                with self.inner():
                    self.dims.append(self.text.fresh())
                    self.exact = False
                    self.stmt(body)
            case If(cond, then_body, orelse):
                with self.branch(cond, True):
                    self.stmt(then_body)
                if orelse is not None:
                    with self.branch(cond, False):
                        self.stmt(orelse)
            case Let(_, _, body) | MatchBuffer(_, _, _, body):
                with self.inner():
                    self.enter_binder(s)
                    self.stmt(body)
            case Store(buffer, indices):
                self.touch(buffer, indices, True)
            case Block(_, iters):
                for i in iters:
                    self.let(i.var, i.value)
                for t in substmts(s):
                    self.stmt(t)
            case Prefetch():
                pass
            case _:
                for t in substmts(s):
                    self.stmt(t)

    # ---- expressions -------------------------------------------------------------------------

    def expr(self, e: Expr) -> None:
        for c in children(e):  # all operands are computed, those of a select too
            self.expr(c)
        match e:
            case Load(buffer, indices):
                self.touch(buffer, indices, False)
            case AddressOf(buffer):  # a C function may touch all that follows
                for write in (False, True):
                    self.put(buffer, write, (None,) * len(buffer.shape), (), ())

    def touch(self, b: Buffer, indices: tuple[Expr, ...], write: bool) -> None:
        """An access at indices; a vector of them is a range of lanes."""
        lanes = max((e.dtype.lanes for e in indices), default=1)
        with self.inner():
            lane = Var("lane")
            if lanes > 1:
                dim = self.text.env[lane] = self.text.fresh()
                self.text.set_range(dim, IntImm(0), IntImm(lanes))
                self.dims.append(dim)
                self.conds.append(f"0 <= {dim} < {lanes}")
            lane_indices = (lane_of(e, lane) for e in indices)
            texts = tuple(None if e is None else self.text.maybe(e) for e in lane_indices)
            self.put(b, write, texts, indices, tuple(self.guards))

    def put(
        self,
        b: Buffer,
        write: bool,
        index: tuple[str | None, ...],
        indices: tuple[Expr, ...],
        guards: tuple[tuple[Expr, bool], ...],
    ) -> None:
        home, viewed = b, False
        while home in self.views:
            home, viewed = self.views[home], True
        target = self.of.alias.get(home, home)
        if viewed or target.shape != home.shape:
            index = (None,) * len(target.shape)
        x, y, z = (self.threads.get(t, "0") for t in THREAD_INDICES)
        assert self.segment is not None and self.current is not None
        access = DeviceAccess(
            b,
            target,
            write,
            index,
            tuple(self.dims),
            tuple(dict.fromkeys(self.conds)),
            self.exact and None not in index,
            (x, y, z),
            self.segment,
            self.current,
            indices,
            guards,
            tuple(self.around),
        )
        self.accesses.append(access)


def line_of(s: Stmt) -> str:
    """The first line of a statement's text, for messages."""
    printer = TirPrinter()
    printer.stmt(s, "")
    text = printer.lines[0].strip().rstrip(":")
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."


_LONGEST = 72
__all__ = ["DeviceAccess", "FunctionAccesses", "line_of"]
