"""Numbers as C text."""

from __future__ import annotations

from tensorkiln.codegen.expand.float_bits import half_bits
from tensorkiln.ir.expr import Expr, FloatImm, IntImm


def literal(e: Expr) -> str | None:
    """C text of a constant as a kernel takes it; None if `e` is not a constant."""
    if isinstance(e, IntImm):
        return integer_literal(int(e.value))
    if not isinstance(e, FloatImm):
        return None
    if e.dtype.is_half:
        return hex(half_bits(e.value, e.dtype.row))
    return real_literal(e.value)


def integer_literal(value: int) -> str:
    """C text of an integer of 64 bits. Those from 2**63 on get a suffix, and -2**63 becomes an
    expression, since C has no signed literal for either."""
    if value >= 1 << 63:
        return f"{value}u"
    return f"({value + 1} - 1)" if value == -(1 << 63) else str(value)


def real_literal(value: float) -> str:
    """C text of a double."""
    if value != value:
        return '__builtin_nan("")'
    if value in (float("inf"), float("-inf")):
        return f"{'-' if value < 0 else ''}__builtin_inf()"
    return repr(value)
