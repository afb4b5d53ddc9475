"""Names, constants and operators.

Subexpressions made of Python values are evaluated while parsing.
"""

from __future__ import annotations

import ast
from collections.abc import Callable

from tensorkiln.ir.buffer import Buffer
from tensorkiln.ir.dtype import BOOL
from tensorkiln.ir.expr import Binary, Expr, IntImm, Select, Unary, Var
from tensorkiln.ir.relax import RVar
from tensorkiln.script.parse_literals import (
    in_python,
    parse_any,
    parse_raw,
    parse_same,
    typed_number,
    unify,
)
from tensorkiln.script.python_values import Value, fold, is_python, unwrap, wrap
from tensorkiln.script.scope import NameScope, Number, Python

_OPERATORS: dict[type[ast.AST], str] = {
    ast.Add: "add",
    ast.Sub: "sub",
    ast.Mult: "mul",
    ast.Div: "div",
    ast.FloorDiv: "floordiv",
    ast.Mod: "floormod",
    ast.BitOr: "bitor",
    ast.BitXor: "bitxor",
    ast.BitAnd: "bitand",
    ast.LShift: "shl",
    ast.RShift: "shr",
    ast.Lt: "lt",
    ast.LtE: "le",
    ast.Gt: "gt",
    ast.GtE: "ge",
    ast.Eq: "eq",
    ast.NotEq: "ne",
    ast.And: "and",
    ast.Or: "or",
}


def _constant(scope: NameScope, node: ast.Constant) -> Value:
    if isinstance(node.value, bool):
        return IntImm(int(node.value), BOOL)
    if isinstance(node.value, (int, float)):
        return Number(node.value)
    if node.value is None or isinstance(node.value, str):
        return Python(node.value, captured=False)
    raise scope.fail(node, f"{node.value!r} is not a number")


def _name(scope: NameScope, node: ast.Name) -> Value:
    meaning = scope.meanings.get(node.id)
    if isinstance(meaning, Expr | Number | Python):
        return meaning
    if isinstance(meaning, Buffer):
        return Python(meaning)
    if meaning is not None:
        number_of = scope.number_of
        number = number_of(meaning) if number_of is not None and isinstance(meaning, RVar) else None
        if number is not None:
            return number
        raise scope.fail(node, f"{node.id!r} is a graph value, not a number")
    if not scope.define and node.id in scope.captured:
        return wrap(scope.captured[node.id])
    if scope.define:
        var = Var(node.id)
        scope.bind(node, node.id, var)
        return var
    raise scope.unknown(node)


def _binary(scope: NameScope, node: ast.BinOp) -> Value:
    return _two(scope, node, node.op, node.left, node.right)


def _two(scope: NameScope, node: ast.expr, op: ast.AST, a: ast.expr, b: ast.expr) -> Value:
    x, y = parse_any(scope, a), parse_any(scope, b)
    with in_python(scope, node):
        folded = fold(op, x, y)
    if folded is not None:
        return folded
    word = _OPERATORS.get(type(op))
    if word is None:
        hint = "T.pow(a, b)" if isinstance(op, ast.Pow) else ""
        raise scope.fail(node, f"operator {type(op).__name__} is not in the script language", hint)
    lhs, rhs = unify(scope, [a, b], [_no_python(scope, a, x), _no_python(scope, b, y)])
    if word == "div" and not lhs.dtype.is_float:
        hint = "`//` rounds down, T.truncdiv to zero; T.Cast makes floats of them"
        raise scope.fail(node, f"`/` of {lhs.dtype}: a quotient is not an integer", hint)
    return Binary(word, lhs, rhs)


def _no_python(scope: NameScope, node: ast.expr, value: Value) -> Expr | Number:
    return parse_raw(scope, node) if isinstance(value, Python) else value


def _compare(scope: NameScope, node: ast.Compare) -> Value:
    if len(node.ops) != 1:
        raise scope.fail(node, "chained comparison", "write `a < b and b < c`")
    return _two(scope, node, node.ops[0], node.left, node.comparators[0])


def _bool(scope: NameScope, node: ast.BoolOp) -> Value:
    """Evaluate Python operands from the left as Python does: once one decides the result, the
    rest is not parsed. The first operand that is not a Python value and all after it form an
    expression."""
    stops = isinstance(node.op, ast.Or)
    for i, item in enumerate(node.values):
        value = parse_any(scope, item)
        if not is_python(value):
            return _logic(scope, node.op, node.values[i:], _no_python(scope, item, value))
        if bool(unwrap(value)) is stops or i + 1 == len(node.values):
            return value
    raise AssertionError("a BoolOp has values")


def _logic(scope: NameScope, op: ast.boolop, nodes: list[ast.expr], first: Expr | Number) -> Expr:
    """`first` is the value of the first node: what is nested is parsed once, not twice a level."""
    result, *operands = unify(scope, nodes, [first, *(parse_raw(scope, n) for n in nodes[1:])])
    for operand in operands:
        result = Binary(_OPERATORS[type(op)], result, operand)
    return result


def _unary(scope: NameScope, node: ast.UnaryOp) -> Value:
    value = parse_any(scope, node.operand)
    if isinstance(node.op, ast.Not):
        if is_python(value):
            return Number(not unwrap(value), captured=True)
        return Unary("not", _truth(scope, node.operand, value))
    if not isinstance(node.op, ast.USub):
        raise scope.fail(node, f"operator {type(node.op).__name__} is not in the script language")
    value = _no_python(scope, node.operand, value)
    if isinstance(value, Number):
        return Number(-value.value, value.captured)
    return Unary("neg", value)


def _choice(scope: NameScope, node: ast.IfExp) -> Value:
    test = parse_any(scope, node.test)
    if is_python(test):
        return parse_any(scope, node.body if unwrap(test) else node.orelse)
    a, b = parse_same(scope, [node.body, node.orelse])
    return Select(_truth(scope, node.test, test), a, b)


def _truth(scope: NameScope, node: ast.expr, value: Value) -> Expr:
    """A value that was parsed from `node` as a condition."""
    plain = _no_python(scope, node, value)
    return typed_number(scope, node, plain, BOOL) if isinstance(plain, Number) else plain


EXPRESSIONS: dict[type[ast.expr], Callable[..., Value]] = {
    ast.Constant: _constant,
    ast.Name: _name,
    ast.BinOp: _binary,
    ast.Compare: _compare,
    ast.BoolOp: _bool,
    ast.UnaryOp: _unary,
    ast.IfExp: _choice,
}
