"""Elements read at indices: of a dimension, or of all dimensions at once."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tensorkiln.frontend.graph.context import Context
from tensorkiln.frontend.graph.issues import malformed
from tensorkiln.frontend.graph.values import SymbolicTensor, Val
from tensorkiln.ir.expr import Expr, as_expr, binary, int_value
from tensorkiln.ir.relax import Constant


def gather(g: Context, x: Val, indices: Val, *, axis: int = 0) -> Val:
    """Take slices of `x` along a dimension; negative indices count from the end."""
    axis = g.axis(axis, g.rank(x))
    if not g.rank(x):
        raise malformed("the operand is a scalar")
    size = int_value(g.shape(x)[axis])
    if (
        isinstance(x, SymbolicTensor | Constant)
        and isinstance(indices, Constant)
        and size is not None
    ):
        outside = (indices.array < -size) | (indices.array >= size)
        if outside.any():
            index = indices.array[outside].flat[0]
            raise malformed(f"index {index} is outside of dimension {axis}, which has {size}")
    return g.emit("take", x, indices, axis=axis)


def with_elements(g: Context, x: Val, axis: int, indices: np.ndarray | None) -> Val:
    """`x`, whose dimension `axis` must have elements of these indices; None: that data gives."""
    if indices is None or not indices.size:
        return x
    low, high = int(indices.min()), int(indices.max())
    extreme = low if -low > high + 1 else high
    condition = binary("ge", g.shape(x)[axis], as_expr(max(-low, high + 1)))
    return g.require(x, condition, f"a dimension {axis} with an element of index {extreme}")


def constant_elements(x: Val) -> np.ndarray | None:
    """The elements of a constant operand; None if it is computed."""
    return x.array if isinstance(x, Constant) else None


def flat_offset(g: Context, parts: Sequence[Val], extents: Sequence[Expr]) -> Val:
    """The row-major offset into a tensor of shape `extents` of int64 indices that broadcast."""
    total: Val = g.const(0, "int64")
    for index, extent in zip(parts, extents, strict=True):
        n = g.reshape(g.shape_value([extent]), ())
        total = g.emit("add", g.emit("mul", total, n), index)
    return total


def nonnegative(g: Context, index: Val, extent: Expr) -> Val:
    """Indices as non-negative int64: `extent` is added to negative ones."""
    index = g.cast(index, "int64")
    n = g.reshape(g.shape_value([extent]), ())
    below = g.emit("less", index, g.const(0, "int64"))
    return g.emit("where", below, g.emit("add", index, n), index)


def counts_within(g: Context, x: Val, numbers: Val, last: Expr, of: str) -> tuple[Val, Val]:
    """x and numbers, such as lengths, from 0 to `last`, which is an extent of x `of` something: a
    call in which one is outside fails."""
    array = constant_elements(numbers)
    if array is None:
        return x, g.inside(numbers, last + 1, negative=False)
    if array.size and array.min() < 0:
        raise malformed(f"{int(array.min())} {of}, expected 0 or more")
    largest = int(array.max(initial=0))
    return g.require(x, binary("ge", last, as_expr(largest)), f"{largest} or more {of}"), numbers


def gather_elements(g: Context, x: Val, indices: Val, *, axis: int = 0) -> Val:
    """out[i, j, ...] = x[i, indices[i, j, ...], ...] (for axis 1), as one take of flattened x."""
    rank = g.rank(x)
    axis = g.axis(axis, rank)
    if g.rank(indices) != rank:
        raise malformed(f"indices have {g.rank(indices)} dimensions, the operand {rank}")
    x = with_elements(g, x, axis, constant_elements(indices))
    for i, (extent, count) in enumerate(zip(g.shape(x), g.shape(indices), strict=True)):
        if i != axis:
            x = g.require(x, binary("ge", extent, count), f"indices within dimension {i}")
    parts: list[Val] = []
    for i, n in enumerate(g.shape(indices)):
        if i == axis:
            parts.append(nonnegative(g, g.inside(indices, g.shape(x)[i]), g.shape(x)[i]))
            continue
        parts.append(g.iota(n, rank, i))
    flat = g.reshape(x, (g.dims.product(g.shape(x)),))
    return g.emit("take", flat, flat_offset(g, parts, g.shape(x)), axis=0, outside="clamp")
