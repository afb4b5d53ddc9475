"""Find the smallest statement that contains every difference of two versions of a program."""

from __future__ import annotations

from tensorkiln.ir.stmt import Alloc, Block, For, If, Let, MatchBuffer, Seq, Stmt, While
from tensorkiln.ir.visit import substmts

Paths = tuple[tuple[Stmt, ...], tuple[Stmt, ...]]


def change(a: Stmt, b: Stmt) -> Paths | None:
    """The paths to the differing statements, in both; None if nothing differs.

    The statements around the ends of the paths are equal in both.
    """
    if a is b:
        return None
    inner = _only_difference(a, b) if _same_head(a, b) else None
    if inner is None:
        return (a,), (b,)
    paths = change(*inner)
    assert paths is not None
    return (a, *paths[0]), (b, *paths[1])


def _only_difference(a: Stmt, b: Stmt) -> tuple[Stmt, Stmt] | None:
    parts = substmts(a), substmts(b)
    if len(parts[0]) != len(parts[1]):
        return None
    different = [(p, q) for p, q in zip(*parts, strict=True) if p is not q]
    return different[0] if len(different) == 1 else None


def _same_head(a: Stmt, b: Stmt) -> bool:
    """Whether two statements are equal apart from their direct substatements."""
    match a, b:
        case For(), For():
            return a.var is b.var and a.kind == b.kind and (a.lo, a.extent) == (b.lo, b.extent)
        case If(p), If(q):
            return p == q
        case While(p), While(q):
            return p == q
        case Alloc(), Alloc():
            return a.buffer is b.buffer
        case MatchBuffer(), MatchBuffer():
            return a.buffer is b.buffer and a.source is b.source and a.indices == b.indices
        case Let(), Let():
            return a.var is b.var and a.value == b.value
        case Block(), Block():
            return a.name == b.name and a.iters == b.iters and a.attrs == b.attrs
        case Seq(), Seq():
            return True
    return False
