"""Which calls an external gets, and that the graph means what it did."""

from __future__ import annotations

from collections.abc import Collection

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tensorkiln.base.errors import UserError
from tensorkiln.external import External, PartitionExternals, symbols
from tensorkiln.ir.equal import first_difference
from tensorkiln.ir.expr import Var
from tensorkiln.ir.module import IRModule
from tensorkiln.ir.relax import Call, Function, GlobalRef, ShapeValue, Tuple, tensor
from tensorkiln.ir.text.printer import constant_table
from tensorkiln.ir.verify import verify
from tensorkiln.kernels.case import c, rand
from tensorkiln.script import from_source, print_module
from tensorkiln.target import Target
from tests.transform.graphs import assert_same_values, graph
from tests.transform.test_random_graphs import modules

TARGET = Target("llvm")


def takes(name: str, ops: Collection[str], merge: bool = True) -> External:
    return External(name, lambda call, target: call.op in ops, lambda f, symbol: (), merge=merge)


def partition(mod: IRModule, *externals: External) -> IRModule:
    after = PartitionExternals(TARGET, tuple(externals))(mod)
    verify(after)
    return after


def made(mod: IRModule) -> dict[str, list[str]]:
    """The operators of each external function."""
    return {
        f.name: [b.value.op for b in f.bindings]  # type: ignore[union-attr]
        for f in mod.externals
    }


def graph_ops(mod: IRModule) -> list[str]:
    """What the graph still calls, functions by name."""
    (f,) = mod.graphs
    calls = [b.value for b in f.bindings]
    return [
        v.callee.name if isinstance(v.callee, GlobalRef) else v.op  # type: ignore[union-attr]
        for v in calls
    ]


def test_a_chain_becomes_one_function() -> None:
    before = graph(lambda g, x, y: g.tanh(g.relu(g.add(x, g.neg(y)))), x=(2, 3), y=(2, 3))
    after = partition(before, takes("mine", {"add", "relu", "neg"}))
    assert made(after) == {"mine_neg_add_relu": ["neg", "add", "relu"]}
    assert graph_ops(after) == ["mine_neg_add_relu", "tanh"]
    f = after["mine_neg_add_relu"]
    assert isinstance(f, Function) and f.is_primitive and f.external == "mine"
    assert len(f.params) == 2
    (main,) = after.graphs
    call = main.bindings[0].value
    assert isinstance(call, Call) and call.span == "node relu"


def test_without_merge_every_call_is_alone() -> None:
    before = graph(lambda g, x: g.relu(g.add(x, 1.0)), x=(2, 3))
    after = partition(before, takes("mine", {"add", "relu"}, merge=False))
    assert made(after) == {"mine_add": ["add"], "mine_relu": ["relu"]}


def test_what_others_read_is_a_function_of_its_own() -> None:
    def build(g, x):  # noqa: ANN001, ANN202
        y = g.add(x, 1.0)
        return g.mul(g.relu(y), g.tanh(y))

    after = partition(graph(build, x=(4,)), takes("mine", {"add", "relu", "mul"}))
    assert made(after) == {"mine_add": ["add"], "mine_relu_mul": ["relu", "mul"]}
    assert graph_ops(after) == ["mine_add", "tanh", "mine_relu_mul"]


def test_a_returned_value_is_not_hidden() -> None:
    def build(g, x):  # noqa: ANN001, ANN202
        y = g.add(x, 1.0)
        return Tuple((y, g.relu(y)))

    after = partition(graph(build, x=(4,)), takes("mine", {"add", "relu"}))
    assert made(after) == {"mine_add": ["add"], "mine_relu": ["relu"]}


def test_a_value_read_twice_by_one_call_is_merged() -> None:
    def build(g, x):  # noqa: ANN001, ANN202
        y = g.add(x, 1.0)
        return g.mul(y, y)

    after = partition(graph(build, x=(4,)), takes("mine", {"add", "mul"}))
    assert made(after) == {"mine_add_mul": ["add", "mul"]}


def test_the_first_external_wins_and_neighbours_do_not_mix() -> None:
    before = graph(lambda g, x: g.neg(g.relu(g.add(x, 1.0))), x=(4,))
    after = partition(before, takes("one", {"relu"}), takes("two", {"add", "relu", "neg"}))
    assert made(after) == {"two_add": ["add"], "one_relu": ["relu"], "two_neg": ["neg"]}


def test_equal_functions_are_one() -> None:
    def build(g, x):  # noqa: ANN001, ANN202
        y = g.tanh(g.relu(g.add(x, rand(4, seed=1))))
        return g.relu(g.add(y, rand(4, seed=2)))

    after = partition(graph(build, x=(4,)), takes("mine", {"add", "relu"}))
    assert list(made(after)) == ["mine_add_relu"]
    assert graph_ops(after) == ["mine_add_relu", "tanh", "mine_add_relu"]


def test_names_do_not_clash() -> None:
    def build(g, x):  # noqa: ANN001, ANN202
        return g.relu(g.tanh(g.relu(g.concat(x, x, axis=0))))

    after = partition(graph(build, x=(4, 3)), takes("mine", {"relu"}))
    assert list(made(after)) == ["mine_relu"]
    twice = partition(after, takes("mine", {"tanh"}), takes("mine_relu", {"concat"}))
    assert list(made(twice)) == ["mine_relu", "mine_relu_concat", "mine_tanh"]


def test_numbers_stay_inside_and_weights_are_passed() -> None:
    before = graph(lambda g, x: g.add(g.mul(x, 0.5), rand(3)), x=(2, 3))
    after = partition(before, takes("mine", {"add", "mul"}))
    (f,) = after.externals
    assert [p.tensor.ndim for p in f.params] == [2, 1]


def test_symbolic_dimensions_are_passed_in_order() -> None:
    n, m = Var("n"), Var("m")
    types = {"x": tensor((n, m), "float32"), "y": tensor((m,), "float32")}
    after = partition(graph(lambda g, x, y: g.add(x, y), **types), takes("mine", {"add"}))
    (f,) = after.externals
    assert symbols(f) == (n, m)
    (main,) = after.graphs
    call = main.bindings[0].value
    assert isinstance(call, Call) and call.args[-1] == ShapeValue((n, m))


def test_nothing_taken_is_the_same_module() -> None:
    before = graph(lambda g, x: g.relu(x), x=(2,))
    assert PartitionExternals(TARGET, ())(before) is before
    assert PartitionExternals(TARGET, (takes("mine", {"add"}),))(before) is before


def test_supports_sees_the_target() -> None:
    targets = []
    mine = External("mine", lambda call, target: bool(targets.append(target)), lambda f, s: ())
    partition(graph(lambda g, x: g.relu(x), x=(2,)), mine)
    assert targets == [TARGET]


@pytest.mark.parametrize("name", ["", "two words", "a-b", "1st", "naïve"])
def test_a_name_is_an_identifier(name: str) -> None:
    with pytest.raises(UserError, match="a letter and at most 63 letters"):
        takes(name, ())


@settings(max_examples=60)
@given(
    modules(),
    st.sets(st.sampled_from(["neg", "relu", "add", "sub", "mul", "tanh", "transpose", "sum"])),
    st.booleans(),
)
def test_any_graph_keeps_its_meaning_and_its_text(mod: IRModule, ops: set[str], both: bool) -> None:
    externals = [takes("mine", ops)]
    if both:
        externals.append(takes("other", {"abs", "sigmoid", "maximum", "reshape"}, merge=False))
    after = partition(mod, *externals)
    assert_same_values(mod, after)
    read = from_source(print_module(after), constants=constant_table(after))  # type: ignore[arg-type]
    assert first_difference(read, after) is None


def test_a_constant_of_one_element_is_kept_exactly() -> None:
    after = partition(graph(lambda g, x: g.mul(x, c(0.1)), x=(2,)), takes("mine", {"mul"}))
    (f,) = after.externals
    assert len(f.params) == 1
