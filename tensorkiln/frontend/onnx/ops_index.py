"""Operators that index: Slice, Gather, GatherElements, GatherND and OneHot."""

from __future__ import annotations

from collections.abc import Sequence

from tensorkiln.frontend.graph.agreement import common_extent
from tensorkiln.frontend.graph.context import Context
from tensorkiln.frontend.graph.data_extents import dynamic_results, extent_of, is_computed
from tensorkiln.frontend.graph.indexing import (
    constant_elements,
    flat_offset,
    gather,
    gather_elements,
    nonnegative,
    with_elements,
)
from tensorkiln.frontend.graph.issues import malformed, unsupported
from tensorkiln.frontend.graph.values import Val
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
        dimensions = g.axes(range(count) if axes is None else g.ints(axes, "axes"), rank)
        axes = g.const(dimensions, "int64")
    else:
        dimensions = tuple(range(rank))
    shape = [None if i in dimensions else d for i, d in enumerate(g.shape(x))]
    return dynamic_results(
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
    dimensions = g.axes(range(len(starts)) if axes is None else axes, rank)
    by = [1] * len(dimensions) if steps is None else list(steps)
    if not len(starts) == len(ends) == len(dimensions) == len(by):
        raise malformed("starts, ends, axes and steps have different lengths")
    if 0 in by:
        raise malformed("a step is 0")
    begin: list[Expr] = [IntImm(0)] * rank
    strides, shape = [1] * rank, list(g.shape(x))
    for axis, start, end, step in zip(dimensions, starts, ends, by, strict=True):
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


def _clamp(g: Context, limit: Expr, extent: Expr, low: ExprLike, high: int) -> Expr:
    """`limit`, counted from the end when negative, clamped to [low, extent + high].

    NodeProblem if `limit` is negative for some sizes and not for others.
    """
    dims, value, size = g.dims, int_value(limit), int_value(extent)
    top = dims.simplify(extent + high)
    if value is not None and size is not None:
        lower, upper = int_value(dims.simplify(as_expr(low))), int_value(top)
        assert lower is not None and upper is not None
        return as_expr(max(lower, min(value + size if value < 0 else value, upper)))
    if value is not None:
        if abs(value) > (ADDRESSES if dims.is_computed(extent) else _FAR):
            if abs(value) <= ADDRESSES:
                dims.assume(binary("le", extent, abs(value)))
            return top if value > 0 else as_expr(low)
        index = extent + value if value < 0 else limit
        return dims.max(low, dims.min(index, top))
    if dims.holds(binary("lt", limit, 0)):
        return dims.max(low, dims.min(extent + limit, top))
    if not dims.holds(binary("ge", limit, 0)):
        raise unsupported("a bound may be negative or not, depending on a symbolic dimension")
    if size is not None and not dims.holds(binary("gt", limit, top)):
        # A symbolic bound of a dimension of fixed size, such as the first `seq` rows of a table of
        # positions: assume that it fits, so that the slice has `seq` rows for every size.
        if not dims.holds(binary("le", limit, top)):
            if dims.is_computed(limit):
                # Not known when the call begins, where conditions are checked.
                return dims.max(low, dims.min(limit, top))
            dims.assume(binary("le", limit, top))
        return dims.simplify(limit)
    return dims.max(low, dims.min(limit, top))


def gather_nd(g: Context, x: Val, indices: Val, *, batch_dims: Int = 0) -> Val:
    """out[i, ...] = x[indices[i, 0], indices[i, 1], ...], as one take of merged dimensions; the
    first `batch_dims` dimensions of both are the same, and indexed by their own place."""
    count = int_value(g.shape(indices)[-1]) if g.rank(indices) else None
    if count is None or not 1 <= count <= g.rank(x) - batch_dims:
        raise malformed("the last dimension of indices must be 1..rank of the operand")
    if not 0 <= batch_dims < g.rank(indices):
        raise malformed(f"batch_dims={batch_dims}, expected 0 to {g.rank(indices) - 1}")
    batch = tuple(map(common_extent, g.shape(x)[:batch_dims], g.shape(indices)))
    x = g.fitted(x, (*batch, *g.shape(x)[batch_dims:]))
    indices = g.fitted(indices, (*batch, *g.shape(indices)[batch_dims:]), "indices")
    dims, lead = g.shape(x), g.shape(indices)[:-1]
    parts: list[Val] = []
    for k in range(batch_dims):
        parts.append(g.iota(dims[k], len(lead), k))
    places = constant_elements(indices)
    for k in range(count):
        x = with_elements(g, x, batch_dims + k, None if places is None else places[..., k])
        begin = (0,) * len(lead) + (k,)
        column = g.emit("slice", indices, begin=begin, strides=(1,) * len(begin), shape=(*lead, 1))
        extent = dims[batch_dims + k]
        parts.append(nonnegative(g, g.inside(g.reshape(column, lead), extent), extent))
    merged = batch_dims + count
    rows = g.reshape(x, (g.dims.product(dims[:merged]), *dims[merged:]))
    return g.emit("take", rows, flat_offset(g, parts, dims[:merged]), axis=0, outside="clamp")


def one_hot(g: Context, indices: Val, depth: Val, values: Val, *, axis: Int = -1) -> Val:
    """`values[1]` where the position along a new dimension is the index, else `values[0]`."""
    if isinstance(depth, Constant):
        n = as_expr(int(g.scalar(depth, "depth")))
    else:
        n = extent_of(g, g.cast(depth, "int64"), "depth")
    rank = g.rank(indices) + 1
    dimension = g.axis(axis, rank)
    lead = list(g.shape(indices))
    index = g.reshape(nonnegative(g, indices, n), [*lead[:dimension], 1, *lead[dimension:]])
    line = g.iota(n, rank, dimension)
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
