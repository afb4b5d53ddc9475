"""Edit statement trees: find a named loop or block, replace it, rename variables and buffers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

from tensorkiln.ir.buffer import Buffer
from tensorkiln.ir.expr import Expr, Var
from tensorkiln.ir.stmt import Alloc, Block, For, MatchBuffer, Stmt, Store
from tensorkiln.ir.visit import (
    bound_vars,
    free_vars,
    map_bound_vars,
    map_stmt,
    replace_buffers,
    stmt_exprs,
    substitute,
    substitute_stmt,
    substmts,
    walk,
    walk_stmt,
)
from tensorkiln.schedule.tree.names import name_of


def path_to(s: Stmt, target: str | Stmt) -> tuple[Stmt, ...] | None:
    """Statements from `s` to `target`, a statement or the name of a loop or block, both included;
    None when not found."""
    if s is target or name_of(s) == target:
        return (s,)
    for t in substmts(s):
        if t is not target and isinstance(t, Store):
            continue  # nothing is in a store, and most statements are stores
        path = path_to(t, target)
        if path is not None:
            return (s, *path)
    return None


def expressions(s: Stmt) -> Iterator[Expr]:
    """Every expression in a statement and the statements in it, with the parts of each."""
    return (x for t in walk_stmt(s) for e in stmt_exprs(t) for x in walk(e))


def put(path: tuple[Stmt, ...], new: Stmt) -> Stmt:
    """The first statement of a path, with the last one replaced inside it."""
    for s, old in zip(path[-2::-1], path[:0:-1], strict=True):
        new = with_child(s, old, new)
    return new


def with_child(s: Stmt, old: Stmt, new: Stmt) -> Stmt:
    """`s` with its direct substatement `old` replaced; `old` is compared by identity."""
    return map_stmt(s, lambda e: e, lambda t: new if t is old else t)


def substitute_loops(s: Stmt, values: Mapping[Var, Expr]) -> Stmt:
    """Replace variables everywhere. Buffers that are allocated inside, with shapes or strides that
    use them, are replaced by resized ones."""
    new_buffers = {}
    for t in walk_stmt(s):
        if isinstance(t, Alloc | MatchBuffer):
            b = t.buffer
            sizes = (*b.shape, *(b.strides_given or ()))
            if any(v in values for e in sizes for v in free_vars(e)):
                new_buffers[b] = _resized(b, values)
    s = substitute_stmt(s, values)
    return replace_buffers(s, new_buffers) if new_buffers else s


def _resized(b: Buffer, values: Mapping[Var, Expr]) -> Buffer:
    shape = tuple(substitute(d, values) for d in b.shape)
    old_strides = b.strides_given
    strides = None if old_strides is None else tuple(substitute(d, values) for d in old_strides)
    return replace(b, shape=shape, strides_given=strides)


def renewed(s: Stmt, name: Callable[[str], str]) -> Stmt:
    """A copy of `s` that can be put beside it, with new variables, buffers and names.

    `name` makes a free name from the name of a loop or block. The attribute `origin` of a copied
    block is the name of the original block.
    """
    values: dict[Var, Var] = {}
    buffers: dict[Buffer, Buffer] = {}
    for t in walk_stmt(s):
        for v in bound_vars(t):
            values[v] = Var(name(v.name) if isinstance(t, For) else v.name, v.dtype)
        if isinstance(t, Alloc | MatchBuffer):
            buffers[t.buffer] = replace(t.buffer)
    s = substitute_loops(_rebound(s, values, name), values)
    return replace_buffers(s, _second(s, buffers)) if buffers else s


def _rebound(s: Stmt, values: Mapping[Var, Var], name: Callable[[str], str]) -> Stmt:
    """`s` with the variables that it binds replaced there; uses still have the old variables."""
    new = map_stmt(s, lambda e: e, lambda t: _rebound(t, values, name))
    new = map_bound_vars(new, values.__getitem__)
    if not isinstance(new, Block):
        return new
    origin = new.attrs.get("origin", new.name)
    attrs = type(new.attrs).of(**{**new.attrs, "origin": origin})
    return replace(new, name=name(new.name), attrs=attrs)


def _second(s: Stmt, buffers: Mapping[Buffer, Buffer]) -> dict[Buffer, Buffer]:
    """The part of `buffers` whose old buffers are still allocated in `s`; the others were resized,
    and so are new already."""
    local_buffers = {t.buffer for t in walk_stmt(s) if isinstance(t, Alloc | MatchBuffer)}
    return {old: new for old, new in buffers.items() if old in local_buffers}
