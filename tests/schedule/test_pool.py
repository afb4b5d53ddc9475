"""Pooling and response normalisation between convolutions, in channel blocks."""

from __future__ import annotations

import numpy as np
import pytest

import tensorkiln as tk
from tensorkiln.ir.module import IRModule
from tensorkiln.ir.relax import Tuple, constant, tensor
from tensorkiln.ops.builder import GraphBuilder
from tensorkiln.ops.evaluate import evaluate

# (operator, channels, image, attributes)
CASES = (
    ("max_pool2d", 32, (9, 11), {"kernel": (3, 3), "strides": (2, 2), "padding": (1, 1, 1, 1)}),
    ("max_pool2d", 24, (12, 8), {"kernel": (3, 3), "strides": (1, 1), "padding": (1, 1, 1, 1)}),
    ("max_pool2d", 20, (7, 30), {"kernel": (2, 2), "strides": (2, 2)}),
    (
        "max_pool2d",
        16,
        (6, 6),
        {"kernel": (3, 3), "strides": (2, 2), "padding": (0, 0, 1, 1), "ceil_mode": True},
    ),
    ("avg_pool2d", 24, (9, 9), {"kernel": (3, 3), "strides": (2, 2), "padding": (1, 1, 1, 1)}),
    (
        "avg_pool2d",
        40,
        (5, 7),
        {"kernel": (3, 2), "strides": (1, 2), "padding": (1, 0, 0, 1), "count_include_pad": True},
    ),
    ("avg_pool2d", 16, (7, 7), {"kernel": (7, 7)}),
    ("avg_pool2d", 16, (6, 5), {"kernel": (2, 2), "strides": (2, 2), "ceil_mode": True}),
    # windows larger than the padded image
    ("avg_pool2d", 16, (2, 3), {"kernel": (4, 5), "strides": (3, 3), "ceil_mode": True}),
    (
        "max_pool2d",
        24,
        (3, 1),
        {"kernel": (5, 4), "strides": (4, 4), "padding": (1, 0, 0, 1), "ceil_mode": True},
    ),
    ("lrn", 48, (5, 3), {"size": 5, "alpha": 0.3, "beta": 0.75, "bias": 2.0}),
    ("lrn", 20, (4, 4), {"size": 4, "alpha": 1.0, "beta": 0.6}),
    ("lrn", 7, (2, 5), {"size": 9, "alpha": 2.0, "beta": 1.0, "bias": 0.5}),
)


# (operator, channels, image, keepdims)
WHOLE = (
    ("mean", 32, (7, 7), False),
    ("mean", 20, (3, 13), True),
    ("max", 7, (4, 2), False),
    ("sum", 33, (1, 5), True),
)


def _model() -> IRModule:
    """conv2d -> (negative numbers matter) -> pool or lrn -> conv2d with a halo, for each case."""
    rng = np.random.default_rng(0)
    g = GraphBuilder()
    outs = []
    for k, (op, channels, image, attrs) in enumerate(CASES):
        x = g.param(f"x{k}", tensor((1, 3, *image), "float32"))
        w = constant(rng.standard_normal((channels, 3, 1, 1)).astype("f4"))
        pooled = g.emit(op, g.emit("conv2d", x, w), **attrs)
        scale = constant(rng.standard_normal((1, channels, 1, 1)).astype("f4"))
        shifted = g.emit("add", pooled, scale)
        w2 = constant(rng.standard_normal((5, channels, 3, 3)).astype("f4"))
        outs.append(g.emit("conv2d", shifted, w2, padding=(1, 1, 1, 1)))
    for k, (op, channels, image, keep) in enumerate(WHOLE, len(CASES)):
        x = g.param(f"x{k}", tensor((2, 3, *image), "float32"))
        w = constant(rng.standard_normal((channels, 3, 1, 1)).astype("f4"))
        outs.append(g.emit(op, g.emit("conv2d", x, w), axes=(2, 3), keepdims=keep))
    return IRModule((g.finish(Tuple(tuple(outs))),))


@pytest.fixture(scope="module")
def compiled() -> tuple[tk.Executable, dict[str, np.ndarray], list[np.ndarray]]:
    """The library, its inputs, and float64 results."""
    mod = _model()
    rng = np.random.default_rng(1)
    inputs = {
        f"x{k}": rng.standard_normal((1 + (k >= len(CASES)), 3, *case[2])).astype("f4")
        for k, case in enumerate((*CASES, *WHOLE))
    }
    return tk.compile(mod), inputs, evaluate(mod, inputs, dtype="float64")


def test_results_match_the_reference(
    compiled: tuple[tk.Executable, dict[str, np.ndarray], list[np.ndarray]],
) -> None:
    exe, inputs, expected = compiled
    classes = {k.symbol: k.kernel_class for k in exe.kernels}
    assert {c for name, c in classes.items() if "pool" in name} == {"pool_blocked"}
    assert {c for name, c in classes.items() if "lrn" in name} == {"lrn_blocked"}
    pooled = {c for n, c in classes.items() if n.rstrip("_234").endswith(("mean", "sum", "max"))}
    assert pooled == {"global_pool_blocked"}
    got = tk.runtime.Executor(exe.jit(), tk.cpu())["main"](*inputs.values())
    for case, have, want in zip((*CASES, *WHOLE), got, expected, strict=True):
        np.testing.assert_allclose(have.numpy(), want, rtol=2e-4, atol=2e-4, err_msg=str(case))
