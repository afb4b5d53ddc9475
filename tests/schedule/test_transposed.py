"""Transposed convolutions: every kind of window, with epilogues, on every level of x86-64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tensorkiln as tk
from tensorkiln.ir.expr import Var
from tensorkiln.ir.module import IRModule
from tensorkiln.ir.relax import Tuple, constant, tensor
from tensorkiln.ops.builder import GraphBuilder
from tensorkiln.ops.evaluate import evaluate
from tests.codegen.kernels import LEVELS
from tests.rotation import NATIVE, rows_in_turn

# (channels, filters, image, kernel, strides, cut)
Case = tuple[int, int, tuple[int, int], tuple[int, int], tuple[int, int], tuple[int, int, int, int]]
DIRECT: list[Case] = [
    (16, 32, (5, 7), (2, 2), (2, 2), (0, 0, 0, 0)),
    (16, 19, (7, 5), (3, 3), (2, 2), (1, 1, 0, 0)),  # 3x3 with output padding
    (40, 33, (4, 4), (4, 4), (2, 2), (1, 1, 1, 1)),  # partial blocks, sums in pieces
    (20, 64, (3, 9), (5, 3), (3, 2), (2, 1, 1, 0)),  # as many kinds of phases as there can be
    (16, 48, (6, 6), (2, 1), (3, 2), (0, 0, -1, -1)),  # phases without any tap; added elements
    (16, 32, (1, 33), (1, 16), (1, 8), (0, 4, 0, 4)),  # along one dimension
    (16, 32, (2, 3), (7, 7), (2, 2), (7, 0, 0, 8)),  # cuts as wide as the image
    (16, 32, (4, 5), (3, 3), (2, 2), (-3, -2, 1, 1)),  # added at the other end
    (144, 16, (9, 9), (3, 3), (2, 2), (1, 1, 1, 1)),
]
MERGED: list[Case] = [
    (16, 3, (5, 7), (4, 4), (2, 2), (1, 1, 1, 1)),  # few filters
    (3, 32, (5, 7), (3, 3), (2, 2), (1, 1, 0, 0)),  # few channels
    (16, 2, (6, 5), (4, 3), (2, 3), (-1, 0, 2, -1)),
    (16, 1, (3, 3), (5, 5), (2, 2), (7, 0, 0, 6)),
]


def _constant(*shape: int) -> Any:
    rng = np.random.default_rng(shape)
    return constant(rng.standard_normal(shape).astype("f4"))


def _checked(cases: list[Case], level: str, groups: int = 1) -> set[str]:
    """Compile all cases with and without a bias and an epilogue, compare; kinds of kernels."""
    rng = np.random.default_rng(5)
    g, inputs, outs = GraphBuilder(), {}, []
    for k, (channels, filters, image, kernel, strides, cut) in enumerate(cases):
        inputs[f"x{k}"] = rng.standard_normal((2, channels, *image)).astype("f4")
        x = g.param(f"x{k}", tensor(inputs[f"x{k}"].shape, "float32"))
        w = _constant(channels, filters // groups, *kernel)
        bias = [_constant(filters)] if k % 2 else []
        y = g.emit("conv2d_transpose", x, w, *bias, strides=strides, cut=cut, groups=groups)
        if k % 3:
            y = g.emit("add", g.emit("relu", y), _constant(*map(int, y.tensor.static_shape())))
        if k % 3 == 2:  # a reader with a halo
            y = g.emit("conv2d", y, _constant(8, filters, 3, 3), padding=(1, 1, 1, 1))
        outs.append(y)
    mod = IRModule((g.finish(Tuple(tuple(outs))),))
    exe = tk.compile(mod, LEVELS[level])
    ys = tk.runtime.Executor(exe.jit(), tk.cpu())["main"](*inputs.values())
    ys = [ys] if len(cases) == 1 else ys
    for k, want in enumerate(evaluate(mod, inputs, dtype="float64")):
        np.testing.assert_allclose(ys[k].numpy(), want, rtol=1e-4, atol=3e-4, err_msg=f"case {k}")
    return {p.kernel_class for p in exe.placement()}


def _in_turn(cases: list[Case]) -> list[Case]:
    return rows_in_turn(cases, str, lambda _: "")


@pytest.mark.parametrize("level", LEVELS)
def test_every_phase_is_computed_where_it_belongs(level: str) -> None:
    cases = DIRECT if level == NATIVE else _in_turn(DIRECT)
    assert "conv2d_transposed" in _checked(cases, level)


@pytest.mark.parametrize("level", LEVELS)
def test_few_channels_are_one_convolution_of_all_phases(level: str) -> None:
    kinds = _checked(MERGED, level)
    assert level != "avx2" or "conv2d_transposed" not in kinds


def test_groups_are_one_convolution_of_all_phases() -> None:
    cases: list[Case] = [(c, 2 * m, *rest) for c, m, *rest in DIRECT if c % 2 == 0]  # type: ignore[misc]
    assert "conv2d_transposed" not in _checked(_in_turn(cases), "avx2", groups=2)


def test_symbolic_images_and_computed_weights() -> None:
    h, w = Var("h"), Var("w")
    g = GraphBuilder()
    x = g.param("x", tensor((1, 16, h, w), "float32"))
    f = g.param("f", tensor((16, 16, 3, 3), "float32"))
    fixed = g.emit("conv2d_transpose", x, _constant(16, 16, 4, 4), strides=(2, 2), cut=(1,) * 4)
    free = g.emit("conv2d_transpose", x, f, strides=(2, 2), cut=(1, 1, 0, 0))
    mod = IRModule((g.finish(Tuple((fixed, free))),))
    rng = np.random.default_rng(0)
    for size in ((3, 4), (1, 1), (8, 5)):
        inputs = {
            "x": rng.standard_normal((1, 16, *size)).astype("f4"),
            "f": rng.standard_normal((16, 16, 3, 3)).astype("f4"),
        }
        got = tk.runtime.Executor(tk.compile(mod).jit(), tk.cpu())["main"](*inputs.values())
        for have, want in zip(got, evaluate(mod, inputs, dtype="float64"), strict=True):
            np.testing.assert_allclose(have.numpy(), want, rtol=1e-4, atol=1e-4)


def test_batch_norms_are_folded() -> None:
    g = GraphBuilder()
    x = g.param("x", tensor((1, 16, 4, 4), "float32"))
    y = g.emit("conv2d_transpose", x, _constant(16, 32, 4, 4), strides=(2, 2), cut=(1,) * 4)
    rng = np.random.default_rng(1)
    norm = [constant(rng.random(32).astype("f4") + 0.5) for _ in range(4)]
    mod = IRModule((g.finish(g.emit("relu", g.emit("batch_norm", y, *norm))),))
    data = {"x": rng.standard_normal((1, 16, 4, 4)).astype("f4")}
    exe = tk.compile(mod)
    assert not any("norm" in k.symbol or "mul" in k.symbol for k in exe.kernels)
    got = tk.runtime.Executor(exe.jit(), tk.cpu())["main"](*data.values())
    (want,) = evaluate(mod, data, dtype="float64")
    np.testing.assert_allclose(got.numpy(), want, rtol=1e-4, atol=1e-4)
