"""What lies between convolutions of signals is computed on their images."""

from __future__ import annotations

import pytest

from tensorkiln.ir.expr import Expr, Var, int_value
from tensorkiln.ir.relax import RVar
from tensorkiln.kernels.case import Graph, rand
from tensorkiln.transform.relax.canonicalize import canonicalize
from tensorkiln.transform.relax.eliminate_common_subexpressions import (
    eliminate_common_subexpressions,
)
from tensorkiln.transform.relax.eliminate_dead_code import eliminate_dead_code
from tensorkiln.transform.relax.fold_constants import fold_constants
from tests.transform.graphs import assert_same_values, check_text, check_unchanged, graph, ops_of

LENGTHS: dict[str, int | Expr] = {"known": 9, "open": Var("L")}


def _conv(g: Graph, x: RVar, outs: int) -> RVar:
    """A convolution of a signal, as importers write it."""
    n, c, length = x.tensor.shape
    w = rand(outs, int_value(c) or 0, 1, 3)
    y = g.conv2d(g.reshape(x, shape=(n, c, 1, length)), w, padding=(0, 1, 0, 1))
    return g.reshape(y, shape=(n, outs, length))


def _kept(build, length: int | Expr) -> list[str]:  # noqa: ANN001
    """The operators after the pass, of which the meaning is checked."""
    before = graph(build, x=(2, 4, length))
    after = canonicalize(before)
    after = eliminate_common_subexpressions(canonicalize(fold_constants(after)))
    after = eliminate_dead_code(after)
    assert_same_values(before, after, **({} if isinstance(length, int) else {"L": 7}))
    return ops_of(after)


@pytest.mark.parametrize("length", LENGTHS.values(), ids=LENGTHS)
def test_elementwise_operators_between_convolutions(length: int | Expr) -> None:
    def build(g: Graph, x: RVar) -> RVar:
        y = _conv(g, x, 6)
        z = _conv(g, g.leaky_relu(y), 6)
        return _conv(g, g.mul(g.tanh(g.add(z, y)), 0.5), 3)

    steps = ["leaky_relu", "conv2d", "add", "tanh", "mul", "conv2d"]
    assert _kept(build, length) == ["reshape", "conv2d", *steps, "reshape"]


@pytest.mark.parametrize("length", LENGTHS.values(), ids=LENGTHS)
def test_operands_that_broadcast(length: int | Expr) -> None:
    def build(g: Graph, x: RVar) -> RVar:
        y = g.add(g.mul(_conv(g, x, 4), rand(4, 1)), rand(1, 4, 1))
        return _conv(g, g.where(g.less(y, x), y, g.sub(x, y)), 3)

    operators_found = _kept(build, length)
    assert operators_found.count("reshape") == 2  # of the parameter and of the result


def test_another_reader_gets_the_signal() -> None:
    def build(g: Graph, x: RVar) -> RVar:
        y = g.relu(_conv(g, x, 4))
        return g.add(g.softmax(y), g.transpose(g.transpose(y, axes=(0, 2, 1)), axes=(0, 2, 1)))

    assert _kept(build, 9)[:3] == ["reshape", "conv2d", "relu"]


def test_results_that_are_larger_stay() -> None:
    def build(g: Graph, x: RVar) -> RVar:
        return g.add(g.sum(_conv(g, x, 4), axes=(2,), keepdims=True), x)

    assert "reshape" in _kept(build, 9)


def test_reshapes_that_no_convolution_made_stay() -> None:
    def build(g: Graph, x: RVar) -> RVar:
        return g.relu(g.reshape(g.softmax(g.reshape(x, shape=(2, 4, 1, 9))), shape=(2, 4, 9)))

    check_unchanged(canonicalize, graph(build, x=(2, 4, 9)))


def test_text() -> None:
    check_text(
        canonicalize,
        """
        @R.function
        def main(x: R.Tensor((1, 1, 1, "L"), "float32")):
            L = T.int64()
            y = R.conv2d(x, R.const([2.0], "float32", (1, 1, 1, 1)))
            s = R.reshape(y, shape=(1, 1, L))
            z = R.relu(s)
            i = R.reshape(z, shape=(1, 1, 1, L))
            return i
        """,
        """
        @R.function
        def main(x: R.Tensor((1, 1, 1, "L"), "float32")):
            L = T.int64()
            y = R.conv2d(x, R.const([2.0], "float32", (1, 1, 1, 1)))
            z_1 = R.relu(y)
            return z_1
        """,
    )
