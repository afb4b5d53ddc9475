"""Sums of products in tiles of the processor (ir/tiles.py), which schedules of products share: up
to two tiles of rows by two of columns, four tiles of sums.

    c[2, 2] = 0
    for step:                               terms of 64 bytes, or fewer
        a[2] = 16 rows, 64 bytes of terms; b[2] = 16 groups of adjacent terms, 16 columns
        c[i, j] += a[i] * b[j]
    sums = c                                memory, after the whole sum

Loops over a tile have the role "tile" and become one instruction each.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tensorkiln.arith import affine, simplify
from tensorkiln.ir.buffer import Buffer, Load, buffer
from tensorkiln.ir.dtype import DType
from tensorkiln.ir.expr import Expr, ExprLike, Var, as_expr, const, int_value
from tensorkiln.ir.stmt import For, Stmt, Store, seq
from tensorkiln.ir.tiles import TILE_ROW_BYTES
from tensorkiln.ir.visit import loads, walk_stmt
from tensorkiln.schedule.accumulate import add_product
from tensorkiln.schedule.build import nest
from tensorkiln.schedule.intrin.tiles import tile_dot_for
from tensorkiln.schedule.primitives import Schedule
from tensorkiln.schedule.register_tile import nest_of
from tensorkiln.schedule.tree.match import plain

COLUMNS = TILE_ROW_BYTES // 4  # of a tile of sums

# An element of a factor: of tile n of rows, row i and term j; or of tile o of columns, group i of
# adjacent terms and their place j.
Element = Callable[[int, Expr, Expr], Load]
Index = tuple[Expr, ...]


class TileSum:
    """Sums in tiles, whose heights are `rows`, by `columns` tiles of columns, in `dtype`. A step
    adds the products of `groups` groups of `few` adjacent terms, of factors of types `left` and
    `right`."""

    def __init__(
        self,
        rows: Sequence[int],
        columns: int,
        groups: int,
        few: int,
        *,
        dtype: DType,
        left: DType,
        right: DType,
    ):
        self.rows, self.columns, self.groups, self.few, self.dtype = (
            rows,
            columns,
            groups,
            few,
            dtype,
        )
        self.totals = [buffer("c", (columns, m, COLUMNS), dtype, "local") for m in rows]
        self.left = [buffer("a", (m, groups * few), left, "local") for m in rows]
        self.right = buffer("b", (columns, groups, COLUMNS * few), right, "local")
        self.buffers: list[Buffer] = [*self.totals, *self.left, self.right]

    @property
    def memory_shape(self) -> tuple[int, int]:
        """The shape of the matrix that `write` writes."""
        return sum(self.rows), self.columns * COLUMNS

    def part(self, columns: int, groups: int) -> TileSum:
        """The same sums, of which only the first `columns` tiles of columns are used. If a step has
        fewer groups, its factors are in tiles of their own, which are its `buffers`."""
        t = TileSum(
            self.rows,
            self.columns,
            groups,
            self.few,
            dtype=self.dtype,
            left=self.left[0].dtype,
            right=self.right.dtype,
        )
        t.columns, t.totals, t.buffers = columns, self.totals, [*t.left, t.right]
        if groups == self.groups:
            t.left, t.right, t.buffers = self.left, self.right, []
        return t

    def clear(self) -> Stmt:
        """Set all sums to zero."""
        zero = const(0, self.dtype)

        def clear(total: Buffer, o: int) -> Stmt:
            return _tile(total.shape[1:], lambda i, j: Store(total, (as_expr(o), i, j), zero))

        return seq(*(clear(self.totals[n], o) for n, o in self._tiles()))

    def step(self, left_factor: Element, right_factor: Element) -> Stmt:
        """Add the products of a step. Each factor is loaded before the first product that takes
        it, so that the processor multiplies while it loads the next."""

        def read_left(n: int) -> Stmt:
            tile = self.left[n]
            return _tile(tile.shape, lambda i, j: Store(tile, (i, j), left_factor(n, i, j)))

        def read_right(o: int) -> Stmt:
            shape = self.right.shape[1:]
            return _tile(
                shape, lambda i, j: Store(self.right, (as_expr(o), i, j), right_factor(o, i, j))
            )

        def multiply(n: int, o: int) -> Stmt:
            def term(i: Expr, j: Expr, k: Expr, b: Expr) -> Stmt:
                x = Load(self.left[n], (i, simplify(k * self.few + b)))
                w = Load(self.right, (as_expr(o), k, simplify(j * self.few + b)))
                return add_product(self.totals[n], (as_expr(o), i, j), x, w)

            return _tile((self.rows[n], COLUMNS, self.groups, self.few), term)

        parts: list[Stmt] = []
        for n, o in self._tiles():
            parts += [read_right(o)] if n == 0 else []
            parts += [read_left(n)] if o == 0 else []
            parts.append(multiply(n, o))
        return seq(*parts)

    def write(self, into: Buffer, column: ExprLike = 0) -> Stmt:
        """Write the sums to a matrix in memory, from a column on."""
        return self._move(column, lambda total, tile, place: Store(into, place, Load(total, tile)))

    def read(self, source: Buffer, column: ExprLike = 0) -> Stmt:
        """Set the sums to what `write` has written."""
        return self._move(
            column, lambda total, tile, place: Store(total, tile, Load(source, place))
        )

    def _move(self, column: ExprLike, store: Callable[[Buffer, Index, Index], Stmt]) -> Stmt:
        """`store(tile of sums, place in it, place in memory)` for all sums."""

        def move(n: int, o: int) -> Stmt:
            total, first = self.totals[n], sum(self.rows[:n])

            def element(i: Expr, j: Expr) -> Stmt:
                place = simplify(i + first), simplify(j + o * COLUMNS + column)
                return store(total, (as_expr(o), i, j), place)

            return _tile(total.shape[1:], element)

        return seq(*(move(n, o) for n, o in self._tiles()))

    def _tiles(self) -> list[tuple[int, int]]:
        return [(n, o) for n in range(len(self.rows)) for o in range(self.columns)]


def _tile(extents: Sequence[ExprLike], body: Callable[..., Stmt]) -> Stmt:
    """Loops over a tile, which become one instruction."""
    roles = ["tile", *[""] * (len(extents) - 1)]
    return nest("ijkb"[: len(extents)], extents, body, roles, keep=True)


def put_in_tiles(s: Schedule) -> None:
    """Replace the loops over tiles by instructions, and their buffers by registers."""
    for loop in s.loops(role="tile"):
        tile = plain(s.loop(loop))
        assert isinstance(tile, For)
        s.tensorize(loop, _instruction(tile))
    for name in ("c", "a", "b"):
        s.set_scope(name, "tile")


def fetch_next_panels(s: Schedule, weights: Buffer) -> None:
    """During each panel prefetch the next one's weights, spread over the steps of its sums, if it
    has several."""
    loops = [x for role in ("row", "group", "term") for x in s.loops(role=role)]
    steps = [x for x in loops if int_value(s.loop(x).extent) != 1]
    for panel in s.loops(role="panel"):
        if any(panel in nest_of(s, x)[:-1] for x in steps):
            s.prefetch_next(panel, weights.name)


def _instruction(tile: For) -> str:
    """The instruction for the loops over a tile: two loops move a tile, four multiply two tiles."""
    inside = [t for t in walk_stmt(tile) if isinstance(t, For)]
    extents = [int_value(t.extent) or 0 for t in inside]
    (store,) = (t for t in walk_stmt(tile) if isinstance(t, Store))
    if len(extents) == 4:
        factor_type = next(x.dtype for x in loads(store.value) if x.dtype != store.buffer.dtype)
        return f"{tile_dot_for(factor_type)}_{extents[0]}x{extents[1]}x{extents[2]}"
    size = f"{extents[0]}x{extents[1]}_{store.buffer.dtype}"
    if not isinstance(store.value, Load):
        return f"tile_zero_{size}"
    row, column = (t.var for t in inside)
    steps = [(_step(i, row), _step(i, column)) for i in store.value.indices]
    step, both_move = next((a, b != 0) for a, b in steps if a)
    if both_move:
        return f"tile_windows_{size}_{step}"
    return f"tile_copy_{size}" + (f"_{step}" if step > 1 else "")


def _step(index: Expr, var: Var) -> int:
    """The constant by which an index grows with a loop variable; 0 if it is not constant."""
    affine_form = affine(simplify(index), (var,))
    return (int_value(as_expr(affine_form[0].get(var, 0))) or 0) if affine_form is not None else 0


__all__ = ["COLUMNS", "TileSum", "fetch_next_panels", "put_in_tiles"]
