"""fold_constants: what is computed at compile time, and how far it expands."""

from __future__ import annotations

import numpy as np

from tensorkiln.ir.expr import Var
from tensorkiln.ir.module import IRModule
from tensorkiln.ir.relax import (
    Call,
    Constant,
    RVar,
    Tuple,
    constant,
    tensor,
)
from tensorkiln.kernels.case import Graph, c, rand
from tensorkiln.transform.relax.fold_constants import EXPANDED_LIMIT, LIMIT, fold_constants
from tests.transform.graphs import (
    assert_same_values,
    check,
    check_text,
    check_unchanged,
    graph,
    main,
    ops_of,
)


def operand(mod: IRModule, binding: int, position: int) -> Constant:
    """A constant operand."""
    call = main(mod).bindings[binding].value
    assert isinstance(call, Call) and isinstance(call.args[position], Constant)
    return call.args[position]


def test_arithmetic_on_constants() -> None:
    before = graph(lambda g, x: g.mul(x, g.sqrt(g.add(c([1.0, 7.0]), 2.0))), x=(2,))
    after = graph(lambda g, x: g.mul(x, np_sqrt([3.0, 9.0])), x=(2,))
    check(fold_constants, before, after, rtol=1e-7)


def np_sqrt(values: list[float]) -> Constant:
    """The constant that float32 arithmetic gives."""
    return constant(np.sqrt(np.asarray(values, np.float32)))


def test_computes_in_the_declared_type() -> None:
    mod = fold_constants(graph(lambda g, x: g.add(x, g.add(c(1e8), 1.0)), x=(2,)))
    assert operand(mod, 0, 1).array == np.float32(1e8) + np.float32(1)


def test_transposed_weights_are_views() -> None:
    w = rand(300, 200)
    out = fold_constants(graph(lambda g, x: g.matmul(x, g.transpose(w, axes=(1, 0))), x=(4, 200)))
    assert ops_of(out) == ["matmul"]
    folded = operand(out, 0, 1)
    assert np.shares_memory(folded.array, w.array)
    assert folded.type.static_shape() == (200, 300)


def test_results_become_constants() -> None:
    mod = graph(lambda g, x: Tuple((x, g.neg(c([1.0])))), x=(2,))
    result = main(fold_constants(mod)).result
    assert isinstance(result, Tuple) and isinstance(result.fields[1], Constant)


def test_large_expansions_stay_unless_something_consumes_them() -> None:
    side = int((EXPANDED_LIMIT / 4) ** 0.5) + 1
    wide = graph(lambda g, x: g.add(x, g.full(shape=(side, side), value=2.0)), x=(side, side))
    check_unchanged(fold_constants, wide)

    def mask(g: Graph, x: RVar) -> RVar:
        rows = g.reshape(g.arange(start=0, step=1, count=side), shape=(side, 1))
        keep = g.less_equal(g.reshape(rows, shape=(1, side)), rows)
        return g.where(keep, x, g.full(shape=(side, side), value=-1.0))

    out = fold_constants(graph(mask, x=(side, side)))
    assert ops_of(out) == ["full", "where"]
    keep = operand(out, 1, 0).array
    assert keep.dtype == bool and np.array_equal(keep, np.tri(side, dtype=bool))


def test_symbolic_results_stay() -> None:
    n = Var("n")
    mod = graph(
        lambda g, x: g.add(x, g.arange(start=0, step=1, count=n, dtype="float32")),
        x=tensor((n,), "float32"),
    )
    check_unchanged(fold_constants, mod)


def test_random_constant_graphs() -> None:
    def build(g: Graph, x: RVar) -> RVar:
        w = g.concat(
            rand(3, 4), g.slice(rand(5, 4), begin=(1, 0), strides=(2, 1), shape=(2, 4)), axis=0
        )
        return g.linear(x, g.transpose(g.mul(w, rand(4)), axes=(1, 0)))

    mod = graph(build, x=(2, 4))
    out = fold_constants(mod)
    assert ops_of(out) == ["linear"]
    assert_same_values(mod, out, rtol=1e-6)


def test_what_only_constants_decide() -> None:
    check_text(
        fold_constants,
        """
        @R.function
        def main(x: R.Tensor((2,), "float32")):
            two = R.add(R.const(1.0, "float32"), R.const(1.0, "float32"))
            y = R.mul(x, two)
            return y
        """,
        """
        @R.function
        def main(x: R.Tensor((2,), "float32")):
            y = R.mul(x, R.const(2.0, "float32"))
            return y
        """,
    )


def test_tensors_of_nothing_need_no_kernels() -> None:
    """Of a symbolic extent too, where there is no constant of them."""
    n = Var("n")

    def build(g: Graph, x: RVar) -> RVar:
        zero_product = g.matmul(x, c(np.zeros((4, 0), np.float32)))
        return g.pad(zero_product, before=(0, 1), after=(0, 2), value=2.0)

    mod = graph(build, x=tensor((n, 4), "float32"))
    assert ops_of(fold_constants(mod)) == ["full", "pad"]
    static = graph(build, x=(2, 4))
    assert ops_of(fold_constants(static)) == []


def test_results_that_double_are_folded_up_to_a_limit() -> None:
    def doubled(g: Graph, x: RVar) -> RVar:
        v: RVar | Constant = c(np.ones(8, np.float32))
        for _ in range(36):
            v = g.concat(v, v, axis=0)
        return g.add(x, g.max(v, axes=(0,), keepdims=True))

    mod = graph(doubled, x=(2,))
    for _ in range(2):  # as often as the pipeline runs it
        mod = fold_constants(mod)
    assert ops_of(mod)[-3:] == ["concat", "max", "add"]
    assert operand(mod, 0, 0).array.nbytes == LIMIT
