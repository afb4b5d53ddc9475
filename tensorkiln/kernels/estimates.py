"""Numbers that stand in for unknown extents where a choice depends on them. Results never do.

With images of unknown size, layouts and programs are the same, and tiles and tasks are counted when
the kernel runs. But some choices must be made at compile time, such as the size of Winograd's tiles
or whether work is worth a thread. They are made for the sizes expected here. For Winograd's tiles,
images of half that size count too: large tiles would read their larger weights in vain there.
"""

from __future__ import annotations

from tensorkiln.arith import simplify
from tensorkiln.ir.expr import Expr, IntImm, Var, int_value
from tensorkiln.ir.visit import free_vars, substitute

# An unknown extent of a model's parameter: that of most pictures, and of small ones. Extents that
# follow from it get smaller with depth as they do in pictures.
USUAL, SMALL = 224, 112


def expected(extent: Expr, unknown: int = USUAL) -> int:
    """An extent, with `unknown` for each symbol in it; at least 1."""
    number = int_value(extent)
    if number is None:
        values: dict[Var, Expr] = {v: IntImm(unknown) for v in free_vars(extent)}
        number = int_value(simplify(substitute(extent, values)))
    return max(1, unknown if number is None else number)
