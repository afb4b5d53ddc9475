"""Cases of Winograd convolutions."""

from __future__ import annotations

from tensorkiln.ir.relax import constant
from tensorkiln.kernels.case import Build, Case, N, rand
from tensorkiln.ops.winograd import transformed_filter


def _winograd(filters: int, channels: int, pad: int = 1) -> Build:
    u = constant(transformed_filter(rand(filters, channels, 3, 3).array, (4, 4)))
    return lambda g, x: g.relu(
        g.winograd_conv2d(x, u, rand(filters), tile=(4, 4), padding=(pad,) * 4)
    )


CASES: dict[str, Case] = {
    "winograd": Case("conv2d_winograd", _winograd(32, 32), (N, 32, 8, 8)),
    "winograd_pieces": Case("conv2d_winograd", _winograd(19, 72), (1, 72, 12, 6)),
    "winograd_blocks": Case("conv2d_winograd", _winograd(64, 16, 0), (1, 16, 62, 58)),
    "winograd_panels": Case("conv2d_winograd", _winograd(64, 64), (1, 64, 16, 16)),
    "winograd_overhang": Case("conv2d_winograd", _winograd(19, 40), (1, 40, 13, 7)),
}
