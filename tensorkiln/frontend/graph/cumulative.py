"""Sums and products of all elements up to each one."""

from __future__ import annotations

from tensorkiln.frontend.graph.context import Context
from tensorkiln.frontend.graph.movement import flip
from tensorkiln.frontend.graph.values import Val
from tensorkiln.ir.expr import int_value

# Up to this extent a cumulative sum looks at all pairs of elements; a longer one is made of blocks.
_BLOCK = 64


def cumulative(
    g: Context, name: str, x: Val, axis: int, *, exclusive: bool = False, reverse: bool = False
) -> Val:
    """The reduction `name`, "sum" or "prod", of x[j] over j <= i; over j < i if `exclusive`,
    j >= i if `reverse`, j > i if both."""
    rank, unit = g.rank(x), int(name == "prod")
    axis = g.axis(axis, rank)
    order = [i for i in range(rank) if i != axis] + [axis]
    x = g.transpose(x, order)
    if reverse:
        x = flip(g, x, rank - 1)
    total = _running(g, name, unit, x, exclusive)
    if reverse:
        total = flip(g, total, rank - 1)
    return g.transpose(total, [order.index(i) for i in range(rank)])


def _running(g: Context, name: str, unit: int, x: Val, exclusive: bool) -> Val:
    """The reduction of all elements up to each one along the last dimension, or before it.

    A long dimension is divided into blocks: each element is combined with those before it in its
    block and with what all blocks before give, so that the time is that of `_BLOCK` elements for
    each element and not quadratic. A symbolic dimension is not divided.
    """
    rank, n = g.rank(x), int_value(g.shape(x)[-1])
    if n is None or n <= _BLOCK:
        return _masked(g, name, unit, x, exclusive)
    lead, blocks = g.shape(x)[:-1], -(-n // _BLOCK)
    after = (*[0] * (rank - 1), blocks * _BLOCK - n)
    padded = g.emit("pad", x, before=(0,) * rank, after=after, value=unit)
    split = g.reshape(padded, (*lead, blocks, _BLOCK))
    within = _masked(g, name, unit, split, exclusive)
    totals = g.emit(name, split, axes=(rank,), keepdims=False)
    before = g.reshape(_running(g, name, unit, totals, True), (*lead, blocks, 1))
    sums = g.emit("add" if name == "sum" else "mul", within, before)
    flat = g.reshape(sums, (*lead, blocks * _BLOCK))
    return g.emit("slice", flat, begin=(0,) * rank, strides=(1,) * rank, shape=(*lead, n))


def _masked(g: Context, name: str, unit: int, x: Val, exclusive: bool) -> Val:
    """`_running` with a mask over all pairs of elements."""
    n = g.shape(x)[-1]
    index = g.emit("arange", start=0, step=1, count=n, dtype="int64")
    i, j = g.reshape(index, (n, 1)), g.reshape(index, (1, n))
    keep = g.emit("less" if exclusive else "less_equal", j, i)
    wide = g.reshape(x, (*g.shape(x)[:-1], 1, n))
    masked = g.emit("where", keep, wide, g.like(unit, x))
    return g.emit(name, masked, axes=(g.rank(x),), keepdims=False)
