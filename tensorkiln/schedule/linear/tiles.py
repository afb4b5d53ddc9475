"""Matrix product with packed weights in tiles of the processor (ir/tiles.py): 32 rows by 32 columns
of sums, in four tiles, from two tiles of rows and two of weights.

    for panel, 32 rows:
        c[2, 2] = 0
        for k in steps of 64 bytes:             16 rows of x, and 16 columns of a panel
            a[2] = x[rows, k]; b[2] = w[panel, k]
            c[i, j] += a[i] * b[j]
        sums = c                                memory, after the whole sum
        for row: bias + sums[row], epilogue     vectors

Weights lie as the vector kernel wants them (program.py): the terms that one instruction adds are
adjacent in each column, `B/32 A/2 B%32 A%2`, so a tile of weights is 16 of its rows. What is left
of the rows has smaller tiles, an unknown number of them 16, 4 and 1 rows. Terms beyond the last
whole step are a second sum in tiles of fewer columns, of another configuration. So each row's sums
are added in one order, whatever rows are beside it. A sum of floats need not be cut into pieces
(accumulate.py): each step adds the sum of its own 32 terms.

This has run on no processor with tiles yet; the tests emulate their instructions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tensorkiln.arith import simplify
from tensorkiln.ir.buffer import Buffer, Load, buffer
from tensorkiln.ir.expr import Expr, ExprLike, IntImm, as_expr, const, int_value
from tensorkiln.ir.stmt import For, PrimFunc, Stmt, Store, seq
from tensorkiln.ir.tiles import TILE_ROW_BYTES, TILE_ROWS
from tensorkiln.ir.visit import loads, walk_stmt
from tensorkiln.schedule.accumulate import add_product
from tensorkiln.schedule.build import PARALLEL_WORK, lanes, loop, nest, vectors, within
from tensorkiln.schedule.group import inplace_params
from tensorkiln.schedule.intrin.tiles import tile_dot_for
from tensorkiln.schedule.linear.program import Linear
from tensorkiln.schedule.primitives import Schedule
from tensorkiln.schedule.register_tile import lanes as in_vectors
from tensorkiln.schedule.register_tile import share

_COLUMNS = TILE_ROW_BYTES // 4  # of a tile of sums


@dataclass(frozen=True, slots=True)
class _Rows:
    """`count` groups of rows from row `start` on, each in tiles of these numbers of rows."""

    start: Expr
    count: Expr
    tiles: tuple[int, ...]


def schedule_tiles(c: Linear, threads: bool, check: bool = False) -> Schedule:
    """`linear` or `matmul` with its epilogue, on a target that multiplies tiles, and has
    threads."""
    small = c.n <= c.nr or c.work <= PARALLEL_WORK
    by_rows = int_value(c.m) is None and small and not c.batch and threads
    s = Schedule(_program(c, by_rows), check=check)
    for at in s.loops(role="tile"):
        s.tensorize(at, _instruction(s.loop(at)))
    for name in ("c", "a", "b"):
        s.set_scope(name, "tile")
    for row in s.loops(role="finish"):
        in_vectors(s, row)
    if not threads:
        return s
    if by_rows:
        for tiles in s.loops(role="row"):
            s.parallel(tiles)
        return s
    if c.work > PARALLEL_WORK:
        outer = [*s.loops(role="batch"), *s.loops(role="panel")]
        several = any(len(s.children(x)) > 1 for x in outer[:-1])
        share(s, outer[:1] if several else outer)
    return s


def _instruction(nest: For) -> str:
    """The instruction for loops over a tile: of two to move it, of four to multiply two."""
    inside = [t for t in walk_stmt(nest) if isinstance(t, For)]
    extents = [int_value(t.extent) or 0 for t in inside]
    (step,) = (t for t in walk_stmt(nest) if isinstance(t, Store))
    if len(extents) == 4:
        left = next(x.dtype for x in loads(step.value) if x.dtype != step.buffer.dtype)
        return f"{tile_dot_for(left)}_{extents[0]}x{extents[1]}x{extents[2]}"
    kind = "copy" if isinstance(step.value, Load) else "zero"
    return f"tile_{kind}_{extents[0]}x{extents[1]}_{step.buffer.dtype}"


# ---- the program -------------------------------------------------------------------------------


def _program(c: Linear, by_rows: bool) -> PrimFunc:
    """Panel by panel, tiles of rows by tiles of rows; loops of role "tile" are instructions."""
    whole, rest = divmod(c.n, c.nr)

    def panel(batch: tuple[Expr, ...], p: Expr, columns: int) -> Stmt:
        return seq(*(_rows(c, batch, p, columns, r, by_rows) for r in _cut(c.m)))

    def panels(*batch: Expr) -> Stmt:
        every = loop("panel", whole, lambda p: panel(batch, p, c.nr), "panel", keep=True)
        return seq(every if whole else None, panel(batch, as_expr(whole), rest) if rest else None)

    count = len(c.batch)
    body = nest(["n"] * count, c.batch, panels, ["batch"] * count)
    return PrimFunc(c.group.name, c.group.params, body, inplace=inplace_params(c.group))


def _cut(m: Expr) -> list[_Rows]:
    """Rows in pairs of whole tiles, and what is left of them in smaller ones."""
    rows = int_value(m)
    pair = (TILE_ROWS, TILE_ROWS)
    if rows is not None:
        whole, rest = divmod(rows, sum(pair))
        tail = (TILE_ROWS, rest - TILE_ROWS) if rest > TILE_ROWS else (rest,)
        found = [_Rows(IntImm(0), as_expr(whole), pair)] if whole else []
        return [*found, _Rows(as_expr(rows - rest), IntImm(1), tail)] if rest else found
    found, start, left = [], as_expr(0), m
    for tiles in (pair, (TILE_ROWS,), (4,), (1,)):
        size = sum(tiles)
        found.append(_Rows(simplify(start), simplify(left // size), tiles))
        start, left = start + left // size * size, left % size
    return found


def _rows(
    c: Linear, batch: tuple[Expr, ...], p: Expr, columns: int, rows: _Rows, by_rows: bool
) -> Stmt:
    """All tiles of one size of panel p, the first `columns` columns of which exist."""
    tiles, size = -(-columns // _COLUMNS), sum(rows.tiles)
    steps, rest = divmod(c.k // c.together, TILE_ROWS)
    # Of one configuration, which all of them share, unless threads divide them.
    sums = [_Sum(c, rows.tiles, tiles, 0, steps, TILE_ROWS)]
    if rest:
        sums.append(_Sum(c, rows.tiles, tiles, steps * TILE_ROWS, 1, rest))
    once = len(sums) == 1 and not by_rows

    def group(i: Expr) -> Stmt:
        first = simplify(rows.start + i * size)
        memory = [
            buffer(name, (size, tiles * _COLUMNS), c.dtype, "local")
            for name in ("sums", "others")[: len(sums)]
        ]
        made = []
        for t, into in zip(sums, memory, strict=True):
            body = t.body(batch, p, first, into)
            made.append(body if once else within(t.buffers, body))

        def total(row: Expr, o: Expr, lane: Expr) -> Expr:
            parts: list[Expr] = [c.initial(p, o, lane)] if len(c.call.args) > 2 else []
            parts += [Load(m, (row, simplify(o * _COLUMNS + lane))) for m in memory]
            value = parts[0]
            for part in parts[1:]:
                value = value + part
            return value

        def finish(row: Expr) -> Stmt:
            def end(o: Expr, lane: Expr) -> Stmt:
                column = simplify(p * c.nr + o * _COLUMNS + lane)
                return c.finish(total(row, o, lane), batch, simplify(first + row), column)

            full, last = divmod(columns, _COLUMNS)
            edge = lanes("last", last, lambda v: end(as_expr(full), v)) if last else None
            return seq(vectors("end", (full, _COLUMNS), end) if full else None, edge)

        return within(memory, *made, loop("r", size, finish, "finish", keep=True))

    every = loop("row", rows.count, group, "row", keep=True)
    return within(sums[0].buffers, every) if once else every


class _Sum:
    """A sum over `steps` steps from group `lo` of adjacent terms on, of `groups` groups each."""

    def __init__(
        self, c: Linear, rows: Sequence[int], columns: int, lo: int, steps: int, groups: int
    ):
        self.c, self.lo, self.steps, self.groups = c, lo, steps, groups
        self.rows, self.columns = rows, columns
        few, x, w = c.together, c.x.dtype, c.w.dtype
        self.totals = [buffer("c", (columns, m, _COLUMNS), c.dtype, "local") for m in rows]
        self.left = [buffer("a", (m, groups * few), x, "local") for m in rows]
        self.right = buffer("b", (columns, groups, _COLUMNS * few), w, "local")
        self.buffers: list[Buffer] = [*self.totals, *self.left, self.right]

    def body(self, batch: tuple[Expr, ...], p: Expr, first: Expr, into: Buffer) -> Stmt:
        """The sums of rows from `first` on, by the weights of panel p, in memory."""
        c, few = self.c, self.c.together
        zero = const(0, c.dtype)
        rows = [(m, sum(self.rows[:n])) for n, m in enumerate(self.rows)]
        tiles = [(n, o) for n in range(len(rows)) for o in range(self.columns)]

        def clear(total: Buffer, o: int) -> Stmt:
            def at(i: Expr, j: Expr) -> Stmt:
                return Store(total, (as_expr(o), i, j), zero)

            return _tile(total.shape[1:], at)

        def read_left(n: int, group: Expr) -> Stmt:
            def at(i: Expr, j: Expr) -> Stmt:
                row, term = simplify(first + rows[n][1] + i), simplify(group * few + j)
                return Store(self.left[n], (i, j), c.input(batch, row, term))

            return _tile(self.left[n].shape, at)

        def read_right(o: int, group: Expr) -> Stmt:
            def at(i: Expr, j: Expr) -> Stmt:
                place = (*batch, p, simplify(group + i), simplify(j + o * _COLUMNS * few))
                return Store(self.right, (as_expr(o), i, j), Load(c.w, place))

            return _tile(self.right.shape[1:], at)

        def multiply(n: int, o: int) -> Stmt:
            def at(i: Expr, j: Expr, k: Expr, b: Expr) -> Stmt:
                x = Load(self.left[n], (i, simplify(k * few + b)))
                w = Load(self.right, (as_expr(o), k, simplify(j * few + b)))
                return add_product(self.totals[n], (as_expr(o), i, j), x, w)

            return _tile((rows[n][0], _COLUMNS, self.groups, few), at)

        def write(n: int, o: int) -> Stmt:
            def at(i: Expr, j: Expr) -> Stmt:
                place = simplify(i + rows[n][1]), simplify(j + o * _COLUMNS)
                return Store(into, place, Load(self.totals[n], (as_expr(o), i, j)))

            return _tile(self.totals[n].shape[1:], at)

        def step(k: Expr) -> Stmt:
            group = simplify(self.lo + k * self.groups)
            right = [read_right(o, group) for o in range(self.columns)]
            left = [read_left(n, group) for n in range(len(rows))]
            return seq(*right, *left, *(multiply(n, o) for n, o in tiles))

        return seq(
            *(clear(self.totals[n], o) for n, o in tiles),
            loop("k", self.steps, step, "term"),
            *(write(n, o) for n, o in tiles),
        )


def _tile(extents: Sequence[ExprLike], body: Callable[..., Stmt]) -> Stmt:
    """Loops over a tile, which become one instruction."""
    roles = ["tile", *[""] * (len(extents) - 1)]
    return nest("ijkb"[: len(extents)], extents, body, roles, keep=True)
