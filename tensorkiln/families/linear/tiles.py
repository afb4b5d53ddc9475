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
(schedule/accumulate.py): each step adds the sum of its own 32 terms.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tensorkiln.arith import simplify
from tensorkiln.families.linear.program import Linear
from tensorkiln.ir.buffer import Load, buffer
from tensorkiln.ir.expr import Expr, IntImm, as_expr, int_value
from tensorkiln.ir.stmt import PrimFunc, Stmt, seq
from tensorkiln.ir.tiles import TILE_ROWS
from tensorkiln.schedule.build import PARALLEL_WORK, lanes, loop, nest, vectors, within
from tensorkiln.schedule.group import inplace_params
from tensorkiln.schedule.primitives import Schedule
from tensorkiln.schedule.register_tile import lanes as in_vectors
from tensorkiln.schedule.register_tile import share
from tensorkiln.schedule.tile_sums import COLUMNS, TileSum, fetch_next_panels, put_in_tiles


@dataclass(frozen=True, slots=True)
class _Rows:
    """`count` groups of rows from row `start` on. A group is computed in tiles of the heights
    `rows`."""

    start: Expr
    count: Expr
    tiles: tuple[int, ...]


def schedule_tiles(c: Linear, threads: bool, check: bool = False) -> Schedule:
    """`linear` or `matmul` with its epilogue, on a target that multiplies tiles, and has
    threads."""
    small = c.n <= c.nr or c.work <= PARALLEL_WORK
    by_rows = int_value(c.m) is None and small and not c.batch and threads
    s = Schedule(_program(c, by_rows), check=check)
    put_in_tiles(s)
    fetch_next_panels(s, c.w)
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


# ---- the program -------------------------------------------------------------------------------


def _program(c: Linear, by_rows: bool) -> PrimFunc:
    """Panel by panel, tiles of rows by tiles of rows; loops of role "tile" are instructions."""
    whole, tail = divmod(c.n, c.nr)

    def panel(batch: tuple[Expr, ...], p: Expr, columns: int) -> Stmt:
        return seq(*(_rows(c, batch, p, columns, r, by_rows) for r in _cut(c.m)))

    def panels(*batch: Expr) -> Stmt:
        whole_part = loop("panel", whole, lambda p: panel(batch, p, c.nr), "panel", keep=True)
        return seq(
            whole_part if whole else None, panel(batch, as_expr(whole), tail) if tail else None
        )

    count = len(c.batch)
    body = nest(["n"] * count, c.batch, panels, ["batch"] * count)
    return PrimFunc(c.group.name, c.group.params, body, inplace=inplace_params(c.group))


def _cut(m: Expr) -> list[_Rows]:
    """Rows in pairs of whole tiles; the rest in smaller tiles."""
    rows = int_value(m)
    pair = (TILE_ROWS, TILE_ROWS)
    if rows is not None:
        whole, extra = divmod(rows, sum(pair))
        tail = (TILE_ROWS, extra - TILE_ROWS) if extra > TILE_ROWS else (extra,)
        parts = [_Rows(IntImm(0), as_expr(whole), pair)] if whole else []
        return [*parts, _Rows(as_expr(rows - extra), IntImm(1), tail)] if extra else parts
    parts, start, remaining = [], as_expr(0), m
    for tiles in (pair, (TILE_ROWS,), (4,), (1,)):
        size = sum(tiles)
        parts.append(_Rows(simplify(start), simplify(remaining // size), tiles))
        start, remaining = start + remaining // size * size, remaining % size
    return parts


def _rows(
    c: Linear, batch: tuple[Expr, ...], p: Expr, columns: int, rows: _Rows, by_rows: bool
) -> Stmt:
    """All tiles of one size of panel p, the first `columns` columns of which exist."""
    tiles, size = -(-columns // COLUMNS), sum(rows.tiles)
    steps, tail_steps = divmod(c.k // c.together, TILE_ROWS)
    # Tiles of one configuration share it, unless threads divide them.
    parts = [(0, steps, TILE_ROWS), *([(steps * TILE_ROWS, 1, tail_steps)] if tail_steps else [])]
    sums = [_sum(c, rows.tiles, tiles, groups) for _, _, groups in parts]
    once = len(sums) == 1 and not by_rows

    def group(i: Expr) -> Stmt:
        first = simplify(rows.start + i * size)
        memory = [
            buffer(name, t.memory_shape, c.dtype, "local")
            for name, t in zip(("sums", "others"), sums, strict=False)
        ]
        bodies = []
        for t, (lo, count, _), into in zip(sums, parts, memory, strict=True):
            terms = _terms(c, t, (batch, p, first), lo, count)
            body = seq(t.clear(), terms, t.write(into))
            bodies.append(body if once else within(t.buffers, body))

        def total(row: Expr, o: Expr, lane: Expr) -> Expr:
            parts: list[Expr] = [c.initial(p, o, lane)] if len(c.call.args) > 2 else []
            parts += [Load(m, (row, simplify(o * COLUMNS + lane))) for m in memory]
            value = parts[0]
            for part in parts[1:]:
                value = value + part
            return value

        def finish(row: Expr) -> Stmt:
            def end(o: Expr, lane: Expr) -> Stmt:
                column = simplify(p * c.nr + o * COLUMNS + lane)
                return c.finish(total(row, o, lane), batch, simplify(first + row), column)

            full, last = divmod(columns, COLUMNS)
            edge = lanes("last", last, lambda v: end(as_expr(full), v)) if last else None
            return seq(vectors("end", (full, COLUMNS), end) if full else None, edge)

        return within(memory, *bodies, loop("r", size, finish, "finish", keep=True))

    row_loop = loop("row", rows.count, group, "row", keep=True)
    return within(sums[0].buffers, row_loop) if once else row_loop


def _sum(c: Linear, rows: Sequence[int], columns: int, groups: int) -> TileSum:
    x_type, w_type = c.x.dtype, c.w.dtype
    return TileSum(rows, columns, groups, c.together, dtype=c.dtype, left=x_type, right=w_type)


def _terms(
    c: Linear, t: TileSum, position: tuple[tuple[Expr, ...], Expr, Expr], lo: int, steps: int
) -> Stmt:
    """Add the products of `steps` steps from group `lo` of adjacent terms on, `position` (batch,
    panel, first row)."""
    (batch, p, first), few = position, c.together

    def step(k: Expr) -> Stmt:
        group = simplify(lo + k * t.groups)

        def left(n: int, i: Expr, j: Expr) -> Load:
            row = simplify(first + sum(t.rows[:n]) + i)
            return c.input(batch, row, simplify(group * few + j))

        def right(o: int, i: Expr, j: Expr) -> Load:
            column = simplify(j + o * COLUMNS * few)
            return Load(c.w, (*batch, p, simplify(group + i), column))

        return t.step(left, right)

    return loop("k", steps, step, "term")
