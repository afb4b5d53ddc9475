"""Replace loop variables by expressions over new ones, simplified.

i -> i_0 * 4 + i_1, i_1 < 4:    vi = T.axis.spatial(8, i // 4)   ->   ...(8, i_0)
"""

from __future__ import annotations

from collections.abc import Mapping

from tensorkiln.arith import Bounds, simplify
from tensorkiln.ir.expr import Expr, Var
from tensorkiln.ir.stmt import Alloc, Block, BlockIter, For, If, MatchBuffer, Stmt
from tensorkiln.ir.visit import free_vars, map_stmt, substitute, walk_stmt
from tensorkiln.schedule.tree.surgery import substitute_loops

Values = Mapping[Var, Expr]


def rewrite(s: Stmt, values: Values, bounds: Bounds) -> Stmt:
    """`s` with variables replaced, and the changed expressions simplified, except in blocks'
    bodies. `bounds`: at `s`, of the new variables."""
    if any(isinstance(t, Alloc | MatchBuffer) and _sized_by(t, values) for t in walk_stmt(s)):
        return substitute_loops(s, values)
    return _stmt(s, values, bounds)


def _sized_by(s: Alloc | MatchBuffer, values: Values) -> bool:
    b = s.buffer
    return any(_uses(e, values) for e in (*b.shape, *(b.strides_given or ())))


def _uses(e: Expr, values: Values) -> bool:
    return not values.keys().isdisjoint(free_vars(e))


def _expr(e: Expr, values: Values, bounds: Bounds) -> Expr:
    return simplify(substitute(e, values), bounds) if _uses(e, values) else e


def _stmt(s: Stmt, values: Values, bounds: Bounds) -> Stmt:
    match s:
        case For(var, lo, extent, kind, body, attrs):
            lo2, extent2 = _expr(lo, values, bounds), _expr(extent, values, bounds)
            body2 = _stmt(body, values, bounds.with_loop(var, lo2, extent2))
            unchanged = lo2 is lo and extent2 is extent and body2 is body
            return s if unchanged else For(var, lo2, extent2, kind, body2, attrs)
        case If(cond, then_body, orelse):
            cond2 = _expr(cond, values, bounds)
            then2 = _stmt(then_body, values, bounds)
            orelse2 = None if orelse is None else _stmt(orelse, values, bounds)
            unchanged = cond2 is cond and then2 is then_body and orelse2 is orelse
            return s if unchanged else If(cond2, then2, orelse2)
        case Block():
            return _block(s, values, bounds)
    return map_stmt(s, lambda e: _expr(e, values, bounds), lambda t: _stmt(t, values, bounds))


def _block(s: Block, values: Values, bounds: Bounds) -> Stmt:
    """A block with the values of its iteration variables rewritten; its body changes only where it
    uses a replaced variable directly."""
    iters = tuple(_iter(i, values, bounds) for i in s.iters)
    inner = map_stmt(
        Block(s.name, (), s.reads, s.writes, s.body, s.init, s.attrs),
        lambda e: substitute(e, values) if _uses(e, values) else e,
        lambda t: substitute_loops(t, values),
    )
    assert isinstance(inner, Block)
    unchanged = all(a is b for a, b in zip(iters, s.iters, strict=True))
    if unchanged and inner.body is s.body and inner.init is s.init:
        return s
    return Block(s.name, iters, inner.reads, inner.writes, inner.body, inner.init, s.attrs)


def _iter(i: BlockIter, values: Values, bounds: Bounds) -> BlockIter:
    extent, value = _expr(i.extent, values, bounds), _expr(i.value, values, bounds)
    unchanged = extent is i.extent and value is i.value
    return i if unchanged else BlockIter(i.var, extent, i.kind, value)
