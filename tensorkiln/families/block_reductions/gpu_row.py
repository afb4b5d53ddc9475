"""Reductions by blocks of threads."""

from __future__ import annotations

from tensorkiln.kernels.family import GPUS, Family, operators_of
from tensorkiln.kernels.fusion import any_prologue, elementwise_epilogue

# Reductions by blocks of threads decline what threads compute better by themselves.
BLOCK_REDUCTIONS = Family(
    op_class="gpu_reductions",
    operators=operators_of("reduction"),
    epilogue=elementwise_epilogue,
    prologue=any_prologue,
    devices=GPUS,
    before=("windows",),
)

ROWS = (BLOCK_REDUCTIONS,)
