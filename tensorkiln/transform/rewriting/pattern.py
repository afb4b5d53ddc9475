"""Patterns of graphs, written as Python expressions, so that a rule reads as an equation.

    add(x, y)         a call of an operator; commutative ones match in either order
    softmax(x, axis=a)  also binds an attribute; a literal there must be equal
    x                 any value; the same name twice means the same value
    W                 a capital: a constant
    2, 0.1            a constant whose elements all equal it (0.1: up to rounding)
    y := mul(a, b)    also names the value of a sub-pattern
    p | q             either
    *rest             the remaining operands, as a tuple

Matching looks through bindings: a variable matches `op(...)` if a call of `op` is bound to it.
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

_COMMUTATIVE = "add mul minimum maximum equal not_equal logical_and logical_or logical_xor"
COMMUTATIVE = frozenset(_COMMUTATIVE.split())
# The relative error allowed for a number that float32 cannot hold exactly, since exporters round it
# in different ways; in a narrower type, half the distance of its numbers, as rounding gives.
TOLERANCE = 2e-6

Found = dict[str, object]
Lookup = Callable[[RVar], Bound | None]


@dataclass(frozen=True, slots=True)
class AnyValue:
    """`x`: any value. `_` matches without binding a name."""

    name: str


@dataclass(frozen=True, slots=True)
class AnyConstant:
    """`W`: any row-major constant."""

    name: str


@dataclass(frozen=True, slots=True)
class Uniform:
    """`0.5`: a constant with all elements equal to `value`, or if `exact` is False, close to it.

    `exact` says that float32 holds the number.
    """

    value: float
    exact: bool


@dataclass(frozen=True, slots=True)
class Literal:
    """The value that an attribute must have."""

    value: AttrValue


@dataclass(frozen=True, slots=True)
class Op:
    """`name(*args, *tail, **attrs)`; without `tail` ("") the number of operands must be that of
    `args`. Attributes that are not listed may have any value."""

    name: str
    args: tuple[Pattern, ...]
    tail: str
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


Pattern = AnyValue | AnyConstant | Uniform | Op | Named | Either


@cache
def parse(text: str) -> Pattern:
    """Parse the text of a pattern.

    Raises ValueError, SyntaxError or AssertionError if it is not a pattern.
    """
    return _parse(ast.parse(text.strip(), mode="eval").body)


def checked(text: str, location: str) -> Pattern:
    """Parse a pattern that a caller wrote.

    Raises UserError if it is not a pattern (code `bad-rule`) or calls an operator that does not
    exist (code `unknown-operator`).
    """
    try:
        p = parse(text)
    except (ValueError, SyntaxError, AssertionError) as error:
        raise UserError(
            f"{text!r} is not a pattern: {error}",
            code="bad-rule",
            where=location,
            hint="write it as calls of operators, such as relu(max_pool2d(x))",
        ) from error
    for name in operators(p):
        if name not in ops.OPS:
            raise UserError(
                f"{text!r}: no operator is called {name!r}",
                code="unknown-operator",
                where=location,
                hint=nearest(name, ops.OPS),
            )
    return p


def require_call(p: Pattern, text: str, location: str) -> None:
    """UserError (code `bad-rule`) unless the outermost part of a pattern is an operator, or
    alternatives of operators: `match_call` finds no other."""
    if isinstance(p, Either):
        for option in p.options:
            require_call(option, text, location)
    elif not isinstance(p, Op):
        raise UserError(
            f"{text!r} matches no call: the outermost part of a rule must be an operator",
            code="bad-rule",
            where=location,
            hint="write it as a call of an operator, such as relu(max_pool2d(x))",
        )


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
            return Uniform(float(value), float(np.float32(value)) == value)
        case ast.UnaryOp(ast.USub(), ast.Constant(int() | float() as value)):
            return Uniform(-float(value), float(np.float32(value)) == value)
        case ast.NamedExpr(ast.Name(name), inner):
            return Named(name, _parse(inner))
        case ast.BinOp(lhs, ast.BitOr(), rhs):
            return Either((_parse(lhs), _parse(rhs)))
        case ast.Call(ast.Name(name), args, keywords):
            return _parse_call(name, args, keywords)
    raise ValueError(f"not a pattern: {ast.unparse(node)}")


def _parse_call(name: str, args: list[ast.expr], keywords: list[ast.keyword]) -> Op:
    tail = ""
    if args and isinstance(args[-1], ast.Starred):
        star = args[-1].value
        assert isinstance(star, ast.Name)
        tail, args = star.id, args[:-1]
    attrs: list[tuple[str, AnyValue | Literal]] = []
    for k in keywords:
        assert k.arg is not None
        is_name = isinstance(k.value, ast.Name)
        value = AnyValue(k.value.id) if is_name else Literal(ast.literal_eval(k.value))  # type: ignore[attr-defined]
        attrs.append((k.arg, value))
    return Op(name, tuple(map(_parse, args)), tail, tuple(attrs))


def heads(p: Pattern) -> frozenset[str]:
    """The operators that can be outermost in a match; empty if the pattern is not a call."""
    match p:
        case Op(name=name):
            return frozenset({name})
        case Either(options=options):
            return frozenset().union(*map(heads, options))
    return frozenset()


# --- matching ------------------------------------------------------------------------------------


def match_call(p: Pattern, call: Call, lookup: Lookup) -> Iterator[Found]:
    """Yield the names found by each way in which `call` matches the pattern.

    The pattern must be an operator, or alternatives of operators. Attribute names and the operands
    of `*rest` are found too; `lookup` gives what a variable is bound to.
    """
    match p:
        case Op():
            yield from _match_op(p, call, lookup, {})
        case Either(options=options):
            for option in options:
                yield from match_call(option, call, lookup)


def match_value(p: Pattern, v: Value, lookup: Lookup, captures: Found) -> Iterator[Found]:
    """Yield `captures`, extended by the names that each way of matching `v` binds."""
    match p:
        case AnyValue(name="_"):
            yield captures
        case AnyValue(name=name):
            yield from _bind(name, v, captures)
        case AnyConstant(name=name):
            if isinstance(v, Constant) and v.type.layout is None:
                yield from _bind(name, v, captures)
        case Uniform(value=value, exact=exact):
            if _is_number(v, value, exact):
                yield captures
        case Named(name=name, pattern=inner):
            for inner_captures in match_value(inner, v, lookup, captures):
                yield from _bind(name, v, inner_captures)
        case Either(options=options):
            for option in options:
                yield from match_value(option, v, lookup, captures)
        case Op():
            definition = lookup(v) if isinstance(v, RVar) else None
            if isinstance(definition, Call):
                yield from _match_op(p, definition, lookup, captures)


def _match_op(p: Op, call: Call, lookup: Lookup, captures: Found) -> Iterator[Found]:
    if call.callee != p.name or len(call.args) < len(p.args):
        return
    if len(call.args) > len(p.args) and not p.tail:
        return
    for key, want in p.attrs:
        have = call.attrs.get(key)
        if isinstance(want, AnyValue):
            captures = {**captures, want.name: have}
        elif have != want.value or isinstance(have, bool) != isinstance(want.value, bool):
            return
    if p.tail:
        captures = {**captures, p.tail: call.args[len(p.args) :]}
    swapped = p.name in COMMUTATIVE and len(p.args) == 2
    for order in permutations(call.args) if swapped else (call.args[: len(p.args)],):
        yield from _match_all(p.args, order, lookup, captures)


def _match_all(
    ps: tuple[Pattern, ...], vs: tuple[Value, ...], lookup: Lookup, captures: Found
) -> Iterator[Found]:
    if not ps:
        yield captures
        return
    for first_captures in match_value(ps[0], vs[0], lookup, captures):
        yield from _match_all(ps[1:], vs[1:], lookup, first_captures)


def _bind(name: str, v: Value, captures: Found) -> Iterator[Found]:
    have = captures.get(name)
    if have is None:
        yield {**captures, name: v}
    elif have is v:
        yield captures


def uniform(v: Value) -> float | None:
    """The number that all elements of a row-major constant are equal to, or None."""
    if not isinstance(v, Constant) or v.type.layout is not None or not v.array.size:
        return None
    a = v.array
    first = a.flat[0]
    # Two elements rule out almost every tensor of weights, without reading all of it.
    if a.flat[a.size - 1] != first or a.flat[a.size // 2] != first or not np.all(a == first):
        return None
    return float(first)


def _is_number(v: Value, want: float, exact: bool) -> bool:
    have = uniform(v)
    if have is None:
        return False
    if exact:
        return have == want
    assert isinstance(v, Constant)
    return abs(have - want) <= max(TOLERANCE, v.type.dtype.row.epsilon / 2) * abs(want)
