"""Cases of products of few rows on devices."""

from __future__ import annotations

from tensorkiln.kernels.case import Case, N, rand

GPU_CASES: dict[str, Case] = {
    "row": Case(
        "gpu_few_rows", lambda g, x: g.relu(g.linear(x, rand(200, 72), rand(72))), (1, 200)
    ),
    "few_rows": Case("gpu_few_rows", lambda g, x: g.linear(x, rand(96, 50)), (3, 96)),
    "column": Case(
        "gpu_few_rows", lambda g, x: g.matmul(x, rand(2, 128), transpose_b=True), (N, 128)
    ),
    "columns_symbolic": Case(
        "gpu_few_rows", lambda g, x: g.matmul(rand(2, 128), x, transpose_b=True), (N, 128)
    ),
    "terms_symbolic": Case(
        "gpu_few_rows", lambda g, x: g.matmul(x, x, transpose_a=True), (N, 7), sizes={"N": 70}
    ),
}
