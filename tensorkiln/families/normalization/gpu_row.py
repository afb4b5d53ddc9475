"""Softmax and layer norm on devices."""

from __future__ import annotations

from dataclasses import replace

from tensorkiln.families.normalization.row import LAYER_NORM, SOFTMAX
from tensorkiln.kernels.family import GPUS

ROWS = (
    replace(
        SOFTMAX,
        op_class="gpu_softmax",
        knobs=None,
        devices=GPUS,
    ),
    replace(
        LAYER_NORM,
        op_class="gpu_layer_norm",
        knobs=None,
        devices=GPUS,
    ),
)
