"""A small evaluator and printer for index expressions: what the tests believe, not the compiler."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping
from itertools import product

from tensorkiln.ir.buffer import Load
from tensorkiln.ir.expr import Binary, Cast, Expr, FloatImm, IntImm, Select, Unary, Var
from tensorkiln.ir.stmt import For, If, Let, Seq, Stmt, Store

_BINARY: dict[str, tuple[str, Callable[..., object]]] = {
    "add": ("+", operator.add),
    "sub": ("-", operator.sub),
    "mul": ("*", operator.mul),
    "floordiv": ("//", operator.floordiv),
    "floormod": ("%", operator.mod),
    "min": ("min", min),
    "max": ("max", max),
    "lt": ("<", operator.lt),
    "le": ("<=", operator.le),
    "gt": (">", operator.gt),
    "ge": (">=", operator.ge),
    "eq": ("==", operator.eq),
    "ne": ("!=", operator.ne),
    "and": ("and", lambda a, b: bool(a) and bool(b)),
    "or": ("or", lambda a, b: bool(a) or bool(b)),
    "shl": ("<<", operator.lshift),
    "shr": (">>", operator.rshift),
    "bitand": ("&", operator.and_),
}


def evaluate(e: Expr, env: Mapping[Var, int]) -> int:
    """The value of an expression of integers and truth values (buffers are not read)."""
    match e:
        case Var():
            return env[e]
        case IntImm(value):
            return value
        case Binary(op, a, b):
            return int(_BINARY[op][1](evaluate(a, env), evaluate(b, env)))  # type: ignore[call-overload]
        case Unary(op, a):
            x = evaluate(a, env)
            return {"neg": -x, "not": int(not x), "abs": abs(x)}[op]
        case Select(c, a, b):
            return evaluate(a if evaluate(c, env) else b, env)
        case Cast(a, _):
            return evaluate(a, env)
    raise TypeError(f"cannot evaluate {e!r}")


def text(e: Expr, inside: bool = False) -> str:
    """Infix text; every operation inside another one has parentheses."""
    match e:
        case Var(name):
            return name
        case IntImm(value) | FloatImm(value):
            return str(value)
        case Binary("min" | "max" as op, a, b):
            return f"{op}({text(a)}, {text(b)})"
        case Binary(op, a, b):
            out = f"{text(a, True)} {_BINARY[op][0]} {text(b, True)}"
            return f"({out})" if inside else out
        case Unary(op, a):
            return f"{op}({text(a)})"
        case Select(c, a, b):
            return f"select({text(c)}, {text(a)}, {text(b)})"
        case Load(buffer, indices):
            return f"{buffer.name}[{', '.join(map(text, indices))}]"
        case Cast(a, dtype):
            return f"{dtype}({text(a)})"
    raise TypeError(f"cannot print {e!r}")


def points(ranges: Mapping[Var, tuple[int, int]]) -> Iterator[dict[Var, int]]:
    """Every assignment of values within inclusive ranges."""
    names = list(ranges)
    for values in product(*(range(lo, hi + 1) for lo, hi in ranges.values())):
        yield dict(zip(names, values, strict=True))


def stores(s: Stmt, env: Mapping[Var, int]) -> list[tuple[str, tuple[int, ...], int]]:
    """What a statement stores, in order: (buffer, indices, value)."""
    match s:
        case Seq(stmts):
            return [row for t in stmts for row in stores(t, env)]
        case For(var, lo, extent, _, body):
            start = evaluate(lo, env)
            steps = range(start, start + evaluate(extent, env))
            return [row for i in steps for row in stores(body, {**env, var: i})]
        case If(cond, then_branch, orelse):
            branch = then_branch if evaluate(cond, env) else orelse
            return stores(branch, env) if branch is not None else []
        case Let(var, value, body):
            return stores(body, {**env, var: evaluate(value, env)})
        case Store(buffer, indices, value, _):
            return [(buffer.name, tuple(evaluate(i, env) for i in indices), evaluate(value, env))]
    raise TypeError(f"cannot run {s!r}")
