"""Softmax and layer norm on a device: one thread per row where rows are short; else threads that
hold a row in their registers, so that each element is read and written once; and a block of threads
that passes over the row several times where registers cannot hold it. The formulas are those of
`families/normalization/program.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from tensorkiln.families.normalization.program import FORMULAS, Element, RowProgram, rows_program
from tensorkiln.ir.buffer import Buffer, Load
from tensorkiln.ir.expr import Expr, IntImm, Var, int_value
from tensorkiln.ir.stmt import For, If, PrimFunc, Stmt, Store, seq
from tensorkiln.ir.visit import walk_stmt
from tensorkiln.schedule.build import around
from tensorkiln.schedule.gpu.block import BlockSum, each_thread, strided
from tensorkiln.schedule.gpu.grid import bind_block, enough_threads, most_threads, on_grid
from tensorkiln.schedule.gpu.rows import (
    LANE,
    REGISTER,
    THREAD,
    RowDivision,
    RowSum,
    row_division,
    unroll_rows,
)
from tensorkiln.schedule.gpu.tiles import adjacent, split_index
from tensorkiln.schedule.group import Group, product
from tensorkiln.schedule.primitives import Schedule
from tensorkiln.schedule.roles import role_of
from tensorkiln.target import Target

# Rows of fewer columns are computed by one thread each.
_SHORT = 32


def schedule(group: Group, target: Target, check: bool = False) -> Schedule:
    """softmax, log_softmax, or layer_norm with its elementwise epilogue."""
    group, row = group.unviewed, FORMULAS[group.main.op]
    columns = int_value(group.out_type.shape[-1])
    if columns is not None and columns < _SHORT:
        s = Schedule(_with_rows(rows_program(group, row)), check)
        on_grid(s, s.loops(role="row"), target)
        return s
    if (division := _division(group, target)) is not None:
        s = Schedule(_with_rows(_register_rows(group, row, division)), check)
        bind_block(s, s.loops(role="row"))
        unroll_rows(s)
        return s
    threads = enough_threads(columns, most_threads(target))
    program = rows_program(group, lambda r: row(BlockRow(group, r.lead, threads)))
    s = Schedule(_with_rows(program), check)
    bind_block(s, s.loops(role="row"))
    return s


def _with_rows(f: PrimFunc) -> PrimFunc:
    """The program, with a loop of one iteration if it has a single row and so no loop over rows."""
    if any(isinstance(s, For) and role_of(s) == "row" for s in walk_stmt(f.body)):
        return f
    return replace(f, body=around([(Var("row"), IntImm(1), "row")], f.body))


class BlockRow(RowProgram):
    """A row that the threads of a block compute together."""

    def __init__(self, group: Group, lead: tuple[Expr, ...], threads: int):
        super().__init__(group, lead)
        self.threads = threads

    def write(self, value: Element) -> Stmt:
        """out[j] = value(j) for all columns."""
        store = lambda j: self.store(j, value(j))  # noqa: E731
        thread_columns = lambda t: strided("j", self.columns, self.threads, t, store)  # noqa: E731
        return each_thread("thread", self.threads, thread_columns)

    def number(self, name: str, value: Expr) -> tuple[Stmt, Expr]:
        """No statement, and the value itself: each thread computes it where it needs it."""
        return seq(), value

    def reduce(self, name: str, op: str, value: Element) -> tuple[Stmt, Expr]:
        """(the reduction of value(j) over all columns, the load of its result)."""
        block_sum = BlockSum(name, op, self.dtype, self.columns, self.threads, value)
        self.made += block_sum.buffers
        return block_sum.stmt, block_sum.value


def _division(group: Group, target: Target) -> RowDivision | None:
    """How threads hold a row; None if they cannot."""
    call, column, t = group.main, Var("column"), group.out_type
    lead = tuple(Var(f"i{d}") for d in range(t.ndim - 1))
    operand, *scales = (group.element(a) for a in call.args)
    read = [operand(*lead, column), *(scale(column) for scale in scales)]
    written = Load(group.out, group.store_index((*lead, column)))
    lanes = adjacent([*read, written], [(column, t.shape[-1])], t.shape[-1])
    inner = all(int_value(extent) is not None for extent in t.shape[1:])
    rows = product(t.shape[:-1]) if inner else None
    return row_division(int_value(t.shape[-1]), max(1, int(lanes)), rows, t.dtype.sums, target)


def _register_rows(
    group: Group, row: Callable[[RowProgram], Stmt], division: RowDivision
) -> PrimFunc:
    """The program whose blocks have `division.rows` rows each."""
    if division.rows == 1:
        return rows_program(group, lambda r: row(RegisterRow(group, r.lead, division)))
    axes = [(Var(f"i{d}"), extent) for d, extent in enumerate(group.out_type.shape[:-1])]

    def register_row(index: Expr, inside: Expr | None) -> Stmt:
        lead = split_index(axes, index)
        return row(RegisterRow(group, tuple(lead[var] for var, _ in axes), division, inside))

    body = division.blocks(product(tuple(extent for _, extent in axes)), register_row)
    return PrimFunc(group.name, group.params, body)


class RegisterRow(RowProgram):
    """A row in the registers of threads. Expressions are those of thread `THREAD`; it stores only
    where `inside` holds."""

    def __init__(
        self,
        group: Group,
        lead: tuple[Expr, ...],
        division: RowDivision,
        inside: Expr | None = None,
    ):
        super().__init__(group, lead)
        self.division, self.inside = division, inside
        self.places: dict[Expr, tuple[Expr, Expr]] = {}  # of columns: step, lane
        self.elements = self._registers("elements")

    def _registers(self, name: str) -> Buffer:
        registers = self.division.registers(name, self.dtype)
        self.made.append(registers)
        return registers

    def _loops(self, body: Callable[[Expr], Stmt], lane_role: str = LANE) -> Stmt:
        """`body(column)` for the columns that a thread holds."""

        def element(column: Expr, step: Expr, lane: Expr) -> Stmt:
            self.places[column] = step, lane
            return body(column)

        return self.division.loops(element, lane_role)

    def _element(self, registers: Buffer, j: Expr) -> Load:
        return Load(registers, (THREAD, *self.places[j]))

    def _hold(self, registers: Buffer, value: Element) -> Stmt:
        """The statement that computes value(j) for all columns."""
        store = lambda j: Store(registers, self._element(registers, j).indices, value(j))  # noqa: E731
        return self.division.nest(self._loops(store))

    def at(self, j: Expr) -> Expr:
        """The operand's element in column j."""
        return self._element(self.elements, j)

    def hold(self, value: Element) -> tuple[Stmt, Element]:
        """(the statement that computes value(j) for all columns, the loads of its results)"""
        results = self._registers("results")
        return self._hold(results, value), lambda j: self._element(results, j)

    def write(self, value: Element) -> Stmt:
        """out[j] = value(j) for all columns."""
        stores = self._loops(lambda j: self.store(j, value(j)))
        return self.division.nest(stores if self.inside is None else If(self.inside, stores))

    def number(self, name: str, value: Expr) -> tuple[Stmt, Expr]:
        """No statement, and the value itself: it is in registers."""
        return seq(), value

    def reduce(self, name: str, op: str, value: Element) -> tuple[Stmt, Expr]:
        """(the reduction of value(j) over all columns, the load of its result)."""
        total = RowSum(name, op, self.dtype, self.division)
        self.made += total.buffers
        terms = self._loops(lambda j: total.add(value(j)), REGISTER)
        return total.stmt(terms), total.value

    def stmt(self, *steps: Stmt) -> Stmt:
        """The steps in order, after the loads of the row."""
        return super().stmt(self._hold(self.elements, super().at), *steps)
