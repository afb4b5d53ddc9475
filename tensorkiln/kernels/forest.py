"""Decision trees: walks of samples through all of them."""

from __future__ import annotations

from tensorkiln.kernels.family import Family
from tensorkiln.kernels.places import row_major

FOREST = Family(
    op_class="tree_leaves",
    operators=("tree_leaves",),
    schedule="tensorkiln.schedule.forest.schedule:schedule_forest",
    fits=row_major,
)
