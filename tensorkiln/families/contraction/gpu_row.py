"""Sums of products by blocks of threads, of any operator."""

from __future__ import annotations

from tensorkiln.kernels.family import GPUS, Family, operators_of
from tensorkiln.kernels.fusion import elementwise_epilogue, light

CONTRACTION = Family(
    op_class="gpu_contraction",
    operators=operators_of("contraction"),
    epilogue=elementwise_epilogue,
    prologue=light,
    inplace=True,
    devices=GPUS,
    before=("windows",),
)

ROWS = (CONTRACTION,)
