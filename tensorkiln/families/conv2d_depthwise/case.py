"""Cases of depthwise convolutions."""

from __future__ import annotations

from tensorkiln.families.conv2d.case import convolution
from tensorkiln.kernels.case import Case, quantized

CASES: dict[str, Case] = {
    "depthwise": Case(
        "conv2d_depthwise", convolution(32, 1, padding=(1, 1, 1, 1), groups=32), (1, 32, 7, 7)
    ),
    "depthwise_large": Case("conv2d_depthwise", convolution(19, 1, 5, groups=19), (1, 19, 9, 9)),
    "depthwise_signal": Case(
        "conv2d_depthwise", convolution(16, 1, padding=(1,) * 4, groups=16), (1, 16, 1, 3001)
    ),
    "depthwise_bytes": Case(
        "conv2d_depthwise", quantized("conv2d", 32, 1, 3, 3, groups=32), (1, 32, 7, 7)
    ),
}
