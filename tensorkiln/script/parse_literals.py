"""Numbers, literals and dtypes; and `parse_any`, which parses any expression."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from tensorkiln.base.element_types import PROGRAM_TYPES
from tensorkiln.base.errors import TensorkilnError, nearest
from tensorkiln.ir.buffer import Buffer
from tensorkiln.ir.dtype import BOOL, FLOAT32, HANDLE, INT64, VOID, DType
from tensorkiln.ir.expr import Broadcast, Expr, FloatImm, IntImm
from tensorkiln.script.python_values import Value, unwrap
from tensorkiln.script.scope import NameScope, Number, Python, plain

_FLOAT_BITS = 1023  # of the integers that every float64 of them is finite

# Nodes that may denote a buffer or a Python value.
NAMES = (ast.Name, ast.Attribute, ast.Subscript, ast.Call)


def parse_any(scope: NameScope, node: ast.expr) -> Value:
    """Parse an expression, or evaluate it if it is made of Python values."""
    parse = scope.grammar.expressions.get(type(node))
    if parse is None:
        raise scope.fail(node, "this Python expression is not allowed in a script")
    value: Value = parse(scope, node)
    return value


def parse_expr(scope: NameScope, node: ast.expr, like: DType | None = None) -> Expr:
    """Parse an expression. A number without a dtype gets `like`; without `like`, int64 or
    float32."""
    value = parse_raw(scope, node)
    return typed_number(scope, node, value, like) if isinstance(value, Number) else value


def typed_number(scope: NameScope, node: ast.expr, n: Number, like: DType | None) -> Expr:
    """Return a literal of the element type of `like` (None: int64 or float32; a bool is always
    bool). Raise UserError if the number does not fit."""
    if isinstance(n.value, bool):
        return IntImm(int(n.value), BOOL)
    if isinstance(n.value, float):
        like = FLOAT32 if like is None else like.element
        if not like.is_float:
            raise scope.fail(node, f"a float where {like} is expected", f'T.Cast("{like}", …)')
        return FloatImm(n.value, like)
    like = INT64 if like is None else like.element
    if like.is_float:
        if n.value.bit_length() > _FLOAT_BITS:
            raise scope.fail(node, f"an integer of {n.value.bit_length()} bits does not fit {like}")
        return FloatImm(float(n.value), like)
    number = IntImm(n.value, like)
    if number.fault() is not None:
        raise scope.fail(node, f"{n.value} does not fit {like}")
    return number


def parse_raw(scope: NameScope, node: ast.expr) -> Expr | Number:
    """Parse an expression. A number without a dtype is returned as a `Number`; other Python
    values are a UserError."""
    value = parse_any(scope, node)
    if not isinstance(value, Python):
        return value
    if isinstance(node, ast.Name) and not isinstance(value.value, Buffer):
        raise scope.unknown(node)
    hint = ""
    kind = f"a Python {type(value.value).__name__}"
    if isinstance(value.value, Buffer):
        kind, hint = "a buffer", "index it, as A[i, j]"
    raise scope.fail(node, f"{_shown(node)} is {kind}, not a number", hint)


def parse_argument(scope: NameScope, node: ast.expr) -> Value:
    """Parse an argument of a Python function or a macro: as `any`, but a list or tuple counts
    as captured, even one of literals, so that a macro may loop over it."""
    if isinstance(node, ast.List | ast.Tuple):
        return Python(tuple(unwrap(parse_argument(scope, x)) for x in node.elts))
    return parse_any(scope, node)


def _shown(node: ast.expr) -> str:
    return repr(node.id) if isinstance(node, ast.Name) else ast.unparse(node)


def parse_same(scope: NameScope, nodes: list[ast.expr]) -> list[Expr]:
    """Parse expressions of one dtype: numbers without a dtype get that of the others, and
    scalars are broadcast to the lanes of the others."""
    return unify(scope, nodes, [parse_raw(scope, n) for n in nodes])


def unify(scope: NameScope, nodes: list[ast.expr], values: list[Expr | Number]) -> list[Expr]:
    """As `parse_same` of expressions that are parsed already."""
    first = values[0]
    if isinstance(first, Expr) and first.dtype == HANDLE:
        return [first, *(_bytes(scope, n, v) for n, v in zip(nodes[1:], values[1:], strict=True))]
    typed = [v for v in values if not isinstance(v, Number)]
    like: DType | None = typed[0].dtype if typed else None
    numbers = [v.value for v in values if isinstance(v, Number)]
    if like is None and any(isinstance(v, float) for v in numbers):
        like = FLOAT32
    out = [
        typed_number(scope, n, v, like) if isinstance(v, Number) else v
        for n, v in zip(nodes, values, strict=True)
    ]
    lanes = max(e.dtype.lanes for e in out)
    for i, (n, e) in enumerate(zip(nodes, out, strict=True)):
        if e.dtype.element != out[0].dtype.element:
            message = f"{e.dtype} against {out[0].dtype}"
            raise scope.fail(n, message, "convert one of them with T.Cast")
        if e.dtype.lanes != lanes:
            if e.dtype.lanes != 1:
                raise scope.fail(n, f"{e.dtype.lanes} lanes against {lanes}")
            out[i] = Broadcast(e, lanes)
    return out


def _bytes(scope: NameScope, node: ast.expr, value: Expr | Number) -> Expr:
    """Return an offset in bytes, to be added to an address; numbers are int64."""
    return typed_number(scope, node, value, INT64) if isinstance(value, Number) else value


def parse_literal(scope: NameScope, node: ast.expr) -> object:
    """Return a number, string, None or tuple of these: a literal, or made of Python values."""
    match node:
        case ast.Constant(value=value) if not isinstance(value, (bytes, complex)):
            return value
        case ast.Tuple(elts=elts) | ast.List(elts=elts):
            return tuple(parse_literal(scope, x) for x in elts)
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            number = parse_literal(scope, operand)
            if isinstance(number, (int, float)):
                return -number
        case ast.Call(func=ast.Name(id="float"), args=[ast.Constant(value=str(text))]):
            if text in ("inf", "-inf", "nan"):
                return float(text)
        case ast.Name() | ast.Attribute() | ast.Subscript() | ast.Call() | ast.JoinedStr():
            return _literal(scope, node)
        case ast.BinOp() | ast.IfExp() | ast.UnaryOp():
            return _literal(scope, node)
    raise scope.fail(node, "expected a literal value")


def _literal(scope: NameScope, node: ast.expr) -> object:
    meaning = parse_any(scope, node)
    literal = plain(unwrap(meaning)) if isinstance(meaning, Number | Python) else None
    if literal is None:
        raise scope.fail(node, "expected a literal value")
    return literal


def parse_integer(scope: NameScope, node: ast.expr) -> int:
    """Return an integer that is known while parsing."""
    value = parse_literal(scope, node)
    if not isinstance(value, int) or isinstance(value, bool):
        raise scope.fail(node, "expected an integer literal")
    return value


def parse_integers(scope: NameScope, node: ast.expr) -> tuple[int, ...]:
    """Return a tuple of integers that is known while parsing."""
    values = parse_literal(scope, node)
    if not isinstance(values, tuple) or not all(isinstance(x, int) for x in values):
        raise scope.fail(node, "expected a tuple of integers")
    return values


def parse_flag(scope: NameScope, node: ast.expr) -> bool:
    """Return a truth value that is known while parsing."""
    value = parse_literal(scope, node)
    if not isinstance(value, int):
        raise scope.fail(node, f"expected True or False, not {value!r}")
    return bool(value)


def parse_string(scope: NameScope, node: ast.expr) -> str:
    """Return a string that is known while parsing."""
    text = parse_literal(scope, node)
    if not isinstance(text, str):
        raise scope.fail(node, "expected a string")
    return text


def parse_dtype(scope: NameScope, node: ast.expr) -> DType:
    """Parse a dtype: `"float32x16"`, `T.float32x16` or a captured one."""
    path = scope.dialect(node)
    text = path[2:] if path else _dtype_name(scope, node)
    dtype = dtype_called(text) if isinstance(text, str) else None
    if dtype is None or dtype == VOID:
        raise scope.fail(node, f"not a dtype: {text!r}", nearest(str(text), PROGRAM_TYPES))
    return dtype


def _dtype_name(scope: NameScope, node: ast.expr) -> object:
    """Return the name given by a string, or by a captured DType, NumPy dtype or NumPy scalar
    type."""
    if isinstance(node, ast.Name | ast.Attribute):
        value = unwrap(parse_any(scope, node))
        if isinstance(value, DType | np.dtype):
            return str(value)
        if isinstance(value, type) and issubclass(value, np.generic):
            return np.dtype(value).name
    return parse_literal(scope, node)


def dtype_called(text: str) -> DType | None:
    """Return the dtype called `text`; None if there is no such dtype."""
    try:
        return DType.parse(text)
    except ValueError:
        return None


@contextmanager
def in_python(scope: NameScope, node: ast.expr) -> Iterator[None]:
    """Turn exceptions of Python code into a UserError at `node`; those of this package pass."""
    try:
        yield
    except TensorkilnError:
        raise
    except Exception as e:
        raise scope.fail(node, f"in Python: {type(e).__name__}: {e}") from e
