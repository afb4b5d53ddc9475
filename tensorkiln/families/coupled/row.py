"""Probabilities of classes from those of pairs of classes."""

from __future__ import annotations

from tensorkiln.kernels.family import Family
from tensorkiln.kernels.layouts import row_major

COUPLED = Family(
    op_class="coupled",
    operators=("coupled",),
    fits=row_major,
)

ROWS = (COUPLED,)
