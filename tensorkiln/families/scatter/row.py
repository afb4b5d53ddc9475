"""Elements that are put to computed places."""

from __future__ import annotations

from tensorkiln.kernels.family import Family
from tensorkiln.kernels.layouts import row_major

SCATTER = Family(
    op_class="scatter",
    operators=("scatter",),
    fits=row_major,
)

ROWS = (SCATTER,)
