"""What a product with packed weights computes, row by row: the plain program that `schedule.py`
schedules.

x [M, K] times w [N/nr][K][nr], plus the bias, through the epilogue; batched if w has leading
dimensions. Narrow numbers are packed so that the few that one dot-product instruction sums are
adjacent: w [N/nr][K/4][nr][4] for int8; where these are pairs, the last of an odd number of terms
is added by itself. Long sums of floats are taken in pieces (schedule/accumulate.py); the order of
the additions depends on shapes alone.

Roles of loops: "batch", "panel", "row", "term" of a sum; "piece" of a sum around all rows, "edge"
of rows whose totals are begun and stored; "vector", "lane", "dot" and "small_dot" as in
schedule/register_tile.py.
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
from tensorkiln.kernels.layouts import has_float_pairs, together
from tensorkiln.kernels.small_weights import dot_role
from tensorkiln.schedule.access import simplify_value
from tensorkiln.schedule.accumulate import add_pairs, add_piece, add_product, pieces_of
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
        # Consecutive k that an instruction multiplies at once, and sums unless they are pairs of
        # float32 (schedule/accumulate.py).
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
        self.in_pairs = has_float_pairs(w.tensor, w.tensor.ndim - 2)
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


def linear_program(c: Linear, piece: int = SUM_TERMS, pieces_first: bool = False) -> PrimFunc:
    """for panel of columns, row: bias + x[row] . w[:, panel], epilogue. Sums are taken in pieces of
    at most `piece` terms. With `pieces_first`, each piece goes through all rows in turn, of whole
    panels: its weights stay in the first-level cache, and totals are in memory. Additions are the
    same."""
    whole, tail_columns = divmod(c.n, c.nr)
    several = pieces_first and _PanelRows(c, (), IntImm(0), c.nr, piece).pieces > 1

    def panel(batch: tuple[Expr, ...], p: Expr, columns: int) -> Stmt:
        r = _PanelRows(c, batch, p, columns, piece)
        return r.by_pieces() if several and columns == c.nr else r.by_rows()

    def panels(*batch: Expr) -> Stmt:
        whole_panel: Callable[[Expr], Stmt] = lambda p: panel(batch, p, c.nr)  # noqa: E731
        return seq(
            loop("panel", whole, whole_panel, "panel", keep=True) if whole else None,
            panel(batch, as_expr(whole), tail_columns) if tail_columns else None,
        )

    count = len(c.batch)
    body = nest(["n"] * count, c.batch, panels, ["batch"] * count)
    return PrimFunc(c.group.name, c.group.params, body, inplace=inplace_params(c.group))


class _PanelRows:
    """The rows of panel p, of whose columns `columns` exist. Sums are in pieces of at most
    `term_limit` terms."""

    def __init__(self, c: Linear, batch: tuple[Expr, ...], p: Expr, columns: int, term_limit: int):
        self.c, self.batch, self.p = c, batch, p
        self.shape, self.columns = (-(-columns // c.lanes), c.lanes), columns
        self.odd = c.dtype.is_int and c.together == 2 and c.k % 2 == 1
        self.steps = c.k // 2 if self.odd else -(-c.k // c.together)
        quads, self.whole, tail_quads = (1, 0, 0)
        if self.steps >= 4:
            terms = 4 if c.in_pairs else 4 * c.together  # of a quad that a register sums
            quads, self.whole, tail_quads = pieces_of(self.steps // 4, terms, term_limit)
        self.size, self.rest = quads * 4, tail_quads * 4 + self.steps % 4

    @property
    def pieces(self) -> int:
        """In how many pieces a sum is added up."""
        return 1 if self.c.dtype.is_int else self.whole + bool(self.rest)

    def by_rows(self) -> Stmt:
        """Row by row, whose total stays in registers or the first-level cache."""
        total = buffer("total", self.shape, self.c.dtype, "local")

        def one(row: Expr) -> Stmt:
            return Alloc(
                total,
                seq(self.start(total, ()), self.sums(total, row), self.finish(total, (), row)),
            )

        return loop("row", self.c.m, one, "row", keep=True)

    def by_pieces(self) -> Stmt:
        """Piece by piece, each for all rows, whose totals are in memory."""
        m, sums = self.c.m, buffer("sums", (self.c.m, *self.shape), self.c.dtype, "local")

        def piece(lo: Expr, count: int) -> Stmt:
            body: Callable[[Expr], Stmt] = lambda row: self.piece(sums, (row,), row, lo, count)  # noqa: E731
            return loop("row", m, body, "row", keep=True)

        return within(
            [sums],
            loop("row_start", m, lambda row: self.start(sums, (row,)), "edge", keep=True),
            loop("piece", self.whole, lambda i: piece(simplify(i * self.size), self.size), "piece"),
            piece(as_expr(self.whole * self.size), self.rest) if self.rest else None,
            loop("row_end", m, lambda row: self.finish(sums, (row,), row), "edge", keep=True),
        )

    def start(self, total: Buffer, place: tuple[Expr, ...]) -> Stmt:
        """Totals begin with the bias."""

        def start(o: Expr, lane: Expr) -> Stmt:
            return Store(total, (*place, o, lane), self.c.initial(self.p, o, lane))

        return vectors("start", self.shape, start)

    def sums(self, total: Buffer, row: Expr) -> Stmt:
        """All products of a row, added to its total."""
        if self.pieces == 1 and self.c.in_pairs:
            return self.piece(total, (), row, IntImm(0), self.steps)
        if self.pieces == 1:
            sums = self.terms(total, row, IntImm(0), self.steps) if self.steps else seq()
            single: Callable[..., Stmt] = lambda o, lane: self.single(total, row, o, lane)  # noqa: E731
            return seq(sums, vectors("odd", self.shape, single)) if self.odd else sums

        def piece(lo: Expr, count: int) -> Stmt:
            return self.piece(total, (), row, lo, count)

        pieces = loop("piece", self.whole, lambda i: piece(simplify(i * self.size), self.size))
        tail = piece(as_expr(self.whole * self.size), self.rest) if self.rest else None
        return seq(pieces, tail)

    def piece(
        self, total: Buffer, place: tuple[Expr, ...], row: Expr, lo: Expr, count: int
    ) -> Stmt:
        """`count` steps from `lo` on, of a row whose total is at a place."""
        terms: Callable[[Buffer], Stmt] = lambda part: self.terms(part, row, lo, count)  # noqa: E731
        return (add_pairs if self.c.in_pairs else add_piece)(total, terms, place=place)

    def terms(self, acc: Buffer, row: Expr, lo: Expr, count: int) -> Stmt:
        """Products, added to vectors of registers."""
        c = self.c
        width = c.lanes // (1 + c.in_pairs)

        def term(k: Expr, o: Expr, lane: Expr, b: Expr) -> Stmt:
            column = simplify((o * width + lane) * c.together + b)
            weight = Load(c.w, (*self.batch, self.p, simplify(lo + k), column))
            x = c.input(self.batch, row, simplify((lo + k) * c.together + b))
            return add_product(acc, (o, lane * 2 + b if c.in_pairs else lane), x, weight)

        roles = ["term", "vector", "lane", dot_role(c.call)]
        return nest(["k", "o", "l", "b"], [count, acc.shape[0], width, c.together], term, roles)

    def single(self, total: Buffer, row: Expr, o: Expr, lane: Expr) -> Stmt:
        """The last term of an odd number of terms, which has no pair."""
        c = self.c
        column = simplify((o * c.lanes + lane) * 2)
        weight = Load(c.w, (*self.batch, self.p, as_expr(c.k // 2), column))
        return add_product(total, (o, lane), c.input(self.batch, row, as_expr(c.k - 1)), weight)

    def finish(self, total: Buffer, place: tuple[Expr, ...], row: Expr) -> Stmt:
        """Store a row, with the epilogue."""
        c, (full, last) = self.c, divmod(self.columns, self.c.lanes)

        def finish(o: Expr, lane: Expr) -> Stmt:
            column = simplify(self.p * c.nr + o * c.lanes + lane)
            return c.finish(Load(total, (*place, o, lane)), self.batch, row, column)

        ends = vectors("end", (full, c.lanes), finish)
        if not last:
            return ends
        # The last columns of an odd width go through memory, one by one.
        spill = buffer("spill", (c.lanes,), c.dtype, "local")
        vector = (*place, as_expr(full))
        save = lanes("spill", c.lanes, lambda v: Store(spill, (v,), Load(total, (*vector, v))))
        first = simplify(self.p * c.nr + full * c.lanes)

        def end(v: Expr) -> Stmt:
            return c.finish(Load(spill, (v,)), self.batch, row, simplify(first + v))

        return seq(ends, within([spill], save, lanes("last", last, end)))
