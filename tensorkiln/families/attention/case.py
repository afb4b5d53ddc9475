"""Cases of attention."""

from __future__ import annotations

from tensorkiln.ir.relax import RVar, Value
from tensorkiln.kernels.case import Build, Case, Graph, N, S, rand


def _attention(causal: bool = False) -> Build:
    return lambda g, x: g.attention(x, x, x, scale=0.25, causal=causal)


def _masked(g: Graph, x: RVar) -> Value:
    return g.attention(x, x, x, rand(1, 1, 1, 19), scale=0.25)


def _heads(g: Graph, x: RVar) -> Value:
    """Heads taken apart before and put together after."""
    n, rows, width = x.tensor.shape
    y = g.transpose(g.reshape(x, shape=(n, rows, width // 32, 32)), axes=(0, 2, 1, 3))
    y = g.transpose(g.attention(y, y, y, scale=0.25), axes=(0, 2, 1, 3))
    return g.reshape(y, shape=(n, rows, width))


def _causal_heads(g: Graph, x: RVar) -> Value:
    """Two heads apart, causal attention, heads together: the last kernel."""
    n, s, _ = x.tensor.shape

    def apart(y: RVar) -> Value:
        return g.transpose(g.reshape(y, shape=(n, s, 2, 16)), axes=(0, 2, 1, 3))

    y = g.attention(apart(x), apart(g.relu(x)), apart(g.exp(x)), scale=0.1, causal=True)
    return g.reshape(g.transpose(y, axes=(0, 2, 1, 3)), shape=(n, s, 32))


# With a symbolic size, or more than one block of keys, proofs take too long.
CASES: dict[str, Case] = {
    "attention": Case("attention_fused", _attention(), (1, 2, 9, 16)),
    "attention_wide": Case("attention_fused", _attention(), (1, 2, 5, 64)),
    "attention_causal": Case("attention_fused", _attention(True), (2, 1, 37, 48)),
    "attention_masked": Case("attention_fused", _masked, (1, 2, 19, 32)),
    "attention_heads": Case("attention_fused", _heads, (1, 17, 64)),
}

GPU_CASES: dict[str, Case] = {
    "attention": Case(
        "gpu_attention", lambda g, x: g.attention(x, x, x, scale=0.1), (2, 3, 35, 20)
    ),
    "attention_heads": Case("gpu_attention", _causal_heads, (N, S, 32)),
}
