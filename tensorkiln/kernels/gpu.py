"""Kernels of devices whose threads run in blocks, on row-major tensors; the most specific first."""

from __future__ import annotations

from dataclasses import replace

from tensorkiln.kernels import rows, transposed
from tensorkiln.kernels.family import Family
from tensorkiln.kernels.fusion import any_prologue, elementwise_epilogue, light
from tensorkiln.kernels.gpu_attention import gpu_attention
from tensorkiln.kernels.gpu_attention_tensor_cores import ATTENTION_TENSOR_CORES
from tensorkiln.kernels.gpu_tensor_cores import gpu_tensor_cores
from tensorkiln.kernels.gpu_wgmma import gpu_wgmma
from tensorkiln.ops import OPS

_DEVICES = ("opencl", "cuda", "webgpu")
_ROWS = "tensorkiln.schedule.gpu.rows"
_LOOPS = "tensorkiln.schedule.gpu.loops:schedule_loops"


def _operators(*patterns: str) -> tuple[str, ...]:
    return tuple(name for name, op in OPS.items() if op.pattern in patterns)


SOFTMAX = replace(
    rows.SOFTMAX,
    schedule=f"{_ROWS}:schedule_softmax",
    op_class="gpu_softmax",
    knobs=None,
    devices=_DEVICES,
)
LAYER_NORM = replace(
    rows.LAYER_NORM,
    schedule=f"{_ROWS}:schedule_layer_norm",
    op_class="gpu_layer_norm",
    knobs=None,
    devices=_DEVICES,
)
ATTENTION = gpu_attention(_DEVICES)
# One convolution of all phases.
TRANSPOSED = replace(
    transposed.TRANSPOSED, fits=lambda *_: False, layouts=None, lacks=None, devices=_DEVICES
)
# Reductions by blocks of threads decline what threads compute better by themselves.
BLOCK_REDUCTIONS = Family(
    op_class="gpu_reductions",
    operators=_operators("reduction"),
    schedule="tensorkiln.schedule.gpu.reduce:schedule_reduce",
    epilogue=elementwise_epilogue,
    prologue=any_prologue,
    devices=_DEVICES,
)
WGMMA = gpu_wgmma(_operators("contraction"))
TENSOR_CORES = gpu_tensor_cores(_operators("contraction"))
CONTRACTION = Family(
    op_class="gpu_contraction",
    operators=_operators("contraction"),
    schedule="tensorkiln.schedule.gpu.contract:schedule_contraction",
    epilogue=elementwise_epilogue,
    prologue=light,
    inplace=True,
    devices=_DEVICES,
)
WINDOWS = Family(
    op_class="gpu_windows",
    operators=("conv2d", "max_pool2d", "avg_pool2d"),
    schedule="tensorkiln.schedule.gpu.windows:schedule_windows",
    epilogue=elementwise_epilogue,
    prologue=any_prologue,
    inplace=True,
    devices=_DEVICES,
)
REDUCTIONS = Family(
    op_class="gpu_loops",
    operators=_operators("reduction", "contraction"),
    schedule=_LOOPS,
    epilogue=elementwise_epilogue,
    prologue=any_prologue,
    any_form=True,
    devices=_DEVICES,
)
LOOPS = Family(op_class="gpu_loops", operators=(), schedule=_LOOPS, any_form=True, devices=_DEVICES)
SCALAR = Family(
    op_class="gpu_scalar",
    operators=("top_k", "scatter", "tree_leaves", "coupled"),
    schedule="tensorkiln.schedule.gpu.scalar:schedule_scalar",
    devices=_DEVICES,
)
GPU_FAMILIES = (
    SCALAR,
    TRANSPOSED,
    ATTENTION,
    ATTENTION_TENSOR_CORES,
    SOFTMAX,
    LAYER_NORM,
    BLOCK_REDUCTIONS,
    WGMMA,
    TENSOR_CORES,
    CONTRACTION,
    WINDOWS,
    REDUCTIONS,
    LOOPS,
)
