"""Loads that only happen where a condition holds, so that nothing else has to keep their indices
inside of the buffer."""

from __future__ import annotations

from collections.abc import Iterator

from tensorkiln.arith import simplify
from tensorkiln.ir.buffer import Load
from tensorkiln.ir.expr import Binary, Expr, Select, const, int_value
from tensorkiln.ir.visit import map_children


def guarded_load(value: Expr) -> tuple[Expr, Load] | None:
    """(a condition, a load) for a value that is the load where the condition holds, and zero where
    it does not; None for other values.

    x[max(i - 1, 0)] if i >= 1 else 0   ->   (i >= 1, x[i - 1])
    """
    if not isinstance(value, Select) or not isinstance(value.a, Load):
        return None
    if value.b != const(0, value.dtype):
        return None
    buffer, indices = value.a.buffer, value.a.indices
    return value.cond, Load(buffer, tuple(_unclamped(i, value.cond) for i in indices))


def _unclamped(e: Expr, cond: Expr) -> Expr:
    """An index without the minima and maxima that a condition makes superfluous."""
    e = map_children(e, lambda c: _unclamped(c, cond))
    if isinstance(e, Binary) and e.op in ("max", "min"):
        above = e.a - e.b if e.op == "max" else e.b - e.a
        differences = (int_value(simplify(above - n)) for n in _not_negative(cond))
        if any(d is not None and d >= 0 for d in differences):
            return e.a
    return e


def _not_negative(cond: Expr) -> Iterator[Expr]:
    """What is not negative where a condition holds."""
    match cond:
        case Binary("and", a, b):
            yield from _not_negative(a)
            yield from _not_negative(b)
        case Binary("ge", a, b):
            yield a - b
        case Binary("lt", a, b):
            yield b - a - 1
