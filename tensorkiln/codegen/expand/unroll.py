"""Repeat the bodies of unrolled loops.

    for i in unrolled(2): A[i] = 0        ->   A[0] = 0; A[1] = 0

Only the emitter does this, to its own copy: the program that is printed, verified and used as a
cache key keeps its loops. A conditional whose condition becomes constant is replaced by the branch
that is taken.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from tensorkiln.base.errors import UserError
from tensorkiln.ir.expr import Expr, FloatImm, IntImm, Var, binary, const, int_value
from tensorkiln.ir.stmt import (
    For,
    If,
    Let,
    PrimFunc,
    Seq,
    Stmt,
    seq,
)
from tensorkiln.ir.visit import map_children, map_stmt

# Statements that the unrolled loops of a program may become: of more, compilers make no code in a
# useful time, and a processor's cache of instructions does not hold it.
MOST_STATEMENTS = 1 << 14


def unroll_function(f: PrimFunc) -> PrimFunc:
    """`f` with every loop marked `unrolled` repeated. Raises UserError for symbolic extents, and
    for more than MOST_STATEMENTS statements."""
    body = _stmt(f.body, {}, _Budget(f.name))
    return f if body is f.body else replace(f, body=body)


@dataclass(slots=True)
class _Budget:
    """How many more statements the unrolled loops of a program may become."""

    function: str
    statements: int = MOST_STATEMENTS

    def spend(self, count: int, var: Var) -> None:
        """Raise UserError if a loop over `var` exceeds the budget."""
        self.statements -= count
        if self.statements < 0:
            raise UserError(
                f"unrolled loops, such as that over {var}, become more than {MOST_STATEMENTS} "
                "statements",
                code="unroll",
                where=self.function,
                hint="T.serial for the outer ones, or split a loop and unroll the inner part",
            )


def _stmt(s: Stmt, values: Mapping[Var, Expr], budget: _Budget) -> Stmt:
    """`s` with unrolled loops repeated; `values` are the loop variables that became constants."""
    memo: dict[int, tuple[Expr, Expr]] = {}

    def ex(e: Expr) -> Expr:
        if not values:
            return e
        if isinstance(e, Var):
            return values.get(e, e)
        if isinstance(e, (IntImm, FloatImm)):
            return e
        entry = memo.get(id(e))
        if entry is None:
            entry = memo[id(e)] = (e, map_children(e, ex))
        return entry[1]

    match s:
        case For(var, lo, extent, "unrolled", body):
            start, count = ex(lo), int_value(ex(extent))
            if count is None:
                raise UserError(
                    f"unrolled loop over {var} has no constant extent",
                    code="unroll",
                    hint="T.serial, or split it by a constant first",
                )
            budget.spend(count, var)
            indices = [binary("add", start, const(i, var.dtype)) for i in range(count)]
            return seq(*(_stmt(body, {**values, var: i}, budget) for i in indices))
        case Seq(stmts) if values:
            budget.spend(len(stmts) - 1, [*values][-1])
        case Let(var, value, body) if values:
            # A body repeated by an enclosing unrolled loop binds a fresh variable each time.
            fresh = Var(var.name, var.dtype)
            return Let(fresh, ex(value), _stmt(body, {**values, var: fresh}, budget))
        case If(cond, then, orelse):
            constant = int_value(ex(cond))
            if constant is not None:
                branch = then if constant else orelse
                return Seq(()) if branch is None else _stmt(branch, values, budget)
    return map_stmt(s, ex, lambda t: _stmt(t, values, budget))
