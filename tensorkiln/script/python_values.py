"""Evaluation of Python values while parsing: operators, attributes and items of captured values.

An operation is evaluated only if an operand was captured from outside the script: with n = 3
outside, `n + 2` is the number 5, but `1 + 2` is an expression of the program.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Iterable
from itertools import islice
from types import BuiltinFunctionType, FunctionType
from typing import Any

import numpy as np

from tensorkiln.ir.buffer import Buffer
from tensorkiln.ir.expr import Expr, IntImm, int_value
from tensorkiln.script.scope import Number, Python

Value = Expr | Number | Python

OPERATORS: dict[type[ast.AST], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
    ast.BitOr: operator.or_,
    ast.BitXor: operator.xor,
    ast.BitAnd: operator.and_,
    ast.LShift: operator.lshift,
    ast.RShift: operator.rshift,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Is: operator.is_,
    ast.IsNot: operator.is_not,
    ast.In: lambda a, b: a in b,
    ast.NotIn: lambda a, b: a not in b,
}
# Builtins of Python that scripts may call: all scripts the former, trusted scripts both.
_ANYWHERE = (enumerate, len, range, zip)
_OWN_CODE = (
    abs,
    all,
    any,
    bool,
    dict,
    divmod,
    float,
    int,
    isinstance,
    list,
    map,
    max,
    min,
    pow,
    reversed,
    round,
    set,
    sorted,
    str,
    sum,
    tuple,
)
BUILTINS: dict[str, object] = {f.__name__: f for f in _ANYWHERE}
OWN_BUILTINS: dict[str, object] = BUILTINS | {f.__name__: f for f in _OWN_CODE}
MOST_STEPS = 1 << 16
_MOST_BITS = 1 << 12
# Types whose attributes an untrusted script may not read.
_CLOSED = (
    str,
    bytes,
    int,
    float,
    tuple,
    list,
    dict,
    set,
    frozenset,
    type(None),
    type,
    FunctionType,
    BuiltinFunctionType,
)


def wrap(value: object, captured: bool = True) -> Value:
    """Return a Python value as a value of the parser; values of the parser are unchanged."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, Expr | Number | Python):
        return value
    if isinstance(value, int | float):
        return Number(value, captured)
    return Python(value, captured)


def unwrap(value: Value) -> Any:
    """Return the Python value, or the expression itself: the inverse of `wrap`."""
    return value.value if isinstance(value, Number | Python) else value


def is_python(*values: Value) -> bool:
    """Whether all values are known while parsing and at least one of them is captured."""
    are_constant = all(isinstance(v, Number | Python) for v in values)
    return are_constant and any(v.captured for v in values)  # type: ignore[union-attr]


def fold(op: ast.AST, a: Value, b: Value) -> Value | None:
    """Evaluate a binary operation on Python values; return None if it is an operation of the
    program. Raise what Python raises, and OverflowError if the result would be too large."""
    if not is_python(a, b) or isinstance(unwrap(a), Buffer) or isinstance(unwrap(b), Buffer):
        return None
    x, y = unwrap(a), unwrap(b)
    if isinstance(op, ast.Pow | ast.LShift) and _too_big(op, x, y):
        raise OverflowError("the number is too large")
    if isinstance(op, ast.Mult) and _too_long(x, y):
        raise OverflowError("the sequence is too long")
    return wrap(OPERATORS[type(op)](x, y))


def _too_big(op: ast.AST, x: object, y: object) -> bool:
    if not isinstance(x, int) or not isinstance(y, int):
        return False
    return (y if isinstance(op, ast.LShift) else y * x.bit_length()) > _MOST_BITS


def _too_long(x: object, y: object) -> bool:
    sizes = [v if isinstance(v, int) else len(v) for v in (x, y) if hasattr(v, "__len__")]
    counts = [v for v in (x, y) if isinstance(v, int)]
    return bool(sizes) and bool(counts) and sizes[0] * counts[0] > MOST_STEPS


def attribute(base: object, name: str, trusted: bool) -> Value | None:
    """Return `base.name`; None if there is no such attribute or the script may not read it."""
    if name.startswith("_"):
        return None
    if isinstance(base, Buffer):
        return _of_buffer(base, name)
    if isinstance(base, Expr):
        return Python(base.dtype) if name == "dtype" else None
    if not trusted and isinstance(base, _CLOSED):
        return None
    return wrap(getattr(base, name)) if hasattr(base, name) else None


def _of_buffer(buffer: Buffer, name: str) -> Value | None:
    if name in ("shape", "strides"):
        return Python(tuple(map(_plain_extent, getattr(buffer, name))))
    if name in ("name", "scope", "dtype"):
        return Python(getattr(buffer, name))
    return Number(len(buffer.shape), True) if name == "ndim" else None


def _plain_extent(e: Expr) -> Expr | int:
    """Return a constant extent as a Python int, other extents unchanged."""
    n = int_value(e)
    return e if n is None or not isinstance(e, IntImm) else n


def steps(items: object) -> list[object]:
    """Return the items of a Python iterable. Raise TypeError if it is not iterable or is text, and
    OverflowError if it has more than `MOST_STEPS` items."""
    if not isinstance(items, Iterable) or isinstance(items, str | bytes):
        raise TypeError(f"{type(items).__name__} is not iterable in a script")
    first_items = list(islice(iter(items), MOST_STEPS + 1))
    if len(first_items) > MOST_STEPS:
        raise OverflowError(f"more than {MOST_STEPS} items")
    return first_items
