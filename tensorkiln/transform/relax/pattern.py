"""Patterns over graphs, written as Python expressions, so that a rule reads as an equation.

    add(x, y)         a call of an operator; commutative ones match in either order
    softmax(x, axis=a)  also binds an attribute; a literal there must be equal
    x                 any value; the same name twice means the same value
    W                 a capital: a constant
    2, 0.1            a constant whose elements all equal it (0.1: up to rounding)
    y := mul(a, b)    also names the value of a sub-pattern
    p | q             either
    *rest             the remaining operands, as a tuple

Matching is by definition: a variable matches `op(...)` when a call of `op` is bound to it.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from itertools import permutations

import numpy as np

from tensorkiln import ops
from tensorkiln.base.errors import UserError, nearest
from tensorkiln.ir.attrs import AttrValue
from tensorkiln.ir.relax import Bound, Call, Constant, RVar, Value

COMMUTATIVE = frozenset(
    {"add", "mul", "minimum", "maximum", "equal", "not_equal",
     "logical_and", "logical_or", "logical_xor"}
)  # fmt: skip
# A decimal that float32 cannot hold stands for whatever an exporter rounded it to.
TOLERANCE = 2e-6

Found = dict[str, object]
Lookup = Callable[[RVar], Bound | None]


@dataclass(frozen=True, slots=True)
class AnyValue:
    """`x`; `_` binds nothing."""

    name: str


@dataclass(frozen=True, slots=True)
class AnyConstant:
    """`W`"""

    name: str


@dataclass(frozen=True, slots=True)
class Number:
    """A uniform constant; `exact` when float32 holds the number."""

    value: float
    exact: bool


@dataclass(frozen=True, slots=True)
class Literal:
    """An attribute's value."""

    value: AttrValue


@dataclass(frozen=True, slots=True)
class Op:
    """`name(*args, *rest, **attrs)`"""

    name: str
    args: tuple[Pattern, ...]
    rest: str
    attrs: tuple[tuple[str, AnyValue | Literal], ...]


@dataclass(frozen=True, slots=True)
class Named:
    """`name := pattern`"""

    name: str
    pattern: Pattern


@dataclass(frozen=True, slots=True)
class Either:
    """`p | q`"""

    options: tuple[Pattern, ...]


Pattern = AnyValue | AnyConstant | Number | Op | Named | Either


@cache
def parse(text: str) -> Pattern:
    """The pattern that a row's text stands for; ValueError when it is none."""
    return _parse(ast.parse(text.strip(), mode="eval").body)


def checked(text: str, where: str) -> Pattern:
    """The pattern a caller wrote; UserError for what is none, or names no operator."""
    try:
        p = parse(text)
    except (ValueError, SyntaxError, AssertionError) as error:
        raise UserError(
            f"{text!r} is not a pattern: {error}",
            code="bad-rule",
            where=where,
            hint="write it as calls of operators, such as relu(max_pool2d(x))",
        ) from error
    for name in operators(p):
        if name not in ops.OPS:
            raise UserError(
                f"{text!r}: no operator is called {name!r}",
                code="unknown-operator",
                where=where,
                hint=nearest(name, ops.OPS),
            )
    return p


def operators(p: Pattern) -> list[str]:
    """The operators of a pattern, in the order of its text."""
    match p:
        case Op(name=name, args=args):
            return [name, *(x for a in args for x in operators(a))]
        case Named(pattern=inner):
            return operators(inner)
        case Either(options=options):
            return [x for o in options for x in operators(o)]
    return []


def _parse(node: ast.expr) -> Pattern:
    match node:
        case ast.Name(name):
            return AnyConstant(name) if name[0].isupper() else AnyValue(name)
        case ast.Constant(int() | float() as value):
            return Number(float(value), float(np.float32(value)) == value)
        case ast.UnaryOp(ast.USub(), ast.Constant(int() | float() as value)):
            return Number(-float(value), float(np.float32(value)) == value)
        case ast.NamedExpr(ast.Name(name), inner):
            return Named(name, _parse(inner))
        case ast.BinOp(left, ast.BitOr(), right):
            return Either((_parse(left), _parse(right)))
        case ast.Call(ast.Name(name), args, keywords):
            return _parse_call(name, args, keywords)
    raise ValueError(f"not a pattern: {ast.unparse(node)}")


def _parse_call(name: str, args: list[ast.expr], keywords: list[ast.keyword]) -> Op:
    rest = ""
    if args and isinstance(args[-1], ast.Starred):
        star = args[-1].value
        assert isinstance(star, ast.Name)
        rest, args = star.id, args[:-1]
    attrs: list[tuple[str, AnyValue | Literal]] = []
    for k in keywords:
        assert k.arg is not None
        bound = isinstance(k.value, ast.Name)
        value = AnyValue(k.value.id) if bound else Literal(ast.literal_eval(k.value))  # type: ignore[attr-defined]
        attrs.append((k.arg, value))
    return Op(name, tuple(map(_parse, args)), rest, tuple(attrs))


def heads(p: Pattern) -> frozenset[str]:
    """The operators that a pattern can have at its top; empty when it matches anything."""
    match p:
        case Op(name=name):
            return frozenset({name})
        case Named(pattern=inner):
            return heads(inner)
        case Either(options=options):
            return frozenset().union(*map(heads, options))
    return frozenset()


# --- matching ------------------------------------------------------------------------------------


def match_call(p: Pattern, call: Call, lookup: Lookup) -> Iterator[Found]:
    """Every way in which `call` itself is the top of the pattern."""
    match p:
        case Op():
            yield from _match_op(p, call, lookup, {})
        case Either(options=options):
            for option in options:
                yield from match_call(option, call, lookup)


def match_value(p: Pattern, v: Value, lookup: Lookup, found: Found) -> Iterator[Found]:
    """Every way in which the pattern fits, extending what was found so far."""
    match p:
        case AnyValue(name="_"):
            yield found
        case AnyValue(name=name):
            yield from _bind(name, v, found)
        case AnyConstant(name=name):
            if isinstance(v, Constant) and v.type.layout is None:
                yield from _bind(name, v, found)
        case Number(value=value, exact=exact):
            if _is_number(v, value, exact):
                yield found
        case Named(name=name, pattern=inner):
            for more in match_value(inner, v, lookup, found):
                yield from _bind(name, v, more)
        case Either(options=options):
            for option in options:
                yield from match_value(option, v, lookup, found)
        case Op():
            bound = lookup(v) if isinstance(v, RVar) else None
            if isinstance(bound, Call):
                yield from _match_op(p, bound, lookup, found)


def _match_op(p: Op, call: Call, lookup: Lookup, found: Found) -> Iterator[Found]:
    if call.callee != p.name or len(call.args) < len(p.args):
        return
    if len(call.args) > len(p.args) and not p.rest:
        return
    for key, want in p.attrs:
        have = call.attrs.get(key)
        if isinstance(want, AnyValue):
            found = {**found, want.name: have}
        elif have != want.value or isinstance(have, bool) != isinstance(want.value, bool):
            return
    if p.rest:
        found = {**found, p.rest: call.args[len(p.args) :]}
    swapped = p.name in COMMUTATIVE and len(p.args) == 2
    for order in permutations(call.args) if swapped else (call.args[: len(p.args)],):
        yield from _match_all(p.args, order, lookup, found)


def _match_all(
    ps: tuple[Pattern, ...], vs: tuple[Value, ...], lookup: Lookup, found: Found
) -> Iterator[Found]:
    if not ps:
        yield found
        return
    for more in match_value(ps[0], vs[0], lookup, found):
        yield from _match_all(ps[1:], vs[1:], lookup, more)


def _bind(name: str, v: Value, found: Found) -> Iterator[Found]:
    have = found.get(name)
    if have is None:
        yield {**found, name: v}
    elif have is v:
        yield found


def uniform(v: Value) -> float | None:
    """The number that all elements of a row-major constant are, or None."""
    if not isinstance(v, Constant) or v.type.layout is not None or not v.array.size:
        return None
    a = v.array
    first = a.flat[0]
    # Two looks decide almost every weight tensor without reading it.
    if a.flat[a.size - 1] != first or a.flat[a.size // 2] != first or not np.all(a == first):
        return None
    return float(first)


def _is_number(v: Value, want: float, exact: bool) -> bool:
    have = uniform(v)
    if have is None:
        return False
    return have == want if exact else abs(have - want) <= TOLERANCE * abs(want)
