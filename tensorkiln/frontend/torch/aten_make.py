"""Operators of ATen that make tensors of numbers and sizes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tensorkiln.base.element_types import PROGRAM_TYPES
from tensorkiln.frontend.graph.values import Val
from tensorkiln.frontend.torch.context import AtenContext, Operand
from tensorkiln.frontend.torch.dispatch import AtenImporter, AtenTable
from tensorkiln.ir.expr import Expr, int_value

# Known tensors of more elements than this stay operators.
_CONSTANT_LIMIT = 1 << 20


def arange(g: AtenContext, start: Operand, end: Operand, step: Operand = 1, **options: Any) -> Val:
    """start, start + step, ... up to, but without, end; torch says how many."""
    dtype, (count,) = g.out.dtype.name, g.out.shape
    n = int_value(count)
    first, by = (int_value(v) if isinstance(v, Expr) else v for v in (start, step))
    if n is not None and first is not None and by is not None and n <= _CONSTANT_LIMIT:
        return g.const(first + by * np.arange(n), dtype)
    return g.emit(
        "arange", start=_bound(start, dtype), step=_bound(step, dtype), count=count, dtype=dtype
    )


def _bound(value: Operand, dtype: str) -> Operand:
    if isinstance(value, Expr):
        number = int_value(value)
        return value if number is None else number
    return float(value) if PROGRAM_TYPES[dtype].is_float else value


def arange_from_0(g: AtenContext, end: Operand, **options: Any) -> Val:
    """0, 1, ... up to, but without, end."""
    return arange(g, 0, end)


def full(g: AtenContext, size: Sequence[Operand], value: Operand, **options: Any) -> Val:
    """A tensor whose elements are all one number or size."""
    return _filled(g, value)


def _filled(g: AtenContext, value: Operand) -> Val:
    """`value` in the type of the result."""
    dtype, shape = g.out.dtype.name, g.out.shape
    return g.spread(g.number(value, dtype), shape)


def full_like(g: AtenContext, x: Val, value: Operand, **options: Any) -> Val:
    """`value` in the shape of the operand."""
    return _filled(g, value)


def fill(g: AtenContext, x: Val, value: Operand) -> Val:
    """`value`, a number or a scalar tensor, in the shape of the operand."""
    return _filled(g, value)


def constant_like(number: float) -> AtenImporter:
    """Zeros or ones in the type of the result, whatever the operands."""

    def run(g: AtenContext, *operands: Operand, **options: Any) -> Val:
        return _filled(g, number)

    return run


def scalar_tensor(g: AtenContext, value: Operand, **options: Any) -> Val:
    """A number or size as a scalar."""
    return g.number(value, g.out.dtype.name)


def eye(g: AtenContext, n: Operand, m: Operand = None, **options: Any) -> Val:
    """1 on the diagonal, else 0."""
    rows, columns = g.out.shape
    hit = g.emit("equal", g.iota(rows, 2, 0), g.iota(columns, 2, 1))
    return g.cast(hit, g.out.dtype.name)


TABLE: AtenTable = {
    "arange": arange_from_0,
    "arange.start": arange,
    "arange.start_step": arange,
    "full": full,
    "full_like": full_like,
    "new_full": lambda g, x, size, value, **options: _filled(g, value),
    "fill.Scalar": fill,
    "fill.Tensor": fill,
    **{name: constant_like(0) for name in ("zeros", "zeros_like", "new_zeros")},
    **{name: constant_like(1) for name in ("ones", "ones_like", "new_ones")},
    # What new memory holds is not specified; here it is zeros.
    **{
        name: constant_like(0)
        for name in (
            "empty.memory_format",
            "empty_strided",
            "empty_like",
            "empty_permuted",
            "new_empty",
        )
    },
    "scalar_tensor": scalar_tensor,
    "eye": eye,
    "eye.m": eye,
}
