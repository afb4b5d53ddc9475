"""Cases of direct convolutions."""

from __future__ import annotations

from tensorkiln.kernels.case import Build, Case, N, S, quantized, rand


def convolution(filters: int, channels: int, size: int = 3, **attrs: object) -> Build:
    """A convolution of square filters, with a bias and a ReLU."""
    return lambda g, x: g.relu(
        g.conv2d(x, rand(filters, channels, size, size), rand(filters), **attrs)
    )


CASES: dict[str, Case] = {
    "conv": Case("conv2d_direct", convolution(32, 16, padding=(1, 1, 1, 1)), (1, 16, 9, 9)),
    "conv_pieces": Case("conv2d_direct", convolution(19, 40, padding=(1, 1, 1, 1)), (2, 40, 5, 7)),
    "conv_planar": Case("conv2d_direct", convolution(16, 3, strides=(2, 2)), (1, 3, 13, 13)),
    "conv_parallel": Case(
        "conv2d_direct", convolution(64, 64, padding=(1, 1, 1, 1)), (1, 64, 15, 15)
    ),
    "conv_batch": Case("conv2d_direct", convolution(16, 16), (N, 16, 6, 6)),
    "conv_one_weight": Case("conv2d_direct", convolution(1, 1, 1), (1, 1, 5, 5)),
    "conv_grouped": Case("conv2d_direct", convolution(32, 8, groups=4), (1, 32, 5, 5)),
    # Of images of unknown rows and columns, places contain products of sizes, which no proof takes.
    "conv_open_signal": Case(
        "conv2d_direct", convolution(16, 16, padding=(1, 1, 1, 1)), (1, 16, 1, S)
    ),
    # One row of pixels, one block of channels, few panels: what is in them is shared.
    "conv_signal": Case("conv2d_direct", convolution(24, 32, 1), (1, 32, 1, 901)),
    "conv_few_rows": Case("conv2d_direct", convolution(24, 40, padding=(1,) * 4), (1, 40, 3, 67)),
    # An image of more than half of a second-level cache, and weights of more than one of the first.
    "conv_strips": Case("conv2d_direct", convolution(40, 296, 1), (1, 296, 13, 11)),
    "conv_bytes": Case(
        "conv2d_direct", quantized("conv2d", 19, 40, 3, 3, padding=(1, 1, 1, 1)), (2, 40, 5, 7)
    ),
    "conv_bytes_few": Case("conv2d_direct", quantized("conv2d", 32, 3, 3, 3), (N, 3, 9, 9)),
    "conv_bytes_grouped": Case(
        "conv2d_direct", quantized("conv2d", 32, 8, 3, 3, groups=4), (1, 32, 5, 5)
    ),
}
