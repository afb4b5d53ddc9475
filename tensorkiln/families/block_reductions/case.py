"""Cases of reductions by blocks of threads."""

from __future__ import annotations

from tensorkiln.kernels.case import Case, N

GPU_CASES: dict[str, Case] = {
    "sum_rows": Case("gpu_reductions", lambda g, x: g.relu(g.sum(x, axes=(1,))), (N, 100)),
    "mean_planes": Case("gpu_reductions", lambda g, x: g.mean(x, axes=(2, 3)), (2, 5, 9, 9)),
    "max_symbolic": Case("gpu_reductions", lambda g, x: g.max(x, axes=(1,)), (4, N)),
}
