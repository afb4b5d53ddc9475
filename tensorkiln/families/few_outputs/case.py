"""Cases of 1x1 convolutions to a few channels."""

from __future__ import annotations

from tensorkiln.ir.relax import RVar, Value
from tensorkiln.kernels.case import Build, Case, Graph, N, rand


def _pointwise(channels: int, outputs: int) -> Build:
    return lambda g, x: g.sigmoid(g.conv2d(x, rand(outputs, channels, 1, 1), rand(outputs)))


def _behind(outputs: int) -> Build:
    """Of channel blocks with a halo, since another convolution reads them too."""

    def build(g: Graph, x: RVar) -> Value:
        y = g.relu(g.conv2d(x, rand(20, 9, 1, 1)))
        few = g.conv2d(y, rand(outputs, 20, 1, 1), rand(outputs))
        wide = g.conv2d(y, rand(outputs, 20, 3, 3), padding=(1, 1, 1, 1))
        return g.add(few, wide)

    return build


CASES: dict[str, Case] = {
    "few_outputs": Case("conv2d_few_outputs", _pointwise(19, 3), (N, 19, 9, 7)),
    "few_outputs_one": Case("conv2d_few_outputs", _pointwise(64, 1), (1, 64, 40, 51)),
    "few_outputs_blocks": Case("conv2d_few_outputs", _behind(2), (2, 9, 7, 13)),
}
