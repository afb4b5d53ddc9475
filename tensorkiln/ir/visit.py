"""Traversals of expressions and statements: children, rewriting, substitution, collection.

What a node consists of is in its class (`fields.py`); nothing here names the fields of a node.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from typing import TypeVar

from tensorkiln.ir.buffer import Buffer, Load
from tensorkiln.ir.expr import CallExtern, Expr, Var
from tensorkiln.ir.fields import Readers, Rewriters
from tensorkiln.ir.stmt import PrimFunc, Stmt

Rewrite = Callable[[Expr], Expr]
Node = TypeVar("Node", Expr, Stmt)

_EXPRS, _STMTS, _BINDERS = Readers(Expr), Readers(Stmt), Readers(Var)
_MAP_EXPRS, _MAP_STMTS = Rewriters(Expr), Rewriters(Stmt)
_MAP_BINDERS, _MAP_BUFFERS = Rewriters(Var), Rewriters(Buffer)


def children(e: Expr) -> Sequence[Expr]:
    """Direct subexpressions, left to right."""
    return _EXPRS[type(e)](e)


def map_children(e: Expr, f: Rewrite) -> Expr:
    """`e` with `f` applied to each child; `e` itself when none changed. Constants are folded."""
    new: Expr = _MAP_EXPRS[type(e)](e, f)
    return new


def stmt_exprs(s: Stmt) -> Sequence[Expr]:
    """The expressions of a statement itself, without those of its substatements."""
    return _EXPRS[type(s)](s)


def substmts(s: Stmt) -> Sequence[Stmt]:
    """Statements directly inside a statement, in the order in which they run."""
    return _STMTS[type(s)](s)


def map_stmt(s: Stmt, on_expr: Rewrite, on_stmt: Callable[[Stmt], Stmt]) -> Stmt:
    """`s` with its expressions and direct substatements rewritten; `s` itself if none changed."""
    new: Stmt = _MAP_EXPRS[type(s)](s, on_expr)
    new = _MAP_STMTS[type(s)](new, on_stmt)
    return new


def bound_vars(s: Stmt) -> Sequence[Var]:
    """The variables that a statement itself binds."""
    return _BINDERS[type(s)](s)


def map_bound_vars(s: Stmt, f: Callable[[Var], Var]) -> Stmt:
    """`s` binding other variables; uses of the old ones are not changed."""
    new: Stmt = _MAP_BINDERS[type(s)](s, f)
    return new


def map_buffers(node: Node, f: Callable[[Buffer], Buffer]) -> Node:
    """An expression or statement with its own buffers rewritten, not those of its parts."""
    new: Node = _MAP_BUFFERS[type(node)](node, f)
    return new


def substitute(e: Expr, values: Mapping[Var, Expr]) -> Expr:
    """Replace variables by expressions."""
    if isinstance(e, Var):
        return values.get(e, e)
    return map_children(e, lambda c: substitute(c, values))


def substitute_stmt(s: Stmt, values: Mapping[Var, Expr]) -> Stmt:
    """Replace variables by expressions in a whole statement."""
    return map_stmt(s, lambda e: substitute(e, values), lambda t: substitute_stmt(t, values))


def replace_buffers(s: Stmt, new: Mapping[Buffer, Buffer]) -> Stmt:
    """Replace buffers by others of the same rank: in accesses, regions and allocations."""

    def swap(b: Buffer) -> Buffer:
        return new.get(b, b)

    def ex(e: Expr) -> Expr:
        return map_buffers(map_children(e, ex), swap)

    def st(t: Stmt) -> Stmt:
        return map_buffers(map_stmt(t, ex, st), swap)

    return st(s)


def walk(e: Expr) -> Iterator[Expr]:
    """Yield `e` and all expressions below it, in pre-order."""
    stack = [e]
    while stack:
        x = stack.pop()
        yield x
        if below := _EXPRS[type(x)](x):
            stack.extend(below[::-1])


def is_longer(e: Expr, nodes: int) -> bool:
    """Whether an expression has more nodes than `nodes`, each counted as often as it occurs."""
    return next(islice(walk(e), nodes, None), None) is not None


def walk_stmt(s: Stmt) -> Iterator[Stmt]:
    """Yield `s` and all statements below it, in pre-order."""
    stack = [s]
    while stack:
        x = stack.pop()
        yield x
        if below := _STMTS[type(x)](x):
            stack.extend(below[::-1])


def distinct_exprs(s: Stmt) -> Iterator[Expr]:
    """Yield all expressions in a statement and in those below it, each object once."""
    visited: set[int] = set()
    for t in walk_stmt(s):
        stack = [*_EXPRS[type(t)](t)]
        while stack:
            x = stack.pop()
            if id(x) not in visited:
                visited.add(id(x))
                yield x
                stack.extend(_EXPRS[type(x)](x))


def free_vars(e: Expr) -> list[Var]:
    """Variables used in `e` in order of first appearance, also those that a Reduce in it binds."""
    variables: dict[Var, None] = {}
    stack = [e]  # as `walk` does, which costs twice as much
    while stack:
        x = stack.pop()
        if isinstance(x, Var):
            variables[x] = None
        elif below := _EXPRS[type(x)](x):
            stack.extend(below[::-1])
    return list(variables)


def has_load(e: Expr) -> bool:
    """Whether an expression reads memory, or calls a C function, which may read it."""
    return any(isinstance(x, Load | CallExtern) for x in walk(e))


def loads(e: Expr) -> list[Load]:
    """Every Load in an expression, in pre-order."""
    return [x for x in walk(e) if isinstance(x, Load)]


def extern_names(f: PrimFunc) -> dict[str, None]:
    """Names of the C functions that a tensor program calls, in order of first appearance."""
    parts = (x for s in walk_stmt(f.body) for e in stmt_exprs(s) for x in walk(e))
    return {x.name: None for x in parts if isinstance(x, CallExtern)}
