"""Cases of Strassen's products."""

from __future__ import annotations

from tensorkiln.ir.expr import int_value
from tensorkiln.ir.relax import RVar, Value
from tensorkiln.kernels.case import Build, Case, Graph, rand


def _strassen(k: int, n: int) -> Build:
    def build(g: Graph, x: RVar) -> Value:
        rows = tuple(int_value(d) or 0 for d in x.tensor.shape[:-1])
        return g.relu(g.strassen_linear(g.strassen_parts(x), rand(k, n), rand(n), rows=rows))

    return build


CASES: dict[str, Case] = {
    "strassen": Case("linear_strassen", _strassen(64, 64), (7, 64)),
    "strassen_parts": Case("strassen_parts", _strassen(64, 64), (2, 15, 64)),
    "strassen_chunks": Case("linear_strassen", _strassen(512, 64), (13, 512)),
    "strassen_parallel": Case("linear_strassen", _strassen(256, 256), (64, 256)),
}
