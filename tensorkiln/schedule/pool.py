"""Max and average pooling on channel blocks.

Rows and columns of the output are cut into runs that see the same taps of their window: one long
run inside, short ones along the edges, so no tap tests whether it lies in the padding. In a run,
several neighbouring outputs share what the window's columns have in common:

    column k of the tile:  c_k = max over the window's rows of x[., k]
    output q:              max of c_(q * stride), ..., c_(q * stride + kernel - 1)
"""

from __future__ import annotations

from dataclasses import dataclass

from tensorkiln.arith import simplify, simplify_stmt
from tensorkiln.ir.buffer import Buffer
from tensorkiln.ir.expr import (
    REDUCE_BINARY,
    Expr,
    IntImm,
    Load,
    Var,
    as_expr,
    binary,
    const,
    int_value,
    select,
)  # fmt: skip
from tensorkiln.ir.relax import TensorType
from tensorkiln.ir.stmt import Alloc, For, PrimFunc, Stmt, Store, seq
from tensorkiln.ops.nn import covered, pool_windows
from tensorkiln.ops.window import Window
from tensorkiln.schedule.access import blocked_loads, simplify_value
from tensorkiln.schedule.build import PARALLEL_WORK, fused, loop, tiled, zero_border
from tensorkiln.schedule.group import Group, view_index
from tensorkiln.target import Target

# Column values of one tile, each a vector that lives in a register.
_COLUMNS = 12


def supports_pool(group: Group) -> bool:
    """Channel blocks of one width on both sides, known image sizes, undilated windows."""
    call, out = group.anchor, group.out_type
    assert call is not None
    x = call.args[0].type
    assert isinstance(x, TensorType)
    if out.layout is None or x.layout is None or len(out.layout.axes) != 5:
        return False
    if None in (*map(int_value, x.shape[1:]), *map(int_value, out.shape[1:])):
        return False
    pair = pool_windows(call.op, call.attrs)
    if any(w.dilation != 1 for w in pair) or pair[0].kernel * pair[1].kernel > 64:
        return False
    lane, zero = Var("l"), IntImm(0)
    v = out.layout.block(1)
    value = simplify_value(group.element(call.args[0])(zero, lane, zero, zero), {lane: (0, v - 1)})
    return x.layout.block(1) == v and blocked_loads(value, v, lane)


@dataclass(frozen=True, slots=True)
class _Run:
    """Outputs start .. start + count - 1, whose windows have the taps lo .. hi - 1 inside and
    average `divisor` elements."""

    start: int
    count: int
    lo: int
    hi: int
    divisor: int


def _runs(w: Window, extent: int, outputs: int, include_pad: bool) -> list[_Run]:
    runs: list[_Run] = []
    for i in range(outputs):
        first = i * w.stride - w.before
        lo, hi = max(0, -first), min(w.kernel, extent - first)
        divisor = int_value(simplify(covered(w, IntImm(i), IntImm(extent), include_pad)))
        assert divisor is not None
        last = runs[-1] if runs else None
        if last is not None and (last.lo, last.hi, last.divisor) == (lo, hi, divisor):
            runs[-1] = _Run(last.start, last.count + 1, lo, hi, divisor)
        else:
            runs.append(_Run(i, 1, lo, hi, divisor))
    return runs


class _Pool:
    """One pooling group on planes of one channel block."""

    def __init__(self, group: Group):
        call, var = group.anchor, group.anchor_var
        assert call is not None and var is not None
        self.group, self.call, self.var, self.out = group, call, var, group.out_type
        self.lanes = self.out.memory.block(1)
        self.op = REDUCE_BINARY["max" if call.op == "max_pool2d" else "sum"]
        self.rows, self.cols = pool_windows(call.op, call.attrs)
        self.channels = int_value(self.out.shape[1]) or 0
        self.x = group.element(call.args[0])

    def runs(self, dim: int, w: Window) -> list[_Run]:
        x = self.call.args[0].type
        assert isinstance(x, TensorType)
        include = bool(self.call.attrs.get("count_include_pad", False))
        return _runs(w, int_value(x.shape[dim]) or 0, int_value(self.out.shape[dim]) or 0, include)

    def plane(self, n: Expr, block: Expr) -> Stmt:
        def rows(r: _Run) -> Stmt:
            return loop("h", r.count, lambda h: self.row(n, block, h, r), lo=r.start)

        border = zero_border(self.group.out, self.out, (n, block))
        return seq(border, *map(rows, self.runs(2, self.rows)))

    def row(self, n: Expr, block: Expr, h: Expr, r: _Run) -> Stmt:
        def columns(c: _Run) -> Stmt:
            largest = max(1, (_COLUMNS - (c.hi - c.lo)) // self.cols.stride + 1)
            return tiled("t", c.count, largest, lambda w, size: self.tile(
                n, block, h, w, size, r, c), lo=c.start)  # fmt: skip

        return seq(*map(columns, self.runs(3, self.cols)))

    def tile(self, n: Expr, block: Expr, h: Expr, w: Expr, size: int, r: _Run, c: _Run) -> Stmt:
        """`size` outputs of row h from column w."""
        lane, lanes = Var("l"), self.lanes
        channel = block * lanes + lane
        stride, taps = self.cols.stride, c.hi - c.lo
        columns = (size - 1) * stride + taps
        acc = Buffer("column", self.out.dtype, (as_expr(columns), as_expr(lanes)), "register")
        bounds = {lane: (0, lanes - 1)}

        def column(k: int) -> Stmt:
            z = w * stride + (k + c.lo - self.cols.before)
            value: Expr | None = None
            for t in range(r.lo, r.hi):
                y = h * self.rows.stride + (t - self.rows.before)
                x = self.x(n, channel, simplify(y), simplify(z))
                value = x if value is None else binary(self.op, value, x)
            assert value is not None
            return Store(acc, (as_expr(k), lane), simplify_value(value, bounds))

        def output(q: int) -> Stmt:
            value: Expr = Load(acc, (as_expr(q * stride), lane))
            for k in range(1, taps):
                value = binary(self.op, value, Load(acc, (as_expr(q * stride + k), lane)))
            if self.call.op == "avg_pool2d":
                value = value / const(r.divisor * c.divisor, value.dtype)
            return self.store(value, (n, channel, h, simplify(w + q)), bounds)

        work = [*map(column, range(columns)), *map(output, range(size))]
        body = seq(*(For(lane, IntImm(0), IntImm(lanes), "vectorized", s) for s in work))
        return Alloc(acc, body)

    def store(self, value: Expr, index: tuple[Expr, ...], bounds: dict) -> Stmt:  # type: ignore
        """The epilogue of one output vector; channels past the last stay zero."""
        element = self.group.element(self.group.out_var, {self.var: lambda *_: value})
        result = simplify_value(element(*index), bounds)
        if self.channels % self.lanes:
            result = select(index[1] < self.channels, result, const(0, result.dtype))
        at = tuple(simplify(i, bounds) for i in view_index(self.out, index))
        return Store(self.group.out, at, result)


def schedule_pool(group: Group, target: Target) -> PrimFunc:
    """max_pool2d or avg_pool2d with its elementwise neighbours."""
    p = _Pool(group)
    blocks = -(-p.channels // p.lanes)
    sizes = [int_value(d) or 1 for d in p.out.shape[2:]]
    work = blocks * p.lanes * sizes[0] * sizes[1] * 4
    kind = "parallel" if int_value(p.out.shape[0]) is None or work > PARALLEL_WORK else "serial"
    body = fused([p.out.shape[0], blocks], p.plane, kind)
    return PrimFunc(group.name, group.params, simplify_stmt(body, {}), op_class="pool_blocked")
