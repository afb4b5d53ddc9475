"""A product (`products.py`) in tiles, one per block of threads: the elements of its factors that a
tile reads, and the elements of the output that it writes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

from tensorkiln.arith import affine, simplify
from tensorkiln.ir.buffer import Load
from tensorkiln.ir.dtype import DType
from tensorkiln.ir.expr import Cast, Expr, Var, const, int_value, logical_and
from tensorkiln.ir.stmt import If, Stmt, Store
from tensorkiln.ir.visit import children, free_vars, loads, substitute, walk
from tensorkiln.schedule.access import lane_stride, simplify_value
from tensorkiln.schedule.build import nest
from tensorkiln.schedule.gpu.guards import guarded_load
from tensorkiln.schedule.gpu.products import Axes, Product, one_index, product_of
from tensorkiln.schedule.group import Group, product
from tensorkiln.schedule.primitives import Schedule, Split
from tensorkiln.schedule.reductions import replaced

Ranges = dict[Var, tuple[int, int]]
_STRIP = 8  # columns of tiles that are multiplied before the next ones
_VECTORS = (16, 8, 4)  # bytes that a thread moves at once


def tiled_product(group: Group) -> tuple[Group, Product | None]:
    """(the group whose buffers are accessed, the product that it computes or None, as
    `product_of`)"""
    product = product_of(group)
    if product is None or not product.batch:
        return group, product
    if all(int_value(e) is not None for _, e in (*product.rows, *product.columns)):
        return group, product
    # Proofs understand x[z, i], but not x[z * n + i] for a symbolic n. Rows without a batch stay
    # one dimension.
    return group.unviewed, product_of(group.unviewed)


def bind_tiles(s: Schedule) -> None:
    """Give each tile of `TiledProduct.grid` a block.

    Blocks run in the order of their numbers, as many at a time as fit the chip. Of a large product,
    they walk down strips of _STRIP columns of tiles, so that the tiles that run together share both
    factors in the second-level cache: in rows of tiles, every wave of blocks would read all of the
    right factor.
    """
    ((batch,), (row,), (column,)) = (s.loops(role=role) for role in ("batch", "row", "column"))
    rows, columns = (int_value(s.loop(name).extent) for name in (row, column))
    if columns is not None and columns % _STRIP == 0 and min(rows or columns, columns) > _STRIP:
        pieces: Split = s.split(column, _STRIP)
        s.reorder(pieces.outer, row, pieces.inner)
        batch, column = s.fuse(batch, pieces.outer), pieces.inner
    for name, index in ((batch, "z"), (row, "y"), (column, "x")):
        s.bind(name, f"blockIdx.{index}")


@dataclass(frozen=True, slots=True)
class Side:
    """A factor. Its `value` depends on `axes` (rows or columns), `extent` of them in all, on terms
    and on the batch. A tile has `size` rows or columns."""

    value: Expr
    axes: Axes
    extent: Expr
    size: int

    @property
    def dtype(self) -> DType:
        """The type of its elements."""
        return self.value.dtype


class TiledProduct:
    """A product in tiles of `rows` x `columns` sums, with `depth` terms per round. `factors`
    replace those of the product, converted to the types that are multiplied."""

    def __init__(
        self,
        group: Group,
        p: Product,
        rows: int,
        columns: int,
        depth: int,
        factors: tuple[Expr, Expr] | None = None,
    ):
        self.group, self.p, self.depth = group, p, depth
        self.terms = _extent(p.terms)
        left_factor, right_factor = factors or (p.left, p.right)
        self.left = Side(left_factor, p.rows, _extent(p.rows), rows)
        self.right = Side(right_factor, p.columns, _extent(p.columns), columns)

    @property
    def rounds(self) -> Expr:
        """The number of rounds, of `depth` terms each."""
        return simplify((self.terms + (self.depth - 1)) // self.depth)

    def grid(self, body: Callable[[Expr, Expr, Expr], Stmt]) -> Stmt:
        """`body(batch, first row, first column)` for each tile, in loops that `bind_tiles` binds to
        blocks."""
        sides = self.left, self.right
        extents = [
            _extent(self.p.batch),
            *(simplify((s.extent + (s.size - 1)) // s.size) for s in sides),
        ]

        def tile(z: Expr, y: Expr, x: Expr) -> Stmt:
            return body(z, y * self.left.size, x * self.right.size)

        return nest(["z", "y", "x"], extents, tile, ["batch", "row", "column"], True)

    def copy(
        self,
        side: Side,
        start: tuple[Expr, Expr, Expr],
        j: Expr,
        k: Expr,
        store: Callable[[Expr], Stmt],
        lanes: tuple[int, int] = (1, 1),
    ) -> Stmt:
        """`store` of element (j, k), row or column and term, of the tile that begins at `start`
        (batch, row or column, term); zero beyond the last of either. `lanes` of each, which divide
        its extent, are inside or outside together, so one condition serves a vector."""
        z, first, first_term = start
        of = self.p

        def values(j: Expr, k: Expr) -> dict[Var, Expr]:
            return {
                **split_index(side.axes, simplify(first + j)),
                **split_index(of.terms, simplify(first_term + k)),
                **split_index(of.batch, z),
            }

        inside, value = [], side.value
        if self.group.out_type.layout is not None and (guarded := guarded_load(value)) is not None:
            # A vector of channels is inside of the image, or all of it is outside.
            cond, value = guarded
            first_lanes = values(
                *(i // n * n if n > 1 else i for i, n in zip((j, k), lanes, strict=True))
            )
            inside.append(simplify(substitute(cond, first_lanes)))
        for whole, size, base, index, count in (
            (side.extent, side.size, first, j, lanes[0]),
            (self.terms, self.depth, first_term, k, lanes[1]),
        ):
            if int_value(simplify(whole % size)) != 0:
                # The first lane of a vector decides for all.
                index = index // count * count if count > 1 else index
                inside.append(simplify(base + index) < whole)
        element = store(simplify_value(substitute(value, values(j, k)), {}))
        return If(logical_and(*inside), element, store(const(0, side.dtype))) if inside else element

    def finish(
        self,
        total: Expr,
        z: Expr,
        row: Expr,
        column: tuple[Expr, Expr],
        lanes: int = 1,
        part: Expr | None = None,
        into: Load | None = None,
    ) -> Stmt:
        """Store one element of the output, or rather what it will be to `into`, unless it is beyond
        the last row or column. `total` is its sum, or that `part` of its value. `column` has two
        parts, which are added; `lanes` of the second, which divide the number of columns, are
        inside or outside together."""
        first, j = column
        base = simplify(first + (j // lanes * lanes if lanes > 1 else j))
        places = self._places(z, row, simplify(first + j))
        value = replaced(self.p.value, self.p.total if part is None else part, total)
        value = simplify_value(substitute(value, places), {})
        index = tuple(substitute(e, places) for e in self.p.index)
        place = into or Load(self.group.out, self.group.store_index(index))
        return self._if_inside(row, base, Store(place.buffer, place.indices, value))

    def store_register_part(
        self,
        store: Callable[[Expr], Stmt],
        total: Expr,
        z: Expr,
        row: Expr,
        column: tuple[Expr, Expr],
    ) -> Stmt:
        """`store` of the `register_part` of an element with the sum `total`. Columns are as in
        `finish`, but the second part is one of `register_lanes`, which are inside or outside
        together."""
        base, j = column
        part = replaced(self.register_part, self.p.total, total)
        value = substitute(part, self._places(z, row, simplify(base + j)))
        part_store = store(simplify_value(value, {}))
        return self._if_inside(row, base, part_store) if self._vectors else part_store

    def _places(self, z: Expr, row: Expr, column: Expr) -> dict[Var, Expr]:
        """The indices of an element of the output."""
        axes = (self.p.columns, column), (self.p.batch, z)
        places = {var: i for x, place in axes for var, i in split_index(x, place).items()}
        return {**self._row_indices(row), **places}

    def _if_inside(self, row: Expr, column: Expr, stmt: Stmt) -> Stmt:
        """`stmt`, unless the element is beyond the last row or column."""
        inside = [
            index < s.extent
            for index, s in ((row, self.left), (column, self.right))
            if int_value(simplify(s.extent % s.size)) != 0
        ]
        return If(logical_and(*inside), stmt) if inside else stmt

    def _row_indices(self, row: Expr) -> dict[Var, Expr]:
        """The indices of a row of the output."""
        if self._one_row is None:
            return split_index(self.p.rows, row)
        first, last = self._one_row
        return {**first, last: row}

    @cached_property
    def _one_row(self) -> tuple[dict[Var, Expr], Var] | None:
        """`one_index` of what an element of an image with channels last reads beside its sum."""
        p = self.p
        if self.group.out_type.layout is None:
            return None
        return one_index(
            self.group, p, simplify_value(replaced(p.value, p.total, const(0, p.dtype)), {})
        )

    @property
    def result_lanes(self) -> int:
        """How many adjacent columns can be stored as one vector, and everything that is read for
        them loaded so."""
        p = self.p
        place = Load(self.group.out, self.group.store_index(p.index))
        read = replaced(p.value, p.total, const(0, p.dtype))
        return max(1, int(adjacent((place, read), p.columns, self.right.extent)))

    @cached_property
    def register_part(self) -> Expr:
        """The part of the value that threads which have the sums in registers may compute at once:
        the largest that is a float of 16 bits, so that it takes half the bytes of a sum in shared
        memory, and reads what is the same in all rows or in all columns. The sum, if there is no
        such part."""
        total, value = self.p.total, self.p.value
        for x in walk(value):
            if not x.dtype.is_half or total not in walk(x):
                continue
            remainder = replaced(value, x, const(0, x.dtype))
            if total not in walk(remainder) and all(map(self._is_vector, _loads_beside(x, total))):
                return x
        return total

    def _is_vector(self, x: Load) -> bool:
        """Whether what is loaded is the same in all rows, or in all columns."""
        variables = {v for i in x.indices for v in free_vars(i)}
        sides = ({var for var, _ in axes} for axes in (self.p.rows, self.p.columns))
        return any(variables.isdisjoint(side) for side in sides)

    @cached_property
    def _vectors(self) -> list[Load]:
        """What `register_part` reads besides its sum."""
        return _loads_beside(self.register_part, self.p.total)

    @property
    def register_lanes(self) -> int:
        """How many adjacent columns, 1 or 2, a thread computes that part of as one vector."""
        part = replaced(self.register_part, self.p.total, const(0, self.p.dtype))
        pairs = not self._vectors or divides(part, self.p.columns, self.right.extent, 2)
        return 2 if pairs else 1

    @property
    def rounded(self) -> DType:
        """The type of sums in shared memory: the type to which the group rounds them first, else
        that of the product."""
        p = self.p
        # If the group rounds its sum first of all, rounding it already in shared memory gives the
        # same result, and halves the bytes of 16-bit types.
        types = {x.dtype for x in walk(p.value) if isinstance(x, Cast) and x.a == p.total}
        for t in types:
            remainder = replaced(p.value, Cast(p.total, t), const(0, t))
            if t.is_float and replaced(remainder, p.total, const(0, p.dtype)) == remainder:
                return t
        return p.dtype


def split_index(axes: Axes, position: Expr, bounds: Ranges | None = None) -> dict[Var, Expr]:
    """The indices of several axes, the last of which is the fastest, at `position` of all of
    them."""
    values: dict[Var, Expr] = {}
    for d, (var, extent) in reversed(list(enumerate(axes))):
        values[var] = simplify(position % extent if d else position, bounds or {})
        position = position // extent
    return values


def adjacent(values: Sequence[Expr], axes: Axes, extent: Expr) -> float:
    """How many elements along some axes can be accessed as one vector in all values. Less than 1 if
    only single elements can; the larger, the longer the runs of neighbours are."""
    for size in _VECTORS:
        lanes = size // values[0].dtype.bytes
        if lanes > 1 and all(divides(x, axes, extent, lanes) for x in values):
            return lanes
    last = axes[-1:]
    if not last or any(lane_stride(x, last[0][0]) not in (0, 1) for v in values for x in loads(v)):
        return 0
    # Only to compare factors: the longer the last axis, the fewer its ends, where addresses jump.
    n = int_value(last[0][1])
    return 0.5 if n is None else 1 - 0.5 / n


def divides(value: Expr, axes: Axes, extent: Expr, lanes: int) -> bool:
    """Whether all elements along some axes can be accessed in whole vectors of `lanes`."""
    if int_value(simplify(extent % lanes)) != 0:
        return False
    step, lane = Var("step"), Var("lane")
    bounds = {lane: (0, lanes - 1)}
    indices = split_index(axes, step * lanes + lane, bounds)
    return _in_vectors(simplify_value(substitute(value, indices), bounds), lane)


def _in_vectors(e: Expr, lane: Var) -> bool:
    """Whether all loads are of neighbouring elements, or of the same, for neighbouring values of
    `lane`, and nothing else depends on it."""
    if isinstance(e, Load):
        linear = all(affine(i, (lane,)) is not None for i in e.indices)
        return linear and lane_stride(e, lane) in (0, 1)
    return e is not lane and all(_in_vectors(c, lane) for c in children(e))


def _loads_beside(e: Expr, total: Expr) -> list[Load]:
    """The loads of a value but those of its sum."""
    return loads(replaced(e, total, const(0, total.dtype)))


def _extent(axes: Axes) -> Expr:
    return product(tuple(e for _, e in axes))
