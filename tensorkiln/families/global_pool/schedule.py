"""Reductions of whole image planes (mean, sum, max, min), one vector of channels at a time.

out[n, c] = mean over h, w of x[n, c, h, w], where x is in channel blocks and out is row-major.
"""

from __future__ import annotations

import math

from tensorkiln.arith import simplify
from tensorkiln.ir.buffer import Load, buffer
from tensorkiln.ir.dtype import DType
from tensorkiln.ir.expr import (
    REDUCE_BINARY,
    Expr,
    IntImm,
    as_expr,
    binary,
    cast,
    const,
    int_value,
    neutral,
)
from tensorkiln.ir.relax import TensorType
from tensorkiln.ir.stmt import PrimFunc, Stmt, Store, seq
from tensorkiln.kernels.estimates import expected
from tensorkiln.kernels.knobs import CHAINS
from tensorkiln.ops.reduction import extreme_key, extreme_value
from tensorkiln.schedule.access import lane_bounds, reads_blocks, simplify_value
from tensorkiln.schedule.build import PARALLEL_WORK, loop, nest, within
from tensorkiln.schedule.build import lanes as over_lanes
from tensorkiln.schedule.group import Group, static
from tensorkiln.schedule.partial_sums import in_vectors, sum_apart
from tensorkiln.schedule.primitives import Schedule
from tensorkiln.schedule.register_tile import share
from tensorkiln.target import Target

_OPS = {"mean": "sum", "sum": "sum", "max": "max", "min": "min"}


class _Planes:
    """The operands and sizes of one reduction; a block is `lanes` channels."""

    def __init__(self, group: Group, target: Target):
        call, var = group.anchor, group.anchor_var
        assert call is not None and var is not None
        x = call.args[0].type
        assert isinstance(x, TensorType)
        self.group, self.var, self.op = group, var, _OPS[call.op]
        self.float = var.tensor.dtype.sums
        self.keyed = self.op in ("max", "min")
        self.dtype = DType(f"int{self.float.bits}") if self.keyed else self.float
        self.x = group.element(call.args[0])
        self.lanes = target.vector_lanes("float32")
        self.images = x.shape[0]
        self.channels = static(x.shape[1], "channels")
        self.height, self.width = x.shape[2:]
        self.divisor = simplify(self.height * self.width) if call.op == "mean" else IntImm(1)
        self.work = self.channels * math.prod(map(expected, x.shape[2:]))

    def block(self, n: Expr, block: Expr, valid: int) -> Stmt:
        """Reduce one block, the first `valid` channels of which exist."""
        dtype, lanes = self.dtype, self.lanes
        total = buffer("total", (lanes,), dtype, "register")

        def start(lane: Expr) -> Stmt:
            return Store(total, (lane,), neutral(self.op, dtype))

        def term(h: Expr, w: Expr, lane: Expr) -> Stmt:
            x = simplify_value(self.x(n, block * lanes + lane, h, w), lane_bounds(lane, lanes))
            x = cast(x, self.float)
            value = extreme_key(x, self.op) if self.keyed else x
            value = binary(REDUCE_BINARY[self.op], Load(total, (lane,)), value)
            return Store(total, (lane,), value)

        # an image of one column is reduced as one row: role "column" is cut into chains
        names, roles = ["h", "w", "l"], ["row", "column", "lane"]
        if int_value(self.width) == 1:
            names, roles = ["w", "h", "l"], ["column", "row", "lane"]
        terms = nest(names, [self.height, self.width, lanes], term, roles)

        def end(lane: Expr) -> Stmt:
            return self.finish(Load(total, (lane,)), n, block, lane)

        body = seq(over_lanes("start", lanes, start), terms)
        if valid == lanes:
            return within([total], body, over_lanes("end", lanes, end))
        # The last channels of a partial block go through memory, one by one.
        spill = buffer("spill", (lanes,), dtype, "local")
        save = over_lanes("spill", lanes, lambda v: Store(spill, (v,), Load(total, (v,))))
        last = loop("c", valid, lambda v: self.finish(Load(spill, (v,)), n, block, v))
        return within([total, spill], body, save, last)

    def finish(self, total: Expr, n: Expr, block: Expr, lane: Expr) -> Stmt:
        """Store one channel, with the epilogue; for a mean, `total` is divided first."""
        group, bounds = self.group, lane_bounds(lane, self.lanes)
        origin = (IntImm(0),) * (group.out_type.ndim - 2)
        index = (n, simplify(block * self.lanes + lane, bounds), *origin)
        if self.keyed:
            total = extreme_value(total, self.op, self.float)
        count = int_value(self.divisor)
        if count is None:
            total = total / cast(self.divisor, total.dtype)
        elif count > 1:
            total = total / const(count, total.dtype)
        total = cast(total, self.var.tensor.dtype)
        value = group.element(group.out_var, {self.var: lambda *_: total})(*index)
        return Store(group.out, group.store_index(index), simplify_value(value, bounds))


def _program(p: _Planes) -> PrimFunc:
    """for image, block of channels: op over all rows and columns, epilogue."""
    group, (whole, tail) = p.group, divmod(p.channels, p.lanes)
    blocks = nest(
        ["n", "block"], [p.images, whole], lambda n, b: p.block(n, b, p.lanes), ["task", "task"]
    )
    last = loop("image", p.images, lambda n: p.block(n, as_expr(whole), tail)) if tail else None
    body = seq(blocks, last)
    return PrimFunc(group.name, group.params, body)


def schedule(group: Group, target: Target, check: bool = False) -> Schedule | None:
    """The reduction with its elementwise prologue and epilogue; a task is one channel block of one
    image."""
    if not reads_blocks(group, target.vector_lanes("float32")):
        return None
    p = _Planes(group, target)
    s = Schedule(_program(p), check)
    for columns in s.loops(role="column"):
        _in_chains(s, columns)
    in_vectors(s)
    if int_value(p.images) is None or p.work > PARALLEL_WORK:
        share(s, s.loops(role="task"))
    return s


def _in_chains(s: Schedule, columns: str) -> None:
    """Reduce the columns in several independent chains (column w belongs to chain w % count), and
    two or more leftover columns in a chain each."""
    rows = s.parent(columns)
    extent = int_value(s.loop(columns).extent)
    count = CHAINS if extent is None else _chains(extent)
    if not s.reaches(columns, count):
        return
    names, roles = (f"{columns}_0", "o"), ("column", "vector")
    parts = [s.split(columns, count, names, "peel", roles)]
    tail = parts[0].tail
    if extent is not None and extent % count > 1:
        parts.append(s.split(tail, extent % count, names, roles=roles))
    if tail and rows and s.role(rows) == "row":
        s.fission(rows)
    for part in parts:
        (block,) = s.children(s.children(part.inner)[0])
        outer = s.parent(part.outer)
        whole = outer and s.role(outer) == "row"
        sum_apart(s, block, part.inner, outer if whole else part.outer)


def _chains(columns: int) -> int:
    """The number of chains, CHAINS to 2 * CHAINS: one that divides `columns`, else one that leaves
    more than one column over. A single leftover column would be added to the total row by row,
    which rounds more."""
    if columns < CHAINS:
        return columns
    some = range(CHAINS, 2 * CHAINS + 1)
    exact = [n for n in some if columns % n == 0]
    return (exact or [n for n in some if columns % n > 1] or [CHAINS])[0]
