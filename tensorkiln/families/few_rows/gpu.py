"""Sums of products of few rows on a device: a vector times a matrix, or up to seven vectors.

Each element of the matrix is read once, so a kernel takes as long as its bytes take to arrive, and
that depends on how many are asked for at a time. The threads of a block read vectors of 16 bytes
along the axis of the matrix that is adjacent in memory, several before they multiply them:

    along columns                                     along terms
    thread t: columns (t % across) * 4 ...            thread t: column t // down
              terms   t // across + down * i                    terms (t % down + down * i) * 4 ...

Each has the sums of its terms for all rows. Those of the `down` threads of a column are added in
shared memory, in two levels, in an order that depends on the number of threads alone.

A block has as many columns as leave blocks for all multiprocessors, but at least what makes whole
sectors of memory.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from tensorkiln.arith import simplify
from tensorkiln.families.contraction.costs import LEAST_ROWS
from tensorkiln.ir.buffer import Buffer, Load, buffer
from tensorkiln.ir.dtype import DType
from tensorkiln.ir.expr import Expr, IntImm, cast, const, int_value, neutral
from tensorkiln.ir.stmt import If, PrimFunc, Stmt, Store
from tensorkiln.ir.visit import substitute
from tensorkiln.schedule.access import simplify_value
from tensorkiln.schedule.build import loop, nest, within
from tensorkiln.schedule.gpu.block import each_thread
from tensorkiln.schedule.gpu.grid import bind_threads, enough_threads
from tensorkiln.schedule.gpu.products import Axes, Product
from tensorkiln.schedule.gpu.tiles import (
    Side,
    TiledProduct,
    adjacent,
    bind_tiles,
    split_index,
    tiled_product,
)
from tensorkiln.schedule.group import Group, inplace_params, product
from tensorkiln.schedule.primitives import Schedule
from tensorkiln.target import Target
from tensorkiln.target.capability import most_shared, multiprocessors

_TERMS = 64  # sums of fewer terms are not worth a block
_COLUMNS = (64, 32, 16)  # of a block that reads along columns
_TERM_COLUMNS = (32, 16, 8)  # of a block that reads along terms
_DOWN = 8  # threads along terms, at least
_LEAST_THREADS, _MOST_THREADS = 256, 1024
_FULL = 128  # blocks that fill a device whose multiprocessors are not known
_BATCH = 8  # vectors that a thread asks for before it multiplies them
_GUARDED_BATCH = 4  # the same, where each may be beyond the last
_FIRST = IntImm(0)
_REGISTER, _LANE = "register", "lane"


def schedule(group: Group, target: Target, check: bool = False) -> Schedule | None:
    """The schedule of a group whose output elements are functions of one sum of products, with few
    rows. None if it is not such a product, or one thread for each element is better."""
    group, contraction = tiled_product(group)
    program = None if contraction is None else _program_of(group, contraction, target)
    if program is None:
        return None
    params, inplace = group.params, inplace_params(group)
    s = Schedule(PrimFunc(group.name, params, program.stmt(), inplace=inplace), check)
    bind_tiles(s)
    bind_threads(s)
    for name in s.loops(role=_REGISTER):
        s.unroll(name)
    for name in s.loops(role=_LANE):
        s.vectorize(name)
    return s


@dataclass(frozen=True, slots=True)
class _Threads:
    """The threads of a block: `across` along its columns, with `columns` of them each, and `down`
    along terms, with `terms` of them at a time; the first are neighbours, or the last are."""

    across: int
    columns: int
    down: int
    terms: int

    @property
    def count(self) -> int:
        """Threads of a block."""
        return self.across * self.down

    @property
    def lanes(self) -> int:
        """Elements of the matrix that a thread reads at once."""
        return self.columns * self.terms

    @property
    def groups(self) -> int:
        """Groups of the threads of a column, whose sums are added first."""
        return self.down >> self.down.bit_length() // 2

    def pitch(self, rows: int) -> int:
        """Elements of shared memory between the sums of neighbours along terms."""
        # Neighbouring threads store sums of one column, or of several; an odd distance puts the
        # first into different banks.
        sums = rows * self.across * self.columns
        return sums | 1 if self.terms > 1 else sums

    def shared(self, rows: int, dtype: DType) -> int:
        """Bytes of shared memory of the sums of all threads and of those of groups."""
        return dtype.size((self.down + self.groups) * self.pitch(rows))

    def place(self, t: Expr) -> tuple[Expr, Expr]:
        """(number along columns, number along terms) of thread t."""
        if self.terms > 1:
            return t // self.down, t % self.down
        return t % self.across, t // self.across


def _program_of(group: Group, p: Product, target: Target) -> _FewRows | None:
    rows, columns, terms = (_size(axes) for axes in (p.rows, p.columns, p.terms))
    if columns is not None and (rows is None or columns < rows):
        p = replace(p, left=p.right, right=p.left, rows=p.columns, columns=p.rows)
        rows, columns = columns, rows
    if rows is None or not 0 < rows < LEAST_ROWS or (terms is not None and terms < _TERMS):
        return None
    if _size(p.terms[1:]) != 1:  # windows of an image
        return None
    threads = _threads_of(p, rows, columns, terms, target)
    return _FewRows(group, p, rows, threads) if threads.down >= _DOWN else None


def _threads_of(
    p: Product, rows: int, columns: int | None, terms: int | None, target: Target
) -> _Threads:
    """The threads for a product of these extents, None being unknown."""
    along_columns, along_terms = (
        adjacent((p.right,), axes, product(tuple(e for _, e in axes)))
        for axes in (p.columns, p.terms)
    )
    limit = _thread_limit(rows, target)
    if along_terms > along_columns:
        vector, widths = max(1, int(along_terms)), _TERM_COLUMNS
        columns_of_thread, terms_of_thread = 1, vector
    else:
        vector, widths = max(1, int(along_columns)), _COLUMNS
        columns_of_thread, terms_of_thread = vector, 1
    across = max(1, _width(columns, widths, target) // columns_of_thread)
    steps = None if terms is None else terms // terms_of_thread
    down = enough_threads(steps, limit // across)
    threads = _Threads(across, columns_of_thread, down, terms_of_thread)
    while threads.shared(rows, p.dtype) > most_shared(target):
        threads = replace(threads, down=threads.down // 2)
    return threads


def _size(axes: Axes) -> int | None:
    return int_value(product(tuple(e for _, e in axes)))


def _thread_limit(rows: int, target: Target) -> int:
    """The most threads of a block: many, because each has few loads on their way, but with more
    rows each needs more registers."""
    limit = target["max_num_threads"]
    assert isinstance(limit, int)
    count = max(_MOST_THREADS >> (rows - 1).bit_length(), _LEAST_THREADS)
    return min(1 << (limit.bit_length() - 1), count)


def _width(columns: int | None, widths: tuple[int, ...], target: Target) -> int:
    """Columns of a block."""
    full = multiprocessors(target) or _FULL
    fits = (n for n in widths if columns is not None and columns // n >= full)
    return next(fits, widths[-1])


class _FewRows:
    """The program of a product of few rows."""

    def __init__(self, group: Group, p: Product, rows: int, threads: _Threads):
        self.p, self.rows, self.threads = p, rows, threads
        self.width = threads.across * threads.columns
        self.of = TiledProduct(group, p, rows, self.width, 1)
        self.step = threads.down * threads.terms  # terms of the block at a time
        steps = int_value(simplify(self.of.terms // self.step))
        # Whether a thread's last terms may be beyond the last of all.
        self.guarded = steps is None or int_value(simplify(self.of.terms % self.step)) != 0
        fits = (n for n in range(_BATCH, 0, -1) if not self.guarded and (steps or 0) % n == 0)
        self.batch = next(fits, _GUARDED_BATCH)
        whole = self.step * self.batch
        self.batches = simplify((self.of.terms + (whole - 1)) // whole)
        left_lanes = adjacent((p.left,), p.terms, self.of.terms)
        self.adjacent_terms = threads.terms > 1 and left_lanes >= threads.terms
        self.pitch = threads.pitch(rows)
        self.parts = buffer("parts", (threads.down, self.pitch), p.dtype, "shared")

    def stmt(self) -> Stmt:
        """for batch, one tile of rows, columns of a block: the sums."""
        return self.of.grid(self._block)

    def _block(self, z: Expr, _: Expr, first_column: Expr) -> Stmt:
        count = self.threads.groups
        fan = self.threads.down // count
        groups = buffer("groups", (count, self.pitch), self.p.dtype, "shared")
        level = self._level(self.parts, fan, count, "group_sum")

        def add(t: Expr) -> Stmt:
            group, column = t // self.width, t % self.width

            def row(r: Expr) -> Stmt:
                place = group, self._place(r, column)
                return level(r, group, column, lambda v: Store(groups, place, v))

            return loop("r", self.rows, row, _REGISTER)

        final = self._level(groups, count, 1, "total")

        def finish(t: Expr) -> Stmt:
            def row(r: Expr) -> Stmt:
                store = lambda v: self.of.finish(v, z, r, (first_column, t))  # noqa: E731
                return final(r, _FIRST, t, store)

            return loop("r", self.rows, row, _REGISTER)

        return within(
            [self.parts, groups],
            each_thread("thread", self.threads.count, lambda t: self._sums(t, z, first_column)),
            each_thread("thread", count * self.width, add),
            each_thread("thread", self.width, finish),
        )

    def _level(
        self, partial: Buffer, fan: int, count: int, name: str
    ) -> Callable[[Expr, Expr, Expr, Callable[[Expr], Stmt]], Stmt]:
        """(row, one of `count` groups, column, what to do with the sum) -> the statement that adds
        the `fan` partial sums of a group."""
        acc = buffer(name, (1,), self.p.dtype, "register")

        def total(r: Expr, group: Expr, column: Expr, store: Callable[[Expr], Stmt]) -> Stmt:
            def add(i: Expr) -> Stmt:
                term = Load(partial, (simplify(i * count + group), self._place(r, column)))
                return Store(acc, (_FIRST,), Load(acc, (_FIRST,)) + term)

            start = Store(acc, (_FIRST,), Load(partial, (group, self._place(r, column))))
            terms = loop("i", fan - 1, add, _REGISTER, lo=1)
            return within([acc], start, terms, store(Load(acc, (_FIRST,))))

        return total

    def _place(self, r: Expr, column: Expr) -> Expr:
        """Where the sum of a row and column is among those of a thread's number along terms."""
        return simplify(r * self.width + column)

    def _sums(self, t: Expr, z: Expr, first_column: Expr) -> Stmt:
        """A thread's sums of its terms, for all rows and its columns, and their stores."""
        threads, p, of = self.threads, self.p, self.of
        across, down = threads.place(t)
        mine = simplify(across * threads.columns)
        sums = buffer("sums", (self.rows, threads.columns), p.dtype, "register")
        roles = [_REGISTER, _LANE if threads.columns > 1 else _REGISTER]
        extents = [self.rows, threads.columns]

        def start(r: Expr, c: Expr) -> Stmt:
            return Store(sums, (r, c), neutral("sum", p.dtype))

        def store(r: Expr, c: Expr) -> Stmt:
            return Store(self.parts, (down, self._place(r, mine + c)), Load(sums, (r, c)))

        column = simplify(first_column + mine)
        steps = loop("k", self.batches, lambda k: self._batch(sums, z, column, k, down), "term")
        if int_value(simplify(of.right.extent % self.width)) != 0:
            steps = If(column < of.right.extent, steps)
        nests = (nest(["r", "c"], extents, body, roles) for body in (start, store))
        first, last = nests
        return within([sums], first, steps, last)

    def _batch(self, sums: Buffer, z: Expr, column: Expr, k: Expr, down: Expr) -> Stmt:
        """Read `batch` vectors of the matrix, and add their products to the sums."""
        threads, p = self.threads, self.p
        lanes = threads.lanes
        matrix = buffer("matrix", (self.batch, lanes), p.right.dtype, "register")
        vectors = buffer("vectors", (self.rows, threads.terms), p.left.dtype, "register")
        lane_role = _LANE if lanes > 1 else _REGISTER

        def first_term(u: Expr) -> Expr:
            return simplify(((k * self.batch + u) * threads.down + down) * threads.terms)

        def read(u: Expr) -> Stmt:
            def lane(j: Expr) -> Stmt:
                term, of_column = (j, _FIRST) if threads.terms > 1 else (_FIRST, j)
                value = self._element(self.of.right, z, column + of_column, first_term(u) + term)
                return Store(matrix, (u, j), value)

            zero = lambda j: Store(matrix, (u, j), const(0, matrix.dtype))  # noqa: E731
            return self._inside(
                first_term(u),
                loop("j", lanes, lane, lane_role),
                loop("j", lanes, zero, lane_role),
            )

        def multiply(u: Expr) -> Stmt:
            def row(r: Expr, j: Expr) -> Stmt:
                value = self._element(self.of.left, z, r, first_term(u) + j)
                return Store(vectors, (r, j), value)

            def add(r: Expr, j: Expr, c: Expr) -> Stmt:
                factor = Load(matrix, (u, simplify(j + c)))
                value = cast(Load(vectors, (r, j)), p.dtype) * cast(factor, p.dtype)
                return Store(sums, (r, c), Load(sums, (r, c)) + value)

            extents = [self.rows, threads.terms]
            roles = [_REGISTER, _LANE if self.adjacent_terms else _REGISTER]
            column_role = _LANE if threads.columns > 1 else _REGISTER
            sum_roles = [_REGISTER, _REGISTER, column_role]
            body = within(
                [vectors],
                nest(["r", "j"], extents, row, roles),
                nest(["r", "j", "c"], [*extents, threads.columns], add, sum_roles),
            )
            return self._inside(first_term(u), body)

        return within(
            [matrix],
            loop("u", self.batch, read, _REGISTER),
            loop("u", self.batch, multiply, _REGISTER),
        )

    def _inside(self, term: Expr, body: Stmt, otherwise: Stmt | None = None) -> Stmt:
        """A statement for the terms from `term` on, unless they are beyond the last."""
        return If(term < self.of.terms, body, otherwise) if self.guarded else body

    def _element(self, side: Side, z: Expr, position: Expr, term: Expr) -> Expr:
        """An element of a factor."""
        values = {
            **split_index(side.axes, simplify(position)),
            **split_index(self.p.terms, simplify(term)),
            **split_index(self.p.batch, z),
        }
        return simplify_value(substitute(side.value, values), {})
