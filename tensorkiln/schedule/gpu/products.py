"""Recognizes sums of products: which indices of an output are rows, columns or a batch.

The element program of a group decides, not its operators, so linear, matmul and convolution are all
the same here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tensorkiln.arith import simplify
from tensorkiln.families.contraction.costs import LEAST_OUTPUTS
from tensorkiln.ir.dtype import DType
from tensorkiln.ir.expr import Binary, Expr, IntImm, Reduce, Var, int_value
from tensorkiln.ir.visit import free_vars, loads, substitute
from tensorkiln.kernels.layouts import is_channels_last
from tensorkiln.schedule.access import lane_stride, simplify_value
from tensorkiln.schedule.group import Group, product
from tensorkiln.schedule.reductions import reductions_of

Axes = Sequence[tuple[Var, Expr]]


@dataclass(frozen=True, slots=True)
class Product:
    """An output whose elements are functions of one sum of products: element `index` is `value`, a
    function of `total`, the sum of left * right over `terms`."""

    index: tuple[Expr, ...]  # of the output, in the variables of rows, columns and batch
    value: Expr
    total: Reduce
    left: Expr  # depends on rows, batch and terms
    right: Expr  # on columns, batch and terms
    rows: Axes
    columns: Axes
    batch: Axes
    terms: Axes  # the variables over which the sum runs, with their extents

    @property
    def dtype(self) -> DType:
        """The type of the sums."""
        return self.total.dtype


def product_of(group: Group) -> Product | None:
    """The product that a group computes; None if its elements are not functions of one sum of
    products."""
    t = group.out_type
    is_plain = t.layout is None
    if not (is_plain or is_channels_last(t)) or group.calls[group.out_var].op == "concat":
        return None
    axes, index, bounds = _output_axes(group)
    value = simplify_value(group.element(group.out_var)(*index), bounds)
    sums = list(dict.fromkeys(reductions_of(value)))
    if len(sums) != 1 or sums[0].op != "sum" or not isinstance(sums[0].value, Binary):
        return None
    total, factors = sums[0], sums[0].value
    if factors.op != "mul":
        return None
    left_factor, right_factor = factors.a, factors.b
    in_left, in_right = set(free_vars(left_factor)), set(free_vars(right_factor))
    rows = [x for x in axes if x[0] in in_left - in_right]
    columns = [x for x in axes if x[0] in in_right - in_left]
    batch = [x for x in axes if x not in rows and x not in columns]
    last = next((x for x in reversed(axes) if int_value(x[1]) != 1), None)
    # The last index of the output becomes a column, so that neighbouring threads write neighbours.
    if last in rows:
        left_factor, right_factor, rows, columns = right_factor, left_factor, columns, rows
    terms = total.axes if is_plain else _in_memory_order(total.axes, right_factor)
    p = Product(index, value, total, left_factor, right_factor, rows, columns, batch, terms)
    return _with_one_row(group, p)


def _output_axes(
    group: Group,
) -> tuple[list[tuple[Var, Expr]], tuple[Expr, ...], dict[Var, tuple[int, int]]]:
    """(variables along the output with their extents, in the order of memory; the index of an
    element in them; what is known of their values). Groups of a convolution have one of their
    own."""
    t = group.out_type
    axes: list[tuple[Var, Expr]] = [(Var(f"i{d}"), e) for d, e in enumerate(t.shape)]
    index: list[Expr] = [var for var, _ in axes]
    bounds = {}
    if (outputs := _outputs_of_group(group)) is not None:
        groups, var = Var("g"), axes[1][0]
        axes[1:2] = [(groups, simplify(t.shape[1] // outputs)), (var, IntImm(outputs))]
        index[1], bounds = groups * outputs + var, {var: (0, outputs - 1)}
    if is_channels_last(t):
        axes = [axes[0], *axes[-2:], *axes[1:-2]]
    return axes, tuple(index), bounds


def _in_memory_order(terms: Axes, factor: Expr) -> Axes:
    """The terms of a sum such that neighbours in the memory of a factor follow each other."""
    (load,) = loads(factor)
    return sorted(terms, key=lambda axis: -(lane_stride(load, axis[0]) or 0))


def one_index(group: Group, p: Product, value: Expr) -> tuple[dict[Var, Expr], Var] | None:
    """(zero for each row index of a product but the last, the last) if `value` and the place of an
    element in memory are the same with one row index in place of several: for (n, s), if all
    buffers are accessed at n * S + s."""
    if len(p.rows) < 2:
        return None
    *outer, (last, _) = p.rows
    row: Expr = IntImm(0)
    for var, extent in p.rows:
        row = row * extent + var
    first: dict[Var, Expr] = {var: IntImm(0) for var, _ in outer}
    alike = first | {last: row}
    store_index = group.store_index(p.index)
    merged_index = group.store_index(tuple(substitute(e, alike) for e in p.index))
    if merged_index != store_index or simplify_value(substitute(value, alike), {}) != value:
        return None
    return first, last


def _with_one_row(group: Group, p: Product) -> Product:
    """The product with one row index in place of several (`one_index`). Otherwise they would be
    found by division, which proofs do not understand for a symbolic divisor, and hardware that
    copies matrices does not either."""
    is_known = all(int_value(e) is not None for _, e in p.rows[1:])
    merged = None if is_known and group.out_type.layout is None else one_index(group, p, p.value)
    if merged is None:
        return p
    first, last = merged
    value = simplify_value(substitute(p.value, first), {})
    (total,) = dict.fromkeys(reductions_of(value))
    assert isinstance(total.value, Binary) and isinstance(p.total.value, Binary)
    left_factor, right_factor = total.value.a, total.value.b
    if p.left == p.total.value.b:
        left_factor, right_factor = right_factor, left_factor
    index = tuple(substitute(e, first) for e in p.index)
    rows = ((last, product(tuple(e for _, e in p.rows))),)
    return Product(
        index, value, total, left_factor, right_factor, rows, p.columns, p.batch, p.terms
    )


def _outputs_of_group(group: Group) -> int | None:
    """Output channels of each group of a convolution; None if they are too few for the rows of a
    tile. With enough of them, the groups are a batch of products."""
    anchor = group.anchor
    if anchor is None or anchor.op != "conv2d" or anchor.attrs.groups == 1:
        return None
    outputs = (int_value(group.out_type.shape[1]) or 0) // anchor.attrs.groups
    return outputs if outputs >= LEAST_OUTPUTS else None
