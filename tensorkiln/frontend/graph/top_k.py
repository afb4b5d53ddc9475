"""The greatest or least elements along a dimension."""

from __future__ import annotations

from collections.abc import Sequence

from tensorkiln.frontend.graph.context import Context
from tensorkiln.frontend.graph.indexing import gather_elements
from tensorkiln.frontend.graph.issues import malformed
from tensorkiln.frontend.graph.values import Val
from tensorkiln.ir.expr import int_value


def top_k(g: Context, x: Val, count: int, axis: int, largest: bool) -> Sequence[Val]:
    """The `count` first elements in order, and their places."""
    rank = g.rank(x)
    axis = g.axis(axis, rank)
    if not rank:
        raise malformed("the operand is a scalar")
    n = g.shape(x)[axis]
    size = int_value(n)
    if count < 0 or (size is not None and count > size):
        raise malformed(f"k={count}, expected 0 to the extent {size} of dimension {axis}")
    order = [i for i in range(rank) if i != axis] + [axis]
    back = [order.index(i) for i in range(rank)]
    moved = g.transpose(x, order)
    index = g.emit("top_k", moved, k=count, largest=largest)
    values = gather_elements(g, moved, index, axis=rank - 1)
    return g.transpose(values, back), g.transpose(index, back)
