"""Operators of ATen whose results have as many elements as the data decides; masks as indices."""

from __future__ import annotations

from collections.abc import Sequence

from tensorkiln.frontend.graph.data_extents import dynamic_results
from tensorkiln.frontend.graph.issues import malformed
from tensorkiln.frontend.graph.values import Val
from tensorkiln.frontend.torch.context import AtenContext
from tensorkiln.frontend.torch.dispatch import AtenTable
from tensorkiln.ops.broadcast import broadcast_shapes


def nonzero(g: AtenContext, x: Val) -> Val:
    """The indices of all elements other than 0, a row for each."""
    if not g.rank(x):
        flat = dynamic_results(g, "nonzero", g.reshape(x, (1,)), shapes=[(1, None)])[0]
        return g.sliced(g.transpose(flat, (1, 0)), 1, 0, 0)
    columns = dynamic_results(g, "nonzero", x, shapes=[(g.rank(x), None)])[0]
    return g.transpose(columns, (1, 0))


def masked_select(g: AtenContext, x: Val, mask: Val) -> Val:
    """The elements where the mask, of the same shape when both are broadcast, is true."""
    shape = broadcast_shapes("masked_select", ("x", "mask"), (g.shape(x), g.shape(mask)))
    flat = (g.dims.product(shape),)
    values, truths = (g.reshape(g.spread(v, shape), flat) for v in (x, mask))
    return dynamic_results(g, "compress", values, truths, shapes=[(None,)], axis=0)[0]


def without_masks(g: AtenContext, x: Val, indices: Sequence[Val | None]) -> list[Val | None]:
    """Indices of x, with those that are masks as the indices of their true elements."""
    plain_indices: list[Val | None] = []
    for index in indices:
        if index is None or not g.type(index).dtype.is_bool:
            plain_indices.append(index)
            continue
        rank = g.rank(index)
        if not rank:
            raise malformed("an index that is a scalar mask")
        columns = dynamic_results(g, "nonzero", index, shapes=[(rank, None)])[0]
        count = g.shape(columns)[1]
        plain_indices += [g.reshape(g.sliced(columns, 0, k, 1), (count,)) for k in range(rank)]
    return plain_indices


def unique2(
    g: AtenContext,
    x: Val,
    sorted: bool = True,
    return_inverse: bool = False,
    return_counts: bool = False,
) -> list[Val]:
    """The distinct elements in order, the place of each element among them, and their counts."""
    flat = g.reshape(x, (g.dims.product(g.shape(x)),))
    shapes = [(None,), (None,), g.shape(flat), (None,)]
    values, _, places, counts = dynamic_results(
        g, "unique", flat, shapes=shapes, axis=None, sorted=True
    )
    return [values, g.reshape(places, g.shape(x)), g.checked(counts, g.shape(values))]


TABLE: AtenTable = {"nonzero": nonzero, "masked_select": masked_select, "_unique2": unique2}
