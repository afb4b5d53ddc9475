"""Simplification of statements, given the ranges of loop variables and the conditions of branches.

A loop of extent 1 is replaced by its body with `lo` for the variable, and a loop of extent 0 is
removed. An `If` whose condition is decided is replaced by the branch that is taken. A `Let` of a
constant or a variable is substituted.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from tensorkiln.arith.ranges import Bounds
from tensorkiln.arith.simplify import NOTHING_KNOWN, BoundsLike, as_bounds, bound, simplify
from tensorkiln.arith.tame import Tame
from tensorkiln.ir.expr import Expr, IntImm, Unary, Var, binary, int_value
from tensorkiln.ir.stmt import Alloc, For, If, Let, MatchBuffer, Seq, Stmt, Store, seq
from tensorkiln.ir.visit import free_vars, map_children, map_stmt, substitute, walk_stmt

Values = Mapping[Var, Expr]


def simplify_stmt(s: Stmt, bounds: BoundsLike = NOTHING_KNOWN, wild: Collection[Var] = ()) -> Stmt:
    """Return a statement with the same effect for all values within `bounds`; `Seq(())` if it has
    no effect.

    Only index arithmetic is simplified (`tame.py`). Expressions of loaded numbers, or of the
    variables in `wild`, such as scalar parameters, are kept, because they may wrap around.
    """
    return _stmt(s, as_bounds(bounds), _Known({}, Tame(wild)))


@dataclass(frozen=True, slots=True)
class _Known:
    """Values to substitute for variables, and the magnitudes of variables."""

    values: Values
    tame: Tame


def _stmt(s: Stmt, bounds: Bounds, values: _Known) -> Stmt:
    match s:
        case For():
            return _loop(s, bounds, values)
        case If():
            return _branch(s, bounds, values)
        case Let():
            return _let(s, bounds, values)
        case Alloc(buffer, body):
            new = _stmt(body, bounds, values)
            return new if _empty(new) else s if new is body else Alloc(buffer, new)
    new = map_stmt(s, lambda e: _expr(e, bounds, values), lambda t: _stmt(t, bounds, values))
    # `seq` drops the empty sequences that removed loops leave behind
    return seq(*new.stmts) if isinstance(new, Seq) and new is not s else new


def _expr(e: Expr, bounds: Bounds, values: _Known) -> Expr:
    return _simplified(substitute(e, values.values) if values.values else e, bounds, values.tame)


def _simplified(e: Expr, bounds: Bounds, tame: Tame) -> Expr:
    """Return `e` with all subexpressions simplified that are index arithmetic."""
    if tame(e):
        return simplify(e, bounds)
    return map_children(e, lambda x: _simplified(x, bounds, tame))


def _loop(s: For, bounds: Bounds, values: _Known) -> Stmt:
    lo, extent = _expr(s.lo, bounds, values), _expr(s.extent, bounds, values)
    # Bounds that may overflow say nothing about the variable inside.
    if not (values.tame(lo) and values.tame(extent)):
        values.tame.loop(s.var, lo, extent)
        body = _stmt(s.body, bounds, values)
        return body if _empty(body) else For(s.var, lo, extent, s.kind, body, s.attrs)
    upper = bound(extent, bounds)[1]
    if upper is not None and upper <= 0:
        return Seq(())
    # the body runs only if the extent is at least 1, which is then known inside
    running = simplify(binary("ge", extent, 1), bounds)
    inner_bounds = bounds if isinstance(running, IntImm) else bounds.given(running)
    inside = inner_bounds.with_loop(s.var, lo, extent)
    once = int_value(extent) == 1 and s.kind != "thread"  # a thread loop binds a grid index
    if once and not _shapes_mention(s.body, s.var):
        return _stmt(s.body, bounds, replace(values, values={**values.values, s.var: lo}))
    values.tame.loop(s.var, lo, extent)
    body = _stmt(s.body, inside, values)
    if _empty(body):
        return body
    is_unchanged = lo is s.lo and extent is s.extent and body is s.body
    return s if is_unchanged else For(s.var, lo, extent, s.kind, body, s.attrs)


def _branch(s: If, bounds: Bounds, values: _Known) -> Stmt:
    cond = _expr(s.cond, bounds, values)
    if isinstance(cond, IntImm):
        branch = s.then if cond.value else s.orelse
        return Seq(()) if branch is None else _stmt(branch, bounds, values)
    otherwise = _simplified(Unary("not", cond), bounds, values.tame)
    says = values.tame(cond)
    then_body = _stmt(s.then, bounds.given(cond) if says else bounds, values)
    orelse = None
    if s.orelse is not None:
        orelse = _stmt(s.orelse, bounds.given(otherwise) if says else bounds, values)
        orelse = None if _empty(orelse) else orelse
    then_body, orelse = _at_one_place(s, then_body, orelse, bounds, values)
    if _empty(then_body):
        if orelse is None:
            return then_body
        cond, then_body, orelse = otherwise, orelse, None
    is_unchanged = cond is s.cond and then_body is s.then and orelse is s.orelse
    return s if is_unchanged else If(cond, then_body, orelse)


def _at_one_place(
    s: If, then_body: Stmt, orelse: Stmt | None, bounds: Bounds, values: _Known
) -> tuple[Stmt, Stmt | None]:
    """The simplified branches of `s`, with the same indices again if both of them store to one
    place of shared memory, as a copy does that fills with zeros (`ir/copies.py`): what the
    condition says of that place would be another text in either branch."""
    match s.then, s.orelse, then_body, orelse:
        case Store(a, place), Store(b, fill_place), Store() as x, Store() as y if a is b:
            if a.scope != "shared" or place != fill_place or x.indices == y.indices:
                return x, y
            indices = tuple(_expr(i, bounds, values) for i in place)
            return replace(x, indices=indices), replace(y, indices=indices)
    return then_body, orelse


def _let(s: Let, bounds: Bounds, values: _Known) -> Stmt:
    value = _expr(s.value, bounds, values)
    if isinstance(value, IntImm | Var) and not _shapes_mention(s.body, s.var):
        return _stmt(s.body, bounds, replace(values, values={**values.values, s.var: value}))
    inner_bounds = bounds
    values.tame.let(s.var, value)
    if value.dtype.is_int and values.tame(value):
        inner_bounds = bounds.with_range(s.var, *bound(value, bounds))
    body = _stmt(s.body, inner_bounds, values)
    if _empty(body):
        return body
    return s if value is s.value and body is s.body else Let(s.var, value, body)


def _empty(s: Stmt) -> bool:
    return isinstance(s, Seq) and not s.stmts


def _shapes_mention(s: Stmt, var: Var) -> bool:
    """Whether the shape or strides of a buffer made inside `s` contain `var`. Then `var` cannot be
    substituted, because buffers are not rebuilt."""
    return any(
        var in free_vars(dim)
        for t in walk_stmt(s)
        if isinstance(t, Alloc | MatchBuffer)
        for dim in (*t.buffer.shape, *(t.buffer.strides_given or ()))
    )
