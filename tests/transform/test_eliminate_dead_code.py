"""eliminate_dead_code: what nothing reads."""

from __future__ import annotations

from tensorkiln.ir.relax import (
    RVar,
)
from tensorkiln.kernels.case import Graph
from tensorkiln.transform.relax.eliminate_dead_code import eliminate_dead_code
from tests.transform.graphs import check, check_text, check_unchanged, graph


def test_dead_code() -> None:
    def build(g: Graph, x: RVar) -> RVar:
        g.exp(g.neg(x))
        return g.abs(x)

    check(eliminate_dead_code, graph(build, x=(2,)), graph(lambda g, x: g.abs(x), x=(2,)))
    check_unchanged(eliminate_dead_code, graph(lambda g, x: g.abs(x), x=(2,)))


def test_unused_values_and_groups() -> None:
    check_text(
        eliminate_dead_code,
        """
        @ir_module
        class Module:
            @R.function
            def main(x: R.Tensor((4,), "float32")):
                a = R.exp(x)
                b = Module.unused(a)
                y = Module.used(x)
                return y

            @R.function(attrs={"primitive": True})
            def used(x: R.Tensor((4,), "float32")) -> R.Tensor((4,), "float32"):
                y = R.neg(x)
                return y

            @R.function(attrs={"primitive": True})
            def unused(x: R.Tensor((4,), "float32")) -> R.Tensor((4,), "float32"):
                y = R.abs(x)
                return y
        """,
        """
        @ir_module
        class Module:
            @R.function
            def main(x: R.Tensor((4,), "float32")):
                y = Module.used(x)
                return y

            @R.function(attrs={"primitive": True})
            def used(x: R.Tensor((4,), "float32")) -> R.Tensor((4,), "float32"):
                y = R.neg(x)
                return y
        """,
    )
