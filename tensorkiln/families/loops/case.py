"""Cases of plain loops."""

from __future__ import annotations

import numpy as np

from tensorkiln.ir.relax import RVar, Value, constant
from tensorkiln.kernels.case import Case, Graph, N, S, rand


def _scaled(g: Graph, x: RVar) -> Value:
    y = g.conv2d(x, rand(40, 16, 1, 1))
    return g.conv2d(g.add(g.mul(y, y), y), rand(8, 40, 3, 3), padding=(1, 1, 1, 1))


def _looked_up(g: Graph, x: RVar) -> Value:
    places = g.cast(g.mul(g.sigmoid(x), 8.0), dtype="int64")
    return g.take(rand(9, 4), places, axis=0)


def _columns(g: Graph, x: RVar) -> Value:
    """Sums of two elements of each row, at places that are the same in all of them."""
    first, second = (constant(np.array(places)) for places in ([0, 0, 1, 2, 2], [0, 1, 2, 2, 3]))
    return g.add(g.mul(g.take(x, first, axis=2), rand(5)), g.take(x, second, axis=2))


CASES: dict[str, Case] = {
    "columns": Case("loops", _columns, (3, 7, 4)),
    "columns_symbolic": Case("loops", _columns, (N, 7, 4)),
    "planes": Case("loops", lambda g, x: g.relu(g.mul(x, rand(40, 1, 1))), (N, 40, 14, 14)),
    "few_planes": Case("loops", lambda g, x: g.relu(g.mul(x, rand(3, 1, 1))), (1, 3, 160, 161)),
    "blocked_signal": Case("loops", _scaled, (1, 16, 1, 2001)),
    "blocked_few_rows": Case("loops", _scaled, (1, 16, 5, 403)),
    "flat": Case("loops", lambda g, x: g.relu(g.mul(x, x)), (5, 37)),
    "flat_parallel": Case("loops", lambda g, x: g.exp(x), (64, 131)),
    "flat_symbolic": Case("loops", lambda g, x: g.exp(x), (N, S)),
    "broadcast": Case("loops", lambda g, x: g.add(x, rand(70)), (3, 4, 70)),
    "broadcast_symbolic": Case("loops", lambda g, x: g.add(x, rand(3, 1)), (N, 3, S)),
    "blocked": Case("loops", _scaled, (1, 16, 5, 7)),
    "concat": Case("loops", lambda g, x: g.concat(g.neg(x), x, axis=1), (3, 37)),
    "sum_last": Case("loops", lambda g, x: g.sum(x, axes=(1,)), (9, 150)),
    "sum_first": Case("loops", lambda g, x: g.sum(x, axes=(0,)), (9, 37)),
    "mean_of_two": Case("loops", lambda g, x: g.mean(x, axes=(1, 2)), (5, 9, 150)),
    "max_symbolic": Case("loops", lambda g, x: g.max(x, axes=(0, 2)), (N, 5, S)),
    "sum_of_integers": Case(
        "loops", lambda g, x: g.sum(g.cast(x, dtype="int32"), axes=(1,)), (3, 40)
    ),
    "argmax": Case("loops", lambda g, x: g.argmax(x, axis=1), (6, 41)),
    "softmax_of_columns": Case("loops", lambda g, x: g.softmax(x, axis=1), (2, 5, 40)),
    "softmax_of_columns_parallel": Case("loops", lambda g, x: g.softmax(x, axis=0), (16, 512)),
    "indices": Case("indices", _looked_up, (70,)),
}

GPU_CASES: dict[str, Case] = {
    "flat": Case("gpu_loops", lambda g, x: g.relu(g.add(x, 1.0)), (40, 30)),
    "flat_odd": Case("gpu_loops", lambda g, x: g.relu(g.add(x, 1.0)), (7, 3)),
    "flat_symbolic": Case("gpu_loops", lambda g, x: g.relu(g.add(x, 1.0)), (N, 30)),
    "broadcast": Case("gpu_loops", lambda g, x: g.mul(x, rand(30)), (N, 30)),
    "broadcast_rows": Case(
        "gpu_loops", lambda g, x: g.mul(x, g.transpose(x, axes=(1, 0, 2, 3))), (N, N, S, 30)
    ),
    "transpose": Case("gpu_loops", lambda g, x: g.transpose(x, axes=(2, 0, 1)), (5, 6, 7)),
    "concat": Case("gpu_loops", lambda g, x: g.concat(x, g.relu(x), axis=1), (5, 6, 7)),
    "sum_few_terms": Case("gpu_loops", lambda g, x: g.sum(x, axes=(1,)), (N, 9)),
    "sum_columns": Case("gpu_loops", lambda g, x: g.sum(x, axes=(0,)), (100, 5000)),
    "linear_one_row": Case("gpu_loops", lambda g, x: g.linear(x, rand(50, 70)), (1, 50)),
}
