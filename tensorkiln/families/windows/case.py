"""Cases of windows on devices."""

from __future__ import annotations

from tensorkiln.kernels.case import Case, N, S, rand

GPU_CASES: dict[str, Case] = {
    "depthwise": Case(
        "gpu_windows",
        lambda g, x: g.relu(g.conv2d(x, rand(5, 1, 3, 3), padding=(1, 1, 1, 1), groups=5)),
        (2, 5, 9, 11),
    ),
    "depthwise_rows": Case(
        "gpu_windows",
        lambda g, x: g.relu(g.conv2d(x, rand(32, 1, 3, 3), rand(32), strides=(2, 2), groups=32)),
        (N, 32, 41, 43),
    ),
    "conv2d_channels": Case(
        "gpu_windows",
        lambda g, x: g.conv2d(x, rand(16, 2, 3, 2), padding=(1, 1, 1, 1), groups=4),
        (4, 8, 90, 61),
    ),
    "max_pool": Case(
        "gpu_windows",
        lambda g, x: g.max_pool2d(x, kernel=(3, 3), strides=(2, 2), padding=(1, 1, 1, 1)),
        (2, 5, 9, 11),
    ),
    "max_pool_rows": Case(
        "gpu_windows",
        lambda g, x: g.max_pool2d(x, kernel=(3, 3), strides=(2, 2), ceil_mode=True),
        (N, 20, 39, 25),
    ),
    "avg_pool": Case("gpu_windows", lambda g, x: g.avg_pool2d(x, kernel=(2, 2)), (2, 5, 8, 8)),
    "avg_pool_image": Case(
        "gpu_windows",
        lambda g, x: g.avg_pool2d(x, kernel=(3, 3), padding=(1, 1, 1, 1)),
        (2, 3, S, 17),
    ),
}
