"""A kernel of each class that devices have, in the forms that its schedule tells apart."""

from __future__ import annotations

from functools import cache

from tensorkiln.ir.expr import Var
from tensorkiln.ir.relax import RVar
from tensorkiln.schedule.group import Group
from tensorkiln.target import Target
from tests.schedule.gpu.runner import OPENCL, groups_for
from tests.schedule.test_places import forest
from tests.transform.graphs import Build, Graph, c, graph, rand

N, S = Var("N"), Var("S")


def _heads(g: Graph, x: RVar) -> RVar:
    """Two heads apart, causal attention, heads together: the last kernel."""
    n, s, _ = x.tensor.shape

    def apart(y: RVar) -> RVar:
        return g.transpose(g.reshape(y, shape=(n, s, 2, 16)), axes=(0, 2, 1, 3))

    y = g.attention(apart(x), apart(g.relu(x)), apart(g.exp(x)), scale=0.1, causal=True)
    return g.reshape(g.transpose(y, axes=(0, 2, 1, 3)), shape=(n, s, 32))


# name -> (graph, shape of its parameter, op_class of its last kernel)
KERNELS: dict[str, tuple[Build, tuple[object, ...], str]] = {
    "flat": (lambda g, x: g.relu(g.add(x, 1.0)), (40, 30), "gpu_loops"),
    "flat_odd": (lambda g, x: g.relu(g.add(x, 1.0)), (7, 3), "gpu_loops"),
    "flat_symbolic": (lambda g, x: g.relu(g.add(x, 1.0)), (N, 30), "gpu_loops"),
    "broadcast": (lambda g, x: g.mul(x, rand(30)), (N, 30), "gpu_loops"),
    "broadcast_rows": (
        lambda g, x: g.mul(x, g.transpose(x, axes=(1, 0, 2, 3))),
        (N, N, S, 30),
        "gpu_loops",
    ),
    "transpose": (lambda g, x: g.transpose(x, axes=(2, 0, 1)), (5, 6, 7), "gpu_loops"),
    "concat": (lambda g, x: g.concat(x, g.relu(x), axis=1), (5, 6, 7), "gpu_loops"),
    "sum_few_terms": (lambda g, x: g.sum(x, axes=(1,)), (N, 9), "gpu_loops"),
    "sum_columns": (lambda g, x: g.sum(x, axes=(0,)), (100, 5000), "gpu_loops"),
    "sum_rows": (lambda g, x: g.relu(g.sum(x, axes=(1,))), (N, 100), "gpu_reductions"),
    "mean_planes": (lambda g, x: g.mean(x, axes=(2, 3)), (2, 5, 9, 9), "gpu_reductions"),
    "max_symbolic": (lambda g, x: g.max(x, axes=(1,)), (4, N), "gpu_reductions"),
    "softmax_short": (lambda g, x: g.softmax(x, axis=-1), (N, 10), "gpu_softmax"),
    "softmax": (lambda g, x: g.softmax(x, axis=-1), (N, 100), "gpu_softmax"),
    "softmax_symbolic": (lambda g, x: g.softmax(x, axis=-1), (4, S), "gpu_softmax"),
    "log_softmax": (lambda g, x: g.log_softmax(x, axis=-1), (3, 1000), "gpu_softmax"),
    "layer_norm": (
        lambda g, x: g.relu(g.layer_norm(x, rand(48), rand(48))),
        (N, S, 48),
        "gpu_layer_norm",
    ),
    "linear": (
        lambda g, x: g.relu(g.linear(x, rand(50, 70), rand(70))),
        (33, 50),
        "gpu_contraction",
    ),
    "linear_symbolic": (lambda g, x: g.linear(x, rand(50, 70)), (N, 50), "gpu_contraction"),
    "linear_rows": (lambda g, x: g.linear(x, rand(50, 70)), (N, S, 50), "gpu_contraction"),
    "linear_large": (lambda g, x: g.linear(x, rand(16, 2048)), (2048, 16), "gpu_contraction"),
    "linear_one_row": (lambda g, x: g.linear(x, rand(50, 70)), (1, 50), "gpu_loops"),
    "matmul": (
        lambda g, x: g.matmul(x, x, transpose_b=True),
        (3, 20, 16),
        "gpu_contraction",
    ),
    "matmul_symbolic": (
        lambda g, x: g.matmul(x, x, transpose_b=True),
        (2, S, 16),
        "gpu_contraction",
    ),
    "conv2d": (
        lambda g, x: g.relu(g.conv2d(x, rand(20, 5, 3, 3), rand(20), padding=(1, 1, 1, 1))),
        (2, 5, 9, 11),
        "gpu_contraction",
    ),
    "conv2d_batch": (
        lambda g, x: g.conv2d(x, rand(20, 5, 3, 3), strides=(2, 2)),
        (N, 5, 9, 11),
        "gpu_contraction",
    ),
    "conv2d_grouped": (
        lambda g, x: g.conv2d(x, rand(32, 3, 3, 3), padding=(1, 1, 1, 1), groups=2),
        (N, 6, 5, 7),
        "gpu_contraction",
    ),
    "depthwise": (
        lambda g, x: g.relu(g.conv2d(x, rand(5, 1, 3, 3), padding=(1, 1, 1, 1), groups=5)),
        (2, 5, 9, 11),
        "gpu_windows",
    ),
    "depthwise_rows": (
        lambda g, x: g.relu(g.conv2d(x, rand(32, 1, 3, 3), rand(32), strides=(2, 2), groups=32)),
        (N, 32, 41, 43),
        "gpu_windows",
    ),
    "conv2d_channels": (
        lambda g, x: g.conv2d(x, rand(16, 2, 3, 2), padding=(1, 1, 1, 1), groups=4),
        (4, 8, 90, 61),
        "gpu_windows",
    ),
    "max_pool": (
        lambda g, x: g.max_pool2d(x, kernel=(3, 3), strides=(2, 2), padding=(1, 1, 1, 1)),
        (2, 5, 9, 11),
        "gpu_windows",
    ),
    "max_pool_rows": (
        lambda g, x: g.max_pool2d(x, kernel=(3, 3), strides=(2, 2), ceil_mode=True),
        (N, 20, 39, 25),
        "gpu_windows",
    ),
    "avg_pool": (lambda g, x: g.avg_pool2d(x, kernel=(2, 2)), (2, 5, 8, 8), "gpu_windows"),
    "avg_pool_image": (
        lambda g, x: g.avg_pool2d(x, kernel=(3, 3), padding=(1, 1, 1, 1)),
        (2, 3, S, 17),
        "gpu_windows",
    ),
    "attention": (
        lambda g, x: g.attention(x, x, x, scale=0.1),
        (2, 3, 35, 20),
        "gpu_attention",
    ),
    "attention_heads": (
        _heads,
        (N, S, 32),
        "gpu_attention",
    ),
    "top_k": (lambda g, x: g.top_k(x, k=4), (N, 70), "gpu_scalar"),
    "scatter": (
        lambda g, x: g.scatter(x, c([4, 0, 9, -1, 4], "int64"), rand(5, 3), reduction="add"),
        (9, 3),
        "gpu_scalar",
    ),
    "forest": (forest(11, "int32", 6, 3), (70, 6), "gpu_scalar"),
    "coupled": (lambda g, x: g.coupled(g.sigmoid(x), classes=3), (70, 3), "gpu_scalar"),
}
# Limits of other devices: smaller blocks, less shared memory.
TARGETS = {
    "opencl": OPENCL,
    "small": Target({"kind": "opencl", "max_num_threads": 64, "max_shared_memory_per_block": 4096}),
    "cuda": Target("cuda"),
    "tensor cores": Target({"kind": "cuda", "arch": "sm_80", "matmul_precision": "tf32"}),
    "copies ahead": Target({"kind": "cuda", "arch": "sm_80"}),
}


@cache
def group_of(name: str, target: str = "opencl") -> Group:
    """The last group of a graph of the table."""
    build, shape, _ = KERNELS[name]
    *_, group = groups_for(graph(build, x=shape), TARGETS[target])
    return group
