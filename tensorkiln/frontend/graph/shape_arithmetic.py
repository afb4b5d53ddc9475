"""Operators on integer tensors whose elements are numbers or symbolic expressions.

Each operator that occurs in computations of shapes has a row in `SYMBOLIC`, which evaluates it on
NumPy object arrays of `Expr`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from tensorkiln.frontend.graph.dimensions import Dims
from tensorkiln.frontend.graph.values import SymbolicTensor, expression_tensor, object_array
from tensorkiln.ir.attrs import Attrs
from tensorkiln.ir.dtype import DType
from tensorkiln.ir.expr import (
    Expr,
    IntImm,
    binary,
    cast,
    const,
    int_value,
    logical_and,
    maximum,
    minimum,
    select,
    unary,
)
from tensorkiln.ir.relax import Constant

Row = Callable[[Dims, Sequence[np.ndarray], Attrs], np.ndarray]


def evaluate(
    name: str, args: Sequence[np.ndarray], attrs: Attrs, dtype: DType, dims: Dims
) -> SymbolicTensor | Constant | None:
    """Evaluate an operator on tensors of expressions; None if it has no row or its result is not
    integer or boolean."""
    row = SYMBOLIC.get(name)
    if row is None or not (dtype.is_int or dtype.is_bool):
        return None
    out = np.asarray(row(dims, args, attrs), object)
    flat = [dims.simplify(e) for e in out.ravel()]
    return expression_tensor(object_array(flat, out.shape), dtype)


def _map(f: Callable[..., Expr], args: Sequence[np.ndarray]) -> np.ndarray:
    arrays = np.broadcast_arrays(*args)
    flat = [f(*items) for items in zip(*(a.ravel() for a in arrays), strict=True)]
    return object_array(flat, arrays[0].shape)


def _each(f: Callable[..., Expr]) -> Row:
    return lambda dims, args, attrs: _map(f, args)


def _decided(f: Callable[[Dims, Expr, Expr], Expr]) -> Row:
    return lambda dims, args, attrs: _map(lambda a, b: f(dims, a, b), args)


def _div(dims: Dims, a: Expr, b: Expr) -> Expr:
    """a / b, truncated toward zero as the operator does (`//` of Expr rounds down).

    Where the signs cannot be proved, the result selects by them.
    """
    x, y = int_value(a), int_value(b)
    if x is not None and y:
        return const(abs(x) // abs(y) * (1 if (x < 0) == (y < 0) else -1), a.dtype)
    if dims.holds(binary("gt", b, 0)):
        return a // b if dims.holds(binary("ge", a, 0)) else _truncated(a, b)
    negative = binary("lt", b, 0)
    quotient = _truncated(a, select(negative, unary("neg", b), b))
    return select(negative, unary("neg", quotient), quotient)


def _truncated(a: Expr, b: Expr) -> Expr:
    """a / b toward zero, for b > 0."""
    return select(binary("ge", a, 0), a // b, unary("neg", unary("neg", a) // b))


def _abs(dims: Dims, a: Expr) -> Expr:
    return a if dims.holds(binary("ge", a, 0)) else maximum(a, unary("neg", a))


def _reduce(f: Callable[[Expr, Expr], Expr], unit: int | None) -> Row:
    def run(dims: Dims, args: Sequence[np.ndarray], attrs: Attrs) -> np.ndarray:
        (x,) = args
        axes = {a % x.ndim for a in attrs.axes} if x.ndim else set()
        order = [i for i in range(x.ndim) if i not in axes] + sorted(axes)
        rows = x.transpose(order).reshape(*(x.shape[i] for i in order if i not in axes), -1)
        lead = rows.shape[:-1]
        flat = []
        for row in rows.reshape(-1, rows.shape[-1]):
            items = list(row) if unit is None or len(row) else [const(unit)]
            acc = items[0]
            for item in items[1:]:
                acc = f(acc, item)
            flat.append(acc)
        keep = tuple(1 if i in axes else n for i, n in enumerate(x.shape))
        return object_array(flat, keep if attrs.keepdims else lead)

    return run


def _slice(dims: Dims, args: Sequence[np.ndarray], attrs: Attrs) -> np.ndarray:
    (x,) = args
    index = [
        [b + k * s for k in range(n)]
        for b, s, n in zip(*map(_static, (attrs.begin, attrs.strides, attrs.shape)), strict=True)
    ]
    return x[np.ix_(*index)] if index else x


def _take(dims: Dims, args: Sequence[np.ndarray], attrs: Attrs) -> np.ndarray:
    x, indices = args
    axis = attrs.axis % x.ndim
    index = np.array([int_value(i) for i in indices.ravel()], np.int64).reshape(indices.shape)
    return np.take(x, index, axis=axis)


def _static(shape: Sequence[Expr]) -> tuple[int, ...]:
    return tuple(v for v in (int_value(d) for d in shape) if v is not None)


def _cast(dims: Dims, args: Sequence[np.ndarray], attrs: Attrs) -> np.ndarray:
    to = DType(attrs.dtype)
    if to.is_bool:
        return _map(lambda e: e if e.dtype.is_bool else binary("ne", e, 0), args)
    return _map(lambda e: cast(e, to), args)


SYMBOLIC: dict[str, Row] = {
    "add": _each(lambda a, b: a + b),
    "sub": _each(lambda a, b: a - b),
    "mul": _each(lambda a, b: a * b),
    "div": _decided(_div),
    "neg": _each(lambda a: 0 - a),
    "abs": lambda dims, args, attrs: _map(lambda a: _abs(dims, a), args),
    "minimum": _each(minimum),
    "maximum": _each(maximum),
    "equal": _decided(lambda dims, a, b: dims.compare("eq", a, b)),
    "not_equal": _decided(lambda dims, a, b: dims.compare("ne", a, b)),
    "less": _decided(lambda dims, a, b: dims.compare("lt", a, b)),
    "less_equal": _decided(lambda dims, a, b: dims.compare("le", a, b)),
    "greater": _decided(lambda dims, a, b: dims.compare("gt", a, b)),
    "greater_equal": _decided(lambda dims, a, b: dims.compare("ge", a, b)),
    "logical_and": _each(lambda a, b: logical_and(a, b)),
    "logical_or": _each(lambda a, b: binary("or", a, b)),
    "logical_not": _each(
        lambda a: const(1 - a.value, a.dtype) if isinstance(a, IntImm) else unary("not", a)
    ),
    "where": _each(select),
    "cast": _cast,
    "identity": lambda dims, args, attrs: args[0],
    "take": _take,
    "slice": _slice,
    "concat": lambda dims, args, attrs: np.concatenate(args, axis=attrs.axis),
    "reshape": lambda dims, args, attrs: args[0].reshape(_static(attrs.shape)),
    "transpose": lambda dims, args, attrs: args[0].transpose(attrs.axes),
    "broadcast_to": lambda dims, args, attrs: np.broadcast_to(args[0], _static(attrs.shape)),
    "tile": lambda dims, args, attrs: np.tile(args[0], attrs.repeats),
    "sum": _reduce(lambda a, b: a + b, 0),
    "prod": _reduce(lambda a, b: a * b, 1),
    "min": _reduce(minimum, None),
    "max": _reduce(maximum, None),
}
