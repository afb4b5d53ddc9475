"""Cases of local response normalization."""

from __future__ import annotations

from tensorkiln.ir.relax import RVar, Value
from tensorkiln.kernels.case import Build, Case, Graph, rand


def _lrn(channels: int, **attrs: object) -> Build:
    def build(g: Graph, x: RVar) -> Value:
        y = g.lrn(g.conv2d(x, rand(channels, 3, 1, 1)), **attrs)
        return g.conv2d(y, rand(5, channels, 3, 3), padding=(1, 1, 1, 1))

    return build


CASES: dict[str, Case] = {
    "lrn": Case("lrn_blocked", _lrn(40, size=5), (2, 3, 4, 5)),
    "lrn_wide": Case("lrn_blocked", _lrn(40, size=16), (1, 3, 2, 2)),
    "lrn_even": Case("lrn_blocked", _lrn(7, size=4, beta=0.6), (1, 3, 6, 2)),
}
