"""What a product with packed weights computes, row by row: the plain program that `linear.py`
schedules.

x [M, K] times w [N/nr][K][nr], plus the bias, through the epilogue. A long sum is taken in pieces
(accumulate.py); the order depends on shapes alone.
"""

from __future__ import annotations

from collections.abc import Callable

from tensorkiln.arith import simplify
from tensorkiln.ir.buffer import Buffer, buffer
from tensorkiln.ir.expr import Expr, IntImm, Load, Var, as_expr, const, int_value, intrin
from tensorkiln.ir.relax import RVar
from tensorkiln.ir.stmt import Alloc, For, PrimFunc, Stmt, Store, seq
from tensorkiln.schedule.access import simplify_value
from tensorkiln.schedule.accumulate import pieces_of
from tensorkiln.schedule.build import loop, nest
from tensorkiln.schedule.group import Group, inplace_params, product, static
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
        self.lanes = target.vector_lanes(group.out_type.dtype.name)
        self.nr = w.tensor.memory.axes[-1].modulus
        self.k = static(w.tensor.shape[0], "reduction extent of linear")
        self.n = static(w.tensor.shape[1], "columns of linear")
        # The group's output has the shape of the product.
        self.lead = group.out_type.shape[:-1]
        self.m = product(self.lead)
        self.dtype = group.out_type.dtype
        self.work = (int_value(self.m) or 64) * self.n * self.k // 8

    def lead_index(self, m: Expr) -> tuple[Expr, ...]:
        """Logical leading indices of flattened row m."""
        index: list[Expr] = []
        for extent in reversed(self.lead[1:]):
            index.append(m % extent)
            m = m // extent
        return tuple(reversed([*index, m])) if self.lead else ()

    def initial(self, p: Expr, o: Expr, lane: Expr) -> Expr:
        """What a sum starts from: the bias of the column, or zero."""
        if len(self.call.args) < 3:
            return const(0, self.dtype)
        bias = self.call.args[2]
        assert isinstance(bias, RVar)
        return Load(self.group.buffers[bias], (simplify(p * (self.nr // self.lanes) + o), lane))

    def finish(self, total: Expr, row: Expr, column: Expr) -> Stmt:
        """The epilogue of one element."""
        element = self.group.element(self.group.out_var, {self.var: lambda *_: total})
        place = (*self.lead_index(row), column)
        return Store(
            self.group.out, self.group.store_index(place), simplify_value(element(*place), {})
        )


def linear_program(c: Linear) -> PrimFunc:
    """for panel of columns, row: bias + x[row] . w[:, panel], epilogue."""
    whole, rest = divmod(c.n, c.nr)

    def panel(p: Expr, columns: int) -> Stmt:
        row = Var("row")
        return For(row, IntImm(0), c.m, "serial", _row(c, p, row, columns))

    p = Var("panel")
    body = seq(
        For(p, IntImm(0), as_expr(whole), "serial", panel(p, c.nr)) if whole else None,
        panel(as_expr(whole), rest) if rest else None,
    )
    return PrimFunc(
        c.group.name, c.group.params, body,
        inplace=inplace_params(c.group), op_class="linear_packed",
    )  # fmt: skip


def _row(c: Linear, p: Expr, row: Expr, columns: int) -> Stmt:
    """One row of a panel of which `columns` are real."""
    vectors, (full, last) = -(-columns // c.lanes), divmod(columns, c.lanes)
    total = buffer("total", (vectors, c.lanes), c.dtype, "local")

    def each(body: Callable[[Expr, Expr], Stmt], name: str, count: int = vectors) -> Stmt:
        return nest([f"o_{name}", f"l_{name}"], [count, c.lanes], body)

    def start(o: Expr, lane: Expr) -> Stmt:
        return Store(total, (o, lane), c.initial(p, o, lane))

    def terms(acc: Buffer, lo: Expr, count: int) -> Stmt:
        def term(k: Expr, o: Expr, lane: Expr) -> Stmt:
            at = (row, simplify(lo + k)) if len(c.x.shape) == 2 else (simplify(lo + k),)
            weight = Load(c.w, (p, simplify(lo + k), simplify(o * c.lanes + lane)))
            value = intrin("fma", Load(c.x, at), weight, Load(acc, (o, lane)))
            return Store(acc, (o, lane), value)

        return nest(["k", "o", "l"], [count, vectors, c.lanes], term)

    def piece(lo: Expr, count: int) -> Stmt:
        part = buffer("part", (vectors, c.lanes), c.dtype, "local")
        zero = const(0, c.dtype)
        return Alloc(
            part,
            seq(
                each(lambda o, v: Store(part, (o, v), zero), "zero"),
                terms(part, lo, count),
                each(
                    lambda o, v: Store(total, (o, v), Load(total, (o, v)) + Load(part, (o, v))),
                    "add",
                ),
            ),
        )

    quads, whole, rest = pieces_of(c.k // 4, 4) if c.k >= 4 else (1, 0, 0)
    size, rest = quads * 4, rest * 4 + c.k % 4
    if whole + bool(rest) == 1:
        sums = terms(total, IntImm(0), c.k)
    else:
        pieces = loop("piece", whole, lambda i: piece(simplify(i * size), size))
        sums = seq(pieces, piece(as_expr(whole * size), rest) if rest else None)

    def finish(o: Expr, lane: Expr) -> Stmt:
        return c.finish(Load(total, (o, lane)), row, simplify(p * c.nr + o * c.lanes + lane))

    ends = each(finish, "end", full)
    if last:  # the last columns of an odd width go through memory, one by one
        spill = buffer("spill", (c.lanes,), c.dtype, "local")
        save = loop(
            "l_spill", c.lanes, lambda v: Store(spill, (v,), Load(total, (as_expr(full), v)))
        )
        first = simplify(p * c.nr + full * c.lanes)
        one = loop("l_last", last, lambda v: c.finish(Load(spill, (v,)), row, simplify(first + v)))
        ends = seq(ends, Alloc(spill, seq(save, one)))
    return Alloc(total, seq(each(start, "start"), sums, ends))
