"""A condition on sizes within a graph, for what no operator of the graph requires by itself."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from tensorkiln.ir.attrs import Attrs
from tensorkiln.ir.dtype import BOOL
from tensorkiln.ir.expr import as_expr
from tensorkiln.ops import attribute as at
from tensorkiln.ops.need import Need, Needs
from tensorkiln.ops.op import OpDef, Operands


def _needs(types: Operands, a: Attrs, constants: Sequence[np.ndarray | None]) -> Iterator[Need]:
    yield Need(as_expr(a.condition, BOOL), 0, a.reason, "unmet-condition")


# x itself. A model's operator may need of the sizes of its operands what the operators that it
# becomes do not: Split by 2 and 3 needs 5 elements, and two slices are of 5 or more.
REQUIREMENT: dict[str, OpDef] = {
    "require": OpDef(
        "require",
        ("x",),
        {"condition": at.condition(), "reason": at.text()},
        "elementwise",
        lambda types, a: types[0],
        lambda arrays, a: arrays[0].copy(),
        lambda ins, a, out: ins[0].element,
        needs=Needs("what `condition` says", _needs),
    ),
}
