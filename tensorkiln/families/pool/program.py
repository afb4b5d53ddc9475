"""What max and average pooling compute, by rows and columns: the program that `schedule.py`
schedules.

Input and output [N][C/v][H + halo][W + halo][v]. For each row of outputs, every column of the
padded image is first reduced over the window's rows; each output then reduces a few columns:

    column[z]:  max over the window's rows inside the image of x[., z - padding]
    output w:   max of column[w * stride], ..., column[w * stride + kernel - 1], those inside

Roles of loops: "task", over the images and channel blocks of the outputs; "row" and "column" of
outputs; "image_column"; "kernel_row" and "kernel_column" of a window; "lane".
"""

from __future__ import annotations

from collections.abc import Callable

from tensorkiln.arith import simplify
from tensorkiln.ir.buffer import Buffer, Load, buffer
from tensorkiln.ir.expr import (
    REDUCE_BINARY,
    Expr,
    binary,
    cast,
    logical_and,
    neutral,
    select,
)
from tensorkiln.ir.relax import TensorType
from tensorkiln.ir.stmt import PrimFunc, Stmt, Store, seq
from tensorkiln.ops.nn import covered, pool_windows
from tensorkiln.ops.window import Window
from tensorkiln.schedule.access import lane_bounds, simplify_value
from tensorkiln.schedule.build import loop, nest, within, zero_border
from tensorkiln.schedule.channel_blocks import store_channel
from tensorkiln.schedule.group import Group, static


class Pooling:
    """The geometry and operands of one pooling."""

    def __init__(self, group: Group):
        call, var = group.anchor, group.anchor_var
        assert call is not None and var is not None
        self.group, self.call, self.var, self.out = group, call, var, group.out_type
        x = call.args[0].type
        assert isinstance(x, TensorType)
        self.x, self.image = group.element(call.args[0]), x.shape[2:]
        self.rows, self.cols = pool_windows(call.attrs)
        self.lanes = self.out.memory.block(1)
        self.channels = static(self.out.shape[1], "channels")
        self.height, self.width = self.out.shape[2:]
        self.blocks = -(-self.channels // self.lanes)
        self.mean = call.op == "avg_pool2d"
        kind = "sum" if self.mean else "max"
        self.dtype = var.tensor.dtype.sums if self.mean else var.tensor.dtype
        self.op, self.start = REDUCE_BINARY[kind], neutral(kind, self.dtype)

    @property
    def padded_width(self) -> Expr:
        """Columns under the windows of one row."""
        return simplify((self.width - 1) * self.cols.stride + self.cols.kernel)

    def is_inner(self, row: int) -> bool:
        """Whether the windows of a row of outputs lie inside the image."""
        return _inside(self.rows, row, self.image[0])

    def are_inner(self, first: int, last: int) -> bool:
        """Whether output columns first .. last exist, with windows that lie inside the image."""
        ends = (_inside(self.cols, w, self.image[1]) for w in (first, last))
        return last < _size(self.width) and all(ends)

    def with_row(self, old: Load, block: Expr, y: Expr) -> Expr:
        """`old`, the reduction of a column so far, joined with the input at row y of the padded
        image; `old` itself where y lies in the padding."""
        n, _, _, z, lane = old.indices
        y, in_y = self.rows.place(y - self.rows.before, self.image[0])
        z, _ = self.cols.place(z - self.cols.before, self.image[1])
        # `old` stays as it is stored: with one lane, bounds would make its index 0.
        x = simplify_value(
            self.x(n, block * self.lanes + lane, y, z), lane_bounds(lane, self.lanes)
        )
        joined = binary(self.op, old, cast(x, self.dtype))
        return simplify_value(select(logical_and(*in_y), joined, old), {})

    def with_column(self, old: Load, column: Load) -> Expr:
        """`old`, an output so far, joined with the reduction of a column; `old` itself where the
        column lies in the padding."""
        z = column.indices[3] - self.cols.before
        inside = logical_and(*self.cols.place(z, self.image[1])[1])
        value = select(inside, binary(self.op, old, column), old)
        return simplify_value(value, {})

    def finish(self, total: Expr, n: Expr, block: Expr, lane: Expr, h: Expr, w: Expr) -> Stmt:
        """Store one output, divided if it is a mean, with the epilogue; channels past the last are
        zero."""
        if self.mean:
            include = bool(self.call.attrs.count_include_pad)
            rows = covered(self.rows, h, self.image[0], include)
            cols = covered(self.cols, w, self.image[1], include)
            total = cast(total / cast(rows * cols, total.dtype), self.var.tensor.dtype)
        return store_channel(self.group, total, (n, block, lane, h, w), self.lanes)


def pool_program(p: Pooling) -> PrimFunc:
    """The reductions of all columns, then all outputs."""
    extents = (p.out.shape[0], p.blocks, p.height, p.padded_width, p.lanes)
    column = buffer("column", extents, p.dtype, "local")

    def lanes(body: Callable[[Expr], Stmt]) -> Stmt:
        return loop("l", p.lanes, body, "lane", keep=True)

    def start(b: Buffer, *index: Expr) -> Stmt:
        return lanes(lambda lane: Store(b, (*index, lane), p.start))

    def reduce_rows(n: Expr, block: Expr, h: Expr, z: Expr) -> Stmt:
        def term(kh: Expr, lane: Expr) -> Stmt:
            index = (n, block, h, z, lane)
            old = Load(column, index)
            return Store(column, index, p.with_row(old, block, h * p.rows.stride + kh))

        rows = nest(["kh", "l"], [p.rows.kernel, p.lanes], term, ["kernel_row", "lane"], keep=True)
        return seq(start(column, n, block, h, z), rows)

    def reduce_columns(n: Expr, block: Expr, h: Expr, w: Expr) -> Stmt:
        total = buffer("total", (p.lanes,), p.dtype, "local")

        def term(kw: Expr, lane: Expr) -> Stmt:
            x = Load(column, (n, block, h, w * p.cols.stride + kw, lane))
            return Store(total, (lane,), p.with_column(Load(total, (lane,)), x))

        def finish(lane: Expr) -> Stmt:
            return p.finish(Load(total, (lane,)), n, block, lane, h, w)

        roles = ["kernel_column", "lane"]
        columns = nest(["kw", "l"], [p.cols.kernel, p.lanes], term, roles, keep=True)
        return within([total], start(total), columns, lanes(finish))

    def plane(n: Expr, block: Expr) -> Stmt:
        pixels = nest(
            ["h", "w"],
            [p.height, p.width],
            lambda h, w: reduce_columns(n, block, h, w),
            ["row", "column"],
            keep=True,
        )
        return seq(zero_border(p.group.out, p.out, (n, block)), pixels)

    roles = ["", "", "", "image_column"]
    columns = nest(["n", "block", "h", "z"], extents[:-1], reduce_rows, roles, keep=True)
    outputs = nest(["n", "block"], extents[:2], plane, ["task", "task"], keep=True)
    return PrimFunc(p.group.name, p.group.params, within([column], columns, outputs))


def _inside(w: Window, i: int, extent: Expr) -> bool:
    first = i * w.stride - w.before
    return first >= 0 and first + w.kernel <= _size(extent)


def _size(e: Expr) -> int:
    return static(e, "pooling extent")
