"""Families of last resort for devices, for operators that no other family computes: one thread per
element.
"""

from __future__ import annotations

from tensorkiln.kernels.family import GPUS, Family, operators_of
from tensorkiln.kernels.fusion import any_prologue, elementwise_epilogue

REDUCTIONS = Family(
    op_class="gpu_loops",
    operators=operators_of("reduction", "contraction"),
    epilogue=elementwise_epilogue,
    prologue=any_prologue,
    any_form=True,
    devices=GPUS,
)
LOOPS = Family(op_class="gpu_loops", operators=(), any_form=True, devices=GPUS)

ROWS = (REDUCTIONS, LOOPS)
