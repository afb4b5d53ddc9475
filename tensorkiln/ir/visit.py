"""Traversals of expressions and statements: children, rewriting, substitution, collection."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from tensorkiln.ir.buffer import AddressOf, Load
from tensorkiln.ir.expr import (
    Binary,
    Broadcast,
    CallExtern,
    Cast,
    Expr,
    FloatImm,
    IntImm,
    Intrin,
    Ramp,
    Reduce,
    Select,
    Shuffle,
    Unary,
    Var,
    VectorReduce,
    binary,
    cast,
    select,
    unary,
)  # fmt: skip
from tensorkiln.ir.stmt import (
    Alloc,
    Assert,
    Block,
    BlockIter,
    CallKernel,
    Evaluate,
    For,
    If,
    Let,
    MatchBuffer,
    Prefetch,
    PrimFunc,
    Region,
    Seq,
    Stmt,
    Store,
    While,
    seq,
)  # fmt: skip

Rewrite = Callable[[Expr], Expr]


# A dispatch table by class. Traversals take most of the compile time, and a match statement would
# test one case after the other.
_CHILDREN: dict[type[Expr], Callable[[Any], tuple[Expr, ...]]] = {
    Binary: lambda e: (e.a, e.b),
    Unary: lambda e: (e.a,),
    Broadcast: lambda e: (e.a,),
    VectorReduce: lambda e: (e.a,),
    Cast: lambda e: (e.a,),
    Select: lambda e: (e.cond, e.a, e.b),
    Load: lambda e: e.indices,
    AddressOf: lambda e: e.indices,
    Ramp: lambda e: (e.base, e.stride),
    Shuffle: lambda e: (e.a, e.b),
    Intrin: lambda e: e.args,
    CallExtern: lambda e: e.args,
    Reduce: lambda e: (*(extent for _, extent in e.axes), e.value),
}


def children(e: Expr) -> tuple[Expr, ...]:
    """Direct subexpressions, left to right."""
    found = _CHILDREN.get(type(e))
    return () if found is None else found(e)


def map_children(e: Expr, f: Rewrite) -> Expr:
    """`e` with `f` applied to each child; `e` itself when none changed.

    A changed node is built by `binary`, `select`, ..., which fold constants.
    """
    match e:
        case Var() | IntImm() | FloatImm():
            return e
        case Binary(op, a, b):
            x, y = f(a), f(b)
            return e if x is a and y is b else binary(op, x, y)
        case Unary(op, a):
            x = f(a)
            return e if x is a else unary(op, x)
        case Select(c, a, b):
            z, x, y = f(c), f(a), f(b)
            return e if z is c and x is a and y is b else select(z, x, y)
        case Cast(a, dtype):
            x = f(a)
            return e if x is a else cast(x, dtype)
        case Load(buf, indices):
            new = tuple(map(f, indices))
            return e if all(map(_is, new, indices)) else Load(buf, new)
        case AddressOf(buf, indices):
            new = tuple(map(f, indices))
            return e if all(map(_is, new, indices)) else AddressOf(buf, new)
        case CallExtern(name, args, dtype):
            new = tuple(map(f, args))
            return e if all(map(_is, new, args)) else CallExtern(name, new, dtype)
        case Ramp(base, stride, lanes):
            x, y = f(base), f(stride)
            return e if x is base and y is stride else Ramp(x, y, lanes)
        case Broadcast(a, lanes):
            x = f(a)
            return e if x is a else Broadcast(x, lanes)
        case Shuffle(a, b, lanes):
            x, y = f(a), f(b)
            return e if x is a and y is b else Shuffle(x, y, lanes)
        case VectorReduce(op, a):
            x = f(a)
            return e if x is a else VectorReduce(op, x)
        case Intrin(name, args):
            new = tuple(map(f, args))
            return e if all(map(_is, new, args)) else Intrin(name, new)
        case Reduce(op, axes, value):
            new_axes = tuple((v, f(extent)) for v, extent in axes)
            x = f(value)
            same = x is value and all(n[1] is o[1] for n, o in zip(new_axes, axes, strict=True))
            return e if same else Reduce(op, new_axes, x)
    raise TypeError(f"not an expression: {e!r}")


def _is(a: object, b: object) -> bool:
    return a is b


def map_stmt(s: Stmt, on_expr: Rewrite, on_stmt: Callable[[Stmt], Stmt]) -> Stmt:
    """`s` with its expressions and direct substatements rewritten; `s` itself if none changed."""
    match s:
        case For(var, lo, extent, kind, body, attrs):
            lo2, ext2, body2 = on_expr(lo), on_expr(extent), on_stmt(body)
            same = lo2 is lo and ext2 is extent and body2 is body
            return s if same else For(var, lo2, ext2, kind, body2, attrs)
        case While(cond, body):
            c, body2 = on_expr(cond), on_stmt(body)
            return s if c is cond and body2 is body else While(c, body2)
        case Seq(stmts):
            new = tuple(map(on_stmt, stmts))
            return s if all(map(_is, new, stmts)) else seq(*new)
        case Store(buf, indices, value, nt):
            idx, val = tuple(map(on_expr, indices)), on_expr(value)
            return s if val is value and all(map(_is, idx, indices)) else Store(buf, idx, val, nt)
        case Let(var, value, body):
            val, body2 = on_expr(value), on_stmt(body)
            return s if val is value and body2 is body else Let(var, val, body2)
        case If(cond, then, orelse):
            c, t = on_expr(cond), on_stmt(then)
            o = on_stmt(orelse) if orelse is not None else None
            return s if c is cond and t is then and o is orelse else If(c, t, o)
        case Alloc(buf, body):
            body2 = on_stmt(body)
            return s if body2 is body else Alloc(buf, body2)
        case Prefetch(buf, indices, locality, write):
            idx = tuple(map(on_expr, indices))
            return s if all(map(_is, idx, indices)) else Prefetch(buf, idx, locality, write)
        case MatchBuffer(buf, source, indices, body):
            idx, body2 = tuple(map(on_expr, indices)), on_stmt(body)
            same = body2 is body and all(map(_is, idx, indices))
            return s if same else MatchBuffer(buf, source, idx, body2)
        case Evaluate(value):
            val = on_expr(value)
            return s if val is value else Evaluate(val)
        case CallKernel(name, args, span):
            new_args = tuple(map(on_expr, args))
            return s if all(map(_is, new_args, args)) else CallKernel(name, new_args, span)
        case Assert(cond, message):
            c = on_expr(cond)
            return s if c is cond else Assert(c, message)
        case Block():
            return _map_block(s, on_expr, on_stmt)
    raise TypeError(f"not a statement: {s!r}")


def _map_block(s: Block, on_expr: Rewrite, on_stmt: Callable[[Stmt], Stmt]) -> Block:
    def region(r: Region) -> Region:
        ranges = tuple((on_expr(lo), on_expr(extent)) for lo, extent in r.ranges)
        return r if _pairs_same(ranges, r.ranges) else Region(r.buffer, ranges)

    def iteration(i: BlockIter) -> BlockIter:
        extent, value = on_expr(i.extent), on_expr(i.value)
        same = extent is i.extent and value is i.value
        return i if same else BlockIter(i.var, extent, i.kind, value)

    iters = tuple(map(iteration, s.iters))
    reads, writes = tuple(map(region, s.reads)), tuple(map(region, s.writes))
    body = on_stmt(s.body)
    init = None if s.init is None else on_stmt(s.init)
    same = body is s.body and init is s.init and all(map(_is, iters, s.iters))
    same = same and all(map(_is, reads, s.reads)) and all(map(_is, writes, s.writes))
    return s if same else Block(s.name, iters, reads, writes, body, init, s.attrs)


def _pairs_same(a: tuple[tuple[Expr, Expr], ...], b: tuple[tuple[Expr, Expr], ...]) -> bool:
    return all(x[0] is y[0] and x[1] is y[1] for x, y in zip(a, b, strict=True))


def substitute(e: Expr, values: Mapping[Var, Expr]) -> Expr:
    """Replace variables by expressions."""
    if isinstance(e, Var):
        return values.get(e, e)
    return map_children(e, lambda c: substitute(c, values))


def substitute_stmt(s: Stmt, values: Mapping[Var, Expr]) -> Stmt:
    """Replace variables by expressions in a whole statement."""
    return map_stmt(s, lambda e: substitute(e, values), lambda t: substitute_stmt(t, values))


def walk(e: Expr) -> Iterator[Expr]:
    """Yield `e` and all expressions below it, in pre-order."""
    left = [e]
    while left:
        x = left.pop()
        yield x
        found = _CHILDREN.get(type(x))
        if found is not None:
            left.extend(found(x)[::-1])


def stmt_exprs(s: Stmt) -> tuple[Expr, ...]:
    """The expressions of a statement itself, without those of its substatements."""
    match s:
        case For(_, lo, extent):
            return (lo, extent)
        case While(cond, _) | Assert(cond, _):
            return (cond,)
        case Evaluate(value):
            return (value,)
        case MatchBuffer(_, _, indices, _):
            return indices
        case CallKernel(_, args):
            return args
        case Block(_, iters, reads, writes):
            sizes = [e for i in iters for e in (i.extent, i.value)]
            return (*sizes, *(e for r in (*reads, *writes) for pair in r.ranges for e in pair))
        case Store(_, indices, value, _):
            return (*indices, value)
        case Let(_, value, _):
            return (value,)
        case If(cond, _, _):
            return (cond,)
        case Prefetch(_, indices, _, _):
            return indices
    return ()


def substmts(s: Stmt) -> tuple[Stmt, ...]:
    """Statements directly inside a statement."""
    match s:
        case For(body=body) | While(body=body) | Let(body=body) | Alloc(body=body):
            return (body,)
        case MatchBuffer(body=body):
            return (body,)
        case Block(body=body, init=init):
            return (body,) if init is None else (init, body)
        case Seq(stmts):
            return stmts
        case If(_, then, orelse):
            return (then,) if orelse is None else (then, orelse)
    return ()


def walk_stmt(s: Stmt) -> Iterator[Stmt]:
    """Yield `s` and all statements below it, in pre-order."""
    left = [s]
    while left:
        x = left.pop()
        yield x
        left.extend(substmts(x)[::-1])


def free_vars(e: Expr) -> list[Var]:
    """Variables used in `e` in order of first appearance, also those that a Reduce in it binds."""
    seen: dict[Var, None] = {}
    for x in walk(e):
        if isinstance(x, Var):
            seen.setdefault(x)
    return list(seen)


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
