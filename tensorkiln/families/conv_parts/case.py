"""Cases of transposed and dilated convolutions."""

from __future__ import annotations

from tensorkiln.families.conv2d.case import convolution
from tensorkiln.ir.relax import RVar, Value
from tensorkiln.kernels.case import Build, Case, Graph, N, rand


def _transposed(channels: int, filters: int, size: int, crop: int = 0) -> Build:
    return lambda g, x: g.relu(
        g.conv2d_transpose(
            x, rand(channels, filters, size, size), rand(filters), strides=(2, 2), cut=(crop,) * 4
        )
    )


def _of_phases(g: Graph, x: RVar) -> Value:
    return g.conv2d_transpose(x, rand(4, 6, 3, 3), rand(6), strides=(2, 2))


CASES: dict[str, Case] = {
    "transposed": Case("conv2d_transposed", _transposed(16, 32, 2), (N, 16, 5, 5)),
    "transposed_phases": Case("conv2d_transposed", _transposed(40, 19, 3, 1), (1, 40, 5, 4)),
    "transposed_parallel": Case("conv2d_transposed", _transposed(64, 64, 4, 1), (1, 64, 9, 7)),
    "transposed_images": Case("conv2d_transposed", _transposed(72, 136, 4, 1), (2, 72, 5, 4)),
    "dilated": Case(
        "conv2d_dilated", convolution(19, 40, dilation=(4, 5), padding=(4, 5) * 2), (N, 40, 9, 7)
    ),
    "dilated_pieces": Case(
        "conv2d_dilated",
        convolution(264, 264, dilation=(12, 12), padding=(12,) * 4),
        (1, 264, 18, 17),
    ),
    "transposed_signal": Case("conv2d_transposed", _transposed(16, 16, 2), (1, 16, 1, 901)),
}

GPU_CASES: dict[str, Case] = {
    "transposed": Case("conv2d_transposed", _of_phases, (1, 4, 7, 9), kernel="gpu_contraction"),
}
