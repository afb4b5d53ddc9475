"""fold_scale: scales and shifts that go into weights."""

from __future__ import annotations

import numpy as np
import pytest

from tensorkiln.ir.relax import Constant, RVar, Tuple
from tensorkiln.kernels.case import Build, Graph, c, rand
from tensorkiln.transform.relax.fold_scale import fold_scale
from tests.transform.graphs import (
    assert_same_values,
    check_text,
    check_unchanged,
    graph,
    main,
    ops_of,
)

K, KB = rand(6, 2, 3, 3), rand(6, seed=1)
GAMMA, BETA, MEAN = (rand(6, seed=k) for k in (2, 3, 4))
VAR = rand(6, seed=5, low=0.5, high=2.0)
PER_CHANNEL = rand(1, 6, 1, 1, seed=6, low=0.5, high=2.0)
CONV = {"padding": (1, 1, 1, 1), "groups": 2}


def norm(g: Graph, y: RVar, eps: float = 1e-5) -> RVar:
    """A batch norm of 6 channels."""
    return g.batch_norm(y, GAMMA, BETA, MEAN, VAR, eps=eps)


# x is float32 [2, 4, 5, 5]; the result's operators are given
SCALES: dict[str, tuple[Build, list[str]]] = {
    "norm after conv": (lambda g, x: norm(g, g.conv2d(x, K, **CONV)), ["conv2d"]),
    "norm after conv with bias": (lambda g, x: norm(g, g.conv2d(x, K, KB, **CONV)), ["conv2d"]),
    "norm, scale and shift after conv": (
        lambda g, x: g.add(g.mul(norm(g, g.conv2d(x, K, **CONV)), PER_CHANNEL), PER_CHANNEL),
        ["conv2d"],
    ),
    "scale after conv": (lambda g, x: g.mul(PER_CHANNEL, g.conv2d(x, K, **CONV)), ["conv2d"]),
    "number after conv": (lambda g, x: g.mul(g.conv2d(x, K, KB, **CONV), 3), ["conv2d"]),
    "division after conv": (
        lambda g, x: g.div(g.conv2d(x, K, KB, **CONV), PER_CHANNEL),
        ["conv2d"],
    ),
    "bias after conv": (lambda g, x: g.add(g.conv2d(x, K, **CONV), PER_CHANNEL), ["conv2d"]),
    "norm alone": (
        lambda g, x: g.relu(norm(g, g.concat(x, g.exp(rand(2, 2, 5, 5)), axis=1))),
        ["exp", "concat", "mul", "add", "relu"],
    ),
    "norm and scale alone": (
        lambda g, x: g.add(
            g.mul(norm(g, g.concat(x, g.exp(rand(2, 2, 5, 5)), axis=1)), PER_CHANNEL), PER_CHANNEL
        ),
        ["exp", "concat", "mul", "add"],
    ),
    "scale before conv": (
        lambda g, x: g.conv2d(g.mul(x, rand(4, 1, 1, low=0.5)), K, KB, **CONV),
        ["conv2d"],
    ),
    "linear": (
        lambda g, x: g.add(g.mul(g.linear(x, rand(5, 3)), rand(3, seed=9)), rand(3, seed=8)),
        ["linear"],
    ),
    "scale before linear": (
        lambda g, x: g.linear(g.mul(rand(5, low=0.5), x), rand(5, 3), rand(3)),
        ["linear"],
    ),
    "norm after linear": (
        lambda g, x: norm(g, g.linear(g.reshape(x, shape=(2, 100)), rand(100, 6))),
        ["reshape", "linear"],
    ),
    "layer scale past a transpose": (
        lambda g, x: g.mul(
            rand(3, 1, 1, low=0.5), g.transpose(g.linear(x, rand(5, 3), rand(3)), axes=(0, 3, 1, 2))
        ),
        ["linear", "transpose"],
    ),
}


@pytest.mark.parametrize("name", SCALES)
def test_scale_is_folded(name: str) -> None:
    build, expected = SCALES[name]
    mod = graph(build, x=(2, 4, 5, 5))
    out = fold_scale(mod)
    assert ops_of(out) == expected
    assert_same_values(mod, out, rtol=5e-7)
    assert fold_scale(out) is out


SCALES_KEPT: dict[str, Build] = {
    "conv used twice": lambda g, x: Tuple((y := g.conv2d(x, K, **CONV), g.mul(y, 3))),
    "scale along another dimension": lambda g, x: g.mul(g.conv2d(x, K, **CONV), rand(5)),
    "scale per element": lambda g, x: g.mul(g.conv2d(x, K, **CONV), rand(6, 5, 5)),
    "shift before a padded conv": lambda g, x: g.conv2d(g.add(x, 1), K, **CONV),
    "division by zero": lambda g, x: g.div(g.conv2d(x, K, **CONV), 0),
    "weights that are computed": lambda g, x: g.mul(g.conv2d(x, g.exp(K), **CONV), 3),
    "scale of rows": lambda g, x: g.mul(g.linear(x, rand(5, 3)), rand(5, 1)),
    "residual": lambda g, x: g.add(g.conv2d(x, rand(4, 2, 3, 3), **CONV), x),
}


@pytest.mark.parametrize("name", SCALES_KEPT)
def test_scale_stays(name: str) -> None:
    check_unchanged(fold_scale, graph(SCALES_KEPT[name], x=(2, 4, 5, 5)))


def test_weights_are_rounded_once() -> None:
    out = fold_scale(graph(lambda g, x: norm(g, g.conv2d(x, K, KB, **CONV)), x=(2, 4, 5, 5)))
    _, w, b = main(out).bindings[0].value.args  # type: ignore[union-attr]
    gamma, beta, mean, var, k, kb = (
        v.array.astype(np.float64) for v in (GAMMA, BETA, MEAN, VAR, K, KB)
    )
    s = gamma / np.sqrt(var + 1e-5)
    assert isinstance(w, Constant) and isinstance(b, Constant)
    assert np.array_equal(w.array, (k * s[:, None, None, None]).astype(np.float32))
    assert np.array_equal(b.array, (kb * s + (beta - mean * s)).astype(np.float32))


def test_linear_norm_over_rows_is_split() -> None:
    """Channels of a 3-d batch norm are dimension 1, those of linear the last one."""
    mod = graph(lambda g, x: norm(g, g.linear(x, rand(4, 6))), x=(2, 6, 4))
    out = fold_scale(mod)
    assert ops_of(out) == ["linear", "mul", "add"]
    assert_same_values(mod, out, rtol=5e-7)


def test_names_of_weights_stay() -> None:
    named = Constant(K.array, K.type, "features.0.weight")
    out = fold_scale(graph(lambda g, x: g.mul(g.conv2d(x, named, **CONV), 2), x=(2, 4, 5, 5)))
    assert main(out).bindings[0].value.args[1].name == "features.0.weight"
    assert main(out).bindings[0].value.span == "node conv2d"  # type: ignore[union-attr]
    assert c(1).name == ""


def test_columns_of_weights_are_scaled() -> None:
    check_text(
        fold_scale,
        """
        @R.function
        def main(x: R.Tensor((5, 2), "float32")):
            y = R.linear(x, R.const([1.0, 2.0, 3.0, 4.0], "float32", (2, 2)))
            z = R.mul(y, R.const([5.0, 6.0], "float32", (2,)))
            return z
        """,
        """
        @R.function
        def main(x: R.Tensor((5, 2), "float32")):
            z = R.linear(x, R.const([5.0, 12.0, 15.0, 24.0], "float32", (2, 2)))
            return z
        """,
    )
