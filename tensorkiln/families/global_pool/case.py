"""Cases of reductions of whole images."""

from __future__ import annotations

from tensorkiln.kernels.case import Build, Case, N, rand


def _pooled(channels: int, op: str = "mean") -> Build:
    return lambda g, x: g.relu(g.emit(op, g.conv2d(x, rand(channels, 3, 1, 1)), axes=(2, 3)))


CASES: dict[str, Case] = {
    "global_pool": Case("global_pool_blocked", _pooled(32), (2, 3, 7, 7)),
    "global_pool_odd": Case("global_pool_blocked", _pooled(20, "max"), (1, 3, 5, 9)),
    "global_pool_batch": Case("global_pool_blocked", _pooled(16), (N, 3, 2, 3)),
}
