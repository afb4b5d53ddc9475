"""How many elements a thread can access at once, as one vector."""

from __future__ import annotations

from collections.abc import Sequence

from tensorkiln.arith import simplify
from tensorkiln.ir.buffer import Load
from tensorkiln.ir.expr import Expr, Var, int_value
from tensorkiln.ir.visit import children, loads, substitute
from tensorkiln.schedule.access import lane_stride, simplify_value
from tensorkiln.schedule.gpu.products import Axes
from tensorkiln.schedule.gpu.tiles import split_index

_VECTORS = (16, 8, 4)  # bytes that a thread accesses at once


def adjacent(values: Sequence[Expr], axes: Axes, extent: Expr) -> float:
    """How many elements along some axes can be accessed as one vector in all values; less than 1
    for single ones, the more the longer they are adjacent."""
    for size in _VECTORS:
        lanes = size // values[0].dtype.bytes
        if lanes > 1 and all(_divides(x, axes, extent, lanes) for x in values):
            return lanes
    last = axes[-1:]
    if not last or any(lane_stride(x, last[0][0]) not in (0, 1) for v in values for x in loads(v)):
        return 0
    n = int_value(last[0][1])
    return 0.5 if n is None else 1 - 0.5 / n


def _divides(value: Expr, axes: Axes, extent: Expr, lanes: int) -> bool:
    """Whether elements along some axes are accessed in vectors of `lanes`, with none left over."""
    if int_value(simplify(extent % lanes)) != 0:
        return False
    step, lane = Var("step"), Var("lane")
    bounds = {lane: (0, lanes - 1)}
    at = {v: simplify(e, bounds) for v, e in split_index(axes, step * lanes + lane).items()}
    return _in_vectors(simplify_value(substitute(value, at), bounds), lane)


def _in_vectors(e: Expr, lane: Var) -> bool:
    """Whether all loads are adjacent, or the same, for neighbouring values of a variable on which
    nothing else depends."""
    if isinstance(e, Load):
        return lane_stride(e, lane) in (0, 1)
    return e is not lane and all(_in_vectors(c, lane) for c in children(e))
