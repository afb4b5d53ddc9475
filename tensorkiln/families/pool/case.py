"""Cases of pooling in channel blocks."""

from __future__ import annotations

from tensorkiln.kernels.case import Build, Case, N, rand


def _window(op: str, channels: int, **attrs: object) -> Build:
    return lambda g, x: g.relu(g.emit(op, g.conv2d(x, rand(channels, 3, 1, 1)), **attrs))


CASES: dict[str, Case] = {
    "max_pool": Case(
        "pool_blocked",
        _window("max_pool2d", 32, kernel=(3, 3), strides=(2, 2), padding=(1, 1, 1, 1)),
        (N, 3, 27, 25),
    ),
    "max_pool_ceil": Case(
        "pool_blocked",
        _window("max_pool2d", 20, kernel=(2, 3), strides=(2, 2), ceil_mode=True),
        (2, 3, 13, 12),
    ),
    "avg_pool": Case(
        "pool_blocked",
        _window("avg_pool2d", 16, kernel=(3, 3), padding=(1, 1, 1, 1)),
        (1, 3, 5, 30),
    ),
    "avg_pool_row": Case(
        "pool_blocked",
        _window("avg_pool2d", 16, kernel=(1, 3), padding=(0, 2, 0, 2), count_include_pad=True),
        (1, 3, 4, 3),
    ),
    "pool_one_element": Case(
        "pool_blocked", _window("max_pool2d", 16, kernel=(1, 1), strides=(2, 2)), (1, 3, 5, 1)
    ),
    "pool_parallel": Case(
        "pool_blocked", _window("max_pool2d", 64, kernel=(2, 2), strides=(2, 2)), (1, 3, 48, 48)
    ),
}
