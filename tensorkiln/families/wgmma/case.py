"""Cases of products of warpgroups."""

from __future__ import annotations

from tensorkiln.kernels.case import Case, halves

GPU_CASES: dict[str, Case] = {
    "linear_warpgroups": Case(
        "gpu_wgmma",
        lambda g, x: g.linear(x, halves(64, 64)),
        (64, 64),
        "float16",
        {"arch": "sm_90a"},
    ),
}
