"""Local response normalisation across channels, on channel blocks.

    out = x / (bias + alpha / size * (sum of squares of `size` neighbouring channels)) ** beta

A vector is one block of channels of a pixel. The squares of neighbouring channels are obtained by
shifting it against the blocks before and after it, which are zero past the first and last block.
"""

from __future__ import annotations

from tensorkiln.arith import simplify
from tensorkiln.ir.buffer import Load, buffer
from tensorkiln.ir.expr import (
    Expr,
    Var,
    as_expr,
    const,
    int_value,
    logical_and,
    maximum,
    minimum,
    select,
)
from tensorkiln.ir.stmt import PrimFunc, Stmt, Store, seq
from tensorkiln.ir.visit import substitute
from tensorkiln.ops.normalise import power
from tensorkiln.schedule.access import lane_bounds, reads_blocks, simplify_value
from tensorkiln.schedule.build import PARALLEL_WORK, lanes, loop, nest, within, zero_border
from tensorkiln.schedule.channel_blocks import store_channel
from tensorkiln.schedule.group import Group
from tensorkiln.schedule.intrin.shift import shift_name
from tensorkiln.schedule.partial_sums import in_vectors
from tensorkiln.schedule.primitives import Schedule
from tensorkiln.schedule.register_tile import share
from tensorkiln.target import Target


class _Pixel:
    """One block of channels of one pixel of a group."""

    def __init__(self, group: Group):
        call = group.anchor
        assert call is not None
        self.group, self.out, self.attrs = group, group.out_type, call.attrs
        self.lanes = self.out.memory.block(1)
        self.channels = int_value(self.out.shape[1]) or 0
        self.blocks = -(-self.channels // self.lanes)
        self.x = group.element(call.args[0])
        before = (self.attrs.size - 1) // 2
        # Distances of the channels whose squares are summed: -2 .. 2 for size 5.
        self.offsets = range(-before, self.attrs.size - before)

    def stmt(self, n: Expr, block: Expr, h: Expr, w: Expr) -> Stmt:
        """Square the blocks before, at and after `block`; shift these squares by each offset; sum
        the shifted vectors; store the quotients."""
        v, dtype = self.lanes, self.out.dtype
        near = buffer("near", (3, v), dtype, "register")
        shifted = buffer("shifted", (len(self.offsets), v), dtype, "register")
        total = buffer("total", (v,), dtype, "register")

        def squares(k: int) -> Stmt:
            def square(lane: Expr) -> Stmt:
                value = self.square(n, block + (k - 1), lane, h, w)
                return Store(near, (as_expr(k), lane), value)

            return lanes("near", v, square)

        def shift(k: int, d: int) -> Stmt:
            def move(lane: Expr) -> Stmt:
                neighbour = self.channel(lane + (v + d), lane)
                return Store(shifted, (as_expr(k), lane), Load(near, neighbour))

            # an offset of whole blocks (0 or v) selects one of the vectors unshifted
            name, role = ("s_shift", "shift") if d % v else ("l_shift", "lane")
            return loop(name, v, move, role)

        def add(lane: Expr) -> Stmt:
            value: Expr = const(0, dtype)
            for k in range(len(self.offsets)):
                value = value + Load(shifted, (as_expr(k), lane))
            return Store(total, (lane,), value)

        def finish(lane: Expr) -> Stmt:
            return self.finish(Load(total, (lane,)), n, block, lane, h, w)

        return within(
            [near, shifted, total],
            *map(squares, range(3)),
            *(shift(k, d) for k, d in enumerate(self.offsets)),
            lanes("sum", v, add),
            lanes("end", v, finish),
        )

    def square(self, n: Expr, block: Expr, lane: Expr, h: Expr, w: Expr) -> Expr:
        """The square of a channel of `block`; zero if the block is before the first or past the
        last."""
        block_var = Var("there")
        value = self.x(n, block_var * self.lanes + lane, h, w)
        value = simplify_value(value, lane_bounds(lane, self.lanes))
        value = value * value
        inside = simplify(maximum(minimum(block, self.blocks - 1), 0))
        value = substitute(value, {block_var: inside})
        return select(logical_and(block >= 0, block < self.blocks), value, const(0, value.dtype))

    def finish(self, total: Expr, n: Expr, block: Expr, lane: Expr, h: Expr, w: Expr) -> Stmt:
        """Store the quotient of one channel, with the epilogue; channels past the last are zero."""
        a, x = self.attrs, self.x(n, block * self.lanes + lane, h, w)
        normal = x / power(total * (a.alpha / a.size) + a.bias, a.beta)
        return store_channel(self.group, normal, (n, block, lane, h, w), self.lanes)

    def channel(self, c: Expr, lane: Expr) -> tuple[Expr, ...]:
        """(block, lane) of channel `c`."""
        bounds = lane_bounds(lane, self.lanes)
        return simplify(c // self.lanes, bounds), simplify(c % self.lanes, bounds)


def _program(p: _Pixel) -> PrimFunc:
    """for image, block of channels: zero halo; for row, column: one pixel."""
    group, out = p.group, p.out

    def plane(n: Expr, block: Expr) -> Stmt:
        pixels = nest(["h", "w"], out.shape[2:], lambda h, w: p.stmt(n, block, h, w))
        return seq(zero_border(group.out, out, (n, block)), pixels)

    body = nest(["n", "block"], [out.shape[0], p.blocks], plane, ["task", "task"])
    return PrimFunc(group.name, group.params, body)


def schedule(group: Group, target: Target, check: bool = False) -> Schedule | None:
    """lrn with its elementwise prologue and epilogue; a task is one channel block of one image."""
    if not reads_blocks(group, group.out_type.memory.block(1)):
        return None
    p = _Pixel(group)
    s = Schedule(_program(p), check)
    offsets = (d for d in p.offsets if d % p.lanes)
    for name, d in zip(s.loops(role="shift"), offsets, strict=True):
        s.tensorize(name, shift_name(d % p.lanes, p.lanes, p.out.dtype.name))
    in_vectors(s)
    sizes = [int_value(d) for d in (p.out.shape[0], *p.out.shape[2:])]
    work = p.channels * (sizes[1] or 64) * (sizes[2] or 64) * 16
    if sizes[0] is None or work > PARALLEL_WORK:
        share(s, s.loops(role="task"))
    return s
