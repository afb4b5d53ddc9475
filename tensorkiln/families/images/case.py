"""Cases of images of unknown size that change layout."""

from __future__ import annotations

from tensorkiln.ir.expr import Var
from tensorkiln.ir.relax import RVar, Value
from tensorkiln.kernels.case import Case, Graph, rand

H, W = Var("H"), Var("W")


def _of_unknown_size(g: Graph, x: RVar) -> Value:
    return g.conv2d(g.relu(x), rand(24, 16, 3, 3), padding=(1, 1, 1, 1))


CASES: dict[str, Case] = {
    "images": Case("images", _of_unknown_size, (1, 16, H, W), sizes={"H": 9, "W": 11}),
}
