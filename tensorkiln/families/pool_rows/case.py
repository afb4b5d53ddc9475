"""Cases of pooling along rows."""

from __future__ import annotations

from tensorkiln.kernels.case import Case, N

CASES: dict[str, Case] = {
    "pooled_rows": Case(
        "pool_rows",
        lambda g, x: g.relu(g.max_pool2d(x, kernel=(3, 3), strides=(2, 2), padding=(1, 1, 1, 1))),
        (2, 3, 9, 25),
    ),
    "pooled_rows_symbolic": Case(
        "pool_rows",
        lambda g, x: g.max_pool2d(g.neg(x), kernel=(2, 2), strides=(2, 2)),
        (N, 2, 6, 20),
    ),
    "pooled_rows_mean": Case(
        "pool_rows",
        lambda g, x: g.avg_pool2d(x, kernel=(3, 2), padding=(0, 1, 1, 0), ceil_mode=True),
        (1, 2, 5, 18),
    ),
    "pooled_rows_direct": Case(
        "pool_rows", lambda g, x: g.max_pool2d(x, kernel=(1, 3), strides=(1, 3)), (1, 2, 3, 27)
    ),
    "pooled_rows_parallel": Case(
        "pool_rows",
        lambda g, x: g.max_pool2d(x, kernel=(3, 3), padding=(0, 1, 0, 1)),
        (2, 4, 60, 130),
    ),
}
