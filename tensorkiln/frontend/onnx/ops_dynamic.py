"""Operators whose results have as many elements as the data decides: NonZero, Compress, Unique,
NonMaxSuppression."""

from __future__ import annotations

from collections.abc import Sequence

from tensorkiln.frontend.graph.context import Context
from tensorkiln.frontend.graph.data_extents import dynamic_results
from tensorkiln.frontend.graph.issues import malformed
from tensorkiln.frontend.graph.values import Val
from tensorkiln.frontend.onnx.dispatch import Int, Table
from tensorkiln.ir.expr import Expr


def nonzero(g: Context, x: Val) -> Val:
    """The indices of all elements other than 0, a column for each. A scalar counts as a vector."""
    x = x if g.rank(x) else g.reshape(x, (1,))
    return dynamic_results(g, "nonzero", x, shapes=[(g.rank(x), None)])[0]


def compress(g: Context, x: Val, condition: Val, *, axis: Int | None = None) -> Val:
    """The slices along a dimension, or the elements without one, where the condition is true."""
    if g.rank(condition) != 1 or not g.type(condition).dtype.is_bool:
        raise malformed(f"a condition of {g.dtype(condition)} and rank {g.rank(condition)}")
    dimension = None if axis is None else g.axis(axis, g.rank(x))
    shape = (None,) if dimension is None else _but(g.shape(x), dimension)
    return dynamic_results(g, "compress", x, condition, shapes=[shape], axis=dimension)[0]


def unique(g: Context, x: Val, *, axis: Int | None = None, sorted: Int = 1) -> Sequence[Val]:
    """The distinct elements, or slices along a dimension; for each the place of its first
    occurrence; for all of `x` their places among these; and how often each occurs."""
    dimension = None if axis is None else g.axis(axis, g.rank(x))
    values = (None,) if dimension is None else _but(g.shape(x), dimension)
    whole = g.dims.product(g.shape(x)) if dimension is None else g.shape(x)[dimension]
    arrays = dynamic_results(
        g,
        "unique",
        x,
        shapes=[values, (None,), (whole,), (None,)],
        axis=dimension,
        sorted=bool(sorted),
    )
    count = arrays[0].tensor.shape[dimension or 0]
    return [arrays[0], g.checked(arrays[1], (count,)), arrays[2], g.checked(arrays[3], (count,))]


def non_max_suppression(
    g: Context,
    boxes: Val,
    scores: Val,
    limit: Val | None = None,
    overlap: Val | None = None,
    least: Val | None = None,
    *,
    center_point_box: Int = 0,
) -> Val:
    """The boxes to keep: rows of batch, class and box, by decreasing score in each class."""
    limit = g.const([0], "int64") if limit is None else limit
    overlap = g.const([0], "float32") if overlap is None else overlap
    limits = [limit, overlap] if least is None else [limit, overlap, least]
    center = bool(center_point_box)
    shape = [(None, 3)]
    return dynamic_results(
        g, "non_max_suppression", boxes, scores, *limits, shapes=shape, center_point_box=center
    )[0]


def _but(shape: Sequence[Expr], axis: int) -> list[Expr | None]:
    return [None if i == axis else d for i, d in enumerate(shape)]


TABLE: Table = {
    "NonZero": {9: nonzero},
    "Compress": {9: compress},
    "Unique": {11: unique},
    "NonMaxSuppression": {10: non_max_suppression},
}
