"""Operators that put elements to computed places: scattering, sorting, reversing."""

from __future__ import annotations

from collections.abc import Sequence

from tensorkiln.frontend.graph.context import Context
from tensorkiln.frontend.graph.data_extents import extent_of, is_computed, require
from tensorkiln.frontend.graph.indexing import (
    constant_elements,
    counts_within,
    flat_offset,
    nonnegative,
    with_elements,
)
from tensorkiln.frontend.graph.issues import malformed, unsupported
from tensorkiln.frontend.graph.scattering import (
    check_reduction,
    scatter_along,
    scatter_elements,
    scatter_rows,
)
from tensorkiln.frontend.graph.top_k import top_k
from tensorkiln.frontend.graph.values import Val
from tensorkiln.frontend.onnx.dispatch import Int, Str, Table
from tensorkiln.ir.expr import Expr, as_expr, binary, int_value
from tensorkiln.ops.rules import show


def scatter_nd(g: Context, x: Val, indices: Val, updates: Val, *, reduction: Str = "none") -> Val:
    """out[indices[i, 0], indices[i, 1], ...] = updates[i], else x; combined by a reduction."""
    check_reduction(g, x, updates, reduction)
    count = int_value(g.shape(indices)[-1]) if g.rank(indices) else None
    if count is None or not 1 <= count <= g.rank(x):
        raise malformed("the last dimension of indices must be 1..rank of the operand")
    dims, lead = g.shape(x), g.shape(indices)[:-1]
    expected = (*lead, *dims[count:])
    if len(expected) != g.rank(updates):
        raise malformed("the shape of updates does not follow from those of operand and indices")
    updates = g.fitted(updates, expected, "updates")
    columns = []
    constant = constant_elements(indices)
    for k in range(count):
        x = with_elements(g, x, k, None if constant is None else constant[..., k])
        begin = (0,) * len(lead) + (k,)
        column = g.emit("slice", indices, begin=begin, strides=(1,) * len(begin), shape=(*lead, 1))
        columns.append(nonnegative(g, g.inside(g.reshape(column, lead), dims[k]), dims[k]))
    return scatter_rows(g, x, columns, updates, reduction)


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
    dimension = g.axis(axis, rank)
    if mode not in ("linear", "circular"):
        raise malformed(f"mode={mode!r}; expected 'linear' or 'circular'")
    if g.rank(update) != rank or dimension == 0:
        raise malformed("update needs the operand's dimensions, and an axis other than samples")
    shape, room = g.shape(update), g.shape(past)[dimension]
    past = g.require(
        past, binary("ge", room, shape[dimension]), f"as much as is put in dimension {dimension}"
    )
    place = g.iota(shape[dimension], rank, dimension)
    if write is not None:
        last = as_expr(_LARGEST) if mode == "circular" else room - shape[dimension]
        past, write = counts_within(
            g, past, write, last, f"places before the last {show(shape[dimension])}"
        )
        first = g.cast(write, "int64")
        if mode == "circular":
            first = _rest(g, first, room)
        place = g.emit("add", place, g.reshape(first, (shape[0], *[1] * (rank - 1))))
    if mode == "circular":
        place = _rest(g, place, room)
    place = g.emit("broadcast_to", place, shape=shape)
    return scatter_along(g, past, place, update, "none", dimension)


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
    samples, steps, *inner_extents = g.shape(moved)
    moved, lengths = counts_within(g, moved, lengths, steps, f"elements in dimension {time}")
    t = g.iota(steps, 2, 1)
    n = g.reshape(g.cast(lengths, "int64"), (samples, 1))
    mirrored = g.emit("sub", g.emit("sub", n, g.const(1, "int64")), t)
    place = flat_offset(
        g,
        [g.iota(samples, 2, 0), g.emit("where", g.emit("less", t, n), mirrored, t)],
        (samples, steps),
    )
    rows = g.reshape(moved, (g.dims.product((samples, steps)), *inner_extents))
    return g.transpose(g.emit("take", rows, place, axis=0, outside="clamp"), order)


# -- the greatest elements ------------------------------------------------------------------------


def _top_by_data(g: Context, x: Val, k: Val, axis: int, largest: bool) -> Sequence[Val]:
    """The k first elements in order, of a k that data decides: all are sorted."""
    rank = g.rank(x)
    dimension = g.axis(axis, rank)
    extent = int_value(g.shape(x)[dimension])
    if extent is None:
        raise unsupported("k is computed from data, for a symbolic dimension", "freeze it")
    fits = g.emit("less_equal", g.cast(k, "int64"), g.const(extent, "int64"))
    require(g, fits, "k", k, f"0 to {extent}, the extent of dimension {dimension}")
    count = extent_of(g, k, "k")
    shape = tuple(count if i == dimension else d for i, d in enumerate(g.shape(x)))
    sorted_ = top_k(g, x, extent, axis, largest)
    return [
        g.emit("slice", v, begin=(0,) * rank, strides=(1,) * rank, shape=shape) for v in sorted_
    ]


def top_k_1(g: Context, x: Val, *, k: Int, axis: Int = -1) -> Sequence[Val]:
    """The k greatest elements along a dimension, and their places (until opset 9)."""
    return top_k(g, x, k, axis, True)


def top_k_10(
    g: Context, x: Val, k: Val, *, axis: Int = -1, largest: Int = 1, sorted: Int = 1
) -> Sequence[Val]:
    """The k greatest or least elements along a dimension, and their places; always sorted."""
    if is_computed(g, k):
        return _top_by_data(g, x, k, axis, bool(largest))
    (count,) = g.ints(k, "k")
    return top_k(g, x, count, axis, bool(largest))


TABLE: Table = {
    "Scatter": {9: scatter_elements},
    "ScatterElements": {11: scatter_elements},
    "ScatterND": {11: scatter_nd},
    "TensorScatter": {24: tensor_scatter},
    "ReverseSequence": {10: reverse_sequence},
    "TopK": {1: top_k_1, 10: top_k_10},
}
