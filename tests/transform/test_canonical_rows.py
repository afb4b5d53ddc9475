"""Images of one row stay images until something else reads them; each row before -> after."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tensorkiln.ir.expr import Expr, Var, int_value
from tensorkiln.ir.relax import RVar, Value, constant
from tensorkiln.kernels.case import Build, Graph, rand
from tensorkiln.transform.relax.canonicalize import canonicalize
from tests.transform.graphs import assert_same_values, check, check_unchanged, graph, ops_of

W = rand(3, 3, 1, 3)
NORM = [rand(3, seed=k, low=0.5) for k in range(4)]


def _image(g: Graph, x: Value) -> RVar:
    """The convolution of x [2, 3, 8] along its last dimension, as an image."""
    return g.conv2d(_x4(g, x), W, padding=(0, 1, 0, 1))


def _flat(g: Graph, y: RVar) -> RVar:
    n, c, _, w = y.tensor.shape
    return g.reshape(y, shape=tuple(_size(d) for d in (n, c, w)))


def _size(d: Expr) -> int | Expr:
    return d if (n := int_value(d)) is None else n


def _conv(g: Graph, x: Value) -> RVar:
    return _flat(g, _image(g, x))


def _both(f: Callable[[Graph, Any], RVar]) -> tuple[Build, Build]:
    """f of the flat result, and flat f of the image."""
    return (lambda g, x: f(g, _conv(g, x))), (lambda g, x: _flat(g, f(g, _image(g, x))))


def _x4(g: Graph, x: Value) -> RVar:
    assert isinstance(x, RVar)
    return g.reshape(x, shape=(2, 3, 1, _size(x.tensor.shape[2])))


CASES: dict[str, tuple[Build, Build]] = {
    "one operand": _both(lambda g, y: g.relu(y)),
    "several operators": _both(lambda g, y: g.tanh(g.mul(g.leaky_relu(y, alpha=0.1), 3.0))),
    "a batch norm": _both(lambda g, y: g.relu(g.batch_norm(y, *NORM))),
    "a scalar before it": _both(lambda g, y: g.sub(1.0, y)),
    "a number per channel": (
        lambda g, x: g.mul(_conv(g, x), rand(3, 1)),
        lambda g, x: _flat(g, g.mul(_image(g, x), constant(rand(3, 1).array.reshape(3, 1, 1)))),
    ),
    "a residual": (
        lambda g, x: g.add(x, _conv(g, x)),
        lambda g, x: _flat(g, _added(g, x)),
    ),
    "the next convolution": (
        lambda g, x: _conv(g, g.relu(_conv(g, x))),
        lambda g, x: _flat(g, g.conv2d(g.relu(_image(g, x)), W, padding=(0, 1, 0, 1))),
    ),
    "two side by side": (
        lambda g, x: g.relu(g.concat(_conv(g, x), g.exp(_conv(g, x)), axis=1)),
        lambda g, x: _joined(g, x),
    ),
    "the greatest": (
        lambda g, x: g.max(g.relu(_conv(g, x)), axes=(2,), keepdims=False),
        lambda g, x: g.max(g.relu(_image(g, x)), axes=(2, 3), keepdims=False),
    ),
    "a mean that keeps its dimension": (
        lambda g, x: g.mean(_conv(g, x), axes=(-1,), keepdims=True),
        lambda g, x: g.reshape(g.mean(_image(g, x), axes=(2, 3), keepdims=True), shape=(2, 3, 1)),
    ),
}


def _added(g: Graph, x: Value) -> RVar:
    y = _image(g, x)
    return g.add(_x4(g, x), y)


def _joined(g: Graph, x: Value) -> RVar:
    a, b = _image(g, x), _image(g, x)
    y = g.relu(g.concat(a, g.exp(b), axis=1))
    return g.reshape(y, shape=(2, 6, _size(y.tensor.shape[3])))


@pytest.mark.parametrize("name", CASES)
def test_the_reshape_moves_on(name: str) -> None:
    before, after = CASES[name]
    check(canonicalize, graph(before, x=(2, 3, 8)), graph(after, x=(2, 3, 8)))


@pytest.mark.parametrize("name", CASES)
def test_of_a_symbolic_width(name: str) -> None:
    before, after = (graph(build, x=(2, 3, Var("w"))) for build in CASES[name])
    canonical = canonicalize(before)
    assert ops_of(canonical) == ops_of(after)
    assert_same_values(before, canonical, w=5)


def test_other_reshapes_stay() -> None:
    """Of images of several rows, of what no window computed, and along another dimension."""
    check_unchanged(
        canonicalize, graph(lambda g, x: g.relu(g.reshape(x, shape=(2, 3, 4))), x=(2, 3, 1, 4))
    )
    rows = graph(
        lambda g, x: g.relu(g.reshape(g.conv2d(x, rand(3, 3, 1, 1)), shape=(2, 3, 8))),
        x=(2, 3, 2, 4),
    )
    check_unchanged(canonicalize, rows)
    total = graph(lambda g, x: g.sum(_conv(g, x), axes=(1,), keepdims=False), x=(2, 3, 8))
    check_unchanged(canonicalize, total)
