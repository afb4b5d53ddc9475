"""The table of kernel families: the one place that graph passes and the scheduler read about
kernels.

Where a device has several families for an operator, the first that fits computes it, so those of
installed packages come first (`plugins.py`), then the most specific, and plain loops last. A row
says for which devices it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cache

from tensorkiln.ir.relax import Binding, Call, TensorType
from tensorkiln.kernels.family import Algorithm, Family, Layouts
from tensorkiln.kernels.folders import built_in_families
from tensorkiln.kernels.plugins import installed_families
from tensorkiln.target import Target
from tensorkiln.target.kinds import KINDS


class Families:
    """The rows for one device, by operator."""

    def __init__(self, rows: Iterable[Family]):
        self.all = tuple(rows)
        self._by_operator: dict[str, tuple[Family, ...]] = {}
        self._algorithms: dict[str, list[Algorithm]] = {}
        for row in self.all:
            if row.algorithm is not None:
                self._algorithms.setdefault(row.algorithm.operator, []).append(row.algorithm)

    def algorithms(self, operator: str) -> Sequence[Algorithm]:
        """The algorithms that an operator may be rewritten for, the most specific first."""
        return self._algorithms.get(operator, ())

    def of(self, operator: str) -> tuple[Family, ...]:
        """The rows for an operator, the most specific first."""
        rows = self._by_operator.get(operator)
        if rows is None:
            rows = tuple(f for f in self.all if not f.operators or operator in f.operators)
            self._by_operator[operator] = rows
        return rows

    def layouts(self, call: Call, out: TensorType, target: Target) -> Layouts | None:
        """The layouts that the kernel of a call asks for; None if no row asks for any."""
        return self._laid_out(call, out, target)[1]

    def wanted(self, call: Call, out: TensorType, target: Target) -> Family | None:
        """The row whose layouts a call gets; None if no row asks for any."""
        return self._laid_out(call, out, target)[0]

    def _laid_out(
        self, call: Call, out: TensorType, target: Target
    ) -> tuple[Family, Layouts] | tuple[None, None]:
        for row in self.of(call.op):
            layouts = row.layouts(call, out, target) if row.layouts is not None else None
            if layouts is not None:
                return row, layouts
        return None, None

    def takes_epilogue(
        self, anchor: Binding, last: TensorType, reader: Binding, target: Target
    ) -> bool:
        """Whether a kernel of the anchor can also compute `reader` from its value `last`."""
        epilogues = (row.epilogue for row in self._deciding(anchor, target))
        return any(takes(anchor, last, reader) for takes in epilogues if takes is not None)

    def takes_prologue(
        self, b: Binding, operand: int, before: list[Binding], target: Target
    ) -> bool:
        """Whether a kernel of a call can also compute one of its operands."""
        assert isinstance(b.value, Call)
        prologues = (row.prologue for row in self._deciding(b, target))
        return any(takes(b.value, operand, before) for takes in prologues if takes is not None)

    def wants_apart(self, b: Binding, operand: int, before: list[Binding], target: Target) -> bool:
        """Whether an operand of a call should be computed by a kernel of its own, although this
        kernel could."""
        assert isinstance(b.value, Call)
        predicates = (row.apart for row in self._deciding(b, target))
        return any(
            apart(b.value, operand, before, target) for apart in predicates if apart is not None
        )

    def shares(self, call: Call, out: TensorType, operand: int, target: Target) -> bool:
        """Whether the kernel of a call reads a constant operand in another kernel's layout."""
        row = next((r for r in self.of(call.op) if r.fits(call, out, target)), None)
        return row is not None and row.shares is not None and row.shares(call, operand, target)

    def _deciding(self, b: Binding, target: Target) -> tuple[Family, ...]:
        """The rows that decide what is fused with a call: the first row of another package that
        fits, alone; else all rows of this package, because plain loops compute what the others
        cannot."""
        assert isinstance(b.value, Call)
        rows, out = self.of(b.value.op), b.var.tensor
        foreign = next((row for row in rows if row.owner and row.fits(b.value, out, target)), None)
        return (foreign,) if foreign is not None else tuple(row for row in rows if not row.owner)


def computes(target: Target, b: Binding) -> bool:
    """Whether a target has a kernel for a call of an operator, or operators in its place."""
    assert isinstance(b.value, Call)
    rows, out = families(target).of(b.value.op), b.var.tensor
    types = [out, *(a.type for a in b.value.args)]
    if any(isinstance(t, TensorType) and not target.has_type(t.dtype.name) for t in types):
        return False
    return any(row.decompose is not None or row.fits(b.value, out, target) for row in rows)


def algorithm_of(call: Call, out: TensorType, target: Target) -> tuple[Algorithm, object] | None:
    """The first algorithm that is worth rewriting a call for, and its choice; None if none is."""
    for algorithm in families(target).algorithms(call.op):
        choice = algorithm.choose(call, out, target)
        if choice is not None:
            return algorithm, choice
    return None


def families(target: Target) -> Families:
    """The families for a target: those of installed packages (`plugins.py`), then those of this
    one (`folders.py`)."""
    return _families(KINDS[target.kind].device)


@cache
def larger_weights() -> Mapping[str, str]:
    """For each class of kernels whose weights take more memory than the model's, what those weights
    are."""
    return {row.op_class: row.weights for row in _all_families() if row.weights}


@cache
def _families(device: str) -> Families:
    return Families(row for row in _all_families() if device in row.devices)


def _all_families() -> tuple[Family, ...]:
    """The rows of installed packages, which are tried first, then those of this one."""
    return (*installed_families(), *built_in_families())
