"""Direct convolution on channel blocks, and its depthwise form.

Input [N][C/v][H + halo][W + halo][v] (or planar with few channels), weights packed
[OC/nr][IC/v][kh][kw][v][nr], output like the input. A tile of output pixels times nr channels
stays in registers over the whole reduction; there is no boundary code because the input's halo
is zero.
"""

from __future__ import annotations

from tensorkiln.arith import simplify, simplify_stmt
from tensorkiln.base.errors import InternalError
from tensorkiln.ir.buffer import Buffer
from tensorkiln.ir.expr import (
    Broadcast,
    Expr,
    ExprLike,
    IntImm,
    Load,
    Var,
    as_expr,
    binary,
    const,
    int_value,
    intrin,
    select,
)  # fmt: skip
from tensorkiln.ir.relax import Call, RVar, TensorType
from tensorkiln.ir.stmt import Alloc, For, If, Let, PrimFunc, Seq, Stmt, Store, seq
from tensorkiln.ops.channel_window import ChannelWindow
from tensorkiln.schedule.access import simplify_value
from tensorkiln.schedule.accumulate import Pieces, pieces_of, sum_in_pieces
from tensorkiln.schedule.build import (
    PARALLEL_WORK,
    fused,
    lane_ramp,
    loop,
    nest,
    tiled,
    tiles,
    zero_border,
)
from tensorkiln.schedule.group import Group, view_index
from tensorkiln.schedule.loops import inplace_params
from tensorkiln.schedule.tile import spatial_tile
from tensorkiln.target import Target

# With fewer panels than this, an uneven number of them leaves threads waiting.
_FEW_TASKS = 8


def supports_conv2d(call: Call, out: TensorType) -> bool:
    """Whether the direct schedule applies: packed weights, blocked output, known image size."""
    w = call.args[1].type
    assert isinstance(w, TensorType)
    sized = int_value(out.shape[2]) is not None and int_value(out.shape[3]) is not None
    return w.layout is not None and out.layout is not None and sized


def is_depthwise(call: Call, out: TensorType) -> bool:
    """One filter of one channel per output channel."""
    x = call.args[0].type
    assert isinstance(x, TensorType)
    groups = call.attrs.groups
    return bool(groups > 1 and groups == int_value(x.shape[1]) == int_value(out.shape[1]))


class _Conv:
    """The geometry of one convolution and the statements of its tiles."""

    def __init__(self, group: Group, target: Target):
        call, var = group.anchor, group.anchor_var
        assert call is not None and var is not None
        self.group, self.target, self.call, self.var = group, target, call, var
        x, w = call.args[0], call.args[1]
        assert isinstance(x, RVar) and isinstance(w, RVar)
        self.x, self.w = group.buffers[x], group.buffers[w]
        self.xt, self.wt, self.ot = x.tensor, w.tensor, group.out_type
        self.lanes = self.ot.memory.block(1)
        self.stride, self.dilation = call.attrs.strides, call.attrs.dilation
        self.pad = call.attrs.padding[:2]
        self.kernel = (_int(self.wt.shape[2]), _int(self.wt.shape[3]))
        self.channels = _int(self.ot.shape[1])
        self.height, self.width = _int(self.ot.shape[2]), _int(self.ot.shape[3])
        self.blocks = -(-self.channels // self.lanes)
        self.window = self._window()
        taps = _int(self.wt.shape[1]) * self.kernel[0] * self.kernel[1]
        # Multiply-adds of one image; eight count as one scalar operation.
        self.work = self.channels * self.height * self.width * taps // 8

    def _window(self) -> ChannelWindow | None:
        """What each panel reads of the input channels; None for all of them."""
        groups, axes = self.call.attrs.groups, self.wt.memory.axes
        if groups == 1 or self.depthwise:
            return None
        inputs = _int(self.xt.shape[1]) // groups
        return ChannelWindow(groups, self.channels, inputs, axes[-1].modulus, axes[-2].modulus)

    @property
    def depthwise(self) -> bool:
        return is_depthwise(self.call, self.ot)

    # -- pieces shared by the dense and the depthwise form -----------------------------------------

    def x_index(self, n: Expr, c: Expr, h: Expr, w: Expr, bounds: dict) -> tuple[Expr, ...]:  # type: ignore[type-arg]
        """Where input channel c under output-aligned position (h, w) lies."""
        index = (n, c, h - self.pad[0], w - self.pad[1])
        return tuple(simplify(i, bounds) for i in view_index(self.xt, index))

    def initial(self, block: Expr, dtype_lanes: int) -> Expr:
        """What accumulators start from: the bias of a channel block, or zero."""
        if len(self.call.args) < 3:
            return const(0, self.ot.dtype.with_lanes(dtype_lanes))
        bias = self.call.args[2]
        assert isinstance(bias, RVar)
        buf = self.group.buffers[bias]
        if bias.tensor.layout is None:
            raise InternalError(f"{self.group.name}: the bias is not packed")
        return Load(buf, (block, lane_ramp(dtype_lanes)))

    def finish(self, acc: Load, n: Expr, block: Expr, h: Expr, w: Expr) -> Stmt:
        """Run the epilogue on one accumulator vector and store it."""
        lane = Var("l")
        lanes = self.lanes
        mine = Load(acc.buffer, (*acc.indices[:-1], lane))
        c = block * lanes + lane
        element = self.group.element(self.group.out_var, {self.var: lambda *_: mine})
        bounds = {lane: (0, lanes - 1)}
        index = (n, simplify(c, bounds), h, w)
        value = simplify_value(element(*index), bounds)
        if self.channels % lanes:
            value = select(simplify(c) < self.channels, value, const(0, value.dtype))
        at = tuple(simplify(i, bounds) for i in view_index(self.ot, index))
        store = Store(self.group.out, at, value)
        return For(lane, IntImm(0), IntImm(lanes), "vectorized", store)

    def done(self, body: Stmt, op_class: str) -> PrimFunc:
        return PrimFunc(
            self.group.name, self.group.params, simplify_stmt(body, {}),
            inplace=inplace_params(self.group), op_class=op_class,
        )  # fmt: skip


def schedule_conv2d(group: Group, target: Target) -> PrimFunc:
    """conv2d (not depthwise) and its elementwise epilogue."""
    c = _Conv(group, target)
    nr = c.wt.memory.axes[-1].modulus
    vectors = nr // c.lanes
    panels = -(-c.blocks // vectors)
    rows, cols = spatial_tile(target, vectors, c.height, c.width)
    row_tiles = tiles(c.height, rows)
    batch = int_value(c.ot.shape[0]) or 1
    kind = "parallel" if batch * c.work > PARALLEL_WORK else "serial"

    def border(n: Expr, panel: Expr) -> Stmt:
        blocks = [panel * vectors + o for o in range(vectors)]
        return seq(*(zero_border(group.out, c.ot, (n, block)) for block in blocks))

    def strip(n: Expr, panel: Expr, h0: Expr, size: int) -> Stmt:
        """All column tiles of `size` output rows from h0."""
        return tiled("tw", c.width, cols, lambda w0, q: _tile(
            c, n, panel, h0, w0, size, q, vectors))  # fmt: skip

    def plane(n: Expr, panel: Expr) -> Stmt:
        return seq(border(n, panel), tiled("th", c.height, rows, lambda h0, r: strip(
            n, panel, h0, r)))  # fmt: skip

    def strips(k: int, start: int, count: int, size: int) -> Stmt:
        def task(n: Expr, panel: Expr, t: Expr) -> Stmt:
            first = _when_first(t, border(n, panel)) if k == 0 else None
            return seq(first, strip(n, panel, t * size + start, size))

        return fused([c.ot.shape[0], panels, count], task, kind)

    # Rows are tasks when they are all alike, or when panels alone would leave threads idle.
    if len(row_tiles) == 1 or batch * panels < _FEW_TASKS:
        body = seq(*(strips(k, *t) for k, t in enumerate(row_tiles)))
    else:
        body = fused([c.ot.shape[0], panels], plane, kind)
    return c.done(body, "conv2d_direct")


def _when_first(i: Expr, s: Stmt) -> Stmt | None:
    if isinstance(s, Seq) and not s.stmts:
        return None
    return If(binary("eq", i, 0), s)


def _tile(
    c: _Conv, n: Expr, panel: Expr, h0: Expr, w0: Expr, rows: int, cols: int, vectors: int
) -> Stmt:
    """One register tile: rows x cols pixels, `vectors` channel blocks."""
    lanes, out = c.lanes, c.ot.dtype
    acc = Buffer("acc", out, (as_expr(rows), as_expr(cols), as_expr(vectors), as_expr(lanes)),
                 "register")  # fmt: skip
    vec = lane_ramp(lanes)
    blocked = c.xt.memory.block(1)
    step = c.wt.memory.axes[-2].modulus or 1
    # In a grouped convolution the first granule of input channels of this panel.
    start = Var("first")
    first = IntImm(0) if c.window is None else start

    def init(into: Buffer, o: int) -> Stmt:
        start = Var("start", out.with_lanes(lanes))
        stores = nest(["r", "q"], [rows, cols], lambda r, q: Store(
            into, (r, q, as_expr(o), vec), start), "unrolled")  # fmt: skip
        return Let(start, c.initial(panel * vectors + o, lanes), stores)

    def channel(icb: Expr, kh: Expr, kw: Expr, ci: Expr) -> Stmt:
        """One reduction step: load the weights, then broadcast each pixel against them."""
        bounds = {v: (0, hi) for v, hi in ((ci, step - 1),) if isinstance(v, Var)}
        w_lead = (panel, icb, kh, kw, ci)[: 5 if blocked > 1 else 4]
        weights = [Var(f"w{o}", out.with_lanes(lanes)) for o in range(vectors)]

        def pixel(r: Expr, q: Expr) -> Stmt:
            h = (h0 + r) * c.stride[0] + kh * c.dilation[0]
            w = (w0 + q) * c.stride[1] + kw * c.dilation[1]
            x = Var("x", out.with_lanes(lanes))
            at = c.x_index(n, (icb + first) * step + ci, h, w, bounds)
            updates = []
            for o in range(vectors):
                place = (r, q, as_expr(o), vec)
                updates.append(Store(acc, place, intrin("fma", x, weights[o], Load(acc, place))))
            return Let(x, Broadcast(Load(c.x, at), lanes), seq(*updates))

        body = nest(["r", "q"], [rows, cols], pixel, "unrolled")
        for o in reversed(range(vectors)):
            body = Let(weights[o], Load(c.w, (*w_lead, lane_ramp(lanes, o * lanes))), body)
        return body

    def steps(b: Expr, kh: Expr, kw: Expr) -> Stmt:
        if step == 1:
            return channel(b, kh, kw, IntImm(0))
        # Four steps a basic block: more and the scheduler hoists loads until it spills.
        return loop("c4", step // 4, lambda c4: loop(
            "c1", 4, lambda c1: channel(b, kh, kw, c4 * 4 + c1), "unrolled"))  # fmt: skip

    def blocks(lo: Expr, count: ExprLike) -> Stmt:
        """The terms of `count` granules of input channels from `lo`."""
        return nest(["icb", "kh", "kw"], [count, *c.kernel],
                    lambda b, kh, kw: steps(simplify(lo + b), kh, kw))  # fmt: skip

    def window(_: Expr) -> Stmt:
        assert c.window is not None
        count = Var("count")
        body = Let(count, c.window.count(panel), blocks(IntImm(0), count))
        return Let(start, c.window.start(panel), body)

    def begin(into: Buffer) -> Stmt:
        return seq(*(init(into, o) for o in range(vectors)))

    def finish(totals: Buffer) -> Stmt:
        def block(o: int) -> Stmt:
            at = simplify(panel * vectors + o)

            def pixel(r: Expr, q: Expr) -> Stmt:
                return c.finish(Load(totals, (r, q, as_expr(o), vec)), n, at, h0 + r, w0 + q)

            return nest(["r", "q"], [rows, cols], pixel, "unrolled")

        return seq(*map(block, range(vectors)))

    if c.window is not None:
        return sum_in_pieces(acc, begin, [(1, window)], finish)
    granules = -(-_int(c.wt.shape[1]) // step)
    size, whole, rest = pieces_of(granules, step * c.kernel[0] * c.kernel[1])
    pieces: Pieces = [
        (whole, lambda i: blocks(i * size, size)),
        (1 if rest else 0, lambda i: blocks(as_expr(whole * size), rest)),
    ]
    return sum_in_pieces(acc, begin, pieces, finish)


def schedule_depthwise(group: Group, target: Target) -> PrimFunc:
    """One filter per channel: weights [C/v][kh][kw][v] stay in registers over a 2-D tile."""
    c = _Conv(group, target)
    lanes, out = c.lanes, c.ot.dtype
    taps = c.kernel[0] * c.kernel[1]
    budget = max(4, min(14, target.num_vector_registers - 4 - min(taps, 9)))
    cols = next(s for s in range(min(7, c.width), 0, -1) if c.width % s == 0 or s <= 4)
    rows = max(1, min(c.height, budget // cols))
    vec = lane_ramp(lanes)

    def tile(n: Expr, block: Expr, h0: Expr, w0: Expr, rows: int, cols: int) -> Stmt:
        acc = Buffer("acc", out, (as_expr(rows), as_expr(cols), as_expr(lanes)), "register")
        start = Var("start", out.with_lanes(lanes))
        starts = nest(["r", "q"], [rows, cols], lambda r, q: Store(acc, (r, q, vec), start),
                      "unrolled")  # fmt: skip
        init = Let(start, c.initial(block, lanes), starts)

        def tap(kh: Expr, kw: Expr) -> Stmt:
            weight = Var("w", out.with_lanes(lanes))

            def pixel(r: Expr, q: Expr) -> Stmt:
                h = (h0 + r) * c.stride[0] + kh * c.dilation[0]
                w = (w0 + q) * c.stride[1] + kw * c.dilation[1]
                at = c.x_index(n, block * lanes, h, w, {})
                x = Load(c.x, (*at[:-1], vec))
                return Store(acc, (r, q, vec), intrin("fma", x, weight, Load(acc, (r, q, vec))))

            body = nest(["r", "q"], [rows, cols], pixel, "unrolled")
            return Let(weight, Load(c.w, (block, kh, kw, IntImm(0), vec)), body)

        # Unrolled taps let neighbouring outputs share their loads; large filters keep a loop.
        kind = "unrolled" if taps <= 9 else "serial"
        reduce = loop("kh", c.kernel[0], lambda kh: loop(
            "kw", c.kernel[1], lambda kw: tap(kh, kw), "unrolled"), kind)  # fmt: skip
        finish = nest(["r", "q"], [rows, cols], lambda r, q: c.finish(
            Load(acc, (r, q, vec)), n, block, h0 + r, w0 + q), "unrolled")  # fmt: skip
        return Alloc(acc, seq(init, reduce, finish))

    def plane(n: Expr, block: Expr) -> Stmt:
        inside = tiled("th", c.height, rows, lambda h0, r: tiled(
            "tw", c.width, cols, lambda w0, q: tile(n, block, h0, w0, r, q)))  # fmt: skip
        return seq(zero_border(group.out, c.ot, (n, block)), inside)

    batch = int_value(c.ot.shape[0]) or 1
    kind = "parallel" if batch * c.work > PARALLEL_WORK else "serial"
    return c.done(fused([c.ot.shape[0], c.blocks], plane, kind), "conv2d_depthwise")


def _int(e: Expr) -> int:
    n = int_value(e)
    if n is None:
        raise InternalError(f"convolution extent is symbolic: {e}")
    return n
