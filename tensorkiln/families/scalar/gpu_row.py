"""Operators whose programs are scalar, on devices."""

from __future__ import annotations

from tensorkiln.kernels.family import GPUS, Family

SCALAR = Family(
    op_class="gpu_scalar",
    operators=("top_k", "scatter", "tree_leaves", "coupled"),
    devices=GPUS,
)

ROWS = (SCALAR,)
