"""Cases of attention by warpgroups."""

from __future__ import annotations

from tensorkiln.kernels.case import Case

GPU_CASES: dict[str, Case] = {
    "attention_warpgroups": Case(
        "gpu_attention_wgmma",
        lambda g, x: g.attention(x, x, x, scale=0.1),
        (1, 1, 200, 64),
        "float16",
        {"arch": "sm_90a"},
    ),
}
