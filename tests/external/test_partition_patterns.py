"""Groups of operators that an external matches: which function they become, and that the graph
means what it did."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tensorkiln.base.errors import UserError
from tensorkiln.external import Definitions, External, PartitionPatterns, Refused, Taken
from tensorkiln.external.match import Match
from tensorkiln.ir.equal import first_difference
from tensorkiln.ir.module import IRModule
from tensorkiln.ir.relax import Binding, Call, Constant, GlobalRef, Tuple
from tensorkiln.ir.text.printer import constant_table
from tensorkiln.ir.verify import verify
from tensorkiln.kernels.case import Graph, rand
from tensorkiln.script import from_source, print_module
from tensorkiln.target import Target
from tests.transform.graphs import assert_same_values, graph
from tests.transform.test_random_graphs import modules

TARGET = Target("llvm")


def external(match: Match, name: str = "mine") -> External:
    return External(name, lambda call, target: False, lambda f, symbol: (), match=match)


def partition(mod: IRModule, *externals: External) -> IRModule:
    after = PartitionPatterns(TARGET, externals)(mod)
    verify(after)
    return after


def pair(order: tuple[int, ...] = (), weights: bool = True) -> Match:
    """Take neg(add(x, w)), refuse an add that others read too."""

    def match(b: Binding, graph: Definitions, target: Target) -> Taken | Refused | None:
        call = b.value
        assert isinstance(call, Call) and target is TARGET
        if call.op != "add":
            return None
        reader = graph.reader(b.var)
        if reader is None or reader.value.op != "neg":  # type: ignore[union-attr]
            return Refused("nothing negates it")
        constants = tuple(a for a in call.args if isinstance(a, Constant) and weights)
        values = [*call.args, reader.var] if order else []
        orders = {v: order for v in values if v.tensor.ndim == len(order)}  # type: ignore[union-attr]
        return Taken("pair", (b, reader), constants, orders)  # type: ignore[arg-type]

    return match


def calls(mod: IRModule) -> list[str]:
    (f,) = mod.graphs
    return [
        b.value.callee.name if isinstance(b.value.callee, GlobalRef) else b.value.op  # type: ignore[union-attr]
        for b in f.bindings
    ]


def test_a_group_becomes_one_function() -> None:
    before = graph(lambda g, x: g.tanh(g.neg(g.add(x, rand(2, 3)))), x=(2, 3))
    after = partition(before, external(pair()))
    assert calls(after) == ["mine_pair", "tanh"]
    (f,) = after.externals
    assert [p.tensor.ndim for p in f.params] == [2, 2] and f.is_primitive
    assert_same_values(before, after)


def test_constants_that_are_no_weights_stay_inside() -> None:
    before = graph(lambda g, x: g.neg(g.add(x, rand(2, 3))), x=(2, 3))
    after = partition(before, external(pair(weights=False)))
    (f,) = after.externals
    assert len(f.params) == 1
    assert_same_values(before, after)


def test_functions_differ_by_the_constants_inside() -> None:
    def build(g: Graph, x: Any) -> Any:
        for seed in (1, 2, 1):
            x = g.tanh(g.neg(g.add(x, rand(50, seed=seed))))
        return x

    after = partition(graph(build, x=(50,)), external(pair(weights=False)))
    assert calls(after)[::2] == ["mine_pair", "mine_pair_2", "mine_pair"]


def test_neighbours_hand_each_other_the_stored_form() -> None:
    def build(g: Graph, x: Any) -> Any:
        for seed in (1, 2, 3):
            x = g.neg(g.add(x, rand(2, 3, 4, seed=seed)))
        return x

    before = graph(build, x=(2, 3, 4))
    after = partition(before, external(pair((2, 0, 1))))
    assert calls(after) == ["transpose", *["mine_pair"] * 3, "transpose"]
    (f,) = after.externals  # the weights are parameters, so that one function computes all three
    assert [p.tensor.static_shape() for p in f.params] == [(4, 2, 3), (4, 2, 3)]
    assert_same_values(before, after)


def test_a_value_that_others_read_is_there_in_both_forms() -> None:
    def build(g: Graph, x: Any) -> Any:
        y = g.neg(g.add(x, 1.0))
        return Tuple((y, g.neg(g.add(y, 2.0)), g.tanh(y)))

    before = graph(build, x=(2, 3))
    after = partition(before, external(pair((1, 0))))
    assert calls(after).count("transpose") == 3  # of the parameter, and back of both results
    assert_same_values(before, after)


def test_what_is_refused_is_written_down() -> None:
    before = graph(lambda g, x: g.tanh(g.add(x, 1.0)), x=(2,))
    after = partition(before, external(pair()), external(lambda b, g, t: None, "other"))
    assert after.externals == ()
    (main,) = after.graphs
    assert main.attrs.refused == (("mine", "node add", "nothing negates it"),)


def test_the_first_external_wins() -> None:
    before = graph(lambda g, x: g.neg(g.add(x, 1.0)), x=(2,))
    after = partition(before, external(pair(), "one"), external(pair(), "two"))
    assert calls(after) == ["one_pair"]


def test_externals_without_match_change_nothing() -> None:
    before = graph(lambda g, x: g.neg(g.add(x, 1.0)), x=(2,))
    plain = External("plain", lambda call, target: True, lambda f, s: ())
    assert PartitionPatterns(TARGET, (plain,))(before) is before
    assert PartitionPatterns(TARGET, (external(lambda b, g, t: None),))(before) is before


def test_values_that_nobody_reads_any_more_are_dropped() -> None:
    def copies(b: Binding, graph: Definitions, target: Target) -> Taken | None:
        """Take neg with the exp that it reads, which others may read too."""
        call = b.value
        producer = graph.binding(call.args[0]) if call.op == "neg" else None  # type: ignore[union-attr]
        return Taken("both", (producer, b)) if producer is not None else None

    def build(g: Graph, x: Any) -> Any:
        y = g.exp(x)
        return Tuple((g.neg(y), g.neg(y)))

    before = graph(build, x=(3,))
    after = partition(before, external(copies))
    assert calls(after) == ["mine_both", "mine_both"]  # each computes it
    assert_same_values(before, after)


def _bad(change: Any) -> Match:
    def match(b: Binding, graph: Definitions, target: Target) -> Taken | None:
        return change(b) if b.value.op in ("add", "neg") else None  # type: ignore[union-attr]

    return match


STRANGER = graph(lambda g, x: g.neg(x), x=(2, 3)).graphs[0].bindings[0]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda b: Taken("x", ()), "bindings that are not calls of this graph"),
        (lambda b: Taken("x", (STRANGER,)), "bindings that are not calls of this graph"),
        (lambda b: Taken("x", (b, b)), "bindings that are not calls of this graph"),
        (lambda b: Taken("x", (b,), (), {b.var: (0, 0)}), "an order that is not one of all"),
        (lambda b: Taken("x", (b,), (), {b.var: (0,)}), "an order that is not one of all"),
    ],
)
def test_a_group_that_cannot_become_a_function(change: Any, says: str) -> None:
    mod = graph(lambda g, x: g.neg(g.add(x, 1.0)), x=(2, 3))
    with pytest.raises(UserError, match=says) as caught:
        partition(mod, external(_bad(change)))
    assert caught.value.code == "bad-external"
    assert "external 'mine': match(add)" in str(caught.value)


@settings(max_examples=60)
@given(modules(), st.booleans())
def test_any_graph_keeps_its_meaning_and_its_text(mod: IRModule, reverse: bool) -> None:
    def chains(b: Binding, graph: Definitions, target: Target) -> Taken | None:
        """Take every unary operator with the one that alone reads it."""
        call, reader = b.value, graph.reader(b.var)
        unary = ("neg", "relu", "tanh", "abs", "sigmoid")
        if reader is None or call.op not in unary or reader.value.op not in unary:  # type: ignore[union-attr]
            return None
        ends = (call.args[0], reader.var)  # type: ignore[union-attr]
        ndim = b.var.tensor.ndim
        order = tuple(reversed(range(ndim)))
        orders = {v: order for v in ends if not isinstance(v, Constant)} if reverse else {}
        return Taken("chain", (b, reader), (), orders)  # type: ignore[arg-type]

    after = partition(mod, external(chains))
    assert_same_values(mod, after)
    read = from_source(print_module(after), constants=constant_table(after))  # type: ignore[arg-type]
    assert first_difference(read, after) is None
