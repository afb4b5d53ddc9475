"""Pattern matching for `rules.LOGIC`: rewrites the root of an expression by the first match."""

from __future__ import annotations

import ast
from functools import cache

from tensorkiln.arith.rules import LOGIC
from tensorkiln.ir.dtype import BOOL
from tensorkiln.ir.expr import Binary, Expr, IntImm, Select, Unary, select, unary

# A name, which matches any expression; True or False; or (operator, patterns of its operands).
Pattern = str | bool | tuple[str, tuple["Pattern", ...]]


def rewrite(e: Expr) -> Expr | None:
    """Return `e` rewritten by the first row whose pattern matches it; None if none does."""
    head = _head(e)
    for before, after in _table().get(head, ()):
        captures: dict[str, Expr] = {}
        if _match(before, e, captures):
            return _build(after, captures)
    return None


@cache
def _table() -> dict[str, list[tuple[Pattern, Pattern]]]:
    out: dict[str, list[tuple[Pattern, Pattern]]] = {}
    for row in LOGIC:
        before, after = (_parse(ast.parse(t, mode="eval").body) for t in (row.before, row.after))
        assert isinstance(before, tuple)
        out.setdefault(before[0], []).append((before, after))
    return out


def _parse(node: ast.expr) -> Pattern:
    match node:
        case ast.Name(name):
            return name
        case ast.Constant(bool(value)):
            return value
        case ast.BoolOp(op, [a, b]):
            return ("and" if isinstance(op, ast.And) else "or", (_parse(a), _parse(b)))
        case ast.UnaryOp(ast.Not(), a):
            return ("not", (_parse(a),))
        case ast.Call(ast.Name(name), args):
            return (name, tuple(map(_parse, args)))
    raise ValueError(f"not a pattern: {ast.unparse(node)}")


def _head(e: Expr) -> str:
    match e:
        case Binary(op, _, _) | Unary(op, _):
            return op
        case Select():
            return "select"
    return ""


def _operands(e: Expr) -> tuple[Expr, ...]:
    match e:
        case Binary(_, a, b):
            return (a, b)
        case Unary(_, a):
            return (a,)
        case Select(c, a, b):
            return (c, a, b)
    return ()


def _match(pattern: Pattern, e: Expr, captures: dict[str, Expr]) -> bool:
    if isinstance(pattern, bool):
        return isinstance(e, IntImm) and e.dtype.is_bool and bool(e.value) == pattern
    if isinstance(pattern, str):
        return captures.setdefault(pattern, e) == e
    op, operands = pattern
    if _head(e) != op:
        return False
    return all(_match(p, x, captures) for p, x in zip(operands, _operands(e), strict=True))


def _build(pattern: Pattern, captures: dict[str, Expr]) -> Expr:
    if isinstance(pattern, bool):
        return IntImm(int(pattern), BOOL)
    if isinstance(pattern, str):
        return captures[pattern]
    op, operands = pattern
    args = [_build(p, captures) for p in operands]
    if op == "select":
        return select(*args)
    return unary(op, args[0]) if op == "not" else Binary(op, *args)
