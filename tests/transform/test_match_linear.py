"""match_linear: products that become linear layers, and biases that go into them."""

from __future__ import annotations

import numpy as np
import pytest

from tensorkiln.ir.expr import Var
from tensorkiln.ir.relax import RVar, Tuple, constant, tensor
from tensorkiln.kernels.case import Build, Graph, rand
from tensorkiln.transform.relax.match_linear import match_linear
from tests.transform.graphs import (
    assert_same_values,
    check,
    check_text,
    check_unchanged,
    graph,
    main,
    ops_of,
)

W, V, B = rand(4, 6), rand(6, 5), rand(6, seed=3)


def test_constant_matrix_on_the_right() -> None:
    check(
        match_linear,
        graph(lambda g, x: g.matmul(x, W), x=(2, 3, 4)),
        graph(lambda g, x: g.linear(x, W), x=(2, 3, 4)),
    )


def test_bias() -> None:
    row = constant(B.array.reshape(1, 6))
    check(
        match_linear,
        graph(lambda g, x: g.add(row, g.linear(x, W)), x=(2, 3, 4)),
        graph(lambda g, x: g.linear(x, W, B), x=(2, 3, 4)),
    )


def test_rows_are_regrouped_before_the_layer() -> None:
    def before(g: Graph, x: RVar) -> RVar:
        flat = g.linear(g.reshape(x, shape=(6, 4)), W, B)
        return g.reshape(g.linear(g.reshape(flat, shape=(2, 3, 6)), V), shape=(3, 2, 5))

    def after(g: Graph, x: RVar) -> RVar:
        return g.linear(g.linear(g.reshape(x, shape=(3, 2, 4)), W, B), V)

    check(match_linear, graph(before, x=(2, 3, 4)), graph(after, x=(2, 3, 4)))


def test_columns_that_are_read_in_slices_are_layers_of_their_own() -> None:
    def before(g: Graph, x: RVar) -> Tuple:
        y = g.linear(x, W, B)
        return Tuple(
            tuple(
                g.slice(y, begin=(0, first), strides=(1, 1), shape=(2, count))
                for first, count in ((0, 2), (2, 4))
            )
        )

    mod = graph(before, x=(2, 4))
    out = match_linear(mod)
    assert ops_of(out) == ["linear", "linear"]
    for b in main(out).bindings:
        assert np.shares_memory(b.value.args[1].array, W.array)  # type: ignore[union-attr]
    assert_same_values(mod, out)


LINEAR_KEPT: dict[str, Build] = {
    "constant on the left": lambda g, x: g.matmul(rand(2, 5, 3), x),
    "batched weights": lambda g, x: g.matmul(x, rand(2, 4, 6)),
    "weights by weights": lambda g, x: g.matmul(x, g.exp(W)),
    "columns and the whole": lambda g, x: Tuple(
        (y := g.linear(x, W), g.slice(y, begin=(0, 0, 0), strides=(1, 1, 1), shape=(2, 3, 3)))
    ),
    "some rows": lambda g, x: g.slice(
        g.linear(x, W), begin=(0, 1, 0), strides=(1, 1, 1), shape=(2, 2, 3)
    ),
    "bias per row": lambda g, x: g.add(g.linear(x, W), rand(3, 6)),
    "columns regrouped": lambda g, x: g.reshape(g.linear(x, W), shape=(2, 3, 2, 3)),
}


@pytest.mark.parametrize("name", LINEAR_KEPT)
def test_linear_stays(name: str) -> None:
    check_unchanged(match_linear, graph(LINEAR_KEPT[name], x=(2, 3, 4)))


def test_symbolic_rows() -> None:
    b, s = Var("b"), Var("s")

    def before(g: Graph, x: RVar) -> RVar:
        flat = g.linear(g.reshape(x, shape=(b * s, 4)), W, B)
        return g.reshape(flat, shape=(b, s, 6))

    mod = graph(before, x=tensor((b, s, 4), "float32"))
    out = match_linear(mod)
    assert ops_of(out) == ["linear"]
    assert_same_values(mod, out, b=2, s=5)


def test_product_and_bias() -> None:
    check_text(
        match_linear,
        """
        @R.function
        def main(x: R.Tensor((5, 2), "float32")):
            y = R.matmul(x, R.const([1.0, 2.0, 3.0, 4.0], "float32", (2, 2)))
            z = R.add(y, R.const([5.0, 6.0], "float32", (2,)))
            return z
        """,
        """
        @R.function
        def main(x: R.Tensor((5, 2), "float32")):
            z = R.linear(
                x,
                R.const([1.0, 2.0, 3.0, 4.0], "float32", (2, 2)),
                R.const([5.0, 6.0], "float32", (2,)),
            )
            return z
        """,
    )
