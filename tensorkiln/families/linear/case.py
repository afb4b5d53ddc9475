"""Cases of products with packed right operands."""

from __future__ import annotations

from tensorkiln.ir.relax import RVar, Value
from tensorkiln.kernels.case import Build, Case, Graph, N, quantized, rand


def _linear(k: int, n: int) -> Build:
    return lambda g, x: g.relu(g.linear(x, rand(k, n), rand(n)))


def _of_activations(g: Graph, x: RVar) -> Value:
    y = g.cast(x, dtype="int16")
    return g.matmul(y, g.transpose(y, axes=(0, 1, 3, 2)), wide=True)


CASES: dict[str, Case] = {
    "linear_one_panel": Case("linear_packed", _linear(64, 32), (321, 64)),
    "linear_few_panels": Case("linear_packed", _linear(64, 112), (301, 64)),
    "linear": Case("linear_packed", _linear(64, 96), (7, 64)),
    "linear_shared_rest": Case("linear_packed", _linear(300, 70), (130, 300)),
    "linear_odd": Case("linear_packed", _linear(37, 41), (13, 37)),
    "linear_pieces": Case("linear_packed", _linear(300, 64), (5, 300)),
    "linear_rows": Case("linear_packed", _linear(64, 64), (N, 64)),
    "linear_bytes": Case("linear_packed", quantized("linear", 64, 41), (13, 64)),
    "linear_bytes_rows": Case("linear_packed", quantized("linear", 64, 64), (N, 64)),
    "matmul_16": Case("matmul_packed", _of_activations, (2, 3, 9, 16)),
    "linear_parallel": Case("linear_packed", _linear(256, 256), (64, 256)),
}
