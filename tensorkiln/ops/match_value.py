"""Check values of the NumPy evaluation against graph types, and bind symbolic dimensions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tensorkiln.base.errors import UserError
from tensorkiln.ir.dtype import DType
from tensorkiln.ir.expr import Expr, IntImm, Var, int_value
from tensorkiln.ir.relax import (
    AnyTensorType,
    FuncType,
    PrimType,
    ShapeType,
    StringType,
    TensorType,
    TupleType,
    Type,
)
from tensorkiln.ir.type_text import show
from tensorkiln.ir.visit import substitute
from tensorkiln.ops.rules import show as show_extent
from tensorkiln.ops.rules import show_type

Env = dict[Var, int]


def match_shapes(name: str, shape: Sequence[Expr], actual: Sequence[int], env: Env) -> None:
    """Match the shape `actual` against a symbolic one, and add the values of its variables to
    `env`: `[N, N + 1]` against (3, 4) binds N to 3. Raise UserError `shape-mismatch` if it does not
    fit."""
    fits = len(shape) == len(actual)
    for want, have in zip(shape, actual, strict=False):
        if isinstance(want, Var):
            fits = env.setdefault(want, have) == have and fits
    for want, have in zip(shape, actual, strict=False):
        number = int_value(substitute(want, {v: IntImm(n) for v, n in env.items()}))
        fits = fits and number in (None, have)
    if not fits:
        expected = f"[{', '.join(map(show_extent, shape))}]"
        raise UserError(
            f"input {name!r}: expected shape {expected}, received {list(actual)}",
            code="shape-mismatch",
        )


def match_value(name: str, t: Type, value: Any, env: Env, precision: DType | None = None) -> None:
    """Raise UserError unless `value` is of type `t`, and bind the symbols of `t` in `env`. If
    `precision` is given, tensors of any float type must have that dtype instead."""
    match t:
        case TensorType():
            _dtype(name, t.dtype, value, show_type(t), precision)
            match_shapes(name, t.shape, value.shape, env)
        case AnyTensorType(ndim, dtype):
            _dtype(name, dtype, value, show(t), precision)
            if ndim not in (None, value.ndim):
                message = f"input {name!r}: expected {show(t)}, received rank {value.ndim}"
                raise UserError(message, code="shape-mismatch")
        case TupleType(fields):
            _require(name, t, value, isinstance(value, tuple) and len(value) == len(fields))
            for i, (f, v) in enumerate(zip(fields, value, strict=True)):
                match_value(f"{name}[{i}]", f, v, env, precision)
        case ShapeType(ndim):
            _require(name, t, value, np.ndim(value) == 1 and len(value) == ndim)
        case PrimType(dtype, symbol):
            kind = (bool,) if dtype.is_bool else (float, int) if dtype.is_float else (int,)
            _require(name, t, value, type(value) in kind)
            if symbol is not None and env.setdefault(symbol, value) != value:
                message = f"input {name!r}: expected {env[symbol]}, received {value}"
                raise UserError(message, code="shape-mismatch")
        case StringType():
            _require(name, t, value, isinstance(value, str))
        case FuncType():
            _require(name, t, value, callable(value))


def _dtype(
    name: str, expected: DType | None, value: Any, text: str, precision: DType | None
) -> None:
    if not isinstance(value, np.ndarray):
        raise _mismatch(name, text, type(value).__name__)
    promoted = precision is not None and expected is not None and expected.is_float
    dtype = precision if promoted else expected
    if dtype is not None and value.dtype.name != dtype.name:
        raise _mismatch(name, text, f"dtype {value.dtype}", "dtype-mismatch")


def _require(name: str, t: Type, value: Any, fits: bool) -> None:
    if not fits:
        raise _mismatch(name, show(t), type(value).__name__)


def _mismatch(name: str, expected: str, received: str, code: str = "kind-mismatch") -> UserError:
    return UserError(f"input {name!r}: expected {expected}, received {received}", code=code)
