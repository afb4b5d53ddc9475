"""Cases of decision trees."""

from __future__ import annotations

import numpy as np

from tensorkiln.ir.relax import RVar, Value
from tensorkiln.kernels.case import Build, Case, Graph, c
from tensorkiln.ops.forest import packed_nodes


def forest(trees: int, nodes: str, features: int, seed: int) -> Build:
    """A graph of random trees of depths 0 to 6, which compare features or their negatives."""
    draw = np.random.default_rng(seed)
    compared, child, limits = [0], [0], [np.nan]
    roots, depths = [], []

    def new(count: int) -> int:
        first = len(child)
        for k in range(count):
            compared.append(0)
            child.append(first + k - 1)
            limits.append(np.nan)
        return first

    for t in range(trees):
        roots.append(new(1))
        waiting, deepest = [(roots[-1], 0)], 0
        while waiting:
            node, level = waiting.pop()
            deepest = max(deepest, level)
            if level < t % 7 and (level == 0 or draw.random() < 0.7):
                first = new(2)
                compared[node], child[node] = int(draw.integers(2 * features)), first
                limits[node] = float(draw.choice([draw.normal(), 0.0, 1.5, np.inf]))
                waiting += [(first, level + 1), (first + 1, level + 1)]
        depths.append(deepest)
    packed, bits = packed_nodes(*map(np.asarray, (compared, child)))

    def build(g: Graph, x: RVar) -> Value:
        limit = c(limits, x.tensor.dtype.name)
        tables = [c(roots, "int32"), c(depths, "int32"), c(packed, nodes), limit]
        return g.tree_leaves(x, *tables, bits=bits, most=max(depths))

    return build


CASES: dict[str, Case] = {
    "forest": Case("tree_leaves", forest(11, "int32", 6, 3), (70, 6)),
}
