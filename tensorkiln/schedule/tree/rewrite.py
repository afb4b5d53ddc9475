"""Replace loop variables by expressions over new ones, simplified.

i -> i_0 * 4 + i_1, i_1 < 4:    vi = T.axis.spatial(8, i // 4)   ->   ...(8, i_0)
"""

from __future__ import annotations

from collections.abc import Mapping

from tensorkiln.arith import Bounds, simplify
from tensorkiln.ir.expr import Expr, Var
from tensorkiln.ir.stmt import Alloc, Block, BlockIter, For, If, MatchBuffer, Stmt
from tensorkiln.ir.visit import map_stmt, substitute, walk, walk_stmt
from tensorkiln.schedule.tree.surgery import substitute_loops

Values = Mapping[Var, Expr]


def rewrite(s: Stmt, values: Values, known: Bounds) -> Stmt:
    """`s` with variables replaced, and the changed expressions simplified, except in blocks'
    bodies. `known`: bounds at `s`, of the new variables."""
    if any(isinstance(t, Alloc | MatchBuffer) and _sized_by(t, values) for t in walk_stmt(s)):
        return substitute_loops(s, values)
    return _stmt(s, values, known)


def _sized_by(s: Alloc | MatchBuffer, values: Values) -> bool:
    b = s.buffer
    return any(_uses(e, values) for e in (*b.shape, *(b.strides_given or ())))


def _uses(e: Expr, values: Values) -> bool:
    return any(isinstance(x, Var) and x in values for x in walk(e))


def _expr(e: Expr, values: Values, known: Bounds) -> Expr:
    return simplify(substitute(e, values), known) if _uses(e, values) else e


def _stmt(s: Stmt, values: Values, known: Bounds) -> Stmt:
    match s:
        case For(var, lo, extent, kind, body, attrs):
            lo2, extent2 = _expr(lo, values, known), _expr(extent, values, known)
            body2 = _stmt(body, values, known.with_loop(var, lo2, extent2))
            same = lo2 is lo and extent2 is extent and body2 is body
            return s if same else For(var, lo2, extent2, kind, body2, attrs)
        case If(cond, then, orelse):
            cond2 = _expr(cond, values, known)
            then2 = _stmt(then, values, known)
            other = None if orelse is None else _stmt(orelse, values, known)
            same = cond2 is cond and then2 is then and other is orelse
            return s if same else If(cond2, then2, other)
        case Block():
            return _block(s, values, known)
    return map_stmt(s, lambda e: _expr(e, values, known), lambda t: _stmt(t, values, known))


def _block(s: Block, values: Values, known: Bounds) -> Stmt:
    """A block with the values of its iteration variables rewritten; its body changes only where it
    uses a replaced variable directly."""
    iters = tuple(_iter(i, values, known) for i in s.iters)
    rest = map_stmt(
        Block(s.name, (), s.reads, s.writes, s.body, s.init, s.attrs),
        lambda e: substitute(e, values) if _uses(e, values) else e,
        lambda t: substitute_loops(t, values),
    )
    assert isinstance(rest, Block)
    same = all(a is b for a, b in zip(iters, s.iters, strict=True))
    if same and rest.body is s.body and rest.init is s.init:
        return s
    return Block(s.name, iters, rest.reads, rest.writes, rest.body, rest.init, s.attrs)


def _iter(i: BlockIter, values: Values, known: Bounds) -> BlockIter:
    extent, value = _expr(i.extent, values, known), _expr(i.value, values, known)
    same = extent is i.extent and value is i.value
    return i if same else BlockIter(i.var, extent, i.kind, value)
