"""Softmax and layer norm on a device: a block of threads per row, or one thread per row where rows
are short. The formulas are those of `families/normalization/program.py`.
"""

from __future__ import annotations

from dataclasses import replace

from tensorkiln.families.normalization.program import FORMULAS, Element, RowProgram, rows_program
from tensorkiln.ir.expr import Expr, IntImm, Var, int_value
from tensorkiln.ir.stmt import For, PrimFunc, Stmt, seq
from tensorkiln.ir.visit import walk_stmt
from tensorkiln.schedule.build import around
from tensorkiln.schedule.gpu.block import BlockSum, each_thread, strided
from tensorkiln.schedule.gpu.grid import bind_block, enough_threads, most_threads, on_grid
from tensorkiln.schedule.group import Group
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
