"""Operators that put elements to computed places: scattering, sorting, reversing.

There is no operator that writes to computed places. So each place of the result looks for what is
put there, which takes time in the product of the places and of what is put along a dimension. Where
the places are constants they are found at import, and that takes no time.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tensorkiln.frontend.onnx.context import Context
from tensorkiln.frontend.onnx.dispatch import Int, Str, Table
from tensorkiln.frontend.onnx.issues import malformed
from tensorkiln.frontend.onnx.known import Val
from tensorkiln.frontend.onnx.ops_index import gather_elements, linear, wrapped
from tensorkiln.ir.dtype import DType
from tensorkiln.ir.expr import Expr, as_expr, int_value
from tensorkiln.ir.relax import Constant
from tensorkiln.ops.rules import same_extent

# reduction -> (operator of two operands, operator over a dimension)
_REDUCTIONS = {
    "add": ("add", "sum"),
    "mul": ("mul", "prod"),
    "max": ("maximum", "max"),
    "min": ("minimum", "min"),
}


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
    if reduction != "none" and reduction not in _REDUCTIONS:
        known = ", ".join(map(repr, ("none", *_REDUCTIONS)))
        raise malformed(f"reduction={reduction!r}; expected one of {known}")
    if g.dtype(x) != g.dtype(updates):
        raise malformed(f"updates are of {g.dtype(updates)}, the operand of {g.dtype(x)}")


def scattered(g: Context, x: Val, at: Val, updates: Val, reduction: str) -> Val:
    """x [..., n] with `updates` [..., m] put to, or combined with, the elements `at` [..., m] of
    the last dimension. The last of several for one element is put there; `at` beyond the dimension
    is nowhere."""
    rank = g.rank(x)
    n, m = g.shape(x)[-1], g.shape(at)[-1]
    if int_value(m) == 0:
        return x
    hit = g.emit("equal", _row(g, at), _iota(g, n, rank + 1, rank - 1))
    if reduction != "none":
        pair, over = _REDUCTIONS[reduction]
        put = g.emit("where", hit, _row(g, updates), unit(g, x, reduction))
        return g.emit(pair, x, g.emit(over, put, axes=(rank,), keepdims=False))
    order = g.emit("add", _iota(g, m, rank + 1, rank), g.const(1, "int64"))
    found = g.emit("where", hit, order, g.const(0, "int64"))
    last = g.emit("max", found, axes=(rank,), keepdims=False)
    where = g.emit("maximum", g.emit("sub", last, g.const(1, "int64")), g.const(0, "int64"))
    put = gather_elements(g, updates, where, axis=rank - 1)
    return g.emit("where", g.emit("greater", last, g.const(0, "int64")), put, x)


def _row(g: Context, x: Val) -> Val:
    """[..., m] as [..., 1, m]."""
    shape = g.shape(x)
    return g.reshape(x, (*shape[:-1], 1, shape[-1]))


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
    if not all(map(same_extent, g.shape(indices), g.shape(updates))):
        raise malformed("indices and updates differ in shape")
    place = wrapped(g, indices, g.shape(x)[at])
    after = [0] * rank
    for i in range(rank):
        old, new = g.shape(x)[i], g.shape(indices)[i]
        if i != at and not same_extent(old, new):
            a, b = int_value(old), int_value(new)
            if a is None or b is None or b > a:
                raise malformed(f"dimension {i} of indices is not within that of the operand")
            after[i] = a - b
    if any(after):
        wide = {"before": (0,) * rank, "after": tuple(after)}
        place = g.emit("pad", place, value=-1, **wide)
        updates = g.emit("pad", updates, value=0, **wide)
    order, back = _last(rank, at)
    moved, place, updates = (g.transpose(v, order) for v in (x, place, updates))
    return g.transpose(scattered(g, moved, place, updates, reduction), back)


def scatter_nd(g: Context, x: Val, indices: Val, updates: Val, *, reduction: Str = "none") -> Val:
    """out[indices[i, 0], indices[i, 1], ...] = updates[i], else x; combined by a reduction."""
    _check_reduction(g, x, updates, reduction)
    count = int_value(g.shape(indices)[-1]) if g.rank(indices) else None
    if count is None or not 1 <= count <= g.rank(x):
        raise malformed("the last dimension of indices must be 1..rank of the operand")
    dims, lead = g.shape(x), g.shape(indices)[:-1]
    expected = (*lead, *dims[count:])
    if len(expected) != g.rank(updates) or not all(map(same_extent, expected, g.shape(updates))):
        raise malformed("the shape of updates does not follow from those of operand and indices")
    rows, size = g.dims.product(dims[:count]), g.dims.product(dims[count:])
    many = g.dims.product(lead)
    columns = []
    for k in range(count):
        begin = (0,) * len(lead) + (k,)
        column = g.emit("slice", indices, begin=begin, strides=(1,) * len(begin), shape=(*lead, 1))
        columns.append(wrapped(g, g.reshape(column, (many,)), dims[k]))
    flat, put = g.reshape(x, (rows, size)), g.reshape(updates, (many, size))
    place = linear(g, columns, dims[:count])
    if reduction == "none" and isinstance(place, Constant) and int_value(rows) is not None:
        out = _placed(g, flat, place.array, put)
    elif reduction == "none":
        out = _rows_put(g, flat, place, put)
    else:
        turned = [g.transpose(v, (1, 0)) for v in (flat, put)]
        place = g.reshape(place, (1, many))
        out = g.transpose(scattered(g, turned[0], place, turned[1], reduction), (1, 0))
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


def _rows_put(g: Context, x: Val, place: Val, updates: Val) -> Val:
    """x [rows, size] with updates [many, size] at computed rows; -1 is nowhere."""
    rows = g.shape(x)[0]
    number = _iota(g, g.shape(place)[0], 1, 0)
    none = g.emit("broadcast_to", g.const([-1], "int64"), shape=(rows,))
    last = scattered(g, none, place, number, "none")
    put = g.emit("take", updates, g.emit("maximum", last, g.const(0, "int64")), axis=0)
    found = g.emit("greater_equal", last, g.const(0, "int64"))
    return g.emit("where", g.reshape(found, (rows, 1)), put, x)


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
    shape = g.shape(update)
    place = _iota(g, shape[at], rank, at)
    if write is not None:
        first = g.cast(g.reshape(write, (shape[0], *[1] * (rank - 1))), "int64")
        place = g.emit("add", place, first)
    if mode == "circular":
        place = g.emit("mod", place, g.reshape(g.shape_value([g.shape(past)[at]]), ()))
    place = g.emit("broadcast_to", place, shape=shape)
    order, back = _last(rank, at)
    moved, place, update = (g.transpose(v, order) for v in (past, place, update))
    return g.transpose(scattered(g, moved, place, update, "none"), back)


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
    t = _iota(g, steps, 2, 1)
    n = g.reshape(g.cast(lengths, "int64"), (samples, 1))
    mirrored = g.emit("sub", g.emit("sub", n, g.const(1, "int64")), t)
    place = linear(
        g,
        [_iota(g, samples, 2, 0), g.emit("where", g.emit("less", t, n), mirrored, t)],
        (samples, steps),
    )
    rows = g.reshape(moved, (g.dims.product((samples, steps)), *rest))
    return g.transpose(g.emit("take", rows, place, axis=0), order)


# -- the greatest elements ------------------------------------------------------------------------


def _precedes(g: Context, a: Val, b: Val, largest: bool) -> Val:
    """Whether `a` comes before `b`; NaN counts as greater than all numbers."""
    first = g.emit("greater" if largest else "less", a, b)
    if not g.type(a).dtype.is_float:
        return first
    odd = [g.emit("isnan", v) for v in ((a, b) if largest else (b, a))]
    return g.emit("logical_or", first, g.emit("logical_and", odd[0], g.emit("logical_not", odd[1])))


# Up to so many elements are found one after another, which is linear in the extent for each.
_FEW = 16


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
    few = 1 <= count <= _FEW and (size is None or size > 2 * count)
    if few and g.dtype(x) in _KEYS:
        index = _selected(g, moved, count, largest)
    else:
        index = _ranked(g, moved, count, largest)
    values = gather_elements(g, moved, index, axis=rank - 1)
    return g.transpose(values, back), g.transpose(index, back)


# Element types of which `_key` makes integers that are ordered alike, and the type of these.
_KEYS = {
    "float32": "int64",
    "float16": "int64",
    "int32": "int64",
    "int16": "int32",
    "int8": "int32",
    "uint16": "int32",
    "uint8": "int32",
}


def _key(g: Context, x: Val, largest: bool) -> Val:
    """Integers of the order of `x`, the first in order the greatest: of a float its bits, turned
    where it is negative, with NaN beyond all numbers. None is the least integer."""
    key = x
    if g.type(x).dtype.is_float:
        wide = g.cast(x, "float32")
        positive = g.emit("add", wide, g.const(0, "float32"))  # a zero has no sign then
        bits = g.emit("bitcast", positive, dtype="int32")
        turned = g.emit("bitwise_xor", bits, g.const(0x7FFFFFFF, "int32"))
        key = g.emit("where", g.emit("less", bits, g.const(0, "int32")), turned, bits)
        most = g.const(np.iinfo(np.int32).max, "int32")
        key = g.emit("where", g.emit("isnan", wide), most, key)
    key = g.cast(key, _KEYS[g.dtype(x)])
    return key if largest else g.emit("neg", key)


def _selected(g: Context, x: Val, count: int, largest: bool) -> Val:
    """The places of the first elements along the last dimension: the greatest, then the greatest
    of the others, and so on."""
    rank, key = g.rank(x), _key(g, x, largest)
    none = g.const(np.iinfo(g.type(key).dtype.name).min, g.type(key).dtype)
    line = _iota(g, g.shape(x)[-1], rank, rank - 1)
    found = []
    for k in range(count):
        best = g.emit("argmax", key, axis=rank - 1, keepdims=True)
        found.append(best)
        if k + 1 < count:
            key = g.emit("where", g.emit("equal", line, best), none, key)
    return found[0] if count == 1 else g.emit("concat", *found, axis=rank - 1)


def _ranked(g: Context, moved: Val, count: int, largest: bool) -> Val:
    """The places of the first elements along the last dimension: an element's place in the order is
    the number of those before it, which takes quadratic time."""
    rank, n = g.rank(moved), g.shape(moved)[-1]
    own, other = g.reshape(moved, (*g.shape(moved), 1)), _row(g, moved)
    i, j = _iota(g, n, rank + 1, rank - 1), _iota(g, n, rank + 1, rank)
    tie = g.emit("logical_not", _precedes(g, own, other, largest))
    tie = g.emit("logical_and", tie, g.emit("less", j, i))
    before = g.emit("logical_or", _precedes(g, other, own, largest), tie)
    places = g.emit("sum", g.cast(before, "int64"), axes=(rank,), keepdims=False)
    wanted = _iota(g, as_expr(count), rank + 1, rank - 1)
    chosen = g.emit("where", g.emit("equal", _row(g, places), wanted), j, g.const(0, "int64"))
    return g.emit("sum", chosen, axes=(rank,), keepdims=False)


def top_k_1(g: Context, x: Val, *, k: Int, axis: Int = -1) -> Sequence[Val]:
    """The k greatest elements along a dimension, and their places (until opset 9)."""
    return _top(g, x, k, axis, True)


def top_k_10(
    g: Context, x: Val, k: Val, *, axis: Int = -1, largest: Int = 1, sorted: Int = 1
) -> Sequence[Val]:
    """The k greatest or least elements along a dimension, and their places; always sorted."""
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
