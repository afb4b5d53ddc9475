"""The bytes that a tensor takes in memory, where its elements lie one after the other."""

from __future__ import annotations

import math
from collections.abc import Iterable

from tensorkiln.ir.dtype import DType
from tensorkiln.ir.expr import Expr, IntImm, int_value


def bytes_of(dtype: DType, shape: Iterable[Expr]) -> Expr:
    """The bytes of a tensor of a shape, not simplified. Elements may share bytes."""
    packed = dtype.row.per_byte > 1
    total: Expr = IntImm(dtype.bits if packed else dtype.bytes)
    for extent in shape:
        total = total * extent
    return (total + 7) // 8 if packed else total


def known_bytes(dtype: DType, shape: Iterable[Expr]) -> int | None:
    """The same as a number; None if an extent is symbolic."""
    extents = [int_value(d) for d in shape]
    sizes = [n for n in extents if n is not None]
    return dtype.size(math.prod(sizes)) if len(sizes) == len(extents) else None
