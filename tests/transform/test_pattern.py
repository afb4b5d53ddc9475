"""The pattern language."""

from __future__ import annotations

import numpy as np
import pytest

from tensorkiln.ir.relax import Bound, Call, RVar, constant, tensor
from tensorkiln.kernels.case import Graph, c
from tensorkiln.transform.rewriting import pattern as P


def matches(text: str, root: RVar, g: Graph) -> list[P.Found]:
    """All matches with the definition of `root` at the top."""
    definitions: dict[RVar, Bound] = {b.var: b.value for b in g.bindings}
    call = definitions[root]
    assert isinstance(call, Call)
    return list(P.match_call(P.parse(text), call, definitions.get))


@pytest.fixture
def g() -> Graph:
    """A builder with parameters x and y."""
    g = Graph()
    g.param("x", tensor((2, 3), "float32"))
    g.param("y", tensor((2, 3), "float32"))
    return g


def test_names_bind_and_repeat(g: Graph) -> None:
    x, y = g.params
    assert matches("mul(a, a)", g.mul(x, x), g)[0]["a"] is x
    assert not matches("mul(a, a)", g.mul(x, y), g)


def test_commutative_operators_match_both_ways(g: Graph) -> None:
    x, y = g.params
    both_ways = matches("add(a, b)", g.add(x, y), g)
    assert [(m["a"], m["b"]) for m in both_ways] == [(x, y), (y, x)]
    assert len(matches("sub(a, b)", g.sub(x, y), g)) == 1


def test_backtracking_finds_the_order_that_fits_inside(g: Graph) -> None:
    x, y = g.params
    root = g.add(g.mul(y, x), g.mul(x, g.exp(y)))
    (match,) = matches("add(mul(a, exp(b)), mul(a, b))", root, g)
    assert match["a"] is x and match["b"] is y


def test_capitals_are_constants(g: Graph) -> None:
    x, y = g.params
    two = c([1.0, 2.0, 3.0])
    assert matches("mul(x, C)", g.mul(two, x), g)[0]["C"] is two
    assert not matches("mul(x, C)", g.mul(x, y), g)


@pytest.mark.parametrize(
    ("number", "value", "fits"),
    [
        ("2", 2.0, True),
        ("2", np.nextafter(np.float32(2), np.float32(3)), False),
        ("0.5", 0.5, True),
        ("0.5", 0.5000001, False),
        ("1.4142135623730951", np.float32(1.4142135), True),
        ("1.4142135623730951", 1.41422, False),
        ("-1", -1.0, True),
        ("0", -0.0, True),
    ],
)
def test_numbers(g: Graph, number: str, value: float, fits: bool) -> None:
    x, _ = g.params
    full = constant(np.full((2, 3), value, np.float32))
    assert bool(matches(f"mul(x, {number})", g.mul(x, full), g)) is fits


def test_numbers_are_uniform_constants(g: Graph) -> None:
    x, _ = g.params
    empty = g.param("empty", tensor((0, 3), "float32"))
    assert not matches("mul(x, 1)", g.mul(x, c([1.0, 1.0, 2.0])), g)
    assert not matches("mul(x, 1)", g.mul(x, c([1.0, 2.0, 1.0])), g)
    assert not matches("mul(x, 1)", g.mul(empty, constant(np.ones((0, 3), np.float32))), g)


def test_attributes_bind_and_compare(g: Graph) -> None:
    x, _ = g.params
    root = g.transpose(x, axes=(1, 0))
    assert matches("transpose(x, axes=p)", root, g)[0]["p"] == (1, 0)
    assert matches("transpose(x, axes=(1, 0))", root, g)
    assert not matches("transpose(x, axes=(0, 1))", root, g)
    total = g.sum(x, axes=(1,), keepdims=True)
    assert matches("sum(x, keepdims=True)", total, g)
    assert not matches("sum(x, keepdims=1)", total, g)


def test_rest_either_and_names_of_parts(g: Graph) -> None:
    x, y = g.params
    root = g.concat(x, y, x, axis=0)
    assert matches("concat(a, *others)", root, g)[0]["others"] == (y, x)
    assert not matches("concat(a, b)", root, g)
    e = g.exp(x)
    root = g.neg(e)
    (match,) = matches("neg(z := (sqrt(v) | exp(v)))", root, g)
    assert match["z"] is e and match["v"] is x


def test_underscore_matches_different_values(g: Graph) -> None:
    x, y = g.params
    assert matches("sub(_, _)", g.sub(x, y), g)


def test_heads() -> None:
    assert P.heads(P.parse("add(x, y) | mul(x, y) | (neg(x) | exp(x))")) == {
        "add",
        "mul",
        "neg",
        "exp",
    }


@pytest.mark.parametrize("text", ["x + y", "f(x)(y)", "'a'", "[x]"])
def test_what_is_no_pattern(text: str) -> None:
    with pytest.raises(ValueError, match="not a pattern"):
        P.parse(text)
