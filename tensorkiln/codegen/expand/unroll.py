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
from tensorkiln.ir.visit import free_vars, map_children, map_stmt

# Statements that the unrolled loops of a program may become: of more, compilers make no code in a
# useful time, and a processor's cache of instructions does not hold it.
MOST_STATEMENTS = 1 << 14


def unroll_function(f: PrimFunc) -> PrimFunc:
    """`f` with every loop marked `unrolled` repeated. Raises UserError for symbolic extents, and
    for more than MOST_STATEMENTS statements."""
    body = _Unroller(_Budget(f.name)).statement(f.body, {})
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


class _Unroller:
    """Repeats the loops of one program. Copies of an expression for the same values of the
    variables in it are one object: in a tile of products each operand is that of many, and who
    reads the program afterwards need look at it once."""

    def __init__(self, budget: _Budget) -> None:
        self._budget = budget
        # By identity: the variables in an expression, the values of a loop, and the copies of an
        # expression by those values of its variables that are known, 0 for the others.
        self._variables: dict[int, tuple[Var, ...]] = {}
        self._values: dict[tuple[int, Expr], list[Expr]] = {}
        self._copies: dict[tuple[int, ...], Expr] = {}
        self._names: list[Var] = []  # in `_copies` by identity too

    def statement(self, s: Stmt, values: Mapping[Var, Expr]) -> Stmt:
        """`s` with unrolled loops repeated; `values` are the loop variables that became
        constants."""

        def ex(e: Expr) -> Expr:
            return self._expression(e, values) if values else e

        match s:
            case For(var, lo, extent, "unrolled", body):
                start, count = ex(lo), int_value(ex(extent))
                if count is None:
                    raise UserError(
                        f"unrolled loop over {var} has no constant extent",
                        code="unroll",
                        hint="T.serial, or split it by a constant first",
                    )
                self._budget.spend(count, var)
                indices = self._values.get((id(s), start))
                if indices is None:
                    indices = [binary("add", start, const(i, var.dtype)) for i in range(count)]
                    self._values[id(s), start] = indices
                return seq(*(self.statement(body, {**values, var: i}) for i in indices))
            case Seq(stmts) if values:
                self._budget.spend(len(stmts) - 1, [*values][-1])
            case Let(var, value, body) if values:
                # A body repeated by an enclosing unrolled loop binds a fresh variable each time.
                fresh = Var(var.name, var.dtype)
                self._names.append(fresh)
                return Let(fresh, ex(value), self.statement(body, {**values, var: fresh}))
            case If(cond, then, orelse):
                constant = int_value(ex(cond))
                if constant is not None:
                    branch = then if constant else orelse
                    return Seq(()) if branch is None else self.statement(branch, values)
        return map_stmt(s, ex, lambda t: self.statement(t, values))

    def _expression(self, e: Expr, values: Mapping[Var, Expr]) -> Expr:
        if isinstance(e, Var):
            return values.get(e, e)
        if isinstance(e, (IntImm, FloatImm)):
            return e
        variables = self._variables.get(id(e))
        if variables is None:
            variables = self._variables[id(e)] = tuple(free_vars(e))
        key = (id(e), *[id(values[v]) if v in values else 0 for v in variables])
        copy = self._copies.get(key)
        if copy is None:
            copy = map_children(e, lambda x: self._expression(x, values))
            self._copies[key] = copy
        return copy
