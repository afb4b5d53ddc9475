"""Elements put to computed places of a tensor, or combined with what is there.

The operator `scatter` does the work. Rows that are put to constant places are taken from there
instead: where they lie is found at import.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tensorkiln.frontend.graph.context import Context
from tensorkiln.frontend.graph.indexing import (
    constant_elements,
    flat_offset,
    nonnegative,
    with_elements,
)
from tensorkiln.frontend.graph.issues import malformed
from tensorkiln.frontend.graph.values import Val
from tensorkiln.ir.dtype import DType
from tensorkiln.ir.expr import Expr, binary, int_value
from tensorkiln.ir.relax import Constant
from tensorkiln.ops.places import REDUCTIONS


def identity_element(g: Context, x: Val, reduction: str) -> Val:
    """The number that changes nothing when it is combined, in the element type of `x`."""
    if reduction in ("add", "mul"):
        return g.like(reduction == "mul", x)
    dtype = g.type(x).dtype
    if reduction == "max":
        return g.const(lowest(dtype), dtype)
    return g.like(np.inf, x) if dtype.is_float else g.const(np.iinfo(dtype.name).max, dtype)


def lowest(dtype: DType) -> float:
    """The least number of an element type."""
    return -np.inf if dtype.is_float else int(np.iinfo(dtype.name).min)


def check_reduction(g: Context, x: Val, updates: Val, reduction: str) -> None:
    """NodeProblem unless `updates` can be put to `x`, or combined with it by `reduction`."""
    if reduction not in REDUCTIONS:
        reductions = ", ".join(map(repr, REDUCTIONS))
        raise malformed(f"reduction={reduction!r}; expected one of {reductions}")
    if g.dtype(x) != g.dtype(updates):
        raise malformed(f"updates are of {g.dtype(updates)}, the operand of {g.dtype(x)}")


def scatter_elements(
    g: Context, x: Val, indices: Val, updates: Val, *, axis: int = 0, reduction: str = "none"
) -> Val:
    """out[i][indices[i][j]] = updates[i][j] (for axis 1), else x; combined with x by a reduction.

    Indices may cover a part of the other dimensions only, from their beginning.
    """
    rank = g.rank(x)
    axis = g.axis(axis, rank)
    check_reduction(g, x, updates, reduction)
    if (g.rank(indices), g.rank(updates)) != (rank, rank) or not rank:
        raise malformed(
            f"operand, indices and updates have {rank}, {g.rank(indices)} and {g.rank(updates)} "
            "dimensions; expected the same of 1 or more"
        )
    updates = g.fitted(updates, g.shape(indices), "updates")
    x = with_elements(g, x, axis, constant_elements(indices))
    place = nonnegative(g, g.inside(indices, g.shape(x)[axis]), g.shape(x)[axis])
    for i in range(rank):
        if i != axis:
            within = binary("ge", g.shape(x)[i], g.shape(indices)[i])
            x = g.require(x, within, f"indices within dimension {i} of the operand")
    return scatter_along(g, x, place, updates, reduction, axis)


def scatter_along(
    g: Context, x: Val, index: Val, updates: Val, reduction: str = "none", axis: int = -1
) -> Val:
    """x with `updates` put to, or combined with, the elements `index` of a dimension, one after the
    other: the last of several for one element stays. `index` has the shape of `updates`, which may
    be less in the other dimensions; where it is beyond the dimension, it is nowhere."""
    rank = g.rank(x)
    shape, dims = g.shape(index), g.shape(x)
    columns = [index if i == axis % rank else g.iota(shape[i], rank, i) for i in range(rank)]
    place = _checked(g, columns, dims, [axis % rank])
    flat = g.reshape(x, (g.dims.product(dims), 1))
    count = g.dims.product(shape)
    place, rows = g.reshape(place, (count,)), g.reshape(updates, (count, 1))
    return g.reshape(g.emit("scatter", flat, place, rows, reduction=reduction), dims)


def scatter_rows(g: Context, x: Val, columns: Sequence[Val], updates: Val, reduction: str) -> Val:
    """out[columns[0][i], columns[1][i], ...] = updates[i], else x; combined by a reduction. Columns
    are of one shape and inside of the first dimensions of x."""
    dims, count = g.shape(x), len(columns)
    rows, size = g.dims.product(dims[:count]), g.dims.product(dims[count:])
    update_count = g.dims.product(g.shape(columns[0]))
    flat, update_rows = g.reshape(x, (rows, size)), g.reshape(updates, (update_count, size))
    lines = [g.reshape(column, (update_count,)) for column in columns]
    place = _checked(g, lines, dims[:count], range(count))
    if reduction == "none" and isinstance(place, Constant) and int_value(rows) is not None:
        result = _placed(g, flat, place.array, update_rows)
    else:
        result = g.emit("scatter", flat, place, update_rows, reduction=reduction)
    return g.reshape(result, dims)


def _checked(g: Context, columns: Sequence[Val], dims: Sequence[Expr], of: Sequence[int]) -> Val:
    """The row-major offset of indices that broadcast; -1 where one of those numbered `of` is
    outside of its dimension."""
    place = flat_offset(g, columns, dims)
    if isinstance(place, Constant) and all(int_value(d) is not None for d in dims):
        return place
    for k in of:
        n = g.reshape(g.shape_value([dims[k]]), ())
        low = g.emit("less", columns[k], g.const(0, "int64"))
        out = g.emit("logical_or", low, g.emit("greater_equal", columns[k], n))
        place = g.emit("where", out, g.const(-1, "int64"), place)
    return place


def _placed(g: Context, x: Val, place: np.ndarray, updates: Val) -> Val:
    """x [rows, size] with updates [many, size] at known rows."""
    rows = int_value(g.shape(x)[0]) or 0
    if place.size and not (place.min() >= 0 and place.max() < rows):
        raise malformed(f"an index is outside of the operand, which has {rows} places")
    source = np.arange(rows)
    source[place] = rows + np.arange(place.size)
    candidates = g.emit("concat", x, updates, axis=0)
    return g.emit("take", candidates, g.const(source, "int64"), axis=0)
