"""Windows on devices: pooling, and convolutions too narrow for tiles of products."""

from __future__ import annotations

from tensorkiln.kernels.family import GPUS, Family
from tensorkiln.kernels.fusion import any_prologue, elementwise_epilogue

WINDOWS = Family(
    op_class="gpu_windows",
    operators=("conv2d", "max_pool2d", "avg_pool2d"),
    epilogue=elementwise_epilogue,
    prologue=any_prologue,
    inplace=True,
    devices=GPUS,
    before=("loops",),
)

ROWS = (WINDOWS,)
