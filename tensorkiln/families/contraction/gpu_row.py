"""Sums of products by blocks of threads, of any operator."""

from __future__ import annotations

from dataclasses import replace

from tensorkiln.families.contraction.costs import parts_of
from tensorkiln.families.contraction.decomposition import in_parts
from tensorkiln.families.tensor_cores.gpu_row import channels_of
from tensorkiln.ir.relax import Call, TensorType
from tensorkiln.kernels.family import GPUS, Algorithm, Family, operators_of
from tensorkiln.kernels.fusion import elementwise_epilogue, light
from tensorkiln.target import Target

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


def _conv_parts(call: Call, out: TensorType, target: Target) -> int | None:
    """The parts of a convolution, but for those that tensor cores compute with channels last, which
    have parts of their own (`families/tensor_cores/decomposition.py`)."""
    has_channels_last = target.kind == "cuda" and channels_of(call, out, target) is not None
    return None if has_channels_last else parts_of(call, out, target)


CONVOLUTION = replace(
    CONTRACTION, operators=("conv2d",), algorithm=Algorithm("conv2d", _conv_parts, in_parts)
)

ROWS = (CONTRACTION, CONVOLUTION)
