"""Products of few rows by blocks of threads."""

from __future__ import annotations

from tensorkiln.kernels.family import GPUS, Family, operators_of
from tensorkiln.kernels.fusion import elementwise_epilogue, light

FEW_ROWS = Family(
    op_class="gpu_few_rows",
    operators=operators_of("contraction"),
    epilogue=elementwise_epilogue,
    prologue=light,
    inplace=True,
    devices=GPUS,
    before=("windows", "block_reductions"),
)

ROWS = (FEW_ROWS,)
