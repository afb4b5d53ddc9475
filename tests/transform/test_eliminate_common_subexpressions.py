"""eliminate_common_subexpressions: what is computed once, and what only looks the same."""

from __future__ import annotations

from tensorkiln.ir.relax import (
    Constant,
    RVar,
    constant,
)
from tensorkiln.kernels.case import Graph, c, rand
from tensorkiln.transform.relax.eliminate_common_subexpressions import (
    eliminate_common_subexpressions,
)
from tests.transform.graphs import check, check_text, check_unchanged, graph, ops_of


def test_common_subexpressions() -> None:
    before = graph(lambda g, x: g.add(g.mul(g.exp(x), 2), g.mul(g.exp(x), 2)), x=(2,))

    def after(g: Graph, x: RVar) -> RVar:
        y = g.mul(g.exp(x), 2)
        return g.add(y, y)

    check(eliminate_common_subexpressions, before, graph(after, x=(2,)))


def test_what_is_not_common() -> None:
    def attributes(g: Graph, x: RVar) -> RVar:
        return g.add(g.clip(x, min=0.0, max=1.0), g.clip(x, min=-0.0, max=1.0))

    def constants(g: Graph, x: RVar) -> RVar:
        return g.add(g.mul(x, c([1.0, 2.0])), g.mul(x, c([1.0, -2.0])))

    def operands(g: Graph, x: RVar) -> RVar:
        return g.add(g.sub(x, 1), g.sub(1, x))

    for build in (attributes, constants, operands):
        check_unchanged(eliminate_common_subexpressions, graph(build, x=(2,)))


def test_large_constants_are_compared_by_place() -> None:
    w = rand(64, 64)
    shared, copied = constant(w.array), constant(w.array.copy())

    def build(second: Constant):  # noqa: ANN202
        return lambda g, x: g.add(g.linear(x, w), g.linear(x, second))

    assert ops_of(eliminate_common_subexpressions(graph(build(shared), x=(2, 64)))) == [
        "linear",
        "add",
    ]
    check_unchanged(eliminate_common_subexpressions, graph(build(copied), x=(2, 64)))


def test_the_first_of_equal_calls_stays() -> None:
    check_text(
        eliminate_common_subexpressions,
        """
        @R.function
        def main(x: R.Tensor((4,), "float32")):
            a = R.exp(x)
            b = R.exp(x)
            c = R.neg(a)
            d = R.neg(b)
            y = R.add(c, d)
            return y
        """,
        """
        @R.function
        def main(x: R.Tensor((4,), "float32")):
            a = R.exp(x)
            c = R.neg(a)
            y = R.add(c, c)
            return y
        """,
    )
