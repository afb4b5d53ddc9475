"""fold_constants, infer_types, and the two eliminations."""

from __future__ import annotations

import numpy as np
import pytest

from tensorkiln.base.errors import UserError
from tensorkiln.ir.attrs import Attrs
from tensorkiln.ir.expr import Binary, IntImm, Var
from tensorkiln.ir.module import IRModule
from tensorkiln.ir.relax import (
    Binding,
    Call,
    Constant,
    Function,
    GlobalRef,
    RVar,
    Tuple,
    constant,
    tensor,
)
from tensorkiln.transform.relax.eliminate_common_subexpressions import (
    eliminate_common_subexpressions,
)
from tensorkiln.transform.relax.eliminate_dead_code import eliminate_dead_code
from tensorkiln.transform.relax.fold_constants import EXPANDED_LIMIT, fold_constants
from tensorkiln.transform.relax.infer_types import infer_types
from tests.transform.graphs import (
    Graph,
    assert_same_values,
    c,
    check,
    check_unchanged,
    graph,
    main,
    ops_of,
    rand,
)

# --- fold_constants ------------------------------------------------------------------------------


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


# --- infer_types ---------------------------------------------------------------------------------


def test_extents_are_simplified() -> None:
    n = Var("n")
    spelled = Binary("add", Binary("mul", n, IntImm(2)), IntImm(0))
    x = RVar("x", tensor((Binary("mul", IntImm(2), n),), "float32"))
    y, z = (RVar(name, tensor((spelled,), "float32")) for name in "yz")
    call = graph(lambda g, v: g.exp(v), v=(1,))
    attrs = main(call).bindings[0].value.attrs  # type: ignore[union-attr]
    bindings = (Binding(y, Call("exp", (x,), attrs)), Binding(z, Call("neg", (y,), attrs)))
    f = Function("main", (x,), bindings, z)
    out = infer_types(IRModule((f,)))
    shapes = {b.var.tensor.shape for b in main(out).bindings}
    assert len(shapes) == 1 and shapes != {(spelled,)}
    assert main(out).result is main(out).bindings[-1].var
    assert infer_types(out) is out


@pytest.mark.parametrize("declared", [((3,), "float32"), ((2,), "float64"), ((2, 1), "float32")])
def test_wrong_types_are_errors_of_the_module(declared: tuple[tuple[int, ...], str]) -> None:
    mod = graph(lambda g, x: g.exp(x), x=(2,))
    b = main(mod).bindings[0]
    wrong = RVar("wrong", tensor(*declared))
    f = Function("main", main(mod).params, (Binding(wrong, b.value),), wrong)
    with pytest.raises(UserError, match=r"declared .*, derived float32\[2\]") as caught:
        infer_types(IRModule((f,)))
    assert caught.value.where == "main/bindings[0] wrong"


def test_operands_that_do_not_fit_are_errors_of_the_module() -> None:
    x, y = (RVar(n, tensor((k,), "float32")) for n, k in (("x", 2), ("y", 3)))
    z = RVar("z", x.type)
    f = Function("main", (x, y), (Binding(z, Call("add", (x, y), Attrs())),), z)
    with pytest.raises(UserError, match="operator add: .*expected an extent of 2") as caught:
        infer_types(IRModule((f,)))
    assert caught.value.where == "main/bindings[0] z"


def test_calls_of_functions_have_their_result_type() -> None:
    inner = main(graph(lambda g, x: g.exp(x), x=(2,)))
    fused = Function("fused", inner.params, inner.bindings, inner.result, Attrs.of(primitive=True))
    x, y = RVar("x", tensor((2,), "float32")), RVar("y", tensor((2,), "float32"))
    outer = Function("main", (x,), (Binding(y, Call(GlobalRef("fused"), (x,))),), y)
    mod = IRModule((outer, fused))
    assert infer_types(mod) is mod
    assert eliminate_dead_code(mod) is mod
    alone = IRModule((Function("main", (x,), (), x), fused))
    assert list(eliminate_dead_code(alone)) == ["main"]


# --- eliminations --------------------------------------------------------------------------------


def test_dead_code() -> None:
    def build(g: Graph, x: RVar) -> RVar:
        g.exp(g.neg(x))
        return g.abs(x)

    check(eliminate_dead_code, graph(build, x=(2,)), graph(lambda g, x: g.abs(x), x=(2,)))
    check_unchanged(eliminate_dead_code, graph(lambda g, x: g.abs(x), x=(2,)))


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
