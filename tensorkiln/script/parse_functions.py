"""The functions of T in expressions: `T.exp(x)`, `T.select(c, a, b)`, `T.call_extern(...)`."""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from tensorkiln.base.errors import nearest
from tensorkiln.ir.buffer import AddressOf
from tensorkiln.ir.dtype import BOOL, DTYPES, HANDLE, INT64, DType
from tensorkiln.ir.expr import (
    BINARY,
    DOTS,
    INTRINSICS,
    UNARY,
    Binary,
    Broadcast,
    CallExtern,
    Cast,
    Expr,
    IntImm,
    Intrin,
    Ramp,
    Reduce,
    Select,
    Shuffle,
    Unary,
    Var,
    VectorReduce,
)
from tensorkiln.script.parse_plain import parse_dtype
from tensorkiln.script.python_values import unwrap
from tensorkiln.script.scope import Number, Python

if TYPE_CHECKING:
    from tensorkiln.script.parse_expr import ExprParser


def call_word(p: ExprParser, node: ast.Call, path: str) -> Expr | Number | Python:
    """Parse a call `T.word(...)`, where `path` is "T.word". Raise UserError if there is no such
    word, or if it takes another number of arguments."""
    word = ALIASES.get(path[2:], path[2:])
    if node.keywords:
        raise p.fail(node.keywords[0].value, f"{path} takes no keyword arguments")
    special, arity = _CALLS.get(word), _arity(word)
    if arity is None:
        known = [*_CALLS, *INTRINSICS, *UNARY, "min", "max", "truncdiv", *DTYPES]
        raise p.fail(node.func, f"unknown function {path}", nearest(word, known))
    if len(node.args) not in arity:
        expected = "at least 2" if arity is _CALL else " or ".join(map(str, arity))
        raise p.fail(node, f"{path} takes {expected} arguments, got {len(node.args)}")
    if special is not None:
        return special(p, node)
    if word in DOTS:
        return Intrin(word, tuple(map(p.expr, node.args)))
    if word in INTRINSICS:
        return Intrin(word, tuple(p.same(node.args)))
    if word in UNARY:
        return Unary(word, p.expr(node.args[0], BOOL if word == "not" else None))
    if word in BINARY:
        a, b = p.same(node.args)
        return Binary(word, a, b)
    return _typed(p, node)


def _typed(p: ExprParser, node: ast.Call) -> Expr:
    """Parse `T.float32(x)`: a literal if x is a number, else a cast with the lanes of x."""
    dtype, argument = p.dtype(node.func), node.args[0]
    if isinstance(argument, ast.Constant) and isinstance(argument.value, str):
        if argument.value not in ("inf", "-inf", "nan", "-nan") or not dtype.is_float:
            raise p.fail(argument, f"not a {dtype}", 'a float may be "inf", "-inf", "nan"')
        value: Expr | Number = Number(float(argument.value))
    else:
        value = p.raw(argument)
    if not isinstance(value, Number):
        if value.dtype == BOOL and isinstance(value, IntImm) and dtype == BOOL:
            return value
        return Cast(value, dtype.with_lanes(value.dtype.lanes))
    imm = p.number(argument, value, dtype)
    return imm if dtype.lanes == 1 else Broadcast(imm, dtype.lanes)


def _select(p: ExprParser, node: ast.Call) -> Expr:
    a, b = p.same(node.args[1:])
    return Select(p.expr(node.args[0], BOOL), a, b)


def _cast(p: ExprParser, node: ast.Call) -> Expr:
    return Cast(p.expr(node.args[1]), p.dtype(node.args[0]))


def _ramp(p: ExprParser, node: ast.Call) -> Expr:
    base, stride = p.same(node.args[:2])
    return Ramp(base, stride, p.integer(node.args[2]))


def _broadcast(p: ExprParser, node: ast.Call) -> Expr:
    return Broadcast(p.expr(node.args[0]), p.integer(node.args[1]))


def _shuffle(p: ExprParser, node: ast.Call) -> Expr:
    a, b = p.same(node.args[:2])
    lanes = p.literal(node.args[2])
    if not isinstance(lanes, tuple) or not all(isinstance(x, int) for x in lanes):
        raise p.fail(node.args[2], "lanes are a tuple of integers")
    return Shuffle(a, b, lanes)


def _vector_reduce(p: ExprParser, node: ast.Call) -> Expr:
    return VectorReduce(p.string(node.args[0]), p.expr(node.args[1]))


def _reduce(p: ExprParser, node: ast.Call) -> Expr:
    op, axes_node, body = node.args
    if not isinstance(axes_node, (ast.List, ast.Tuple)):
        raise p.fail(axes_node, "expected axes", "as [(k, 16)]")
    with p.scope.inner():
        axes = tuple(_axis(p, a) for a in axes_node.elts)
        return Reduce(p.string(op), axes, p.expr(body))


def _axis(p: ExprParser, node: ast.expr) -> tuple[Var, Expr]:
    if not isinstance(node, ast.Tuple) or len(node.elts) not in (2, 3):
        raise p.fail(node, "expected an axis", "as (k, 16)")
    name, extent = node.elts[0], p.expr(node.elts[1])
    if not isinstance(name, ast.Name):
        raise p.fail(name, "expected a new name")
    var = Var(name.id, p.dtype(node.elts[2]) if len(node.elts) == 3 else INT64)
    p.scope.bind(name, name.id, var)
    return var, extent


def _variable(p: ExprParser, node: ast.Call) -> Expr:
    """`T.var("n", "int32")`: a symbolic dimension that is not int64."""
    name = p.string(node.args[0])
    found = p.scope.bound.get(name)
    if isinstance(found, Var):
        return found
    var = Var(name, p.dtype(node.args[1]))
    p.scope.bind(node, name, var)
    return var


def _address_of(p: ExprParser, node: ast.Call) -> Expr:
    place = node.args[0]
    if not isinstance(place, ast.Subscript):
        raise p.fail(place, "expected an element of a buffer", "as T.address_of(A[i, j])")
    buf = p.buffer(place.value)
    return AddressOf(buf, p.indices(place.slice, buf))


def _call_extern(p: ExprParser, node: ast.Call) -> Expr:
    """`T.call_extern("float64", "hypot", x, y)`; a call of type "void" must be a statement."""
    dtype, name = _result_type(p, node.args[0]), p.string(node.args[1])
    if not (name.isidentifier() and name.isascii()):
        raise p.fail(node.args[1], f"{name!r} is not the name of a C function")
    return CallExtern(name, tuple(p.expr(a) for a in node.args[2:]), dtype)


def _result_type(p: ExprParser, node: ast.expr) -> DType:
    void = isinstance(node, ast.Constant) and node.value == "void"
    dtype = DType("void") if void else p.dtype(node)
    if dtype == HANDLE or dtype.lanes != 1:
        hint = '"void" where a pointer is returned and not used'
        raise p.fail(node, f"a C function that returns {dtype}", hint)
    return dtype


def _unrolled(p: ExprParser, node: ast.Call) -> Python:
    """`T.meta.unroll(items)`: the items, for a loop that is unrolled while parsing."""
    return Python(unwrap(p.argument(node.args[0])))


def _arity(word: str) -> Sequence[int] | None:
    """Return the numbers of arguments that `T.word` accepts; None if there is no such word."""
    if word in _ARITY:
        return _ARITY[word]
    if word in INTRINSICS:
        return (INTRINSICS[word],)
    if word in BINARY:
        return (2,)
    return (1,) if word in UNARY or parse_dtype(word) is not None else None


ALIASES = {
    "if_then_else": "select",
    "where": "select",
    "cast": "Cast",
    "broadcast": "Broadcast",
    "ramp": "Ramp",
    "truncdiv": "div",
}
_CALLS: dict[str, Callable[[ExprParser, ast.Call], Expr | Python]] = {
    "select": _select,
    "Cast": _cast,
    "Ramp": _ramp,
    "Broadcast": _broadcast,
    "shuffle": _shuffle,
    "vector_reduce": _vector_reduce,
    "reduce": _reduce,
    "var": _variable,
    "address_of": _address_of,
    "call_extern": _call_extern,
    "meta.unroll": _unrolled,
}
_CALL = range(2, 256)
_ARITY: dict[str, Sequence[int]] = {
    "select": (3,),
    "Cast": (2,),
    "Ramp": (3,),
    "Broadcast": (2,),
    "shuffle": (3,),
    "vector_reduce": (2,),
    "reduce": (3,),
    "var": (2,),
    "address_of": (1,),
    "call_extern": _CALL,
    "meta.unroll": (1,),
}
