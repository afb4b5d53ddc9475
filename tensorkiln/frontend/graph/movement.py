"""Elements moved as they are: tensors side by side, repeated or reversed."""

from __future__ import annotations

from collections.abc import Sequence

from tensorkiln.frontend.graph.context import Context
from tensorkiln.frontend.graph.issues import malformed
from tensorkiln.frontend.graph.values import Val
from tensorkiln.ir.expr import Expr, IntImm, as_expr, int_value


def concat(g: Context, x: Val, *operands: Val, axis: int) -> Val:
    """Concatenate operands along one dimension."""
    axis = g.axis(axis, g.rank(x))
    dtypes = {g.dtype(v) for v in (x, *operands)}
    if len(dtypes) > 1:
        raise malformed(f"operands have different element types: {', '.join(sorted(dtypes))}")
    return g.emit("concat", x, *operands, axis=axis) if operands else x


def stack(g: Context, parts: Sequence[Val], axis: int, name: str = "axis") -> Val:
    """Tensors of one shape side by side along a new dimension; `name` is what a model calls the
    axis."""
    shape = g.shape(parts[0])
    axis = g.axis(axis, len(shape) + 1, name)
    wide = [g.reshape(part, (*shape[:axis], 1, *shape[axis:])) for part in parts]
    return wide[0] if len(wide) == 1 else g.emit("concat", *wide, axis=axis)


def element(g: Context, x: Val, axis: int, index: int) -> Val:
    """The slice of `x` at an index of one dimension, without that dimension."""
    shape, rank = g.shape(x), g.rank(x)
    begin = tuple(index if i == axis else 0 for i in range(rank))
    slice_shape = tuple(as_expr(1) if i == axis else d for i, d in enumerate(shape))
    part = g.emit("slice", x, begin=begin, strides=(1,) * rank, shape=slice_shape)
    return g.reshape(part, (*shape[:axis], *shape[axis + 1 :]))


def diagonal(g: Context, x: Val, start: Expr, count: Expr) -> Val:
    """`count` elements of the last two dimensions, each one row below and one column behind the one
    before, as the last dimension; the first is element `start` of the two."""
    lead, (rows, columns) = g.shape(x)[:-2], g.shape(x)[-2:]
    flat, axis = g.reshape(x, (*lead, g.dims.product((rows, columns)))), len(lead)
    number = int_value(columns)
    if number is not None:
        return g.sliced(flat, axis, g.dims.simplify(start), count, number + 1)
    step, first = (g.reshape(g.shape_value([e]), ()) for e in (columns + 1, start))
    index = g.emit("add", g.emit("mul", g.iota(count), step), first)
    return g.emit("take", flat, index, axis=axis, outside="clamp")


def flip(g: Context, x: Val, axis: int) -> Val:
    """`x` reversed along one dimension."""
    rank, shape = g.rank(x), g.shape(x)
    begin = tuple(shape[i] - 1 if i == axis else 0 for i in range(rank))
    strides = tuple(-1 if i == axis else 1 for i in range(rank))
    return g.emit("slice", x, begin=begin, strides=strides, shape=shape)


def tile(g: Context, x: Val, counts: Sequence[Expr]) -> Val:
    """The whole of `x` repeated along every dimension, as many times as `counts` say for each."""
    numbers = [int_value(c) for c in counts]
    if len(counts) != g.rank(x) or any(n is not None and n < 0 for n in numbers):
        repeats = [c if n is None else n for c, n in zip(counts, numbers, strict=True)]
        raise malformed(f"repeats={repeats} for {g.rank(x)} dimensions")
    if all(n == 1 for n in numbers):
        return x
    fixed = tuple(n for n in numbers if n is not None)
    if len(fixed) == len(counts):
        return g.emit("tile", x, repeats=fixed)
    return _tiled(g, x, counts)


def _tiled(g: Context, x: Val, counts: Sequence[Expr]) -> Val:
    """`tile` by counts that may be symbolic, as a broadcast."""
    # [a, b] -> [1, a, 1, b] -> [p, a, q, b] -> [p*a, q*b]
    dims = g.shape(x)
    thin = [e for d in dims for e in (IntImm(1), d)]
    wide = tuple(e for c, d in zip(counts, dims, strict=True) for e in (c, d))
    full = g.emit("broadcast_to", g.reshape(x, thin), shape=wide)
    return g.reshape(full, [c * d for c, d in zip(counts, dims, strict=True)])
