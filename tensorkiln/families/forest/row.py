"""Decision trees: walks of samples through all of them."""

from __future__ import annotations

from tensorkiln.kernels.family import Family
from tensorkiln.kernels.layouts import row_major

FOREST = Family(
    op_class="tree_leaves",
    operators=("tree_leaves",),
    fits=row_major,
)

ROWS = (FOREST,)
