"""match_layer_norm: which formulas become a norm, and which only look like one."""

from __future__ import annotations

import pytest

from tensorkiln.ir.expr import Var
from tensorkiln.ir.relax import RVar, Tuple, tensor
from tensorkiln.kernels.case import Build, Graph, c, rand
from tensorkiln.transform.relax.canonicalize import canonicalize
from tensorkiln.transform.relax.match_layer_norm import match_layer_norm
from tests.transform.graphs import (
    assert_same_values,
    check_text,
    check_unchanged,
    graph,
    main,
    ops_of,
)

GAMMA, BETA = rand(4), rand(4, seed=1)


def normalised(g: Graph, x: RVar, axes: tuple[int, ...] = (-1,), form: str = "div") -> RVar:
    """(x - mean) / sqrt(variance + eps)"""
    centred = g.sub(x, g.mean(x, axes=axes, keepdims=True))
    square = g.pow(centred, 2) if form == "div" else g.mul(centred, centred)
    root = g.sqrt(g.add(g.mean(square, axes=axes, keepdims=True), 1e-5))
    if form == "div":
        return g.div(centred, root)
    return g.mul(centred, g.reciprocal(root) if form == "reciprocal" else g.pow(root, -1))


@pytest.mark.parametrize("form", ["div", "reciprocal", "pow"])
@pytest.mark.parametrize("parameters", ["", "gamma", "beta", "both"])
def test_layer_norm(form: str, parameters: str) -> None:
    def build(g: Graph, x: RVar) -> RVar:
        y = normalised(g, x, (-1,) if form == "div" else (2,), form)
        if parameters in ("gamma", "both"):
            y = g.mul(GAMMA, y)
        return g.add(y, BETA) if parameters in ("beta", "both") else y

    mod = graph(build, x=(2, 3, 4))
    out = match_layer_norm(canonicalize(mod))
    assert ops_of(out) == ["layer_norm"]
    assert len(main(out).bindings[0].value.args) == 2 + (parameters in ("beta", "both"))
    assert_same_values(mod, out, rtol=1e-9)


def test_layer_norm_over_two_dimensions() -> None:
    gamma = rand(1, 3, 4)
    mod = graph(lambda g, x: g.mul(normalised(g, x, (1, 2)), gamma), x=(2, 3, 4))
    out = match_layer_norm(canonicalize(mod))
    assert ops_of(out) == ["layer_norm"]
    assert main(out).bindings[0].value.attrs.axis == -2  # type: ignore[union-attr]
    assert_same_values(mod, out, rtol=1e-9)


def test_layer_norm_of_symbolic_rows() -> None:
    n = Var("n")
    build = lambda g, x: g.add(g.mul(normalised(g, x), GAMMA), BETA)  # noqa: E731
    mod = graph(build, x=tensor((n, 4), "float32"))
    out = match_layer_norm(canonicalize(mod))
    assert ops_of(out) == ["layer_norm"]
    assert_same_values(mod, out, rtol=1e-9, n=5)


NOT_NORMS: dict[str, Build] = {
    "another axis": lambda g, x: normalised(g, x, (1,), "reciprocal"),
    "no axis": lambda g, x: normalised(g, x, (), "reciprocal"),
    "eps per element": lambda g, x: g.mul(
        centred := g.sub(x, g.mean(x, axes=(-1,), keepdims=True)),
        g.rsqrt(
            g.add(g.mean(g.mul(centred, centred), axes=(-1,), keepdims=True), rand(3, 1, low=0.1))
        ),
    ),
    "root mean square": lambda g, x: g.mul(
        x, g.rsqrt(g.add(g.mean(g.mul(x, x), axes=(-1,), keepdims=True), 1e-5))
    ),
    "variance over another axis": lambda g, x: g.mul(
        centred := g.sub(x, g.mean(x, axes=(-1,), keepdims=True)),
        g.rsqrt(g.add(g.mean(g.mul(centred, centred), axes=(1,), keepdims=True), 1e-5)),
    ),
    "gamma per row": lambda g, x: g.mul(g.layer_norm(x, rand(4), axis=-1, eps=1e-5), rand(3, 1)),
    "norm used twice": lambda g, x: Tuple(
        (y := g.layer_norm(x, c([1.0] * 4), axis=-1, eps=1e-5), g.mul(y, GAMMA))
    ),
}


@pytest.mark.parametrize("name", NOT_NORMS)
def test_what_is_no_layer_norm(name: str) -> None:
    check_unchanged(match_layer_norm, graph(NOT_NORMS[name], x=(2, 3, 4)))


def test_the_plainest_form() -> None:
    check_text(
        match_layer_norm,
        """
        @R.function
        def main(x: R.Tensor((2, 3), "float32")):
            mean = R.mean(x, axes=(-1,), keepdims=True)
            off = R.sub(x, mean)
            square = R.mul(off, off)
            variance = R.mean(square, axes=(-1,), keepdims=True)
            root = R.sqrt(R.add(variance, R.const(0.5, "float32")))
            y = R.div(off, root)
            return y
        """,
        """
        @R.function
        def main(x: R.Tensor((2, 3), "float32")):
            y = R.layer_norm(x, R.const([1.0, 1.0, 1.0], "float32", (3,)), axis=-1, eps=0.5)
            return y
        """,
    )
