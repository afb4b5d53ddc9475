"""Pooling of row-major images: every kind of window and element type, on every level of x86-64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tensorkiln as tk
from tensorkiln.ir.expr import Var
from tensorkiln.ir.module import IRModule
from tensorkiln.ir.relax import Tuple, tensor
from tensorkiln.ops.builder import GraphBuilder
from tensorkiln.ops.evaluate import evaluate
from tests.codegen.kernels import LEVELS

Attrs = dict[str, Any]
# Windows, and images for which they leave an odd number of outputs, or few.
WINDOWS: list[tuple[tuple[int, int], Attrs]] = [
    ((9, 56), {"kernel": (3, 3), "strides": (2, 2)}),
    ((9, 55), {"kernel": (3, 3), "strides": (2, 2), "padding": (1, 1, 1, 1)}),
    ((6, 32), {"kernel": (2, 2), "strides": (2, 2)}),
    ((5, 37), {"kernel": (2, 3), "padding": (1, 0, 0, 2)}),
    ((7, 40), {"kernel": (3, 3), "strides": (3, 3), "padding": (0, 1, 2, 1)}),
    ((7, 70), {"kernel": (4, 5), "strides": (1, 4), "padding": (3, 4, 3, 4)}),
    ((4, 77), {"kernel": (2, 2), "strides": (5, 5)}),
    ((1, 33), {"kernel": (1, 3), "strides": (1, 2)}),
    ((3, 33), {"kernel": (1, 2), "strides": (2, 1), "padding": (0, 1, 0, 0)}),
    ((12, 29), {"kernel": (3, 3), "dilation": (2, 3), "padding": (2, 1, 1, 2)}),
    ((6, 19), {"kernel": (3, 2), "strides": (2, 2), "ceil_mode": True}),
    ((7, 18), {"kernel": (3, 4), "strides": (2, 3), "padding": (1, 1, 0, 1), "ceil_mode": True}),
    ((3, 8), {"kernel": (3, 5)}),
    ((2, 7), {"kernel": (2, 2)}),
    ((40, 200), {"kernel": (3, 3), "padding": (1, 1, 1, 1)}),
]
TYPES = ("float32", "float64", "int8", "uint8", "int32", "int64")


def _draw(dtype: str, *shape: int) -> np.ndarray:
    rng = np.random.default_rng([*map(ord, dtype), *shape])
    return (rng.standard_normal(shape) * 40).astype(dtype)


def _kinds(exe: tk.Executable) -> set[str]:
    return {p.kernel_class for p in exe.placement()}


def _outputs(exe: tk.Executable, inputs: list[np.ndarray]) -> list[np.ndarray]:
    got = tk.runtime.Executor(exe.jit(), tk.cpu())["main"](*inputs)
    return [x.numpy() for x in (got if isinstance(got, tuple | list) else [got])]


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("dtype", TYPES)
def test_maxima_to_the_bit(dtype: str, level: str) -> None:
    g, inputs, outs = GraphBuilder(), {}, []
    for k, (image, attrs) in enumerate(WINDOWS):
        inputs[f"x{k}"] = _draw(dtype, 2, 3, *image)
        x = g.param(f"x{k}", tensor((2, 3, *image), dtype))
        outs.append(g.emit("max_pool2d", x, **attrs))
    mod = IRModule((g.finish(Tuple(tuple(outs))),))
    exe = tk.compile(mod, LEVELS[level])
    assert _kinds(exe) == {"pool_rows"}
    for got, want in zip(
        _outputs(exe, [*inputs.values()]), evaluate(mod, inputs, dtype=dtype), strict=True
    ):
        np.testing.assert_array_equal(got, want, strict=True)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("include", [False, True])
def test_means(include: bool, level: str) -> None:
    g, inputs, outs = GraphBuilder(), {}, []
    for k, (image, attrs) in enumerate(WINDOWS):
        inputs[f"x{k}"] = _draw("float32", 2, 3, *image)
        x = g.param(f"x{k}", tensor((2, 3, *image), "float32"))
        outs.append(g.emit("avg_pool2d", x, count_include_pad=include, **attrs))
    mod = IRModule((g.finish(Tuple(tuple(outs))),))
    exe = tk.compile(mod, LEVELS[level])
    assert _kinds(exe) == {"pool_rows"}
    for got, want in zip(
        _outputs(exe, [*inputs.values()]), evaluate(mod, inputs, dtype="float64"), strict=True
    ):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-4)


def test_what_comes_before_and_after() -> None:
    """Elementwise operators, an operand per channel, one per column, one per element."""
    g = GraphBuilder()
    x = g.param("x", tensor((2, 3, 8, 41), "float32"))
    channel = g.param("channel", tensor((1, 3, 1, 1), "float32"))
    column = g.param("column", tensor((20,), "float32"))
    whole = g.param("whole", tensor((2, 3, 3, 20), "float32"))
    y = g.emit("max_pool2d", g.emit("neg", x), kernel=(3, 3), strides=(2, 2))
    for other in (channel, column, whole):
        y = g.emit("add", y, other)
    mod = IRModule((g.finish(g.emit("relu", y)),))
    inputs = {
        "x": _draw("float32", 2, 3, 8, 41),
        "channel": _draw("float32", 1, 3, 1, 1),
        "column": _draw("float32", 20),
        "whole": _draw("float32", 2, 3, 3, 20),
    }
    exe = tk.compile(mod)
    assert _kinds(exe) == {"pool_rows"}
    (want,) = evaluate(mod, inputs, dtype="float64")
    np.testing.assert_allclose(_outputs(exe, [*inputs.values()])[0], want, rtol=1e-6, atol=1e-5)


@pytest.mark.parametrize("op", ["max_pool2d", "avg_pool2d"])
def test_symbolic_images_and_channels(op: str) -> None:
    n, c = Var("N"), Var("C")
    g = GraphBuilder()
    x = g.param("x", tensor((n, c, 7, 23), "float32"))
    y = g.emit(op, x, kernel=(3, 3), strides=(2, 2), padding=(1, 1, 1, 1))
    mod = IRModule((g.finish(y),))
    exe = tk.compile(mod)
    assert _kinds(exe) == {"pool_rows"}
    for shape in [(1, 1), (2, 3), (5, 64)]:
        given = _draw("float32", *shape, 7, 23)
        (want,) = evaluate(mod, {"x": given}, dtype="float64")
        np.testing.assert_allclose(_outputs(exe, [given])[0], want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("shape", "attrs"),
    [
        ((2, 3, 6, 7), {"kernel": (2, 3), "strides": (2, 3)}),  # two outputs of a row
        ((1, 2, 3, 9000), {"kernel": (2, 2)}),  # a row that is no part of a cache
        ((1, 2, 8, 40), {"kernel": (3, 1)}),  # no columns
        ((1, 1, 3, 40), {"kernel": (2, 17)}),
    ],
)
def test_what_plain_loops_compute(shape: tuple[int, ...], attrs: Attrs) -> None:
    g = GraphBuilder()
    mod = IRModule(
        (g.finish(g.emit("max_pool2d", g.param("x", tensor(shape, "float32")), **attrs)),)
    )
    given = _draw("float32", *shape)
    exe = tk.compile(mod)
    assert _kinds(exe) == {"loops"}
    (want,) = evaluate(mod, {"x": given}, dtype="float32")
    np.testing.assert_array_equal(_outputs(exe, [given])[0], want)
