"""Lanes of vectors of indices."""

from __future__ import annotations

from tensorkiln.ir.expr import Binary, Broadcast, Cast, Expr, Ramp, binary, cast


def lane_of(e: Expr, lane: Expr) -> Expr | None:
    """A lane of a vector of indices; None unless the vector is made of Ramps, Broadcasts and
    scalars by casts and binary operators."""
    if e.dtype.lanes == 1:
        return e
    match e:
        case Ramp(base, stride):
            return base + stride * lane
        case Broadcast(a):
            return a
        case Cast(a, dtype):
            element = lane_of(a, lane)
            return None if element is None else cast(element, dtype.element)
        case Binary(op, a, b):
            x, y = lane_of(a, lane), lane_of(b, lane)
            return None if x is None or y is None else binary(op, x, y)
    return None
