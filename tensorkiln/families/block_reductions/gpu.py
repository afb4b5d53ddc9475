"""Reductions on a device by a block of threads per element: where there are many terms that are
neighbours in memory, or few elements. In all others, one thread computes an element
(`families/loops/gpu.py`). Terms that are a row in memory are read in vectors, all at once, by as
many threads as can hold them in registers.
"""

from __future__ import annotations

from tensorkiln.ir.buffer import Load
from tensorkiln.ir.expr import Expr, Reduce, Var, int_value, logical_and
from tensorkiln.ir.relax import TensorType
from tensorkiln.ir.stmt import If, PrimFunc, Stmt, Store, seq
from tensorkiln.ir.visit import substitute
from tensorkiln.schedule.access import in_memory_order, simplify_value
from tensorkiln.schedule.build import nest, within
from tensorkiln.schedule.gpu.block import BlockSum, each_thread
from tensorkiln.schedule.gpu.grid import bind_block, enough_threads, most_threads
from tensorkiln.schedule.gpu.rows import (
    REGISTER,
    SUBGROUP_OPS,
    THREAD,
    RowSum,
    row_division,
    unroll_rows,
)
from tensorkiln.schedule.gpu.tiles import adjacent, split_index
from tensorkiln.schedule.group import Group, product
from tensorkiln.schedule.primitives import Schedule
from tensorkiln.schedule.reductions import reductions_of, replaced
from tensorkiln.target import Target

# Sums of fewer terms are not worth a block. Up to so many elements do not fill a device with one
# thread each, so that a block for each is better.
_TERMS, _ELEMENTS = 64, 4096


def schedule(group: Group, target: Target, check: bool = False) -> Schedule | None:
    """The schedule of a group with one reduction, and elementwise operators before and after it.
    None where a thread for each element is better."""
    t = group.out_type
    if t.layout is not None or group.calls[group.out_var].op == "concat":
        return None
    if any(int_value(d) == 0 for d in t.shape):
        return None
    group = group.unviewed
    if (program := _in_registers(group, target)) is not None:
        s = Schedule(program, check)
        bind_block(s, s.loops(role="row"))
        unroll_rows(s)
        return s
    kernel = _Reduction(group, target)
    body = nest([f"i{d}" for d in range(t.ndim)], t.shape, kernel.element, ["row"] * t.ndim, True)
    if not kernel.suits or t.ndim == 0:
        return None
    s = Schedule(PrimFunc(group.name, group.params, body), check)
    bind_block(s, s.loops(role="row"))
    return s


def _in_registers(group: Group, target: Target) -> PrimFunc | None:
    """The program whose threads hold the terms of an element in registers (`schedule/gpu/rows.py`);
    None unless the terms are a row in memory that they can hold."""
    t = group.out_type
    axes = [(Var(f"i{d}"), extent) for d, extent in enumerate(t.shape)]
    if any(int_value(extent) is None for extent in t.shape[1:]):
        return None
    index = tuple(var for var, _ in axes)
    value = simplify_value(group.element(group.out_var)(*index), {})
    reductions = list(dict.fromkeys(reductions_of(value)))
    if len(reductions) != 1 or reductions[0].op not in SUBGROUP_OPS:
        return None
    (r,) = reductions
    terms = product(tuple(e for _, e in r.axes))
    if not in_memory_order(r.value, r.axes[-1][0]) or (int_value(terms) or 0) < _TERMS:
        return None
    rows = product(t.shape)
    lanes = max(1, int(adjacent((r.value,), r.axes, terms)))
    division = row_division(int_value(terms), lanes, rows, r.dtype, target)
    if division is None:
        return None
    elements, row_sum = (
        division.registers("elements", r.dtype),
        RowSum("acc", r.op, r.dtype, division),
    )

    def element(row: Expr, inside: Expr | None) -> Stmt:
        values = split_index(axes, row)
        place = tuple(values[var] for var in index)

        def load(k: Expr, *slot: Expr) -> Stmt:
            return Store(
                elements, (THREAD, *slot), simplify_value(substitute(_term(r, k), values), {})
            )

        def add(k: Expr, *slot: Expr) -> Stmt:
            return row_sum.add(Load(elements, (THREAD, *slot)))

        out = simplify_value(substitute(replaced(value, r, row_sum.value), values), {})
        store = Store(group.out, group.store_index(place), out)
        condition = logical_and(division.is_first, *([] if inside is None else [inside]))
        return within(
            [elements, *row_sum.buffers],
            division.nest(division.loops(load)),
            row_sum.stmt(division.loops(add, REGISTER)),
            division.nest(If(condition, store)),
        )

    return PrimFunc(group.name, group.params, division.blocks(rows, element))


class _Reduction:
    """The program of one element. `suits` says, once it is made, whether a block should compute
    it."""

    def __init__(self, group: Group, target: Target):
        self.group, self.most = group, most_threads(target)
        self.suits = False

    def element(self, *index: Expr) -> Stmt:
        """The statements of the block that computes the element at an index."""
        group = self.group
        value = simplify_value(group.element(group.out_var)(*index), {})
        reductions = list(dict.fromkeys(reductions_of(value)))
        if len(reductions) != 1 or not self._is_worth(reductions[0], group.out_type):
            return seq()
        self.suits, (r,) = True, reductions
        extent = product(tuple(e for _, e in r.axes))
        threads = enough_threads(int_value(extent), self.most)
        block_sum = BlockSum("acc", r.op, r.dtype, extent, threads, lambda k: _term(r, k))
        out = replaced(value, r, block_sum.value)
        last = each_thread("thread", 1, lambda t: Store(group.out, group.store_index(index), out))
        return within(block_sum.buffers, block_sum.stmt, last)

    def _is_worth(self, r: Reduce, t: TensorType) -> bool:
        terms = int_value(product(tuple(e for _, e in r.axes)))
        elements = int_value(product(t.shape))
        if terms is not None and terms < _TERMS:
            return False
        few = elements is not None and elements <= _ELEMENTS
        return few or in_memory_order(r.value, r.axes[-1][0])


def _term(r: Reduce, k: Expr) -> Expr:
    """Term k of a reduction, whose last axis is the fastest."""
    values = {}
    for d, (var, extent) in reversed(list(enumerate(r.axes))):
        values[var] = k % extent if d else k
        k = k // extent
    return simplify_value(substitute(r.value, values), {})
