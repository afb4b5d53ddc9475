"""Canonical forms of operators that only move data; part of `canonicalize`.

Two movements in a row are merged, movements of dimensions of extent 1 become reshapes, and slices
and reshapes are moved before transposes, towards the producer of the data.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np

from tensorkiln.ir.expr import ExprLike, as_expr, int_value
from tensorkiln.ir.relax import Value, constant
from tensorkiln.ops.rules import product, same_extent
from tensorkiln.ops.shape import reshape_groups
from tensorkiln.transform.rewriting.rewrite import Match, Rule


def integers(values: Iterable[ExprLike]) -> tuple[int, ...] | None:
    """The values as numbers, or None when one is symbolic."""
    numbers = [int_value(v) for v in values]
    ints = tuple(n for n in numbers if n is not None)
    return ints if len(ints) == len(numbers) else None


def composed(m: Match) -> Value:
    """Two transposes as one."""
    first, second = m.attr("p"), m.attr("q")
    return m.emit("transpose", m["x"], axes=tuple(first[a] for a in second))


def is_identity(m: Match) -> bool:
    """Whether a transpose keeps the order of dimensions."""
    axes: tuple[int, ...] = m.attr("p")
    return axes == tuple(range(len(axes)))


def _moves_units(m: Match) -> bool:
    """Whether a transpose keeps the order of all dimensions whose extent is not 1."""
    shape, axes = m.tensor("x").shape, m.attr("p")
    order = [a for a in axes if int_value(shape[a]) != 1]
    return order == sorted(order)


def as_reshape(m: Match) -> Value:
    """`x` in the shape of the matched call."""
    return m.emit("reshape", m["x"], shape=m.type.shape)


def _batched_transpose(m: Match) -> Value | None:
    """reshape(transpose(y [M, S, D]), [*A, D, S]) -> transpose(reshape(y, [*A, S, D]))"""
    flat, s = m.tensor("y").shape, m.type.shape
    if m.attr("p") != (0, 2, 1) or len(s) < 3:
        return None
    if not (same_extent(flat[2], s[-2]) and same_extent(flat[1], s[-1])):
        return None
    x = m.emit("reshape", m["y"], shape=(*s[:-2], s[-1], s[-2]))
    return m.transposed(x)


def _units_before(m: Match) -> Value | None:
    """reshape(transpose(x)) -> transpose(reshape(x)) if the reshape only adds or removes dimensions
    of extent 1."""
    x = m.tensor("x").shape
    axes: tuple[int, ...] = m.attr("p")
    wide = [a for a in axes if int_value(x[a]) != 1]
    narrow = [d for d in m.type.shape if int_value(d) != 1]
    if len(wide) != len(narrow) or not all(
        same_extent(x[a], d) for a, d in zip(wide, narrow, strict=True)
    ):
        return None
    units = m.type.ndim - len(narrow)
    order, unit, wide_axis = sorted(wide), iter(range(units)), iter(wide)
    y = m.emit("reshape", m["x"], shape=((1,) * units + tuple(x[a] for a in order)))
    return m.emit(
        "transpose",
        y,
        axes=tuple(
            next(unit) if int_value(d) == 1 else units + order.index(next(wide_axis))
            for d in m.type.shape
        ),
    )


def _slice_before_transpose(m: Match) -> Value:
    """slice(transpose(x)) -> transpose(slice(x))"""
    axes: tuple[int, ...] = m.attr("p")

    def back(values: Sequence[ExprLike]) -> tuple[ExprLike, ...]:
        return tuple(values[axes.index(d)] for d in range(len(axes)))

    y = m.emit(
        "slice",
        m["x"],
        begin=back(m.attr("b")),
        strides=back(m.attr("s")),
        shape=back(m.type.shape),
    )
    return m.emit("transpose", y, axes=axes)


def _slice_before_reshape(m: Match) -> Value | None:
    """slice(reshape(x)) -> reshape(slice(x)) if each sliced dimension is the outermost of those
    that the reshape made of one dimension of x: x [6] as [3, 2], rows 0 and 1, is x[0:4]."""
    old, new = m.tensor("x").shape, m.tensor("y").shape
    begin, strides, count = integers(m.attr("b")), integers(m.attr("s")), m.type.shape
    if begin is None or strides is None or set(strides) != {1}:
        return None
    if any(int_value(d) == 0 for d in (*old, *new)):
        return None
    begins: list[ExprLike] = [0] * len(old)
    extents = list(old)
    for olds, news in reshape_groups(old, new):
        partial = [d for d in news if begin[d] or not same_extent(count[d], new[d])]
        if not partial:
            continue
        if len(olds) != 1 or partial != [news[0]]:
            return None
        inner = product(new[d] for d in news[1:])
        begins[olds[0]] = inner * begin[news[0]]
        extents[olds[0]] = inner * count[news[0]]
    y = m.emit("slice", m["x"], begin=tuple(begins), strides=(1,) * len(old), shape=tuple(extents))
    return m.emit("reshape", y, shape=m.type.shape)


def _consecutive(m: Match) -> Value | None:
    """take of constant indices b, b + s, b + 2s, ... -> slice"""
    x, indices = m.tensor("x"), m.array("C")
    axis = m.attr("a") % x.ndim
    extent = int_value(x.shape[axis])
    if extent is None or not indices.size or indices.size > 1 << 20:
        return None
    flat = indices.reshape(-1).astype(np.int64)
    flat = np.where(flat < 0, flat + extent, flat)
    step = int(flat[1] - flat[0]) if flat.size > 1 else 1
    if not step or flat.min() < 0 or flat.max() >= extent or (np.diff(flat) != step).any():
        return None
    begin, strides, shape = [0] * x.ndim, [1] * x.ndim, list(x.shape)
    begin[axis], strides[axis], shape[axis] = int(flat[0]), step, as_expr(flat.size)
    y = m.emit("slice", m["x"], begin=tuple(begin), strides=tuple(strides), shape=tuple(shape))
    return m.emit("reshape", y, shape=m.type.shape)


def _reads_all(m: Match) -> bool:
    begin, strides = integers(m.attr("b")), integers(m.attr("s"))
    return begin is not None and strides is not None and not any(begin) and set(strides) <= {1}


def all_equal(name: str, value: int) -> Callable[[Match], bool]:
    """A condition: all entries of an attribute are `value`."""

    def where(m: Match) -> bool:
        numbers = integers(m.attr(name))
        return numbers is not None and set(numbers) <= {value}

    return where


def _as_broadcast(m: Match) -> Value | None:
    """full -> broadcast_to of a scalar, which the rules on broadcasts can move."""
    if not m.type.dtype.row.in_numpy:
        return None
    number = constant(np.asarray(m.attr("v"), m.type.dtype.name))
    return m.emit("broadcast_to", number, shape=m.type.shape)


MOVEMENT: tuple[Rule, ...] = (
    # movements of nothing (a rule is applied only if the type stays the same, which is why these
    # need no condition on the shape)
    Rule("reshape(x)", "x"),
    Rule("broadcast_to(x)", "x"),
    Rule("transpose(x, axes=p)", "x", is_identity),
    Rule("slice(x, begin=b, strides=s)", "x", _reads_all),
    Rule("concat(x)", "x"),
    Rule("pad(x)", "x"),
    Rule("tile(x, repeats=r)", "x", all_equal("r", 1)),
    # two movements as one, and cheaper orders
    Rule("reshape(reshape(x), shape=s)", "reshape(x, shape=s)"),
    Rule("transpose(transpose(x, axes=p), axes=q)", composed),
    Rule("transpose(x, axes=p)", as_reshape, _moves_units),
    Rule("reshape(transpose(y := reshape(x), axes=p))", _batched_transpose),
    Rule("reshape(transpose(x, axes=p))", _units_before),
    Rule("slice(transpose(x, axes=p), begin=b, strides=s)", _slice_before_transpose),
    Rule("slice(y := reshape(x), begin=b, strides=s)", _slice_before_reshape),
    Rule("take(x, C, axis=a)", _consecutive),
    Rule("broadcast_to(broadcast_to(x), shape=s)", "broadcast_to(x, shape=s)"),
    Rule("full(value=v)", _as_broadcast),
)
