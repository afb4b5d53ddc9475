"""Sums of products by blocks of threads, of any operator."""

from __future__ import annotations

from dataclasses import replace

from tensorkiln.families.contraction.costs import parts_of
from tensorkiln.families.contraction.decomposition import in_parts
from tensorkiln.kernels.family import GPUS, Algorithm, Family, operators_of
from tensorkiln.kernels.fusion import elementwise_epilogue, light

CONTRACTION = Family(
    op_class="gpu_contraction",
    operators=tuple(name for name in operators_of("contraction") if name != "conv2d"),
    epilogue=elementwise_epilogue,
    prologue=light,
    inplace=True,
    algorithm=Algorithm("linear", parts_of, in_parts),
    devices=GPUS,
    before=("windows", "few_rows"),
)
CONVOLUTION = replace(
    CONTRACTION, operators=("conv2d",), algorithm=Algorithm("conv2d", parts_of, in_parts)
)

ROWS = (CONTRACTION, CONVOLUTION)
