"""Cases of convolutions in tiles."""

from __future__ import annotations

from tensorkiln.kernels.case import Case, int8

CASES: dict[str, Case] = {
    "conv_tiles": Case(
        "conv2d_tiles",
        lambda g, x: g.conv2d(x, int8(64, 64, 3, 3, seed=1), padding=(1, 1, 1, 1)),
        (1, 64, 9, 32),
        "uint8",
        {"mcpu": "sapphirerapids"},
    ),
}
