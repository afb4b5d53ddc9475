"""What a product with packed weights computes, row by row: the plain program that `schedule.py`
schedules.

x [M, K] times w [N/nr][K][nr], plus the bias, through the epilogue; batched if w has leading
dimensions. Narrow numbers are packed so that the few that one dot-product instruction sums are
adjacent: w [N/nr][K/4][nr][4] for int8. Long sums of floats are taken in pieces (accumulate.py);
the order of the additions depends on shapes alone.

Roles of loops: "batch", "panel", "row", "term" of a sum; "vector", "lane" and "dot" as in
register_tile.py.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from tensorkiln.arith import simplify
from tensorkiln.ir.buffer import Buffer, Load, buffer
from tensorkiln.ir.expr import Expr, IntImm, as_expr, const, int_value
from tensorkiln.ir.relax import Constant, RVar
from tensorkiln.ir.stmt import Alloc, PrimFunc, Stmt, Store, seq
from tensorkiln.kernels.knobs import SUM_TERMS
from tensorkiln.kernels.layouts import together
from tensorkiln.schedule.access import simplify_value
from tensorkiln.schedule.accumulate import add_piece, add_product, pieces_of
from tensorkiln.schedule.build import FETCH, lanes, loop, nest, vectors, within
from tensorkiln.schedule.group import Group, inplace_params, product, static, view_index
from tensorkiln.target import Target


class Linear:
    """Sizes and operands of one product."""

    def __init__(self, group: Group, target: Target):
        call, var = group.anchor, group.anchor_var
        assert call is not None and var is not None
        x, w = call.args[0], call.args[1]
        assert isinstance(x, RVar) and isinstance(w, RVar)
        self.group, self.call, self.var = group, call, var
        self.x, self.w = group.buffers[x], group.buffers[w]
        self.lanes = target.vector_lanes("float32")
        axes = w.tensor.memory.axes
        # Consecutive k that a dot-product instruction multiplies and sums at once.
        self.together = together(w.tensor, w.tensor.ndim - 2)
        self.nr = axes[-2 if self.together > 1 else -1].modulus
        if self.together > 1:
            shape = (*w.tensor.physical_shape[:-2], as_expr(self.nr * self.together))
            self.w = group.buffers[w] = replace(self.w, shape=shape)
        self.xt = x.tensor
        self.k = static(w.tensor.shape[-2], "reduction extent of linear")
        self.n = static(w.tensor.shape[-1], "columns of linear")
        # The group's output has the shape of the product. If w has no batch dimensions, all leading
        # dimensions of x are rows.
        self.batch = w.tensor.shape[:-2]
        self.lead = group.out_type.shape[len(self.batch) : -1]
        self.m = product(self.lead)
        self.dtype = var.tensor.dtype  # of the sums
        rows = int_value(product((*self.batch, self.m))) or 64
        self.work = max(rows, FETCH) * self.n * self.k // 8

    def lead_index(self, m: Expr) -> tuple[Expr, ...]:
        """The logical indices of flattened row m in the dimensions `lead`."""
        index: list[Expr] = []
        for extent in reversed(self.lead[1:]):
            index.append(m % extent)
            m = m // extent
        return tuple(reversed([*index, m])) if self.lead else ()

    def initial(self, p: Expr, o: Expr, lane: Expr) -> Expr:
        """The initial value of the sum in vector o of panel p: the bias of its column, or zero."""
        if len(self.call.args) < 3:
            return const(0, self.dtype)
        bias = self.call.args[2]
        if isinstance(bias, Constant):  # one number, without vectors: it is part of the group
            return const(bias.array.item(), self.dtype)
        assert isinstance(bias, RVar)
        return Load(self.group.buffers[bias], (simplify(p * (self.nr // self.lanes) + o), lane))

    def input(self, batch: tuple[Expr, ...], row: Expr, k: Expr) -> Load:
        """Load x[batch, row, k]."""
        if len(self.x.shape) == 1:
            return Load(self.x, (k,))
        if not batch:
            return Load(self.x, (row, k))
        return Load(self.x, tuple(map(simplify, view_index(self.xt, (*batch, row, k)))))

    def finish(self, total: Expr, batch: tuple[Expr, ...], row: Expr, column: Expr) -> Stmt:
        """Store one element, with the epilogue."""
        element = self.group.element(self.group.out_var, {self.var: lambda *_: total})
        place = (*batch, *self.lead_index(row), column)
        return Store(
            self.group.out, self.group.store_index(place), simplify_value(element(*place), {})
        )


def linear_program(c: Linear, piece: int = SUM_TERMS) -> PrimFunc:
    """for panel of columns, row: bias + x[row] . w[:, panel], epilogue. Sums are taken in pieces of
    at most `piece` terms."""
    whole, rest = divmod(c.n, c.nr)

    def panel(batch: tuple[Expr, ...], p: Expr, columns: int) -> Stmt:
        return loop(
            "row", c.m, lambda row: _row(c, batch, p, row, columns, piece), "row", keep=True
        )

    def panels(*batch: Expr) -> Stmt:
        every: Callable[[Expr], Stmt] = lambda p: panel(batch, p, c.nr)  # noqa: E731
        return seq(
            loop("panel", whole, every, "panel", keep=True) if whole else None,
            panel(batch, as_expr(whole), rest) if rest else None,
        )

    count = len(c.batch)
    body = nest(["n"] * count, c.batch, panels, ["batch"] * count)
    return PrimFunc(c.group.name, c.group.params, body, inplace=inplace_params(c.group))


def _row(c: Linear, batch: tuple[Expr, ...], p: Expr, row: Expr, columns: int, most: int) -> Stmt:
    """One row of panel p, the first `columns` columns of which exist."""
    shape, (full, last) = (-(-columns // c.lanes), c.lanes), divmod(columns, c.lanes)
    total = buffer("total", shape, c.dtype, "local")

    def start(o: Expr, lane: Expr) -> Stmt:
        return Store(total, (o, lane), c.initial(p, o, lane))

    def terms(acc: Buffer, lo: Expr, count: int) -> Stmt:
        def term(k: Expr, o: Expr, lane: Expr, b: Expr) -> Stmt:
            column = simplify((o * c.lanes + lane) * c.together + b)
            weight = Load(c.w, (*batch, p, simplify(lo + k), column))
            x = c.input(batch, row, simplify((lo + k) * c.together + b))
            return add_product(acc, (o, lane), x, weight)

        roles = ["term", "vector", "lane", "dot"]
        return nest(["k", "o", "l", "b"], [count, *shape, c.together], term, roles)

    def piece(lo: Expr, count: int) -> Stmt:
        return add_piece(total, lambda part: terms(part, lo, count))

    steps = -(-c.k // c.together)
    quads, whole, rest = pieces_of(steps // 4, 4 * c.together, most) if steps >= 4 else (1, 0, 0)
    size, rest = quads * 4, rest * 4 + steps % 4
    if whole + bool(rest) == 1 or c.dtype.is_int:
        sums = terms(total, IntImm(0), steps)
    else:
        pieces = loop("piece", whole, lambda i: piece(simplify(i * size), size))
        sums = seq(pieces, piece(as_expr(whole * size), rest) if rest else None)

    def finish(o: Expr, lane: Expr) -> Stmt:
        column = simplify(p * c.nr + o * c.lanes + lane)
        return c.finish(Load(total, (o, lane)), batch, row, column)

    ends = vectors("end", (full, c.lanes), finish)
    if last:  # the last columns of an odd width go through memory, one by one
        spill = buffer("spill", (c.lanes,), c.dtype, "local")
        at = as_expr(full)
        save = lanes("spill", c.lanes, lambda v: Store(spill, (v,), Load(total, (at, v))))
        first = simplify(p * c.nr + full * c.lanes)

        def end(v: Expr) -> Stmt:
            return c.finish(Load(spill, (v,)), batch, row, simplify(first + v))

        ends = seq(ends, within([spill], save, lanes("last", last, end)))
    return Alloc(total, seq(vectors("start", shape, start), sums, ends))
