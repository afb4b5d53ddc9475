"""Cases of sums of products on devices."""

from __future__ import annotations

from tensorkiln.kernels.case import Case, N, S, rand

GPU_CASES: dict[str, Case] = {
    "linear": Case(
        "gpu_contraction", lambda g, x: g.relu(g.linear(x, rand(50, 70), rand(70))), (33, 50)
    ),
    "linear_symbolic": Case("gpu_contraction", lambda g, x: g.linear(x, rand(50, 70)), (N, 50)),
    "linear_rows": Case("gpu_contraction", lambda g, x: g.linear(x, rand(50, 70)), (N, S, 50)),
    "linear_large": Case("gpu_contraction", lambda g, x: g.linear(x, rand(16, 2048)), (2048, 16)),
    "linear_wide": Case("gpu_contraction", lambda g, x: g.linear(x, rand(66, 1408)), (1536, 66)),
    "matmul": Case("gpu_contraction", lambda g, x: g.matmul(x, x, transpose_b=True), (3, 20, 16)),
    "matmul_symbolic": Case(
        "gpu_contraction", lambda g, x: g.matmul(x, x, transpose_b=True), (2, S, 16)
    ),
    "conv2d": Case(
        "gpu_contraction",
        lambda g, x: g.relu(g.conv2d(x, rand(20, 5, 3, 3), rand(20), padding=(1, 1, 1, 1))),
        (2, 5, 9, 11),
    ),
    "conv2d_batch": Case(
        "gpu_contraction",
        lambda g, x: g.conv2d(x, rand(20, 5, 3, 3), strides=(2, 2)),
        (N, 5, 9, 11),
    ),
    "conv2d_grouped": Case(
        "gpu_contraction",
        lambda g, x: g.conv2d(x, rand(32, 3, 3, 3), padding=(1, 1, 1, 1), groups=2),
        (N, 6, 5, 7),
    ),
}
