"""Cases of attention on tensor cores."""

from __future__ import annotations

from tensorkiln.kernels.case import Case

GPU_CASES: dict[str, Case] = {
    "attention_halves": Case(
        "gpu_attention_tensor_cores",
        lambda g, x: g.attention(x, x, x, scale=0.1),
        (1, 2, 35, 64),
        "float16",
        {"arch": "sm_80"},
    ),
}
