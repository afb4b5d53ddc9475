"""Transposed convolutions on devices, which compute one convolution of all phases instead."""

from __future__ import annotations

from dataclasses import replace

from tensorkiln.families.conv_parts.row import TRANSPOSED
from tensorkiln.kernels.family import GPUS

ROWS = (
    replace(
        TRANSPOSED,
        fits=lambda *_: False,
        layouts=None,
        lacks=None,
        devices=GPUS,
        before=("wgmma",),
    ),
)
