"""Python while parsing: what captured values are worth, and arithmetic, items and calls of them.

Only values that came in from outside take part; `1 + 2` in a script is an expression of its own.
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
# Python's own functions that a script may call on Python values.
_ANYWHERE = (enumerate, len, range, zip)
_OWN_CODE = (
    abs, all, any, bool, dict, divmod, float, int, isinstance, list, map, max, min, pow, reversed,
    round, set, sorted, str, sum, tuple,
)  # fmt: skip
BUILTINS: dict[str, object] = {f.__name__: f for f in _ANYWHERE}
OWN_BUILTINS: dict[str, object] = BUILTINS | {f.__name__: f for f in _OWN_CODE}
MOST_STEPS = 1 << 16
_MOST_BITS = 1 << 12
# What a text from elsewhere may not take apart.
_CLOSED = (
    str, bytes, int, float, tuple, list, dict, set, frozenset, type(None), type, FunctionType,
    BuiltinFunctionType,
)  # fmt: skip


def wrap(value: object, captured: bool = True) -> Value:
    """A Python value as a value of the parser."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, Expr | Number | Python):
        return value
    if isinstance(value, int | float):
        return Number(value, captured)
    return Python(value, captured)


def unwrap(value: Value) -> Any:
    """The Python value, or the expression."""
    return value.value if isinstance(value, Number | Python) else value


def is_python(*values: Value) -> bool:
    """Whether all are known while parsing, and one of them came in from outside."""
    known = all(isinstance(v, Number | Python) for v in values)
    return known and any(v.captured for v in values)  # type: ignore[union-attr]


def fold(op: ast.AST, a: Value, b: Value) -> Value | None:
    """The operation in Python, or None when it belongs to the script. Raises what Python does."""
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
    """`base.name`, or None where the script may not have it."""
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
        return Python(tuple(map(_known, getattr(buffer, name))))
    if name in ("name", "scope", "dtype"):
        return Python(getattr(buffer, name))
    return Number(len(buffer.shape), True) if name == "ndim" else None


def _known(e: Expr) -> Expr | int:
    """A literal extent as the Python number it is."""
    n = int_value(e)
    return e if n is None or not isinstance(e, IntImm) else n


def steps(items: object) -> list[object]:
    """The items of a Python iterable. Raises TypeError for none, OverflowError for too many."""
    if not isinstance(items, Iterable) or isinstance(items, str | bytes):
        raise TypeError(f"a {type(items).__name__} has no items to run over")
    found = list(islice(iter(items), MOST_STEPS + 1))
    if len(found) > MOST_STEPS:
        raise OverflowError(f"more than {MOST_STEPS} items")
    return found
