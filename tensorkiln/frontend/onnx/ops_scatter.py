"""Operators that put elements to computed places: scattering, sorting, reversing.

The operators `scatter` and `top_k` do the work. Rows that are put to constant places are taken from
there instead: where they lie is found at import.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tensorkiln.frontend.graph.context import Context
from tensorkiln.frontend.graph.data_extents import is_computed, number, require
from tensorkiln.frontend.graph.issues import malformed, unsupported
from tensorkiln.frontend.graph.values import Val
from tensorkiln.frontend.onnx.dispatch import Int, Str, Table
from tensorkiln.frontend.onnx.ops_index import (
    gather_elements,
    holding,
    linear,
    up_to,
    values,
    wrapped,
)
from tensorkiln.ir.dtype import DType
from tensorkiln.ir.expr import Expr, as_expr, binary, int_value
from tensorkiln.ir.relax import Constant
from tensorkiln.ops.places import REDUCTIONS
from tensorkiln.ops.rules import show


def _iota(g: Context, count: Expr, rank: int, axis: int) -> Val:
    """0, 1, ... along one dimension of `rank`, the others of extent 1."""
    line = g.emit("arange", start=0, step=1, count=count, dtype="int64")
    return g.reshape(line, [count if i == axis else as_expr(1) for i in range(rank)])


def unit(g: Context, x: Val, reduction: str) -> Val:
    """What changes nothing when it is combined, in the element type of `x`."""
    if reduction in ("add", "mul"):
        return g.like(reduction == "mul", x)
    dtype = g.type(x).dtype
    if reduction == "max":
        return g.const(least(dtype), dtype)
    return g.like(np.inf, x) if dtype.is_float else g.const(np.iinfo(dtype.name).max, dtype)


def least(dtype: DType) -> float:
    """The least number of an element type."""
    return -np.inf if dtype.is_float else int(np.iinfo(dtype.name).min)


def _check_reduction(g: Context, x: Val, updates: Val, reduction: str) -> None:
    if reduction not in REDUCTIONS:
        known = ", ".join(map(repr, REDUCTIONS))
        raise malformed(f"reduction={reduction!r}; expected one of {known}")
    if g.dtype(x) != g.dtype(updates):
        raise malformed(f"updates are of {g.dtype(updates)}, the operand of {g.dtype(x)}")


def scattered(
    g: Context, x: Val, at: Val, updates: Val, reduction: str = "none", axis: int = -1
) -> Val:
    """x with `updates` put to, or combined with, the elements `at` of a dimension, one after the
    other: the last of several for one element stays. `at` has the shape of `updates`, which may be
    less in the other dimensions; where it is beyond the dimension, it is nowhere."""
    rank = g.rank(x)
    shape, dims = g.shape(at), g.shape(x)
    columns = [at if i == axis % rank else _iota(g, shape[i], rank, i) for i in range(rank)]
    place = _checked(g, columns, dims, [axis % rank])
    flat = g.reshape(x, (g.dims.product(dims), 1))
    many = g.dims.product(shape)
    place, put = g.reshape(place, (many,)), g.reshape(updates, (many, 1))
    return g.reshape(g.emit("scatter", flat, place, put, reduction=reduction), dims)


def _checked(g: Context, columns: Sequence[Val], dims: Sequence[Expr], of: Sequence[int]) -> Val:
    """The row-major offset of indices that broadcast; -1 where one of those numbered `of` is
    outside of its dimension."""
    place = linear(g, columns, dims)
    if isinstance(place, Constant) and all(int_value(d) is not None for d in dims):
        return place
    for k in of:
        n = g.reshape(g.shape_value([dims[k]]), ())
        low = g.emit("less", columns[k], g.const(0, "int64"))
        out = g.emit("logical_or", low, g.emit("greater_equal", columns[k], n))
        place = g.emit("where", out, g.const(-1, "int64"), place)
    return place


def _last(rank: int, axis: int) -> tuple[list[int], list[int]]:
    """The order of dimensions in which `axis` is the last one, and the order back."""
    order = [i for i in range(rank) if i != axis] + [axis]
    return order, [order.index(i) for i in range(rank)]


def scatter_elements(
    g: Context, x: Val, indices: Val, updates: Val, *, axis: Int = 0, reduction: Str = "none"
) -> Val:
    """out[i][indices[i][j]] = updates[i][j] (for axis 1), else x; combined with x by a reduction.

    Indices may cover a part of the other dimensions only, from their beginning.
    """
    rank = g.rank(x)
    at = g.axis(axis, rank)
    _check_reduction(g, x, updates, reduction)
    if (g.rank(indices), g.rank(updates)) != (rank, rank) or not rank:
        raise malformed(
            f"operand, indices and updates have {rank}, {g.rank(indices)} and {g.rank(updates)} "
            "dimensions; expected the same of 1 or more"
        )
    updates = g.fitted(updates, g.shape(indices), "updates")
    x = holding(g, x, at, values(indices))
    place = wrapped(g, g.inside(indices, g.shape(x)[at]), g.shape(x)[at])
    for i in range(rank):
        if i != at:
            within = binary("ge", g.shape(x)[i], g.shape(indices)[i])
            x = g.require(x, within, f"indices within dimension {i} of the operand")
    return scattered(g, x, place, updates, reduction, at)


def scatter_nd(g: Context, x: Val, indices: Val, updates: Val, *, reduction: Str = "none") -> Val:
    """out[indices[i, 0], indices[i, 1], ...] = updates[i], else x; combined by a reduction."""
    _check_reduction(g, x, updates, reduction)
    count = int_value(g.shape(indices)[-1]) if g.rank(indices) else None
    if count is None or not 1 <= count <= g.rank(x):
        raise malformed("the last dimension of indices must be 1..rank of the operand")
    dims, lead = g.shape(x), g.shape(indices)[:-1]
    expected = (*lead, *dims[count:])
    if len(expected) != g.rank(updates):
        raise malformed("the shape of updates does not follow from those of operand and indices")
    updates = g.fitted(updates, expected, "updates")
    columns = []
    constant = values(indices)
    for k in range(count):
        x = holding(g, x, k, None if constant is None else constant[..., k])
        begin = (0,) * len(lead) + (k,)
        column = g.emit("slice", indices, begin=begin, strides=(1,) * len(begin), shape=(*lead, 1))
        columns.append(wrapped(g, g.inside(g.reshape(column, lead), dims[k]), dims[k]))
    return put_rows(g, x, columns, updates, reduction)


def put_rows(g: Context, x: Val, columns: Sequence[Val], updates: Val, reduction: str) -> Val:
    """out[columns[0][i], columns[1][i], ...] = updates[i], else x; combined by a reduction. Columns
    are of one shape and inside of the first dimensions of x."""
    dims, count = g.shape(x), len(columns)
    rows, size = g.dims.product(dims[:count]), g.dims.product(dims[count:])
    many = g.dims.product(g.shape(columns[0]))
    flat, put = g.reshape(x, (rows, size)), g.reshape(updates, (many, size))
    lines = [g.reshape(column, (many,)) for column in columns]
    place = _checked(g, lines, dims[:count], range(count))
    if reduction == "none" and isinstance(place, Constant) and int_value(rows) is not None:
        out = _placed(g, flat, place.array, put)
    else:
        out = g.emit("scatter", flat, place, put, reduction=reduction)
    return g.reshape(out, dims)


def _placed(g: Context, x: Val, place: np.ndarray, updates: Val) -> Val:
    """x [rows, size] with updates [many, size] at known rows."""
    rows = int_value(g.shape(x)[0]) or 0
    if place.size and not (place.min() >= 0 and place.max() < rows):
        raise malformed(f"an index is outside of the operand, which has {rows} places")
    source = np.arange(rows)
    source[place] = rows + np.arange(place.size)
    both = g.emit("concat", x, updates, axis=0)
    return g.emit("take", both, g.const(source, "int64"), axis=0)


_LARGEST = (1 << 63) - 2


def tensor_scatter(
    g: Context,
    past: Val,
    update: Val,
    write: Val | None = None,
    *,
    axis: Int = -2,
    mode: Str = "linear",
) -> Val:
    """`past` with `update` from the place write[b] on along `axis`, in sample b; a circular place
    goes on at the beginning."""
    rank = g.rank(past)
    at = g.axis(axis, rank)
    if mode not in ("linear", "circular"):
        raise malformed(f"mode={mode!r}; expected 'linear' or 'circular'")
    if g.rank(update) != rank or at == 0:
        raise malformed("update needs the operand's dimensions, and an axis other than samples")
    shape, room = g.shape(update), g.shape(past)[at]
    past = g.require(past, binary("ge", room, shape[at]), f"as much as is put in dimension {at}")
    place = _iota(g, shape[at], rank, at)
    if write is not None:
        last = as_expr(_LARGEST) if mode == "circular" else room - shape[at]
        past, write = up_to(g, past, write, last, f"places before the last {show(shape[at])}")
        first = g.cast(write, "int64")
        if mode == "circular":
            first = _rest(g, first, room)
        place = g.emit("add", place, g.reshape(first, (shape[0], *[1] * (rank - 1))))
    if mode == "circular":
        place = _rest(g, place, room)
    place = g.emit("broadcast_to", place, shape=shape)
    return scattered(g, past, place, update, "none", at)


def _rest(g: Context, x: Val, extent: Expr) -> Val:
    return g.emit("mod", x, g.reshape(g.shape_value([extent]), ()))


def reverse_sequence(
    g: Context, x: Val, lengths: Val, *, batch_axis: Int = 1, time_axis: Int = 0
) -> Val:
    """The first lengths[b] elements of sample b in reverse order, then the others."""
    rank = g.rank(x)
    batch, time = g.axis(batch_axis, rank), g.axis(time_axis, rank)
    if {batch, time} != {0, 1}:
        raise malformed(f"batch_axis={batch_axis} and time_axis={time_axis}; expected 0 and 1")
    order = [batch, time, *range(2, rank)]
    moved = g.transpose(x, order)
    samples, steps, *rest = g.shape(moved)
    moved, lengths = up_to(g, moved, lengths, steps, f"elements in dimension {time}")
    t = _iota(g, steps, 2, 1)
    n = g.reshape(g.cast(lengths, "int64"), (samples, 1))
    mirrored = g.emit("sub", g.emit("sub", n, g.const(1, "int64")), t)
    place = linear(
        g,
        [_iota(g, samples, 2, 0), g.emit("where", g.emit("less", t, n), mirrored, t)],
        (samples, steps),
    )
    rows = g.reshape(moved, (g.dims.product((samples, steps)), *rest))
    return g.transpose(g.emit("take", rows, place, axis=0, outside="clamp"), order)


# -- the greatest elements ------------------------------------------------------------------------


def _top(g: Context, x: Val, count: int, axis: int, largest: bool) -> Sequence[Val]:
    """The `count` first elements in order, and their places."""
    rank = g.rank(x)
    at = g.axis(axis, rank)
    if not rank:
        raise malformed("the operand is a scalar")
    n = g.shape(x)[at]
    size = int_value(n)
    if count < 0 or (size is not None and count > size):
        raise malformed(f"k={count}, expected 0 to the extent {size} of dimension {at}")
    order, back = _last(rank, at)
    moved = g.transpose(x, order)
    index = g.emit("top_k", moved, k=count, largest=largest)
    values = gather_elements(g, moved, index, axis=rank - 1)
    return g.transpose(values, back), g.transpose(index, back)


def _top_by_data(g: Context, x: Val, k: Val, axis: int, largest: bool) -> Sequence[Val]:
    """The k first elements in order, of a k that data decides: all are sorted."""
    rank = g.rank(x)
    at = g.axis(axis, rank)
    extent = int_value(g.shape(x)[at])
    if extent is None:
        raise unsupported("k is computed from data, for a symbolic dimension", "freeze it")
    fits = g.emit("less_equal", g.cast(k, "int64"), g.const(extent, "int64"))
    require(g, fits, "k", k, f"0 to {extent}, the extent of dimension {at}")
    count = number(g, k, "k")
    shape = tuple(count if i == at else d for i, d in enumerate(g.shape(x)))
    sorted_ = _top(g, x, extent, axis, largest)
    return [
        g.emit("slice", v, begin=(0,) * rank, strides=(1,) * rank, shape=shape) for v in sorted_
    ]


def top_k_1(g: Context, x: Val, *, k: Int, axis: Int = -1) -> Sequence[Val]:
    """The k greatest elements along a dimension, and their places (until opset 9)."""
    return _top(g, x, k, axis, True)


def top_k_10(
    g: Context, x: Val, k: Val, *, axis: Int = -1, largest: Int = 1, sorted: Int = 1
) -> Sequence[Val]:
    """The k greatest or least elements along a dimension, and their places; always sorted."""
    if is_computed(g, k):
        return _top_by_data(g, x, k, axis, bool(largest))
    (count,) = g.ints(k, "k")
    return _top(g, x, count, axis, bool(largest))


TABLE: Table = {
    "Scatter": {9: scatter_elements},
    "ScatterElements": {11: scatter_elements},
    "ScatterND": {11: scatter_nd},
    "TensorScatter": {24: tensor_scatter},
    "ReverseSequence": {10: reverse_sequence},
    "TopK": {1: top_k_1, 10: top_k_10},
}
