"""Rows of elements that the threads of a block divide among themselves, and hold in registers.

    thread t of a row holds elements (step * threads + t) * lanes + lane

Each step of a row is one vector of `lanes` neighbours for each thread, so that a row is read and
written in accesses of up to 16 bytes, neighbouring threads access neighbouring vectors, and all
reads of a row are in flight at once. Rows that one warp holds need no barriers; a block has several
of them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tensorkiln.arith import simplify
from tensorkiln.ir.buffer import Buffer, Load, buffer
from tensorkiln.ir.device_instructions import WARP_THREADS
from tensorkiln.ir.dtype import FLOAT32, INT32, DType
from tensorkiln.ir.expr import (
    REDUCE_BINARY,
    Expr,
    IntImm,
    Var,
    binary,
    int_value,
    intrin,
    minimum,
    neutral,
)
from tensorkiln.ir.stmt import Alloc, If, Stmt, Store, seq
from tensorkiln.ir.visit import substitute_stmt, walk_stmt
from tensorkiln.schedule.build import loop
from tensorkiln.schedule.gpu.block import each_thread
from tensorkiln.schedule.primitives import Schedule
from tensorkiln.target import Target

REGISTER, LANE = "register", "lane"  # roles of loops: to be unrolled, to be a vector
# Elements that a thread holds: so many if a block can have as many threads as that takes, else up
# to twice as many. Registers then suffice for the threads of several blocks, whose reads hide the
# latency of memory.
_USUAL, _LARGEST = 16, 32
_SIZES = tuple(WARP_THREADS << k for k in range(6))  # threads of a row
_BLOCK = 128  # threads of a block of several rows
# The thread whose statements are written; nests of threads put their variable in its place.
THREAD = Var("thread")
SUBGROUP_OPS = ("sum", "max", "min")  # that the threads of a warp can compute together
_EXCHANGED = FLOAT32, INT32  # types of such values


@dataclass(frozen=True, slots=True)
class RowDivision:
    """A row of `columns` elements, divided among `threads` threads; a block has `rows` rows."""

    columns: int
    threads: int
    lanes: int
    rows: int = 1

    @property
    def block_threads(self) -> int:
        """Threads of a block."""
        return self.threads * self.rows

    @property
    def steps(self) -> int:
        """Vectors of a thread."""
        return _elements(self.columns, self.threads, self.lanes) // self.lanes

    @property
    def _place(self) -> Expr:
        """The number of thread `THREAD` among the threads of its row."""
        return THREAD % self.threads if self.rows > 1 else THREAD

    @property
    def is_first(self) -> Expr:
        """Whether thread `THREAD` is the first of its row."""
        return self._place < 1

    def registers(self, name: str, dtype: DType) -> Buffer:
        """A buffer for what each thread holds of a row, by (thread, step, lane)."""
        return buffer(name, (self.block_threads, self.steps, self.lanes), dtype, "local")

    def blocks(self, count: Expr, body: Callable[[Expr, Expr | None], Stmt]) -> Stmt:
        """A loop, with role "row", over blocks for `count` rows in all around `body(row, inside)`.
        The threads of a row behind the last compute the last one; `inside` is false for them, and
        None if there are none."""

        def block(b: Expr) -> Stmt:
            row = simplify(b * self.rows + THREAD // self.threads) if self.rows > 1 else b
            if int_value(simplify(count % self.rows)) == 0:
                return body(row, None)
            return body(minimum(row, count - 1), row < count)

        blocks = simplify((count + (self.rows - 1)) // self.rows)
        return loop("row", blocks, block, "row", keep=True)

    def nest(self, body: Stmt) -> Stmt:
        """A loop over the threads of a block around a statement of thread `THREAD`."""
        return each_thread(
            "thread", self.block_threads, lambda t: substitute_stmt(body, {THREAD: t})
        )

    def loops(self, body: Callable[[Expr, Expr, Expr], Stmt], lane_role: str = LANE) -> Stmt:
        """`body(column, step, lane)` for all elements of the row that thread `THREAD` holds, in
        vectors unless loops over lanes have another role."""
        whole = self.columns // (self.threads * self.lanes)
        last = IntImm(whole)

        def vector(step: Expr) -> Stmt:
            first = simplify((step * self.threads + self._place) * self.lanes)
            lane_body = lambda lane: body(simplify(first + lane), step, lane)  # noqa: E731
            lanes = loop("lane", self.lanes, lane_body, lane_role)
            return lanes if step is not last else If(first < self.columns, lanes)

        steps = loop("step", whole, vector, REGISTER)
        return steps if whole == self.steps else seq(steps, vector(last))


def row_division(
    columns: int | None, lanes: int, rows: Expr | None, dtype: DType, target: Target
) -> RowDivision | None:
    """How threads divide rows of `columns` elements of `dtype`, which can be accessed in vectors of
    `lanes`. `rows` of them in all, None if a block cannot have several. None if threads cannot hold
    a row, or not exchange values."""
    limit = target["max_num_threads"]
    assert isinstance(limit, int)
    if columns is None or target.kind != "cuda" or dtype not in _EXCHANGED:
        return None
    lanes = _vector(columns, lanes)
    sizes = [n for n in _SIZES if n <= limit]
    fits = (
        n for count in (_USUAL, _LARGEST) for n in sizes if _elements(columns, n, lanes) <= count
    )
    threads = next(fits, None)
    if threads is None:
        return None
    several = rows is not None and threads == WARP_THREADS
    return RowDivision(columns, threads, lanes, _BLOCK // WARP_THREADS if several else 1)


def _vector(columns: int, lanes: int) -> int:
    """The lanes of vectors of which each thread of a warp has one at least, or `lanes`."""
    size = _elements(columns, WARP_THREADS, lanes)
    half = _elements(columns, WARP_THREADS, lanes // 2) if lanes > 1 else size
    return _vector(columns, lanes // 2) if half < size <= lanes else lanes


def _elements(columns: int, threads: int, lanes: int) -> int:
    """How many elements of a row one of its threads holds, at most."""
    return -(-columns // (threads * lanes)) * lanes


class RowSum:
    """A reduction of the elements of a row: each thread reduces its own, then the threads of a warp
    exchange theirs, then each thread reduces the results of all warps. `buffers` are those that it
    needs around it."""

    def __init__(self, name: str, op: str, dtype: DType, division: RowDivision):
        self.op, self.division = op, division
        self.acc = buffer(f"{name}_acc", (division.block_threads,), dtype, "local")
        self.warps = division.threads // WARP_THREADS
        # A word for each warp of a row; rows of one warp need none.
        self.partial = buffer(f"{name}_part", (self.warps,), dtype, "shared")
        self.buffers = [self.acc, *([self.partial] if self.warps > 1 else [])]

    @property
    def value(self) -> Expr:
        """The result, in thread `THREAD`."""
        return Load(self.acc, (THREAD,))

    def add(self, term: Expr) -> Stmt:
        """Add a term to the sum of thread `THREAD`."""
        return Store(self.acc, (THREAD,), binary(REDUCE_BINARY[self.op], self.value, term))

    def stmt(self, terms: Stmt) -> Stmt:
        """The nests of threads that compute it; `terms` adds all terms of thread `THREAD`."""
        nest = self.division.nest
        start = Store(self.acc, (THREAD,), neutral(self.op, self.acc.dtype))
        reduced = intrin(f"subgroup_{self.op}", self.value, IntImm(WARP_THREADS))
        in_warp = seq(start, terms, Store(self.acc, (THREAD,), reduced))
        if self.warps == 1:
            return nest(in_warp)
        share = Store(self.partial, (THREAD // WARP_THREADS,), self.value)
        first_warp = Store(self.acc, (THREAD,), Load(self.partial, (IntImm(0),)))
        add = lambda w: self.add(Load(self.partial, (w,)))  # noqa: E731
        add_warps = loop("w", self.warps - 1, add, REGISTER, lo=1)
        first_lane = If(THREAD % WARP_THREADS < 1, share)
        return seq(nest(seq(in_warp, first_lane)), nest(seq(first_warp, add_warps)))


def unroll_rows(s: Schedule) -> None:
    """Keep what threads hold of rows in registers, and access it in vectors."""
    for name in s.loops(role=REGISTER):
        s.unroll(name)
    for name in s.loops(role=LANE):
        s.vectorize(name)
    buffers = [t.buffer for t in walk_stmt(s.func.body) if isinstance(t, Alloc)]
    for name in dict.fromkeys(b.name for b in buffers if b.scope == "local"):
        s.set_scope(name, "register")
