"""Elementwise groups whose operands are broadcast along whole planes, or not at all: one loop runs
over all dimensions of a plane."""

from __future__ import annotations

import numpy as np
import pytest

import tensorkiln as tk
from tensorkiln.ir.expr import Var
from tensorkiln.ir.module import IRModule
from tensorkiln.ir.relax import Tuple, tensor
from tensorkiln.ops.builder import GraphBuilder
from tensorkiln.ops.evaluate import evaluate
from tests.codegen.kernels import LEVELS

MERGED = (
    ((1, 20, 14, 14), ((20, 1, 1), (1, 20, 14, 14), (1, 1, 1, 1))),
    ((2, 6, 7, 7), ((1, 6, 1, 1), (2, 1, 7, 7), (6, 7, 7))),
    ((2, 3, 5, 7, 9), ((3, 1, 1, 1), (5, 7, 9), (2, 1, 1, 1, 1))),
    ((5, 1, 3), ((5, 1, 3), (1, 1), ())),
    ((4, 1, 9, 1, 11), ((4, 1, 1, 1, 1), (9, 1, 11), (4, 1, 9, 1, 11))),
    ((1, 3, 60, 61), ((3, 1, 1), (1, 1, 1, 1), (60, 61))),  # few planes for many threads
    ((1, 1, 90, 70), ((90, 70), (1, 1, 1, 1), (1, 1, 90, 70))),
    ((3, 5, 6), ((5, 6), (3, 1, 1), (1, 5, 6))),
    ((2, 3, 4), ((3, 4), (1, 4), (2, 3, 1))),  # not merged: broadcast along one of them
)


@pytest.mark.parametrize("symbolic", [False, True])
@pytest.mark.parametrize("level", LEVELS)
def test_elementwise_of_operands_broadcast_along_whole_planes(level: str, symbolic: bool) -> None:
    rng = np.random.default_rng(3)
    g, inputs, outs = GraphBuilder(), {}, []
    batch = Var("n")
    for k, (shape, others) in enumerate(MERGED):
        inputs[f"x{k}"] = rng.standard_normal(shape).astype("f4")
        lead = batch if symbolic and shape[0] == 2 else shape[0]
        y = g.emit("relu", g.param(f"x{k}", tensor((lead, *shape[1:]), "float32")))
        for i, other in enumerate(others):
            inputs[f"x{k}_{i}"] = rng.standard_normal(other).astype("f4")
            whole = len(other) == len(shape) and other[0] == 2
            t = tensor((lead, *other[1:]) if whole else other, "float32")
            y = g.emit(("mul", "add", "sub")[i], g.param(f"x{k}_{i}", t), y)
        outs.append(y)
    mod = IRModule((g.finish(Tuple(tuple(outs))),))
    got = tk.runtime.Executor(tk.compile(mod, LEVELS[level]).jit(), tk.cpu())["main"](
        *inputs.values()
    )
    for have, want in zip(got, evaluate(mod, inputs, dtype="float64"), strict=True):
        np.testing.assert_allclose(have.numpy(), want, rtol=1e-5, atol=1e-5)


def test_choices_and_types_of_other_widths() -> None:
    rng = np.random.default_rng(4)
    g = GraphBuilder()
    x = g.param("x", tensor((2, 5, 7, 3), "float32"))
    c = g.param("c", tensor((5, 1, 1), "bool"))
    n = g.param("n", tensor((1, 5, 7, 3), "int8"))
    wide = g.emit("cast", n, dtype="float32")
    y = g.emit("where", c, g.emit("mul", x, wide), x)
    z = g.emit("cast", g.emit("less", y, wide), dtype="int64")
    inputs = {
        "x": rng.standard_normal((2, 5, 7, 3)).astype("f4"),
        "c": rng.random((5, 1, 1)) < 0.5,
        "n": rng.integers(-9, 9, (1, 5, 7, 3)).astype("int8"),
    }
    mod = IRModule((g.finish(Tuple((y, z))),))
    for target in LEVELS.values():
        got = tk.runtime.Executor(tk.compile(mod, target).jit(), tk.cpu())["main"](*inputs.values())
        for have, want in zip(got, evaluate(mod, inputs, dtype="float32"), strict=True):
            np.testing.assert_array_equal(have.numpy(), want)
