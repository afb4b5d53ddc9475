"""Operators of ATen that move elements without computing: views, slices, concatenation, padding."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tensorkiln.frontend.graph import movement
from tensorkiln.frontend.graph.data_extents import dynamic_results
from tensorkiln.frontend.graph.issues import malformed, unsupported
from tensorkiln.frontend.graph.padding import pad
from tensorkiln.frontend.graph.values import Val
from tensorkiln.frontend.torch.context import AtenContext, Operand
from tensorkiln.frontend.torch.dispatch import AtenImporter, AtenTable
from tensorkiln.ir.expr import Expr, as_expr, int_value


def to_result(g: AtenContext, x: Val, *sizes: Operand) -> Val:
    """Any view that keeps the order of elements: torch says the shape."""
    return g.reshape(x, g.out.shape)


def permute(g: AtenContext, x: Val, order: Sequence[int]) -> Val:
    """Dimensions in another order."""
    return g.transpose(x, g.axes(order, g.rank(x), "dims"))


def transpose(g: AtenContext, x: Val, first: int, second: int) -> Val:
    """Two dimensions exchanged."""
    rank = g.rank(x)
    if not rank:
        return x
    order = list(range(rank))
    a, b = g.axis(first, rank), g.axis(second, rank)
    order[a], order[b] = b, a
    return g.transpose(x, order)


def matrix_transpose(g: AtenContext, x: Val) -> Val:
    """A matrix turned; a vector or scalar as it is."""
    return g.transpose(x, (1, 0)) if g.rank(x) == 2 else x


def expand(g: AtenContext, x: Val, sizes: Sequence[Operand], *, implicit: bool = False) -> Val:
    """Dimensions of extent 1 repeated, and new ones in front."""
    return g.spread(x, g.out.shape)


def cat(g: AtenContext, parts: Sequence[Val], axis: int = 0) -> Val:
    """Tensors one after the other; a vector without elements counts as nothing."""
    rank = len(g.out.shape)
    tensors = [p for p in parts if g.rank(p) == rank] or list(parts)
    dtype = g.out.dtype.name
    first, *tail = (g.cast(p, dtype) for p in tensors)
    return movement.concat(g, first, *tail, axis=axis)


def stack(g: AtenContext, parts: Sequence[Val], axis: int = 0) -> Val:
    """Tensors one beside the other, along a new dimension."""
    dimension = g.axis(axis, len(g.out.shape))
    wide = [g.reshape(p, (*g.shape(p)[:dimension], 1, *g.shape(p)[dimension:])) for p in parts]
    return cat(g, wide, dimension)


def slice_(
    g: AtenContext,
    x: Val,
    axis: int = 0,
    start: Operand = None,
    end: Operand = None,
    step: Operand = 1,
) -> Val:
    """x[start:end:step] along one dimension."""
    dimension = g.axis(axis, g.rank(x))
    by = int_value(as_expr(step))
    if by is None:
        raise unsupported("a step that is symbolic")
    if g.results[0] is None:  # a bound is a number from data: torch knows no extent
        bounds = (0 if start is None else start, np.iinfo(np.int64).max if end is None else end)
        places = [g.reshape(g.number(limit, "int64"), (1,)) for limit in bounds]
        axes, steps = (g.const([k], "int64") for k in (dimension, by))
        shape = [None if k == dimension else d for k, d in enumerate(g.shape(x))]
        return dynamic_results(
            g, "slice_dynamic", x, *places, axes, steps, shapes=[shape], node=g.span
        )[0]
    return g.sliced(x, dimension, _first(g, x, dimension, start), g.out.shape[dimension], by)


def _first(g: AtenContext, x: Val, axis: int, start: Operand) -> Expr:
    """Where a slice of a dimension begins: bounds are clamped as in Python."""
    extent, begin = g.shape(x)[axis], as_expr(0 if start is None else start)
    number, size = int_value(begin), int_value(extent)
    if number is not None and size is not None:
        return as_expr(min(max(number + size if number < 0 else number, 0), size))
    low = _negative(g, begin)
    begin = g.dims.simplify(begin + extent) if low else begin
    return g.dims.max(0, g.dims.min(begin, extent))


def _negative(g: AtenContext, e: Expr) -> bool:
    """Whether a bound counts from the end; NodeProblem if that depends on a size."""
    if g.dims.holds(e >= 0):
        return False
    if g.dims.holds(e < 0):
        return True
    raise unsupported("a bound may be negative or not, depending on a symbolic dimension")


def _index(g: AtenContext, x: Val, axis: int, index: Operand) -> Expr:
    """An index of a dimension, counted from the front."""
    offset = as_expr(index)
    return g.dims.simplify(offset + g.shape(x)[axis]) if _negative(g, offset) else offset


def select(g: AtenContext, x: Val, axis: int, index: Operand) -> Val:
    """x[index] along one dimension, without it."""
    dimension = g.axis(axis, g.rank(x))
    return to_result(g, g.sliced(x, dimension, _index(g, x, dimension, index), 1))


def split_with_sizes(g: AtenContext, x: Val, sizes: Sequence[Operand], axis: int = 0) -> list[Val]:
    """Parts of given extents."""
    dimension = g.axis(axis, g.rank(x))
    begin, parts = as_expr(0), []
    for size in sizes:
        parts.append(g.sliced(x, dimension, begin, size))
        begin = g.dims.simplify(begin + as_expr(size))
    return parts


def split(g: AtenContext, x: Val, size: Operand, axis: int = 0) -> list[Val]:
    """Parts of one extent, of which the last may be shorter."""
    dimension = g.axis(axis, g.rank(x))
    return split_with_sizes(
        g, x, [t.shape[dimension] for t in g.results if t is not None], dimension
    )


def unbind(g: AtenContext, x: Val, axis: int = 0) -> list[Val]:
    """All slices along one dimension, without it."""
    dimension = g.axis(axis, g.rank(x))
    return [select(g, x, dimension, k) for k in range(len(g.results))]


def flip(g: AtenContext, x: Val, axes: Sequence[int]) -> Val:
    """Dimensions in reverse order."""
    for axis in g.axes(axes, g.rank(x)) if g.rank(x) else ():
        extent = g.shape(x)[axis]
        if int_value(extent) != 0:
            x = g.sliced(x, axis, g.dims.simplify(extent - 1), extent, -1)
    return x


def roll(g: AtenContext, x: Val, shifts: Sequence[Operand], axes: Sequence[int] = ()) -> Val:
    """Elements moved along dimensions; what leaves at the end enters in front."""
    if not axes:
        flat = g.reshape(x, (g.dims.product(g.shape(x)),))
        return g.reshape(_rolled(g, flat, shifts[0], 0), g.shape(x))
    for shift, axis in zip(shifts, axes, strict=True):
        x = _rolled(g, x, shift, g.axis(axis, g.rank(x)))
    return x


def _rolled(g: AtenContext, x: Val, shift: Operand, axis: int) -> Val:
    extent = g.shape(x)[axis]
    if int_value(extent) == 0:
        return x
    first = g.dims.simplify((0 - as_expr(shift)) % extent)
    if int_value(first) == 0:
        return x
    tail = g.sliced(x, axis, first, extent - first)
    return g.emit("concat", tail, g.sliced(x, axis, 0, first), axis=axis)


def repeat(g: AtenContext, x: Val, repeats: Sequence[Operand]) -> Val:
    """The whole operand repeated along every dimension, with new ones in front."""
    counts = g.extents_of(repeats)
    wide = (*(as_expr(1),) * (len(counts) - g.rank(x)), *g.shape(x))
    return movement.tile(g, g.reshape(x, wide), [g.dims.simplify(c) for c in counts])


def diagonal(g: AtenContext, x: Val, offset: int = 0, first: int = 0, second: int = 1) -> Val:
    """The elements (i, i + offset) of two dimensions, as the last dimension."""
    rank = g.rank(x)
    a, b = g.axis(first, rank, "dim1"), g.axis(second, rank, "dim2")
    outer_axes = [i for i in range(rank) if i not in (a, b)]
    moved = g.transpose(x, [*outer_axes, a, b])
    count = g.out.shape[-1]
    if int_value(count) == 0:
        return g.emit("full", shape=g.out.shape, value=0.0, dtype=g.dtype(x))
    start = as_expr(offset) if offset >= 0 else g.shape(x)[b] * -offset
    return movement.diagonal(g, moved, start, count)


def as_strided(
    g: AtenContext,
    x: Val,
    size: Sequence[Operand],
    stride: Sequence[Operand],
    storage_offset: Operand = None,
) -> Val:
    """The elements at computed places of the operand's memory. Here memory is row-major: what torch
    says of the operand's must be the same, or the result is the operand itself."""
    memory = g.fakes[0]
    if _same_place(g, memory, x, size, stride, storage_offset):
        return x
    extents = [int_value(as_expr(v)) for v in (*size, *stride, storage_offset or 0)]
    shape = g.type(x).static_shape()
    if None in extents or shape is None:
        raise unsupported("as_strided of symbolic sizes")
    if not memory.is_contiguous() or memory.storage_offset():
        raise unsupported("as_strided of memory that is not row-major", "x.contiguous() before it")
    numbers = [v for v in extents if v is not None]
    sizes, strides, first = numbers[: len(size)], numbers[len(size) : -1], numbers[-1]
    place = np.full((1,) * len(sizes), first, np.int64)
    for axis, (n, by) in enumerate(zip(sizes, strides, strict=True)):
        place = place + (np.arange(n) * by).reshape(
            [-1 if i == axis else 1 for i in range(len(sizes))]
        )
    place = np.broadcast_to(place, sizes)
    total = int(np.prod(shape))
    if place.size and not 0 <= place.min() <= place.max() < total:
        raise unsupported("as_strided reads memory beside the operand's elements")
    if not place.size:
        return g.emit("full", shape=tuple(sizes), value=0.0, dtype=g.dtype(x))
    return g.emit("take", g.reshape(x, (total,)), g.const(place, "int64"), axis=0)


def _same_place(
    g: AtenContext,
    memory: Any,
    x: Val,
    size: Sequence[Operand],
    stride: Sequence[Operand],
    storage_offset: Operand,
) -> bool:
    """Whether a view has the shape and strides of the operand, whose `memory` torch describes."""
    shape = g.shape(x)
    offset = as_expr(0 if storage_offset is None else storage_offset)
    if len(size) != len(shape) or not g.dims.same(offset, g.sizes.expr(memory.storage_offset())):
        return False
    return all(
        g.dims.same(as_expr(n), extent)
        and (int_value(extent) == 1 or g.dims.same(as_expr(by), g.sizes.expr(memory_stride)))
        for n, extent, by, memory_stride in zip(size, shape, stride, memory.stride(), strict=True)
    )


def slice_scatter(
    g: AtenContext,
    x: Val,
    source: Val,
    axis: int = 0,
    start: Operand = None,
    end: Operand = None,
    step: Operand = 1,
) -> Val:
    """`x` with x[start:end:step] replaced along one dimension."""
    dimension = g.axis(axis, g.rank(x))
    by = int_value(as_expr(step))
    if by is None:
        raise unsupported("a step that is symbolic")
    begin = _first(g, x, dimension, start)
    extent, count = g.shape(x)[dimension], g.shape(source)[dimension]
    if int_value(count) == 0:
        return x
    if by == 1:
        after = g.dims.simplify(begin + count)
        parts = [
            g.sliced(x, dimension, 0, begin),
            source,
            g.sliced(x, dimension, after, g.dims.simplify(extent - after)),
        ]
        return g.emit(
            "concat", *(p for p in parts if int_value(g.shape(p)[dimension]) != 0), axis=dimension
        )
    # Each place of the result looks whether the source has an element for it.
    place = g.emit("sub", g.iota(extent), g.reshape(g.shape_value([begin]), ()))
    number = g.emit("div", place, g.const(by, "int64"))
    exact = g.emit("equal", g.emit("mul", number, g.const(by, "int64")), place)
    inside = g.emit(
        "logical_and",
        g.emit("greater_equal", place, g.const(0, "int64")),
        g.emit("less", number, g.reshape(g.shape_value([count]), ())),
    )
    hit = g.emit("logical_and", exact, inside)
    shape = [extent if i == dimension else as_expr(1) for i in range(g.rank(x))]
    read = g.emit("maximum", number, g.const(0, "int64"))
    moved = g.emit("take", source, read, axis=dimension, outside="clamp")
    return g.emit("where", g.reshape(hit, shape), moved, x)


def select_scatter(g: AtenContext, x: Val, source: Val, axis: int, index: Operand) -> Val:
    """`x` with x[index] replaced along one dimension."""
    dimension = g.axis(axis, g.rank(x))
    place = _index(g, x, dimension, index)
    thin = g.reshape(
        source, [as_expr(1) if i == dimension else d for i, d in enumerate(g.shape(x))]
    )
    return slice_scatter(g, x, thin, dimension, place)


def unfold(g: AtenContext, x: Val, axis: int, size: Operand, step: Operand) -> Val:
    """Windows of one dimension, `step` apart; their elements are a new last dimension."""
    if not g.rank(x):
        return g.reshape(x, (as_expr(size),))
    dimension = g.axis(axis, g.rank(x))
    count = g.out.shape[dimension]
    by = g.number(step, "int64")
    first = g.emit("mul", g.iota(count, 2, 0), by)
    places = g.emit("add", first, g.iota(size, 2, 1))
    read = g.emit("take", x, places, axis=dimension, outside="clamp")
    outer_axes = [d for d in range(g.rank(x) + 1) if d != dimension + 1]
    return g.transpose(read, [*outer_axes, dimension + 1])


# -- padding ----------------------------------------------------------------------------------


def constant_pad_nd(g: AtenContext, x: Val, widths: Sequence[Operand], value: Operand = 0) -> Val:
    """Padded by a number; widths are (before, after) from the last dimension on."""
    return _padded(g, x, widths, "constant", value)


def padding(mode: str) -> AtenImporter:
    """Padded by elements of the operand."""

    def run(g: AtenContext, x: Val, widths: Sequence[Operand]) -> Val:
        return _padded(g, x, widths, mode, 0.0)

    return run


def _padded(g: AtenContext, x: Val, widths: Sequence[Operand], mode: str, value: Operand) -> Val:
    numbers = [as_expr(w) for w in widths]
    if len(numbers) % 2:
        raise malformed(f"{len(numbers)} widths")
    axes = [g.rank(x) - 1 - k for k in range(len(numbers) // 2)]
    boolean = g.type(x).dtype.is_bool
    y = g.cast(x, "uint8") if boolean else x
    y = pad(g, y, [*numbers[0::2], *numbers[1::2]], axes, mode, value)
    return g.cast(y, "bool") if boolean else y


TABLE: AtenTable = {
    **dict.fromkeys(
        (
            "view",
            "_unsafe_view",
            "reshape",
            "squeeze",
            "squeeze.dim",
            "squeeze.dims",
            "unsqueeze",
        ),
        to_result,
    ),
    "permute": permute,
    "transpose.int": transpose,
    "t": matrix_transpose,
    "expand": expand,
    "cat": cat,
    "stack": stack,
    "slice.Tensor": slice_,
    "select.int": select,
    "split_with_sizes": split_with_sizes,
    "split.Tensor": split,
    "unbind.int": unbind,
    "flip": flip,
    "roll": roll,
    "repeat": repeat,
    "diagonal": diagonal,
    "as_strided": as_strided,
    "slice_scatter": slice_scatter,
    "select_scatter": select_scatter,
    "unfold": unfold,
    "constant_pad_nd": constant_pad_nd,
    **{f"reflection_pad{n}d": padding("reflect") for n in (1, 2, 3)},
    **{f"replication_pad{n}d": padding("edge") for n in (1, 2, 3)},
}
