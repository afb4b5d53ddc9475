"""Probabilities of classes from those of pairs (`ops/coupling.py` has the formulas).

Roles of loops: "row", over samples. All else is scalar: there are few classes, and the rounds of a
sample wait for each other.
"""

from __future__ import annotations

from tensorkiln.ir.buffer import Buffer, Load, buffer
from tensorkiln.ir.expr import (
    Expr,
    IntImm,
    Unary,
    Var,
    cast,
    const,
    int_value,
    logical_and,
    maximum,
)
from tensorkiln.ir.stmt import Let, PrimFunc, Stmt, Store, While, seq
from tensorkiln.ops.coupling import pairs, rounds
from tensorkiln.schedule.build import PARALLEL_WORK, loop, within
from tensorkiln.schedule.group import Group
from tensorkiln.schedule.primitives import Schedule
from tensorkiln.schedule.register_tile import share
from tensorkiln.target import Target

_ZERO = (IntImm(0),)


class _Sample:
    """The statements of one sample, number `row`."""

    def __init__(self, group: Group, row: Expr):
        call = group.anchor
        assert call is not None
        self.group, self.row, self.k = group, row, int(call.attrs.classes)
        self.x, self.dtype = group.element(call.args[0]), group.out_type.dtype.sums
        k = self.k
        self.q = self._made("q", k, k)
        self.p, self.slope = self._made("p", k), self._made("slope", k)
        self.total, self.error = self._made("total", 1), self._made("error", 1)
        self.round = buffer("round", (1,), "int64", "local")

    def _made(self, name: str, *shape: int) -> Buffer:
        return buffer(name, shape, self.dtype, "local")

    def number(self, value: float) -> Expr:
        return const(value, self.dtype)

    def stmt(self) -> Stmt:
        """Fill q, start from equal probabilities, and make rounds until the error is small."""
        limit, tolerance = rounds(self.k)
        buffers = [self.q, self.p, self.slope, self.total, self.error, self.round]
        count = Load(self.round, _ZERO)
        condition = logical_and(count < limit, Load(self.error, _ZERO) >= self.number(tolerance))
        body = seq(
            loop("own", self.k, self.corrected),
            Store(self.round, _ZERO, count + 1),
            self.measured(),
        )
        return within(
            buffers,
            self.filled(),
            loop("own", self.k, lambda t: Store(self.p, (t,), self.number(1 / self.k))),
            Store(self.round, _ZERO, const(0)),
            self.measured(),
            While(condition, body),
            loop("own", self.k, self.written),
        )

    def written(self, t: Expr) -> Stmt:
        index = self.group.store_index((self.row, t))
        return Store(self.group.out, index, cast(Load(self.p, (t,)), self.group.out.dtype))

    def filled(self) -> Stmt:
        """q[i, j] = -r[i, j] r[j, i], q[i, i] = the sum of r[j, i]**2; r[j, i] = 1 - r[i, j]."""
        k, stmts = self.k, []
        zero = self.number(0)
        stmts.append(loop("own", k, lambda t: Store(self.q, (t, t), zero)))
        for number, (i, j) in enumerate(pairs(k)):
            r = Var("r", self.dtype)
            complement = self.number(1) - r
            diagonals = [
                Store(self.q, (d, d), Load(self.q, (d, d)) + part * part)
                for d, part in ((IntImm(i), complement), (IntImm(j), r))
            ]
            cross = Unary("neg", r * complement)
            crosses = [Store(self.q, (IntImm(a), IntImm(b)), cross) for a, b in ((i, j), (j, i))]
            value = cast(self.x(self.row, IntImm(number)), self.dtype)
            stmts.append(Let(r, value, seq(*diagonals, *crosses)))
        return seq(*stmts)

    def measured(self) -> Stmt:
        """slope = q p, total = p slope, error = the greatest of |slope - total|."""
        total, error = Load(self.total, _ZERO), Load(self.error, _ZERO)

        def row(t: Expr) -> Stmt:
            slope = Load(self.slope, (t,))

            def add(j: Expr) -> Stmt:
                term = Load(self.q, (t, j)) * Load(self.p, (j,))
                return Store(self.slope, (t,), slope + term)

            update = Store(self.total, _ZERO, total + Load(self.p, (t,)) * slope)
            return seq(Store(self.slope, (t,), self.number(0)), loop("j", self.k, add), update)

        def off(t: Expr) -> Stmt:
            far = Unary("abs", Load(self.slope, (t,)) - total)
            return Store(self.error, _ZERO, maximum(error, far))

        clear = [Store(b, _ZERO, self.number(0)) for b in (self.total, self.error)]
        return seq(*clear, loop("own", self.k, row), loop("own", self.k, off))

    def corrected(self, t: Expr) -> Stmt:
        """Move p[t] to where its part of the gradient is 0, and all to the sum of 1."""
        step, grown = Var("step", self.dtype), Var("grown", self.dtype)
        total, row_slope = Load(self.total, _ZERO), Load(self.slope, (t,))
        diagonal = Load(self.q, (t, t))
        following = (total + step * (step * diagonal + row_slope * self.number(2))) / grown / grown

        def scaled(j: Expr) -> Stmt:
            slope = (Load(self.slope, (j,)) + step * Load(self.q, (t, j))) / grown
            return seq(
                Store(self.slope, (j,), slope), Store(self.p, (j,), Load(self.p, (j,)) / grown)
            )

        moved = seq(
            Store(self.p, (t,), Load(self.p, (t,)) + step),
            Store(self.total, _ZERO, following),
            loop("j", self.k, scaled),
        )
        return Let(step, (total - row_slope) / diagonal, Let(grown, step + self.number(1), moved))


def coupled_program(group: Group) -> PrimFunc:
    """for each sample: its probabilities."""
    samples = group.out_type.shape[0]
    body = loop("n", samples, lambda n: _Sample(group, n).stmt(), "row")
    return PrimFunc(group.name, group.params, body)


def schedule(group: Group, target: Target, check: bool = False) -> Schedule:
    """`coupled`: threads share the samples."""
    samples, k = group.out_type.shape[0], int_value(group.out_type.shape[1]) or 1
    s = Schedule(coupled_program(group), check)
    count = int_value(samples)
    if count is None or count * k**3 * 4 > PARALLEL_WORK:
        share(s, s.loops(role="row"))
    return s
