"""Cases of scatter."""

from __future__ import annotations

import numpy as np

from tensorkiln.ir.expr import int_value
from tensorkiln.ir.relax import RVar, Value, constant
from tensorkiln.kernels.case import Case, Graph, rand


def _scattered(g: Graph, x: RVar) -> Value:
    rows, columns = (int_value(d) or 0 for d in x.tensor.shape)
    places = constant(np.array([0, 2, -1, 0, rows - 1, rows]))
    return g.scatter(x, places, rand(6, columns), reduction="add")


CASES: dict[str, Case] = {
    "scatter_into_rows": Case("scatter", _scattered, (40, 600)),
    "scatter_into_uneven_rows": Case("scatter", _scattered, (33, 700)),
    "scatter_into_columns": Case("scatter", _scattered, (3, 9600)),
}
