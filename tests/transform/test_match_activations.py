"""match_activations: which formulas become one operator, and which only look like one."""

from __future__ import annotations

import math

import ml_dtypes
import numpy as np
import pytest

from tensorkiln.ir.relax import Constant, RVar, constant, tensor
from tensorkiln.kernels.case import Build, Graph
from tensorkiln.transform.relax.canonicalize import canonicalize
from tensorkiln.transform.relax.match_activations import match_activations
from tests.transform.graphs import (
    assert_same_values,
    check_text,
    check_unchanged,
    graph,
    main,
    ops_of,
)

ROOT = 1.4142135381698608


def erf1(g: Graph, x: RVar) -> RVar:
    """erf(x / sqrt(2)) + 1"""
    return g.add(g.erf(g.div(x, ROOT)), 1)


def tanh1(g: Graph, x: RVar) -> RVar:
    """tanh(sqrt(2 / pi) (x + 0.044715 x^3)) + 1"""
    cubic = g.add(x, g.mul(g.pow(x, 3), 0.044714998453855515))
    return g.add(g.tanh(g.mul(cubic, 0.7978845834732056)), 1)


FORMULAS: dict[str, tuple[Build, str]] = {
    "gelu (x E) 0.5": (lambda g, x: g.mul(g.mul(x, erf1(g, x)), 0.5), "gelu"),
    "gelu (0.5 x) E": (lambda g, x: g.mul(g.mul(0.5, x), erf1(g, x)), "gelu"),
    "gelu x (0.5 E)": (lambda g, x: g.mul(g.mul(0.5, erf1(g, x)), x), "gelu"),
    "gelu (x E) / 2": (lambda g, x: g.div(g.mul(erf1(g, x), x), 2), "gelu"),
    "gelu by 1/sqrt(2)": (
        lambda g, x: g.mul(g.mul(x, 0.5), g.add(1, g.erf(g.mul(0.7071067811865476, x)))),
        "gelu",
    ),
    "gelu tanh (x 0.5) T": (lambda g, x: g.mul(g.mul(x, 0.5), tanh1(g, x)), "gelu"),
    "gelu tanh (x T) 0.5": (lambda g, x: g.mul(g.mul(x, tanh1(g, x)), 0.5), "gelu"),
    "gelu tanh with x (1 + c x^2)": (
        lambda g, x: g.mul(
            g.mul(x, 0.5),
            g.add(
                1,
                g.tanh(
                    g.mul(g.mul(x, g.add(g.mul(g.mul(x, x), 0.044715), 1)), math.sqrt(2 / math.pi))
                ),
            ),
        ),
        "gelu",
    ),
    "silu": (lambda g, x: g.mul(g.sigmoid(x), x), "silu"),
    "silu with exp": (lambda g, x: g.div(x, g.add(1, g.exp(g.neg(x)))), "silu"),
    "sigmoid with exp": (lambda g, x: g.div(1, g.add(1, g.exp(g.neg(x)))), "sigmoid"),
    "hard_swish": (lambda g, x: g.mul(x, g.hard_sigmoid(x, alpha=1 / 6, beta=0.5)), "hard_swish"),
    "hard_swish with relu6": (
        lambda g, x: g.div(g.mul(x, g.clip(g.add(x, 3), min=0.0, max=6.0)), 6),
        "hard_swish",
    ),
    "hard_sigmoid with relu6": (
        lambda g, x: g.div(g.clip(g.add(x, 3), min=0.0, max=6.0), 6),
        "hard_sigmoid",
    ),
    "softmax": (
        lambda g, x: g.div(
            e := g.exp(g.sub(x, g.max(x, axes=(1,), keepdims=True))),
            g.sum(e, axes=(-2,), keepdims=True),
        ),
        "softmax",
    ),
}


@pytest.mark.parametrize("name", FORMULAS)
def test_formula(name: str) -> None:
    build, op = FORMULAS[name]
    mod = graph(build, x=(2, 3, 4))
    out = match_activations(canonicalize(mod))
    assert ops_of(out) == [op]
    approximate = "tanh" if "tanh" in name else "none"
    assert main(out).bindings[0].value.attrs.get("approximate", approximate) == approximate
    # Constants that exporters rounded to float32 differ from the true ones by 6e-8.
    assert_same_values(mod, out, rtol=3e-7)
    assert match_activations(out) is out


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_constants_of_narrow_types(dtype: str) -> None:
    """The root of two is 1.4141 in float16; the numbers beside it are no roots."""
    elements = np.dtype(getattr(ml_dtypes, dtype, dtype))

    def number(value: float) -> Constant:
        return constant(np.asarray(value, elements))

    def ops(root: float) -> list[str]:
        def gelu(g: Graph, x: RVar) -> RVar:
            return g.mul(g.mul(x, g.add(g.erf(g.div(x, number(root))), number(1))), number(0.5))

        return ops_of(match_activations(canonicalize(graph(gelu, x=tensor((2, 3, 4), dtype)))))

    root = np.asarray(math.sqrt(2), elements)
    assert ops(math.sqrt(2)) == ["gelu"]
    for step in (-1, 1):
        neighbor = (root.view(np.uint16) + np.uint16(step % (1 << 16))).view(elements)
        assert "erf" in ops(float(neighbor))


NEARLY: dict[str, Build] = {
    "two variables": lambda g, x: g.mul(g.mul(g.abs(x), erf1(g, x)), 0.5),
    "other factor": lambda g, x: g.mul(g.mul(x, erf1(g, x)), 0.25),
    "other root": lambda g, x: g.mul(g.mul(x, g.add(g.erf(g.div(x, 1.42)), 1)), 0.5),
    "other cube": lambda g, x: g.mul(
        g.mul(x, 0.5),
        g.add(g.tanh(g.mul(g.add(x, g.mul(g.mul(g.mul(x, x), x), 0.0447)), 0.7978845834732056)), 1),
    ),
    "minus": lambda g, x: g.mul(g.mul(x, g.add(g.erf(g.div(x, ROOT)), -1)), 0.5),
    "softmax over two axes": lambda g, x: g.div(
        e := g.exp(g.sub(x, g.max(x, axes=(1, 2), keepdims=True))),
        g.sum(e, axes=(1, 2), keepdims=True),
    ),
}


@pytest.mark.parametrize("name", NEARLY)
def test_what_only_looks_like_one(name: str) -> None:
    check_unchanged(match_activations, graph(NEARLY[name], x=(2, 3, 4)))


def test_silu_as_text() -> None:
    check_text(
        match_activations,
        """
        @R.function
        def main(x: R.Tensor((2, 3), "float32")):
            s = R.sigmoid(x)
            y = R.mul(s, x)
            return y
        """,
        """
        @R.function
        def main(x: R.Tensor((2, 3), "float32")):
            y = R.silu(x)
            return y
        """,
    )
