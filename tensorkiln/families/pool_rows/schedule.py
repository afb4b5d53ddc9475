"""Max and average pooling of row-major images, along rows.

Every row of outputs first reduces the window's rows of the image, which are adjacent in memory as
vectors are, into a row of a small buffer; then each output reduces a few columns of that row, which
are `stride` elements apart from output to output:

    row[h, z + padding]:  max over the window's rows inside the image of x[., z]
    output [h, w]:        max of row[h, w * stride + k * dilation] over 0 <= k < kernel

What lies in the padding of a row is the identity element, so no output asks where its window ends.
The last vector of a row that would be partial begins earlier, and overlaps the one before. Where a
window has one row and its columns no padding, the image itself is read.

Roles of loops: "task", over images, channels and pieces of an image, each of several rows whose
buffer stays in the first-level cache; "row" and "vector"; "lane".
"""

from __future__ import annotations

from collections.abc import Callable

from tensorkiln.arith import simplify
from tensorkiln.ir.buffer import Buffer, Load, buffer
from tensorkiln.ir.dtype import DType
from tensorkiln.ir.expr import (
    REDUCE_BINARY,
    Expr,
    Var,
    as_expr,
    binary,
    cast,
    const,
    int_value,
    logical_and,
    minimum,
    neutral,
    select,
)
from tensorkiln.ir.relax import TensorType
from tensorkiln.ir.stmt import PrimFunc, Stmt, Store, seq
from tensorkiln.kernels.tiles import tiles
from tensorkiln.ops.nn import covered, pool_windows
from tensorkiln.ops.window import Window
from tensorkiln.schedule.access import lanes_ok, simplify_value
from tensorkiln.schedule.build import PARALLEL_WORK, loop, nest, within
from tensorkiln.schedule.group import Group, static
from tensorkiln.schedule.primitives import Schedule
from tensorkiln.schedule.register_tile import share
from tensorkiln.target import Target

# Bytes of reduced rows that are buffered before their columns are reduced: a part of a first-level
# cache, but enough that a vector is read long after it was written. A load that spans two vectors
# which were just written waits until both are in the cache.
_BYTES = 16384


class Rows:
    """The geometry and operands of one pooling."""

    def __init__(self, group: Group, target: Target):
        call, var, result = group.anchor, group.anchor_var, group.out_type
        assert call is not None and var is not None
        x = call.args[0].type
        assert isinstance(x, TensorType)
        self.group, self.call, self.var, self.dtype = group, call, var, x.dtype
        self.x, self.image = group.element(call.args[0]), x.shape[2:]
        self.rows, self.cols = pool_windows(call.attrs)
        self.planes = result.shape[:2]
        self.height, self.width = (static(d, "pooling extent") for d in result.shape[2:])
        self.columns = static(self.image[1], "pooling extent")
        self.mean = call.op == "avg_pool2d"
        kind = "sum" if self.mean else "max"
        self.op, self.start = REDUCE_BINARY[kind], neutral(kind, x.dtype)
        self.lanes = row_lanes(target, x.dtype)
        # Columns from the first tap of the first window to the last of the last.
        self.padded = (self.width - 1) * self.cols.stride + self.cols.span
        inside = not self.cols.before and self.padded <= self.columns
        self.direct = self.rows.kernel == 1 and not _padded(self.rows) and inside

    @property
    def work(self) -> int:
        """Scalar operations of one plane, about."""
        return self.height * (self.columns * self.rows.kernel + self.width * self.cols.kernel)

    def column(self, n: Expr, c: Expr, h: Expr, z: Expr) -> Expr:
        """The reduction over the rows of window h at column z of the image."""
        total: Expr | None = None
        for k in range(self.rows.kernel):
            y, inside = self.rows.place(self.rows.tap(h, k), self.image[0])
            x = self.x(n, c, simplify(y), z)
            x = select(logical_and(*inside), x, self.start) if inside else x
            total = x if total is None else binary(self.op, total, x)
        assert total is not None
        return total

    def output(self, taps: list[Expr], index: tuple[Expr, ...]) -> Expr:
        """The value at an index of the output, from the columns of its window."""
        total = taps[0]
        for x in taps[1:]:
            total = binary(self.op, total, x)
        if self.mean:
            include = bool(self.call.attrs.count_include_pad)
            pairs = zip((self.rows, self.cols), index[2:], self.image, strict=True)
            rows, cols = (covered(w, i, extent, include) for w, i, extent in pairs)
            count = rows * cols
            static_count = int_value(count)
            divisor = const(static_count, self.dtype) if static_count else cast(count, self.dtype)
            total = total / divisor
        return self.group.element(self.group.out_var, {self.var: lambda *_: total})(*index)

    # -- statements --------------------------------------------------------------------------------

    def reduce_rows(self, row: Buffer, plane: tuple[Expr, Expr], h: Expr, r: Expr) -> Stmt:
        """Row r of the buffer, for output row h."""
        before = self.cols.before
        after = self.padded - self.columns - before

        def element(z: Expr, lane: Expr) -> Stmt:
            value = _simple(self.column(*plane, h, z), lane, self.lanes)
            return Store(row, (r, simplify(z + before)), value)

        def edge(start: int, count: int) -> Stmt | None:
            if count <= 0:
                return None
            return loop("e", count, lambda z: Store(row, (r, simplify(z + start)), self.start))

        inner_width = min(self.columns, self.padded - before)
        return seq(
            edge(0, before),
            self.vectors("z", inner_width, element),
            edge(self.columns + before, after),
        )

    def reduce_columns(
        self, row: Buffer | None, plane: tuple[Expr, Expr], h: Expr, r: Expr
    ) -> Stmt:
        """All outputs of row h, from row r of the buffer, or from the image."""

        def element(w: Expr, lane: Expr) -> Stmt:
            taps = []
            for k in range(self.cols.kernel):
                z = simplify(w * self.cols.stride + k * self.cols.dilation)
                taps.append(Load(row, (r, z)) if row is not None else self.column(*plane, h, z))
            index = (*plane, h, w)
            value = _simple(self.output(taps, index), lane, self.lanes)
            return Store(self.group.out, self.group.store_index(index), value)

        return self.vectors("w", self.width, element)

    def vectors(self, name: str, count: int, body: Callable[[Expr, Expr], Stmt]) -> Stmt:
        """`body` at every index below `count` and the lane it is computed in; the last vector
        overlaps the one before it."""
        lanes = min(self.lanes, 1 << (count.bit_length() - 1))

        def at(vector: Expr, lane: Expr) -> Stmt:
            start = vector * lanes
            return body(simplify(minimum(start, count - lanes)) + lane, lane)

        extents = [-(-count // lanes), lanes]
        return nest([name, f"l_{name}"], extents, at, ["vector", "lane"], keep=True)


def rows_program(p: Rows) -> PrimFunc:
    """For each piece of each plane: reduce the window's rows, then the columns."""

    def piece(first: int, size: int, n: Expr, c: Expr, t: Expr) -> Stmt:
        start = t * size + first
        plane = (n, c)

        def over_rows(body: Callable[[Expr, Expr], Stmt]) -> Stmt:
            return loop("r", size, lambda r: body(simplify(start + r), r), "row", keep=True)

        if p.direct:
            return over_rows(lambda h, r: p.reduce_columns(None, plane, h, r))
        row = buffer("row", (size, p.padded), p.dtype, "local")
        return within(
            [row],
            over_rows(lambda h, r: p.reduce_rows(row, plane, h, r)),
            over_rows(lambda h, r: p.reduce_columns(row, plane, h, r)),
        )

    def pieces(first: int, count: int, size: int) -> Stmt:
        names, extents = ["n", "c", "t"], (*p.planes, as_expr(count))

        def body(n: Expr, c: Expr, t: Expr) -> Stmt:
            return piece(first, size, n, c, t)

        return nest(names, extents, body, ["task"] * 3, keep=True)

    rows = max(1, _BYTES // (p.padded * p.dtype.bytes))
    return PrimFunc(
        p.group.name, p.group.params, seq(*(pieces(*tile) for tile in tiles(p.height, rows)))
    )


def schedule(group: Group, target: Target, check: bool = False) -> Schedule | None:
    """max_pool2d or avg_pool2d with its elementwise prologue and epilogue; None if one of them
    cannot be computed in vectors."""
    p = Rows(group, target)
    if not _in_vectors(p):
        return None
    s = Schedule(rows_program(p), check=check)
    for lane in s.loops(role="lane"):
        s.vectorize(lane)
    plane_counts = [int_value(d) for d in p.planes]
    many = (plane_counts[0] or 64) * (plane_counts[1] or 64)
    if target.has_threads and many * p.work > PARALLEL_WORK:
        for outer in [x for x in s.loops(role="task") if s.parent(x) is None]:
            share(s, [outer, *_inside(s, outer)])
    return s


def _inside(s: Schedule, outer: str) -> list[str]:
    """The other two loops over the tasks of a nest."""
    (channels,) = s.children(outer)
    return [channels, *s.children(channels)]


def _in_vectors(p: Rows) -> bool:
    """Whether neighbours of a row can be the lanes of a vector, in what is before and after."""
    step, lane = Var("step"), Var("lane")
    n, c, h = (Var(name) for name in ("n", "c", "h"))
    z = step * p.lanes + lane
    total = const(0, p.dtype)
    values = p.x(n, c, h, z), p.output([total], (n, c, h, z))
    return all(lanes_ok(_simple(v, lane, p.lanes), lane) for v in values)


def row_lanes(target: Target, dtype: DType) -> int:
    """The lanes of a vector of a row."""
    return min(target.vector_lanes(dtype.name), target.vector_lanes("float32"))


def _simple(value: Expr, lane: Expr, lanes: int) -> Expr:
    return simplify_value(value, {lane: (0, lanes - 1)} if isinstance(lane, Var) else {})


def _padded(w: Window) -> bool:
    return bool(w.before or w.after or w.ceil_mode)
