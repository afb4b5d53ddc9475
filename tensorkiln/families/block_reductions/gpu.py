"""Reductions on a device by a block of threads per element: where there are many terms that are
neighbours in memory, or few elements. In all others, one thread computes an element
(`families/loops/gpu.py`).
"""

from __future__ import annotations

from tensorkiln.ir.expr import Expr, Reduce, int_value
from tensorkiln.ir.relax import TensorType
from tensorkiln.ir.stmt import PrimFunc, Stmt, Store, seq
from tensorkiln.ir.visit import substitute
from tensorkiln.schedule.access import in_memory_order, simplify_value
from tensorkiln.schedule.build import nest, within
from tensorkiln.schedule.gpu.block import BlockSum, each_thread
from tensorkiln.schedule.gpu.grid import bind_block, enough_threads, most_threads
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
    kernel = _Reduction(group, target)
    body = nest([f"i{d}" for d in range(t.ndim)], t.shape, kernel.element, ["row"] * t.ndim, True)
    if not kernel.suits or t.ndim == 0:
        return None
    s = Schedule(PrimFunc(group.name, group.params, body), check)
    bind_block(s, s.loops(role="row"))
    return s


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
