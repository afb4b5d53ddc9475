"""Edit statement trees: find a named loop or block, replace it, rename variables and buffers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from tensorkiln.ir.buffer import AddressOf, Buffer, Load
from tensorkiln.ir.expr import Expr, Var
from tensorkiln.ir.stmt import (
    Alloc,
    Block,
    For,
    If,
    Let,
    MatchBuffer,
    Prefetch,
    Region,
    Seq,
    Stmt,
    Store,
    seq,
)
from tensorkiln.ir.visit import (
    free_vars,
    map_children,
    map_stmt,
    substitute,
    substitute_stmt,
    substmts,
    walk_stmt,
)
from tensorkiln.schedule.primitives.names import name_of


def path_to(s: Stmt, name: str) -> tuple[Stmt, ...] | None:
    """Statements from `s` to the loop or block `name`, both included; None when not found."""
    if name_of(s) == name:
        return (s,)
    for t in substmts(s):
        found = path_to(t, name)
        if found is not None:
            return (s, *found)
    return None


def put(path: tuple[Stmt, ...], new: Stmt) -> Stmt:
    """The first statement of a path, with the last one replaced inside it."""
    for s, old in zip(path[-2::-1], path[:0:-1], strict=True):
        new = with_child(s, old, new)
    return new


def with_child(s: Stmt, old: Stmt, new: Stmt) -> Stmt:
    """`s` with its direct substatement `old` replaced; `old` is compared by identity."""
    match s:
        case Seq(stmts):
            at = next(i for i, t in enumerate(stmts) if t is old)
            return seq(*stmts[:at], new, *stmts[at + 1 :])
        case If(cond, then, orelse):
            return If(cond, new, orelse) if then is old else If(cond, then, new)
        case Block(body=body):
            return replace(s, body=new) if body is old else replace(s, init=new)
    return map_stmt(s, lambda e: e, lambda _: new)


def substitute_loops(s: Stmt, values: Mapping[Var, Expr]) -> Stmt:
    """Replace variables everywhere. Buffers that are allocated inside, with shapes or strides that
    use them, are replaced by resized ones."""
    made = {}
    for t in walk_stmt(s):
        if isinstance(t, Alloc | MatchBuffer):
            b = t.buffer
            sizes = (*b.shape, *(b.strides_given or ()))
            if any(v in values for e in sizes for v in free_vars(e)):
                made[b] = _resized(b, values)
    s = substitute_stmt(s, values)
    return replace_buffers(s, made) if made else s


def _resized(b: Buffer, values: Mapping[Var, Expr]) -> Buffer:
    shape = tuple(substitute(d, values) for d in b.shape)
    given = b.strides_given
    strides = None if given is None else tuple(substitute(d, values) for d in given)
    return replace(b, shape=shape, strides_given=strides)


def replace_buffers(s: Stmt, new: Mapping[Buffer, Buffer]) -> Stmt:
    """Replace buffers by others of the same rank: in accesses, regions and allocations."""

    def ex(e: Expr) -> Expr:
        e = map_children(e, ex)
        if isinstance(e, Load | AddressOf) and e.buffer in new:
            return replace(e, buffer=new[e.buffer])
        return e

    def region(r: Region) -> Region:
        return replace(r, buffer=new[r.buffer]) if r.buffer in new else r

    def st(t: Stmt) -> Stmt:
        t = map_stmt(t, ex, st)
        match t:
            case Store() | Alloc() | MatchBuffer() | Prefetch() if t.buffer in new:
                t = replace(t, buffer=new[t.buffer])
            case Block() if any(r.buffer in new for r in (*t.reads, *t.writes)):
                t = replace(
                    t, reads=tuple(map(region, t.reads)), writes=tuple(map(region, t.writes))
                )
        if isinstance(t, MatchBuffer) and t.source in new:
            t = replace(t, source=new[t.source])
        return t

    return st(s)


def renewed(s: Stmt, name: Callable[[str], str]) -> Stmt:
    """A copy of `s` that can be put beside it, with new variables, buffers and names.

    `name` makes a free name from the name of a loop or block. The attribute `origin` of a copied
    block is the name of the original block.
    """
    values: dict[Var, Var] = {}
    buffers: dict[Buffer, Buffer] = {}
    for t in walk_stmt(s):
        match t:
            case For(var):
                values[var] = Var(name(var.name), var.dtype)
            case Let(var):
                values[var] = Var(var.name, var.dtype)
            case Block(iters=iters):
                values.update((i.var, Var(i.var.name, i.var.dtype)) for i in iters)
            case Alloc(buffer) | MatchBuffer(buffer):
                buffers[buffer] = replace(buffer)
    s = substitute_loops(_rebound(s, values, name), values)
    return replace_buffers(s, _second(s, buffers)) if buffers else s


def _rebound(s: Stmt, values: Mapping[Var, Var], name: Callable[[str], str]) -> Stmt:
    """`s` with the variables that it binds replaced there; uses still have the old variables."""
    new = map_stmt(s, lambda e: e, lambda t: _rebound(t, values, name))
    match new:
        case For(var) | Let(var):
            return replace(new, var=values[var])
        case Block(iters=iters):
            origin = new.attrs.get("origin", new.name)
            attrs = type(new.attrs).of(**{**new.attrs, "origin": origin})
            own = tuple(replace(i, var=values[i.var]) for i in iters)
            return replace(new, name=name(new.name), iters=own, attrs=attrs)
    return new


def _second(s: Stmt, buffers: Mapping[Buffer, Buffer]) -> dict[Buffer, Buffer]:
    """The part of `buffers` whose old buffers are still allocated in `s`; the others were resized,
    and so are new already."""
    made = {t.buffer for t in walk_stmt(s) if isinstance(t, Alloc | MatchBuffer)}
    return {old: new for old, new in buffers.items() if old in made}
