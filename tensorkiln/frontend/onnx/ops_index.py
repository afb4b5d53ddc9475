"""Operators that index: Slice, Gather, GatherElements, GatherND and OneHot."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tensorkiln.frontend.graph.agreement import meet
from tensorkiln.frontend.graph.context import Context
from tensorkiln.frontend.graph.data_extents import dynamic, is_computed, number
from tensorkiln.frontend.graph.issues import malformed, unsupported
from tensorkiln.frontend.graph.values import SymbolicTensor, Val
from tensorkiln.frontend.onnx.dispatch import Int, Ints, Table
from tensorkiln.ir.expr import Expr, ExprLike, IntImm, as_expr, binary, int_value, minimum
from tensorkiln.ir.relax import Constant
from tensorkiln.ops.attribute import ADDRESSES

# Exporters write "to the end" as INT32_MAX, INT64_MAX or a value near them (and the start, for a
# negative step, as the negative). Of a symbolic dimension such a bound is its end, on condition
# that the dimension is not longer.
_FAR = 2**31 - 2


def slice_1(g: Context, x: Val, *, starts: Ints, ends: Ints, axes: Ints | None = None) -> Val:
    """Slice with its bounds as attributes (until opset 9)."""
    lo, hi = [as_expr(v) for v in starts], [as_expr(v) for v in ends]
    return _slice(g, x, lo, hi, axes, None)


def slice_10(
    g: Context, x: Val, starts: Val, ends: Val, axes: Val | None = None, steps: Val | None = None
) -> Val:
    """Slice with its bounds as operands, which may be symbolic or computed; steps may be
    negative."""
    if any(v is not None and is_computed(g, v) for v in (starts, ends, axes, steps)):
        return _computed_slice(g, x, starts, ends, axes, steps)
    return _slice(
        g,
        x,
        g.extents(starts, "starts"),
        g.extents(ends, "ends"),
        None if axes is None else g.ints(axes, "axes"),
        None if steps is None else g.ints(steps, "steps"),
    )


def _computed_slice(
    g: Context, x: Val, starts: Val, ends: Val, axes: Val | None, steps: Val | None
) -> Val:
    """Slice with bounds that data decides."""
    rank, count = g.rank(x), int_value(g.shape(starts)[0])
    if count is None:
        raise unsupported("starts has a number of elements that is not known")
    by = g.const([1] * count, "int64") if steps is None else steps
    if axes is None or not is_computed(g, axes):
        where = g.axes(range(count) if axes is None else g.ints(axes, "axes"), rank)
        axes = g.const(where, "int64")
    else:
        where = tuple(range(rank))
    shape = [None if i in where else d for i, d in enumerate(g.shape(x))]
    return dynamic(
        g, "slice_dynamic", x, starts, ends, axes, by, shapes=[shape], node=g.span or "slice"
    )[0]


def _slice(
    g: Context,
    x: Val,
    starts: Sequence[Expr],
    ends: Sequence[Expr],
    axes: Sequence[int] | None,
    steps: Sequence[int] | None,
) -> Val:
    rank = g.rank(x)
    where = g.axes(range(len(starts)) if axes is None else axes, rank)
    by = [1] * len(where) if steps is None else list(steps)
    if not len(starts) == len(ends) == len(where) == len(by):
        raise malformed("starts, ends, axes and steps have different lengths")
    if 0 in by:
        raise malformed("a step is 0")
    begin: list[Expr] = [IntImm(0)] * rank
    strides, shape = [1] * rank, list(g.shape(x))
    for axis, start, end, step in zip(where, starts, ends, by, strict=True):
        step = max(-ADDRESSES, min(step, ADDRESSES))  # so that sums with it fit int64
        strides[axis] = step
        begin[axis], shape[axis] = _range(g, start, end, step, shape[axis])
    plain = all(int_value(b) == 0 for b in begin) and all(s == 1 for s in strides)
    if plain and tuple(shape) == g.shape(x):
        return x
    return g.emit("slice", x, begin=tuple(begin), strides=tuple(strides), shape=tuple(shape))


def _range(g: Context, start: Expr, end: Expr, step: int, extent: Expr) -> tuple[Expr, Expr]:
    """(first index, number of elements) of one dimension of a slice."""
    if step > 0:
        lo, hi = _clamp(g, start, extent, 0, 0), _clamp(g, end, extent, 0, 0)
        span = hi - lo
    else:
        # Of no elements, the first index is -1 as the last is.
        first = minimum(0, extent - 1)
        lo, hi = _clamp(g, start, extent, first, -1), _clamp(g, end, extent, -1, -1)
        span = lo - hi
    k = abs(step)
    count = g.dims.max(0, (span + (k - 1)) // k)
    return lo, count


def _clamp(g: Context, at: Expr, extent: Expr, low: ExprLike, high: int) -> Expr:
    """The bound `at`, counted from the end when negative, clamped to [low, extent + high].

    NodeProblem if `at` is negative for some sizes and not for others.
    """
    dims, value, size = g.dims, int_value(at), int_value(extent)
    top = dims.simplify(extent + high)
    if value is not None and size is not None:
        least, most = int_value(dims.simplify(as_expr(low))), int_value(top)
        assert least is not None and most is not None
        return as_expr(max(least, min(value + size if value < 0 else value, most)))
    if value is not None:
        if abs(value) > (ADDRESSES if dims.is_computed(extent) else _FAR):
            if abs(value) <= ADDRESSES:
                dims.assume(binary("le", extent, abs(value)))
            return top if value > 0 else as_expr(low)
        index = extent + value if value < 0 else at
        return dims.max(low, dims.min(index, top))
    if dims.holds(binary("lt", at, 0)):
        return dims.max(low, dims.min(extent + at, top))
    if not dims.holds(binary("ge", at, 0)):
        raise unsupported("a bound may be negative or not, depending on a symbolic dimension")
    if size is not None and not dims.holds(binary("gt", at, top)):
        # A symbolic bound of a dimension of fixed size, such as the first `seq` rows of a table of
        # positions: assume that it fits, so that the slice has `seq` rows for every size.
        if not dims.holds(binary("le", at, top)):
            if dims.is_computed(at):  # not known when the call begins, where conditions are checked
                return dims.max(low, dims.min(at, top))
            dims.assume(binary("le", at, top))
        return dims.simplify(at)
    return dims.max(low, dims.min(at, top))


def gather(g: Context, x: Val, indices: Val, *, axis: Int = 0) -> Val:
    """Take slices of `x` along a dimension; negative indices count from the end."""
    at = g.axis(axis, g.rank(x))
    if not g.rank(x):
        raise malformed("the operand is a scalar")
    size = int_value(g.shape(x)[at])
    if isinstance(x, SymbolicTensor | Constant) and isinstance(indices, Constant) and size is not None:
        outside = (indices.array < -size) | (indices.array >= size)
        if outside.any():
            which = indices.array[outside].flat[0]
            raise malformed(f"index {which} is outside of dimension {at}, which has {size}")
    return g.emit("take", x, indices, axis=at)


def holding(g: Context, x: Val, axis: int, indices: np.ndarray | None) -> Val:
    """`x`, whose dimension `axis` must have elements of these indices; None: that data gives."""
    if indices is None or not indices.size:
        return x
    low, high = int(indices.min()), int(indices.max())
    outside = low if -low > high + 1 else high
    condition = binary("ge", g.shape(x)[axis], as_expr(max(-low, high + 1)))
    return g.require(x, condition, f"a dimension {axis} with an element of index {outside}")


def values(x: Val) -> np.ndarray | None:
    """The elements of a constant operand; None if it is computed."""
    return x.array if isinstance(x, Constant) else None


def linear(g: Context, parts: Sequence[Val], extents: Sequence[Expr]) -> Val:
    """The row-major offset into a tensor of shape `extents` of int64 indices that broadcast."""
    total: Val = g.const(0, "int64")
    for index, extent in zip(parts, extents, strict=True):
        n = g.reshape(g.shape_value([extent]), ())
        total = g.emit("add", g.emit("mul", total, n), index)
    return total


def wrapped(g: Context, index: Val, extent: Expr) -> Val:
    """Indices as non-negative int64: `extent` is added to negative ones."""
    index = g.cast(index, "int64")
    n = g.reshape(g.shape_value([extent]), ())
    below = g.emit("less", index, g.const(0, "int64"))
    return g.emit("where", below, g.emit("add", index, n), index)


def gather_elements(g: Context, x: Val, indices: Val, *, axis: Int = 0) -> Val:
    """out[i, j, ...] = x[i, indices[i, j, ...], ...] (for axis 1), as one take of flattened x."""
    rank = g.rank(x)
    at = g.axis(axis, rank)
    if g.rank(indices) != rank:
        raise malformed(f"indices have {g.rank(indices)} dimensions, the operand {rank}")
    x = holding(g, x, at, values(indices))
    for i, (own, asked) in enumerate(zip(g.shape(x), g.shape(indices), strict=True)):
        if i != at:
            x = g.require(x, binary("ge", own, asked), f"indices within dimension {i}")
    parts: list[Val] = []
    for i, n in enumerate(g.shape(indices)):
        if i == at:
            parts.append(wrapped(g, g.inside(indices, g.shape(x)[i]), g.shape(x)[i]))
            continue
        line = g.emit("arange", start=0, step=1, count=n, dtype="int64")
        parts.append(g.reshape(line, [n if j == i else IntImm(1) for j in range(rank)]))
    flat = g.reshape(x, (g.dims.product(g.shape(x)),))
    return g.emit("take", flat, linear(g, parts, g.shape(x)), axis=0, outside="clamp")


def up_to(g: Context, x: Val, numbers: Val, last: Expr, of: str) -> tuple[Val, Val]:
    """x and numbers, such as lengths, from 0 to `last`, which is an extent of x `of` something: a
    call in which one is outside fails."""
    known = values(numbers)
    if known is None:
        return x, g.inside(numbers, last + 1, negative=False)
    if known.size and known.min() < 0:
        raise malformed(f"{int(known.min())} {of}, expected 0 or more")
    most = int(known.max(initial=0))
    return g.require(x, binary("ge", last, as_expr(most)), f"{most} or more {of}"), numbers


def gather_nd(g: Context, x: Val, indices: Val, *, batch_dims: Int = 0) -> Val:
    """out[i, ...] = x[indices[i, 0], indices[i, 1], ...], as one take of merged dimensions; the
    first `batch_dims` dimensions of both are the same, and indexed by their own place."""
    count = int_value(g.shape(indices)[-1]) if g.rank(indices) else None
    if count is None or not 1 <= count <= g.rank(x) - batch_dims:
        raise malformed("the last dimension of indices must be 1..rank of the operand")
    if not 0 <= batch_dims < g.rank(indices):
        raise malformed(f"batch_dims={batch_dims}, expected 0 to {g.rank(indices) - 1}")
    batch = tuple(map(meet, g.shape(x)[:batch_dims], g.shape(indices)))
    x = g.fitted(x, (*batch, *g.shape(x)[batch_dims:]))
    indices = g.fitted(indices, (*batch, *g.shape(indices)[batch_dims:]), "indices")
    dims, lead = g.shape(x), g.shape(indices)[:-1]
    parts: list[Val] = []
    for k in range(batch_dims):
        line = g.emit("arange", start=0, step=1, count=dims[k], dtype="int64")
        parts.append(g.reshape(line, [dims[k] if i == k else IntImm(1) for i in range(len(lead))]))
    places = values(indices)
    for k in range(count):
        x = holding(g, x, batch_dims + k, None if places is None else places[..., k])
        begin = (0,) * len(lead) + (k,)
        column = g.emit("slice", indices, begin=begin, strides=(1,) * len(begin), shape=(*lead, 1))
        extent = dims[batch_dims + k]
        parts.append(wrapped(g, g.inside(g.reshape(column, lead), extent), extent))
    merged = batch_dims + count
    rows = g.reshape(x, (g.dims.product(dims[:merged]), *dims[merged:]))
    return g.emit("take", rows, linear(g, parts, dims[:merged]), axis=0, outside="clamp")


def one_hot(g: Context, indices: Val, depth: Val, values: Val, *, axis: Int = -1) -> Val:
    """`values[1]` where the position along a new dimension is the index, else `values[0]`."""
    if isinstance(depth, Constant):
        n = as_expr(int(g.scalar(depth, "depth")))
    else:
        n = number(g, g.cast(depth, "int64"), "depth")
    rank = g.rank(indices) + 1
    at = g.axis(axis, rank)
    lead = list(g.shape(indices))
    index = g.reshape(wrapped(g, indices, n), [*lead[:at], 1, *lead[at:]])
    count = g.emit("arange", start=0, step=1, count=n, dtype="int64")
    line = g.reshape(count, [n if i == at else 1 for i in range(rank)])
    pick = [
        g.reshape(g.emit("slice", values, begin=(i,), strides=(1,), shape=(1,)), ()) for i in (0, 1)
    ]
    return g.emit("where", g.emit("equal", index, line), pick[1], pick[0])


TABLE: Table = {
    "Slice": {1: slice_1, 10: slice_10},
    "Gather": {1: gather},
    "GatherElements": {11: gather_elements},
    "GatherND": {11: gather_nd},
    "OneHot": {9: one_hot},
}
