"""Operators on shapes (Shape, Reshape, Concat, Split, ...) and of constants (Range, ...)."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from tensorkiln.frontend.graph import movement
from tensorkiln.frontend.graph.broadcast import broadcast
from tensorkiln.frontend.graph.context import Context
from tensorkiln.frontend.graph.data_extents import (
    checked_reshape,
    dynamic_results,
    elements,
    extent_of,
    extents_of,
    is_computed,
    require,
    require_broadcast,
    resolved_shape,
)
from tensorkiln.frontend.graph.issues import malformed, unsupported
from tensorkiln.frontend.graph.values import Val
from tensorkiln.frontend.onnx.context import OnnxContext
from tensorkiln.frontend.onnx.dispatch import (
    Array,
    Float,
    Floats,
    Int,
    Ints,
    Str,
    Table,
    Tensor,
)
from tensorkiln.frontend.onnx.narrow import Narrow
from tensorkiln.frontend.onnx.tensors import dtype_name
from tensorkiln.ir.expr import Expr, ExprLike, IntImm, as_expr, binary, int_value
from tensorkiln.ir.relax import Constant, constant

# A tensor of more elements than this that one value or one step describes stays an operator: a
# file of a few bytes must not make the importer allocate terabytes.
CONSTANT_LIMIT = 1 << 28


def shape(g: Context, x: Val, *, start: Int = 0, end: Int | None = None) -> Val:
    """The extents from `start` to `end`, as an int64 tensor whose elements are known."""
    return g.shape_value(g.shape(x)[slice(start, end)])


def size(g: Context, x: Val) -> Val:
    """The number of elements, as an int64 scalar whose value is known."""
    return g.reshape(g.shape_value([g.dims.product(g.shape(x))]), ())


def reshape_1(g: Context, x: Val, *, shape: Ints, allowzero: Int = 0) -> Val:
    """Reshape with the new shape as an attribute (until opset 4)."""
    return _reshape(g, x, [as_expr(d) for d in shape], False)


def reshape_5(g: Context, x: Val, shape: Val, *, allowzero: Int = 0) -> Val:
    """Reshape with the new shape as an operand.

    0 copies the operand's extent (with `allowzero` it is the extent 0); -1, at most once, takes
    what is left of the number of elements.
    """
    if is_computed(g, shape):
        return checked_reshape(g, x, resolved_shape(g, x, shape, bool(allowzero)))
    return _reshape(g, x, list(g.extents(shape, "the shape of Reshape")), bool(allowzero))


def _reshape(g: Context, x: Val, target: list[Expr], allowzero: bool) -> Val:
    old = g.shape(x)
    for i, d in enumerate(target):
        if int_value(d) == 0 and not allowzero:
            if i >= len(old):
                raise malformed(f"entry {i} copies a dimension, but the operand has {len(old)}")
            target[i] = old[i]
    free = [i for i, d in enumerate(target) if int_value(d) == -1]
    if len(free) > 1:
        raise malformed(f"the shape has {len(free)} entries of -1")
    total = g.dims.product(old)
    if free:
        part = g.dims.product(d for i, d in enumerate(target) if i not in free)
        remainder = g.dims.divide(total, part)
        if remainder is None:
            raise malformed(f"{_count(total)} elements do not divide into rows of {_count(part)}")
        target[free[0]] = remainder
    else:
        new, old_count = int_value(g.dims.product(target)), int_value(total)
        if new is not None and old_count is not None and new != old_count:
            raise malformed(f"{old_count} elements cannot take a shape of {new}")
    computed = any(map(g.dims.is_computed, (*old, *target)))
    return checked_reshape(g, x, target) if computed else g.reshape(x, target)


def _count(e: Expr) -> object:
    value = int_value(e)
    return e if value is None else value


def flatten(g: Context, x: Val, *, axis: Int = 1) -> Val:
    """Reshape to two dimensions, split before `axis`: [a, b, c] with axis 1 becomes [a, b*c]."""
    rank, dims = g.rank(x), g.shape(x)
    dimension = rank if axis == rank else g.axis(axis, rank)
    return g.reshape(x, (g.dims.product(dims[:dimension]), g.dims.product(dims[dimension:])))


def squeeze_1(g: Context, x: Val, *, axes: Ints | None = None) -> Val:
    """Remove dimensions of extent 1: those of the attribute `axes`, or without it, all.

    Without `axes` an open extent of 1 would make another rank, so it is a condition that it is
    not 1. A computed extent may be 1 in the first dimension that stays, where operators that
    broadcast do not tell [1, ...] from [...].
    """
    dims = g.shape(x)
    if axes is None:
        drop = tuple(i for i, d in enumerate(dims) if int_value(d) == 1)
        first = next((i for i in range(len(dims)) if i not in drop), -1)
        for i, d in enumerate(dims):
            if i not in drop and not (i == first and g.dims.is_computed(d)):
                expected = f"another extent than 1 in dimension {i}, which is not to be removed"
                x = g.require(x, binary("ne", d, 1), expected)
    else:
        drop = g.axes(axes, len(dims))
    for i in drop:
        if int_value(dims[i]) not in (1, None):
            raise malformed(f"dimension {i} of extent {int_value(dims[i])} cannot be squeezed")
    x = g.fitted(x, [1 if i in drop else d for i, d in enumerate(dims)])
    return g.reshape(x, [d for i, d in enumerate(dims) if i not in drop])


def squeeze_13(g: Context, x: Val, axes: Val | None = None) -> Val:
    """Squeeze with its axes as an operand."""
    return squeeze_1(g, x, axes=None if axes is None else g.ints(axes, "axes"))


def unsqueeze_1(g: Context, x: Val, *, axes: Ints) -> Val:
    """Insert dimensions of extent 1; `axes` are their places in the result."""
    rank = g.rank(x) + len(axes)
    new = g.axes(axes, rank)
    extents = iter(g.shape(x))
    return g.reshape(x, [IntImm(1) if i in new else next(extents) for i in range(rank)])


def unsqueeze_13(g: Context, x: Val, axes: Val) -> Val:
    """Unsqueeze with its axes as an operand."""
    return unsqueeze_1(g, x, axes=g.ints(axes, "axes"))


def transpose(g: Context, x: Val, *, perm: Ints | None = None) -> Val:
    """Permute the dimensions by `perm`, or reverse them without it."""
    rank = g.rank(x)
    order = tuple(reversed(range(rank))) if perm is None else perm
    if sorted(order) != list(range(rank)):
        raise malformed(f"perm={list(order)} is not a permutation of {rank} dimensions")
    return g.transpose(x, order)


def split_2(g: OnnxContext, x: Val, *, axis: Int = 0, split: Ints | None = None) -> list[Val]:
    """Split with the extents of the parts as an attribute; without it, into equal parts."""
    return _split(g, x, axis, split, len(g.outputs))


def split_13(g: OnnxContext, x: Val, split: Val | None = None, *, axis: Int = 0) -> list[Val]:
    """Split with the extents of the parts as an operand."""
    if split is not None and is_computed(g, split):
        return _split_by_data(g, x, axis, split)
    parts = None if split is None else g.ints(split, "split")
    return _split(g, x, axis, parts, len(g.outputs))


def split_18(
    g: OnnxContext,
    x: Val,
    split: Val | None = None,
    *,
    axis: Int = 0,
    num_outputs: Int | None = None,
) -> list[Val]:
    """Split with the extents of the parts as an operand, or into `num_outputs` equal parts of which
    the last may be smaller: 10 into 4 gives 3, 3, 3, 1."""
    if (split is None) == (num_outputs is None):
        raise malformed("either split or num_outputs must be given")
    if (num_outputs or 0) > len(g.outputs):
        raise malformed(f"num_outputs={num_outputs}, but the node has {len(g.outputs)} output(s)")
    if split is not None and is_computed(g, split):
        return _split_by_data(g, x, axis, split)
    parts = None if split is None else g.ints(split, "split")
    return _split(g, x, axis, parts, num_outputs or len(g.outputs), uneven=True)


def _split(
    g: OnnxContext, x: Val, axis: int, parts: Sequence[int] | None, count: int, uneven: bool = False
) -> list[Val]:
    if not g.rank(x):
        raise malformed("the operand is a scalar")
    dimension = g.axis(axis, g.rank(x))
    extent = g.shape(x)[dimension]
    if parts is None and uneven:
        part_size = g.dims.simplify((extent + (count - 1)) // count)
        last = g.dims.simplify(extent - part_size * (count - 1))
        x = g.require(x, binary("ge", last, 0), f"{count} parts, of which none is negative")
        sizes = [*[part_size] * (count - 1), last]
    elif parts is None:
        x = g.require(x, binary("eq", extent % count, 0), f"{count} equal parts")
        sizes = [g.dims.simplify(extent // count)] * count
    else:
        sizes = list(map(as_expr, parts))
        if any(p < 0 for p in parts):
            raise malformed(f"parts {list(parts)}: none may be negative")
        total = sum(parts)
        expected = f"{total} elements in dimension {dimension}, as parts {list(parts)} add up to"
        x = g.require(x, binary("eq", extent, as_expr(total)), expected)
    if len(sizes) != len(g.outputs):
        raise malformed(f"{len(sizes)} parts for {len(g.outputs)} outputs")
    outs: list[Val] = []
    start: Expr = IntImm(0)
    for size in sizes:
        begin = [start if i == dimension else 0 for i in range(g.rank(x))]
        dims = [size if i == dimension else d for i, d in enumerate(g.shape(x))]
        outs.append(
            g.emit("slice", x, begin=tuple(begin), strides=(1,) * g.rank(x), shape=tuple(dims))
        )
        start = g.dims.simplify(start + size)
    return outs


def _split_by_data(g: OnnxContext, x: Val, axis: int, split: Val) -> list[Val]:
    """Split into parts whose extents data decides."""
    dimension, shape = g.axis(axis, g.rank(x)), g.shape(x)
    if g.rank(split) != 1 or int_value(g.shape(split)[0]) != len(g.outputs):
        raise malformed(f"split of shape {list(g.shape(split))} for {len(g.outputs)} outputs")
    total = g.emit("sum", g.cast(split, "int64"), axes=(0,), keepdims=True)
    whole = g.emit("equal", total, g.shape_value([shape[dimension]]))
    require(
        g,
        whole,
        "split",
        split,
        f"{len(g.outputs)} parts whose sum is the extent of dimension {dimension}",
    )
    outs: list[Val] = []
    start: Val = g.const([0], "int64")
    axis_of, by = g.const([dimension], "int64"), g.const([1], "int64")
    counts = elements(g, g.cast(split, "int64"), "split")
    for count, part in zip(counts, extents_of(g, split, "split"), strict=True):
        end = g.emit("add", start, count)
        dims = [part if i == dimension else d for i, d in enumerate(shape)]
        outs += dynamic_results(
            g, "slice_dynamic", x, start, end, axis_of, by, shapes=[dims], node=g.span or "split"
        )
        start = end
    return outs


def expand(g: Context, x: Val, shape: Val) -> Val:
    """Broadcast to the common shape of `x` and `shape`: in ONNX, `shape` may have extents of 1
    where `x` has larger ones."""
    target = extents_of(g, shape, "shape")
    if is_computed(g, shape):
        require_broadcast(g, x, shape, len(target))
    return broadcast(g, x, target)


def tile(g: Context, x: Val, repeats: Val) -> Val:
    """Repeat the whole operand along every dimension; the counts may be symbolic."""
    return movement.tile(g, x, extents_of(g, repeats, "repeats"))


def range_(g: Context, start: Val, limit: Val, delta: Val) -> Val:
    """start, start + delta, ... up to, but without, limit.

    Floating bounds must be constants; integer bounds may be symbolic, but not delta.
    """
    dtype = g.dtype(start)
    if any(not isinstance(v, Constant) and g.expressions(v) is None for v in (start, limit, delta)):
        return _computed_range(g, start, limit, delta)
    if g.type(start).dtype.is_float:
        lo, hi, by = (float(g.scalar(v, "a bound of Range")) for v in (start, limit, delta))
        if by == 0 or not math.isfinite((hi - lo) / by):
            raise malformed(f"no finite number of steps from {lo} to {hi} by {by}")
        steps = max(math.ceil((hi - lo) / by), 0)
        if steps > CONSTANT_LIMIT:
            raise unsupported(f"{steps} elements of a floating-point Range")
        return constant((lo + by * np.arange(steps)).astype(dtype))
    bounds = []
    for name, v in (("start", start), ("limit", limit), ("delta", delta)):
        array = g.expressions(v)
        if array is None:
            raise unsupported(f"{name} is computed from data")
        if array.size != 1:
            raise malformed(f"{name} must be a scalar")
        bounds.append(array.reshape(()).item())
    step = int_value(bounds[2])
    if not step:
        raise malformed("delta is 0") if step == 0 else unsupported("delta is symbolic")
    span = bounds[1] - bounds[0] if step > 0 else bounds[0] - bounds[1]
    count = g.dims.max(0, (span + (abs(step) - 1)) // abs(step))
    n, first = int_value(count), int_value(bounds[0])
    if n is not None and first is not None and n <= CONSTANT_LIMIT:
        return constant((first + step * np.arange(n)).astype(dtype))
    return g.emit("arange", start=g.dims.simplify(bounds[0]), step=step, count=count, dtype=dtype)


def _computed_range(g: Context, start: Val, limit: Val, delta: Val) -> Val:
    """Range with bounds that data decides: start + i * delta."""
    dtype = g.dtype(start)
    lo, hi, by = (g.reshape(v, ()) for v in (start, limit, delta))
    span = g.emit("sub", hi, lo)
    if g.type(start).dtype.is_float:
        steps = g.cast(g.emit("ceil", g.emit("div", span, by)), "int64")
    else:  # rounded up, for steps of both signs: -(span // -by)
        steps = g.cast(g.emit("neg", _floor_div(g, span, g.emit("neg", by))), "int64")
    count = extent_of(g, g.emit("maximum", steps, g.const(0, "int64")), "the length of Range")
    place = g.cast(g.emit("arange", start=0, step=1, count=count, dtype="int64"), dtype)
    return g.emit("add", lo, g.emit("mul", place, by))


def _floor_div(g: Context, a: Val, b: Val) -> Val:
    """The quotient of integers, rounded down."""
    remainder = g.emit("mod", a, b)
    return g.emit("div", g.emit("sub", a, remainder), b)


def constant_of_shape(g: Context, shape: Val, *, value: Array | None = None) -> Val:
    """A tensor with all elements equal: a constant if its shape is static and not too large."""
    dims = [g.dims.simplify(d) for d in extents_of(g, shape, "input")]
    if value is not None and value.size != 1:
        raise malformed(f"value must have one element, got {value.size}")
    fill = np.zeros((), np.float32) if value is None else value.reshape(())
    numbers = [int_value(d) for d in dims]
    if None not in numbers:
        sizes = tuple(n for n in numbers if n is not None)
        if any(n < 0 for n in sizes):
            raise malformed(f"the shape has a negative extent: {list(sizes)}")
        if math.prod(sizes) > CONSTANT_LIMIT or len(sizes) > 32:  # NumPy has no more dimensions
            return g.emit("full", shape=sizes, value=fill.item(), dtype=str(fill.dtype))
        # ONNX's "light" test models make their weights this way. np.zeros takes no memory until
        # its pages are touched.
        return constant(np.full(sizes, fill) if fill.any() else np.zeros(sizes, fill.dtype))
    return g.emit("full", shape=tuple(dims), value=fill.item(), dtype=str(fill.dtype))


def constant_node(
    g: Context,
    *,
    value: Tensor | None = None,
    value_float: Float | None = None,
    value_floats: Floats | None = None,
    value_int: Int | None = None,
    value_ints: Ints | None = None,
) -> Val | Narrow:
    """The value of the one attribute that is given."""
    candidates = [
        (value, None),
        (value_float, "float32"),
        (value_floats, "float32"),
        (value_int, "int64"),
        (value_ints, "int64"),
    ]
    entries = [(v, d) for v, d in candidates if v is not None]
    if len(entries) != 1:
        raise malformed(f"expected one value attribute, got {len(entries)}")
    given_value, dtype = entries[0]
    if isinstance(given_value, Constant | Narrow):
        return given_value
    return constant(np.asarray(given_value, dtype))


def eye_like(g: Context, x: Val, *, dtype: Int | None = None, k: Int = 0) -> Val:
    """1 where column - row = k, else 0; `dtype` is an ONNX element type number."""
    rows, columns = _matrix_index(g, x)
    diagonal = g.emit("equal", g.emit("sub", columns, rows), g.const(k, "int64"))
    return g.cast(diagonal, g.dtype(x) if dtype is None else dtype_name(dtype, "EyeLike.dtype"))


def trilu(g: Context, x: Val, k: Val | None = None, *, upper: Int = 1) -> Val:
    """Keep elements where column - row >= k (upper) or <= k (lower), with 0 elsewhere."""
    if g.rank(x) < 2:
        raise malformed("Trilu needs an operand of 2 or more dimensions")
    offset = g.const(0, "int64") if k is None else g.reshape(g.cast(k, "int64"), ())
    rows, columns = _matrix_index(g, x)
    compare = "greater_equal" if upper else "less_equal"
    keep = g.emit(compare, g.emit("sub", columns, rows), offset)
    zero = g.const(0, g.type(x).dtype)
    if g.type(x).dtype.is_bool:
        return g.emit("logical_and", keep, x)
    return g.emit("where", keep, x, zero)


def _matrix_index(g: Context, x: Val) -> tuple[Val, Val]:
    """Row and column numbers of the last two dimensions, as [n, 1] and [1, m]."""
    n, m = g.shape(x)[-2:]
    rows = g.emit("arange", start=0, step=1, count=n, dtype="int64")
    columns = g.emit("arange", start=0, step=1, count=m, dtype="int64")
    return g.reshape(rows, (n, 1)), g.reshape(columns, (1, m))


def depth_to_space(g: Context, x: Val, *, blocksize: Int, mode: Str = "DCR") -> Val:
    """[N, C*b*b, H, W] to [N, C, H*b, W*b]; the channels are ordered (b, b, C) in mode DCR,
    (C, b, b) in mode CRD."""
    n, c, h, w = _image(g, x)
    b = blocksize
    depth = g.dims.divide(c, as_expr(b * b)) if b > 0 else None
    if depth is None or mode not in ("DCR", "CRD"):
        raise malformed(f"blocksize={b}, mode={mode!r} with {_count(c)} channels")
    wide: tuple[ExprLike, ...] = (n, b, b, depth, h, w)
    order = (0, 3, 4, 1, 5, 2)
    if mode == "CRD":
        wide, order = (n, depth, b, b, h, w), (0, 1, 4, 2, 5, 3)
    return g.reshape(g.transpose(g.reshape(x, wide), order), (n, depth, h * b, w * b))


def space_to_depth(g: Context, x: Val, *, blocksize: Int) -> Val:
    """[N, C, H*b, W*b] to [N, b*b*C, H, W]."""
    n, c, h, w = _image(g, x)
    b = as_expr(blocksize)
    rows, columns = g.dims.divide(h, b), g.dims.divide(w, b)
    if rows is None or columns is None:
        raise malformed(f"blocksize={blocksize} does not divide the image")
    wide = g.reshape(x, (n, c, rows, b, columns, b))
    return g.reshape(g.transpose(wide, (0, 3, 5, 1, 2, 4)), (n, b * b * c, rows, columns))


def _image(g: Context, x: Val) -> tuple[Expr, ...]:
    if g.rank(x) != 4:
        raise malformed(f"expected an operand of 4 dimensions, got {g.rank(x)}")
    return g.shape(x)


TABLE: Table = {
    "Shape": {1: shape},
    "Size": {1: size},
    "Reshape": {1: reshape_1, 5: reshape_5},
    "Flatten": {1: flatten},
    "Squeeze": {1: squeeze_1, 13: squeeze_13},
    "Unsqueeze": {1: unsqueeze_1, 13: unsqueeze_13},
    "Transpose": {1: transpose},
    "Concat": {4: movement.concat},
    "Split": {2: split_2, 13: split_13, 18: split_18},
    "Expand": {8: expand},
    "Tile": {6: tile},
    "Range": {11: range_},
    "ConstantOfShape": {9: constant_of_shape},
    "Constant": {1: constant_node},
    "EyeLike": {9: eye_like},
    "Trilu": {14: trilu},
    "DepthToSpace": {1: depth_to_space},
    "SpaceToDepth": {1: space_to_depth},
}
