"""What unknown extents are taken for where a choice depends on them. Results never do."""

from __future__ import annotations

from tensorkiln.arith import simplify
from tensorkiln.ir.expr import Expr, IntImm, Var, int_value
from tensorkiln.ir.visit import free_vars, substitute

# An unknown extent of a model's parameter: that of most pictures, and of small ones. Extents that
# follow from it get smaller with depth as they do in pictures.
USUAL, SMALL = 224, 112


def expected(extent: Expr, unknown: int = USUAL) -> int:
    """An extent, with `unknown` for each symbol in it; at least 1."""
    known = int_value(extent)
    if known is None:
        values: dict[Var, Expr] = {v: IntImm(unknown) for v in free_vars(extent)}
        known = int_value(simplify(substitute(extent, values)))
    return max(1, unknown if known is None else known)
