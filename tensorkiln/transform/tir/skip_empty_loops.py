"""Run no loops around a loop that has no iterations.

    for i in range(n):                       if m > 0:
        for j in range(m):          ->           for i in range(n):
            B[j, i] = A[i, j]                        for j in range(m):
                                                         B[j, i] = A[i, j]

Of a tensor of no elements any extent may be 0 and the others be as large as they like: without the
test, the loops of a 2^40 by 0 matrix take minutes. A loop is tested once before it begins, if all
that its body writes for others stands in loops whose extents are known there. Memory that the body
allocates for itself is not for others, so a sum over no elements still gives its 0.
"""

from __future__ import annotations

from collections.abc import Iterable, Set
from dataclasses import replace

from tensorkiln.ir.buffer import Buffer
from tensorkiln.ir.dtype import BOOL
from tensorkiln.ir.expr import (
    CallExtern,
    Expr,
    IntImm,
    Unary,
    Var,
    binary,
    const,
    logical_and,
)
from tensorkiln.ir.module import IRModule
from tensorkiln.ir.stmt import (
    Alloc,
    For,
    If,
    Let,
    MatchBuffer,
    Prefetch,
    PrimFunc,
    Seq,
    Stmt,
    Store,
)
from tensorkiln.ir.visit import (
    bound_vars,
    free_vars,
    has_load,
    map_stmt,
    stmt_exprs,
    walk,
    walk_stmt,
)

_NEVER = IntImm(0, BOOL)
_ALWAYS = IntImm(1, BOOL)


def skip_empty_loops(mod: IRModule) -> IRModule:
    """Test loops of all tensor programs; `mod` itself if no loop has an open extent inside."""
    return mod.map_bodies(_tested_function)


def _tested_function(f: PrimFunc) -> PrimFunc:
    body = _tested(f.body)
    return f if body is f.body else replace(f, body=body)


def _tested(s: Stmt) -> Stmt:
    """A statement whose outermost loops with open extents inside are tested before they begin."""
    if isinstance(s, If) and s.orelse is None and s.cond == _test(s.then):
        return s
    test = _test(s)
    return map_stmt(s, lambda e: e, _tested) if test is None else If(test, s)


def _test(s: Stmt) -> Expr | None:
    """The condition to test before a statement; None if there is nothing to test."""
    idle = _idle_inside(s)
    return None if isinstance(idle, IntImm) else Unary("not", idle)


def _idle_inside(s: Stmt) -> Expr:
    """The condition under which a statement with a loop has no effect although its first loop has
    iterations."""
    hidden = {v for t in walk_stmt(s) for v in bound_vars(t)}
    private: set[Buffer] = set()
    first = s
    while isinstance(first, Alloc | Let | MatchBuffer):
        _note(first, private)
        first = first.body
    if isinstance(first, For):  # all of a device's threads begin: its functions are loops of them
        return _NEVER if first.kind == "thread" else _idle(first.body, hidden, private)
    return _idle(first, hidden, private) if private and isinstance(first, Seq) else _NEVER


def _note(s: Alloc | Let | MatchBuffer, private: set[Buffer]) -> None:
    """Add the memory that a statement allocates, and views of it, to the private memory."""
    if isinstance(s, Alloc) or (isinstance(s, MatchBuffer) and s.source in private):
        private.add(s.buffer)


def _idle(s: Stmt, hidden: Set[Var], private: set[Buffer]) -> Expr:
    """The condition under which a statement has no effect except on `private` buffers. It must not
    use the variables in `hidden`, which are not bound where it is tested."""
    if any(_calls(e) for e in stmt_exprs(s)):
        return _NEVER
    match s:
        case For(_, _, extent, _, body):
            inside = _idle(body, hidden, private)
            if has_load(extent) or not hidden.isdisjoint(free_vars(extent)):
                return inside
            return _either(binary("le", extent, const(0, extent.dtype)), inside)
        case Alloc() | Let() | MatchBuffer():
            _note(s, private)
            return _idle(s.body, hidden, private)
        case If(_, then_body, orelse):
            return _all([then_body] if orelse is None else [then_body, orelse], hidden, private)
        case Seq(stmts):
            return _all(stmts, hidden, private)
        case Store(buffer):
            return _ALWAYS if buffer in private else _NEVER
        case Prefetch():
            return _ALWAYS
    return _NEVER


def _all(stmts: Iterable[Stmt], hidden: Set[Var], private: set[Buffer]) -> Expr:
    idle = []
    for s in stmts:
        idle.append(_idle(s, hidden, private))
        if idle[-1] == _NEVER:  # as nearly always, at the first store
            return _NEVER
    return logical_and(*idle)


def _either(a: Expr, b: Expr) -> Expr:
    if isinstance(a, IntImm) or isinstance(b, IntImm):
        return _ALWAYS if _ALWAYS in (a, b) else b if isinstance(a, IntImm) else a
    return binary("or", a, b)


def _calls(e: Expr) -> bool:
    return any(isinstance(x, CallExtern) for x in walk(e))


__all__ = ["skip_empty_loops"]
