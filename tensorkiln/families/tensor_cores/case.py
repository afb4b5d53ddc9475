"""Cases of products on tensor cores."""

from __future__ import annotations

from tensorkiln.kernels.case import Case, halves

GPU_CASES: dict[str, Case] = {
    "linear_halves": Case(
        "gpu_tensor_cores",
        lambda g, x: g.linear(x, halves(48, 80)),
        (33, 48),
        "float16",
        {"arch": "sm_80"},
    ),
}
