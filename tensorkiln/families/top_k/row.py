"""The first elements of rows in order."""

from __future__ import annotations

from tensorkiln.kernels.family import Family
from tensorkiln.kernels.layouts import row_major

TOP_K = Family(
    op_class="top_k",
    operators=("top_k",),
    fits=row_major,
)

ROWS = (TOP_K,)
