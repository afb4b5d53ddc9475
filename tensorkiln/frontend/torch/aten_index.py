"""Operators of ATen that read and write at computed places."""

from __future__ import annotations

from collections.abc import Sequence

from tensorkiln.frontend.graph.indexing import (
    constant_elements,
    flat_offset,
    gather_elements,
    nonnegative,
    with_elements,
)
from tensorkiln.frontend.graph.issues import malformed, unsupported
from tensorkiln.frontend.graph.scattering import (
    identity_element,
    scatter_elements,
    scatter_rows,
)
from tensorkiln.frontend.graph.top_k import top_k
from tensorkiln.frontend.graph.values import Val
from tensorkiln.frontend.torch.aten_dynamic import without_masks
from tensorkiln.frontend.torch.aten_math import floored
from tensorkiln.frontend.torch.aten_reduce import cumulated
from tensorkiln.frontend.torch.context import AtenContext, Operand
from tensorkiln.frontend.torch.dispatch import AtenTable
from tensorkiln.ir.expr import Expr, as_expr, int_value
from tensorkiln.ops.broadcast import broadcast_shapes


def index_select(g: AtenContext, x: Val, axis: int, index: Val) -> Val:
    """Slices of one dimension, by number."""
    if not g.rank(x):
        return x
    dimension = g.axis(axis, g.rank(x))
    flat = g.reshape(index, (g.dims.product(g.shape(index)),))
    return g.emit("take", x, g.inside(flat, g.shape(x)[dimension], negative=False), axis=dimension)


def embedding(
    g: AtenContext,
    weight: Val,
    indices: Val,
    padding_idx: int = -1,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Val:
    """Rows of a table. The row of padding has no meaning but for gradients."""
    inside = g.inside(indices, g.shape(weight)[0], negative=False)
    return g.emit("take", weight, inside, axis=0)


def one_hot(g: AtenContext, x: Val, num_classes: int = -1) -> Val:
    """1 along a new last dimension where the index is, else 0."""
    count = g.out.shape[-1]
    classes = g.iota(count, g.rank(x) + 1, g.rank(x))
    column = g.reshape(g.inside(x, count, negative=False), (*g.shape(x), 1))
    return g.cast(g.emit("equal", column, classes), "int64")


def _spots(g: AtenContext, x: Val, indices: Sequence[Val | None]) -> list[int]:
    """The dimensions that are indexed; NodeProblem for masks, whose count data decides."""
    for index in indices:
        if index is not None and g.type(index).dtype.is_bool:
            raise unsupported(
                "an index that is a mask selects as many elements as the data says",
                "torch.where keeps all of them",
            )
    return [k for k, index in enumerate(indices) if index is not None]


def _common(g: AtenContext, parts: Sequence[Val]) -> tuple[Expr, ...]:
    names = [f"indices[{k}]" for k in range(len(parts))]
    return broadcast_shapes("index", names, [g.shape(part) for part in parts])


def index(g: AtenContext, x: Val, indices: Sequence[Val | None]) -> Val:
    """x[i, :, j]: the elements at indices that broadcast. Dimensions of indexed elements stand
    where the first index was, or in front if the indices are not neighbours."""
    indices = without_masks(g, x, indices)
    spots = _spots(g, x, indices)
    parts = [v for v in indices if v is not None]
    if len(parts) == 1:
        return g.emit("take", x, parts[0], axis=spots[0])
    x = _holding(g, x, spots, parts)
    common = _common(g, parts)
    free_axes = [d for d in range(g.rank(x)) if d not in spots]
    moved = g.transpose(x, [*spots, *free_axes])
    extents = g.shape(x)
    places = flat_offset(
        g,
        [_place(g, part, extents[s]) for part, s in zip(parts, spots, strict=True)],
        [extents[s] for s in spots],
    )
    rows = g.reshape(
        moved, (g.dims.product(extents[s] for s in spots), *(extents[d] for d in free_axes))
    )
    read = g.emit("take", rows, g.spread(places, common), axis=0, outside="clamp")
    if spots != list(range(spots[0], spots[-1] + 1)):
        return read
    lead = len(common)
    before = spots[0]
    order = [*range(lead, lead + before), *range(lead), *range(lead + before, g.rank(read))]
    return g.transpose(read, order)


def _place(g: AtenContext, index: Val, extent: Expr) -> Val:
    """An index as one that is not negative: here negative ones count from the end."""
    return nonnegative(g, g.inside(index, extent), extent)


def _holding(g: AtenContext, x: Val, spots: Sequence[int], parts: Sequence[Val]) -> Val:
    """`x`, of which a call must be large enough for the indices that are constant."""
    for spot, part in zip(spots, parts, strict=True):
        x = with_elements(g, x, spot, constant_elements(part))
    return x


def index_put(
    g: AtenContext, x: Val, indices: Sequence[Val | None], values: Val, accumulate: bool = False
) -> Val:
    """`x` with values put to, or added at, x[i, :, j]."""
    first = next((v for v in indices if v is not None), None)
    if first is not None and g.type(first).dtype.is_bool:
        return _put_masked(g, x, indices, values, accumulate)
    spots = _spots(g, x, indices)
    parts = [v for v in indices if v is not None]
    x = _holding(g, x, spots, parts)
    common = _common(g, parts)
    extents = g.shape(x)
    free_axes = [d for d in range(g.rank(x)) if d not in spots]
    order = [*spots, *free_axes]
    neighbours = spots == list(range(spots[0], spots[-1] + 1))
    before = spots[0] if neighbours else 0
    shape = (
        *(extents[d] for d in free_axes[:before]),
        *common,
        *(extents[d] for d in free_axes[before:]),
    )
    wide = g.spread(values, shape)
    lead = before + len(common)
    turned = [*range(before, lead), *range(before), *range(lead, len(shape))]
    updates = g.transpose(wide, turned)
    columns = [
        g.spread(_place(g, part, extents[s]), common) for part, s in zip(parts, spots, strict=True)
    ]
    moved = g.transpose(x, order)
    new_rows = scatter_rows(g, moved, columns, updates, "add" if accumulate else "none")
    return g.transpose(new_rows, [order.index(d) for d in range(g.rank(x))])


def _rows_put(g: AtenContext, x: Val, axis: int, index: Val, source: Val, accumulate: bool) -> Val:
    """`x` with slices of one dimension put or added, of which negative numbers are outside."""
    dimension = g.axis(axis, g.rank(x))
    inside = g.inside(index, g.shape(x)[dimension], negative=False)
    return index_put(g, x, [*[None] * dimension, inside], source, accumulate)


def index_add(
    g: AtenContext, x: Val, axis: int, index: Val, source: Val, *, alpha: Operand = 1
) -> Val:
    """`x` with slices of the source added, times `alpha`, to those of these numbers."""
    if int_value(as_expr(alpha)) != 1:
        source = g.emit("mul", source, g.number(alpha, g.dtype(x)))
    return _rows_put(g, x, axis, index, source, True)


def index_copy(g: AtenContext, x: Val, axis: int, index: Val, source: Val) -> Val:
    """`x` with slices of the source in place of those of these numbers."""
    return _rows_put(g, x, axis, index, source, False)


def index_fill(g: AtenContext, x: Val, axis: int, index: Val, value: Operand) -> Val:
    """`x` with a number in the slices of one dimension of these numbers."""
    dimension = g.axis(axis, g.rank(x))
    return index_put(g, x, [*[None] * dimension, index], g.number(value, g.dtype(x)))


def _put_masked(
    g: AtenContext, x: Val, indices: Sequence[Val | None], values: Val, accumulate: bool
) -> Val:
    """x[mask] = value, for a single mask of leading dimensions and values that are all one."""
    mask = indices[0]
    if mask is None or len(indices) != 1 or accumulate:
        raise unsupported("a mask among other indices", "torch.where")
    inner_rank = g.rank(x) - g.rank(mask)
    fits = g.rank(values) <= inner_rank or int_value(g.shape(values)[0]) == 1
    if not fits:
        raise unsupported("values for a mask, whose count data decides", "torch.masked_scatter")
    if g.rank(values) > inner_rank:
        values = g.reshape(values, g.shape(values)[g.rank(values) - inner_rank :])
    thin = g.reshape(mask, (*g.shape(mask), *(as_expr(1),) * inner_rank))
    return g.emit("where", thin, g.spread(values, g.shape(x)), x)


def gather(g: AtenContext, x: Val, axis: int, indices: Val, *, sparse_grad: bool = False) -> Val:
    """out[i][j] = x[indices[i][j]][j] (for axis 0)."""
    if not g.rank(x):
        return g.spread(x, g.shape(indices))
    if not g.rank(indices):
        return g.emit("take", x, g.inside(indices, g.shape(x)[0], negative=False), axis=0)
    dimension = g.axis(axis, g.rank(x))
    inside = g.inside(indices, g.shape(x)[dimension], negative=False)
    return gather_elements(g, x, inside, axis=dimension)


def _scattered(g: AtenContext, x: Val, axis: int, indices: Val, source: Val, reduction: str) -> Val:
    """The rule of ONNX, but indices may cover a part of the source too."""
    if not g.rank(x):
        vector = _scattered(
            g,
            *(g.reshape(x, (1,)), 0, g.reshape(indices, (1,)), g.reshape(source, (1,))),
            reduction,
        )
        return g.reshape(vector, ())
    for d, extent in enumerate(g.shape(indices)):
        source = g.sliced(source, d, 0, extent)
    if any(int_value(e) == 0 for e in g.shape(indices)):
        return x
    inside = g.inside(indices, g.shape(x)[g.axis(axis, g.rank(x))], negative=False)
    return scatter_elements(g, x, inside, source, axis=axis, reduction=reduction)


def scatter_src(g: AtenContext, x: Val, axis: int, indices: Val, source: Val) -> Val:
    """`x` with elements of the source put to computed places of one dimension."""
    return _scattered(g, x, axis, indices, source, "none")


def scatter_value(g: AtenContext, x: Val, axis: int, indices: Val, value: Operand) -> Val:
    """`x` with a number put to computed places of one dimension."""
    source = g.spread(g.number(value, g.dtype(x)), g.shape(indices))
    return _scattered(g, x, axis, indices, source, "none")


def scatter_add(g: AtenContext, x: Val, axis: int, indices: Val, source: Val) -> Val:
    """`x` with elements of the source added at computed places of one dimension."""
    return _scattered(g, x, axis, indices, source, "add")


def scatter_reduce(
    g: AtenContext,
    x: Val,
    axis: int,
    indices: Val,
    source: Val,
    reduce: str,
    *,
    include_self: bool = True,
) -> Val:
    """`x` combined with elements of the source at computed places of one dimension."""
    reductions = {"sum": "add", "mean": "add", "prod": "mul", "amax": "max", "amin": "min"}
    if reduce not in reductions:
        raise malformed(f"reduce={reduce!r}; expected one of {', '.join(reductions)}")
    units = g.spread(g.like(1, x), g.shape(indices))
    count = _scattered(g, g.spread(g.like(0, x), g.shape(x)), axis, indices, units, "add")
    base = x
    if not include_self:
        unit = identity_element(g, x, reductions[reduce])
        hit = g.emit("greater", count, g.like(0, x))
        base = g.emit("where", hit, g.spread(unit, g.shape(x)), x)
    combination = _scattered(g, base, axis, indices, source, reductions[reduce])
    if reduce != "mean":
        return combination
    total = g.emit("add", count, g.like(1, x)) if include_self else count
    total = g.emit("maximum", total, g.like(1, x))
    return (
        g.emit("div", combination, total)
        if g.type(x).dtype.is_float
        else floored(g, combination, total)
    )


def masked_scatter(g: AtenContext, x: Val, mask: Val, source: Val) -> Val:
    """`x` with elements of the source, in order, where the mask is true."""
    shape = g.shape(x)
    total = (g.dims.product(shape),)
    hit = g.reshape(g.spread(mask, shape), total)
    order = cumulated(g, "sum", g.cast(hit, "int64"), 0)
    place = g.emit("maximum", g.emit("sub", order, g.const(1, "int64")), g.const(0, "int64"))
    flat = g.reshape(source, (g.dims.product(g.shape(source)),))
    read = g.emit("take", flat, place, axis=0, outside="clamp")
    return g.reshape(g.emit("where", hit, read, g.reshape(x, total)), shape)


# -- order ------------------------------------------------------------------------------------


def topk(
    g: AtenContext, x: Val, k: Operand, axis: int = -1, largest: bool = True, sorted: bool = True
) -> Sequence[Val]:
    """The k greatest or least elements along a dimension, sorted, and their places."""
    count = int_value(as_expr(k))
    if count is None:
        raise unsupported("a symbolic k")
    return _ordered(g, x, count, axis, largest)


def sort(
    g: AtenContext, x: Val, axis: int = -1, descending: bool = False, **options: bool
) -> Sequence[Val]:
    """All elements along a dimension in order, and their places; equal ones keep their order."""
    count = int_value(g.shape(x)[g.axis(axis, g.rank(x))]) if g.rank(x) else 1
    if count is None:
        raise unsupported("a symbolic dimension is sorted", "freeze={name: size}")
    return _ordered(g, x, count, axis, descending)


def sort_stable(
    g: AtenContext, x: Val, *, stable: bool | None = None, dim: int = -1, descending: bool = False
) -> Sequence[Val]:
    """`sort`, with the options by name."""
    return sort(g, x, dim, descending)


def _ordered(g: AtenContext, x: Val, count: int, axis: int, largest: bool) -> Sequence[Val]:
    if not g.rank(x):
        return x, g.const(0, "int64")
    boolean = g.type(x).dtype.is_bool
    y = g.cast(x, "uint8") if boolean else x
    values, places = top_k(g, y, count, axis, largest)
    return g.cast(values, "bool") if boolean else values, places


TABLE: AtenTable = {
    "index_select": index_select,
    "embedding": embedding,
    "one_hot": one_hot,
    "index.Tensor": index,
    "_unsafe_index.Tensor": index,
    "index_put": index_put,
    "_unsafe_index_put": index_put,
    "index_add": index_add,
    "index_copy": index_copy,
    "index_fill.int_Scalar": index_fill,
    "index_fill.int_Tensor": index_fill,
    "gather": gather,
    "scatter.src": scatter_src,
    "scatter.value": scatter_value,
    "scatter_add": scatter_add,
    "scatter_reduce.two": scatter_reduce,
    "masked_scatter": masked_scatter,
    "topk": topk,
    "sort": sort,
    "sort.stable": sort_stable,
}
