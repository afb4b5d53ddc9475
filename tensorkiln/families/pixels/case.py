"""Cases of pictures that become pixels."""

from __future__ import annotations

import numpy as np

from tensorkiln.ir.relax import RVar, Value, constant
from tensorkiln.kernels.case import Case, Graph, N, int8, quantized


def _padded(g: Graph, x: RVar) -> Value:
    """A picture with a border of the zero point, which is no halo."""
    y = g.quantize(x, 0.05, constant(np.array(3, np.uint8)))
    y = g.pad(y, before=(0, 0, 1, 2), after=(0, 0, 0, 1), value=3.0)
    return g.conv2d(y, int8(8, 4, 3, 3))


CASES: dict[str, Case] = {
    "picture": Case("pixels", quantized("conv2d", 32, 3, 3, 3), (N, 3, 9, 20)),
    "picture_halo": Case(
        "pixels", quantized("conv2d", 32, 1, 3, 3, padding=(1, 0, 2, 1)), (2, 1, 9, 37)
    ),
    "picture_padded": Case("pixels", _padded, (1, 4, 40, 40)),
}
