"""Cases of softmax and layer norm."""

from __future__ import annotations

from tensorkiln.kernels.case import Build, Case, N, S, rand


def _layer_norm(n: int) -> Build:
    return lambda g, x: g.relu(g.layer_norm(x, rand(n), rand(n)))


CASES: dict[str, Case] = {
    "softmax": Case("softmax_rows", lambda g, x: g.softmax(x), (3, 2, 37)),
    "softmax_chains": Case("softmax_rows", lambda g, x: g.softmax(x), (150,)),
    "softmax_symbolic": Case("softmax_rows", lambda g, x: g.softmax(x), (N, S)),
    "softmax_parallel": Case("softmax_rows", lambda g, x: g.softmax(x), (4, 16, 128)),
    "log_softmax": Case("softmax_rows", lambda g, x: g.log_softmax(x), (3, 300)),
    "layer_norm": Case("layer_norm_rows", _layer_norm(40), (2, 3, 40)),
    "layer_norm_parallel": Case("layer_norm_rows", _layer_norm(384), (N, 5, 384)),
}

GPU_CASES: dict[str, Case] = {
    "softmax_short": Case("gpu_softmax", lambda g, x: g.softmax(x, axis=-1), (N, 10)),
    "softmax": Case("gpu_softmax", lambda g, x: g.softmax(x, axis=-1), (N, 100)),
    "softmax_symbolic": Case("gpu_softmax", lambda g, x: g.softmax(x, axis=-1), (4, S)),
    "log_softmax": Case("gpu_softmax", lambda g, x: g.log_softmax(x, axis=-1), (3, 1000)),
    "layer_norm": Case(
        "gpu_layer_norm", lambda g, x: g.relu(g.layer_norm(x, rand(48), rand(48))), (N, S, 48)
    ),
    "layer_norm_warps": Case("gpu_layer_norm", _layer_norm(700), (3, 700)),
}
