"""Repeat the bodies of unrolled loops.

    for i in unrolled(2): A[i] = 0        ->   A[0] = 0; A[1] = 0

Only the emitter does this, to its own copy: the program that is printed, verified and used as a
cache key keeps its loops. A conditional whose condition becomes constant is replaced by the branch
that is taken.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

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


def unroll_function(f: PrimFunc) -> PrimFunc:
    """`f` with every loop marked `unrolled` repeated. Raises UserError for symbolic extents."""
    body = _stmt(f.body, {})
    return f if body is f.body else replace(f, body=body)


def _stmt(s: Stmt, values: Mapping[Var, Expr]) -> Stmt:
    """`s` with unrolled loops repeated; `values` are the loop variables that became constants."""
    memo: dict[int, tuple[Expr, Expr]] = {}

    def ex(e: Expr) -> Expr:
        if not values:
            return e
        if isinstance(e, Var):
            return values.get(e, e)
        if isinstance(e, (IntImm, FloatImm)):
            return e
        found = memo.get(id(e))
        if found is None:
            found = memo[id(e)] = (e, map_children(e, ex))
        return found[1]

    match s:
        case For(var, lo, extent, "unrolled", body):
            start, count = ex(lo), int_value(ex(extent))
            if count is None:
                raise UserError(
                    f"unrolled loop over {var} has no constant extent",
                    code="unroll",
                    hint="T.serial, or split it by a constant first",
                )
            at = [binary("add", start, const(i, var.dtype)) for i in range(count)]
            return seq(*(_stmt(body, {**values, var: i}) for i in at))
        case Let(var, value, body) if values:
            # A body repeated by an enclosing unrolled loop binds a fresh variable each time.
            fresh = Var(var.name, var.dtype)
            return Let(fresh, ex(value), _stmt(body, {**values, var: fresh}))
        case If(cond, then, orelse):
            known = int_value(ex(cond))
            if known is not None:
                branch = then if known else orelse
                return Seq(()) if branch is None else _stmt(branch, values)
    return map_stmt(s, ex, lambda t: _stmt(t, values))
