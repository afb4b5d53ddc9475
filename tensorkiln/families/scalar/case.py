"""Cases of scalar programs on devices."""

from __future__ import annotations

from tensorkiln.families.forest.case import forest
from tensorkiln.kernels.case import Case, N, c, rand

GPU_CASES: dict[str, Case] = {
    "top_k": Case("gpu_scalar", lambda g, x: g.top_k(x, k=4), (N, 70)),
    "scatter": Case(
        "gpu_scalar",
        lambda g, x: g.scatter(x, c([4, 0, 9, -1, 4], "int64"), rand(5, 3), reduction="add"),
        (9, 3),
    ),
    "forest": Case("gpu_scalar", forest(11, "int32", 6, 3), (70, 6)),
    "coupled": Case("gpu_scalar", lambda g, x: g.coupled(g.sigmoid(x), classes=3), (70, 3)),
}
