"""The engine that applies tables of rules."""

from __future__ import annotations

import pytest

from tensorkiln.base.errors import InternalError
from tensorkiln.ir.module import IRModule
from tensorkiln.ir.relax import Binding, Call, Function, Tuple
from tensorkiln.kernels.case import Graph, c
from tensorkiln.transform.rewriting.graph import forward_aliases, live, use_counts
from tensorkiln.transform.rewriting.rewrite import Match, Rule, rewrite
from tests.transform.graphs import graph, main, ops_of


def test_the_binding_keeps_its_variable_and_span() -> None:
    mod = graph(lambda g, x: g.exp(g.neg(x)), x=(2,))
    before = main(mod).bindings[1]
    out = rewrite(mod, [Rule("exp(neg(x))", "reciprocal(exp(x))")])
    assert ops_of(out) == ["exp", "reciprocal"]
    last = main(out).bindings[-1]
    assert last.var is before.var and main(out).result is before.var
    assert [b.value.span for b in main(out).bindings] == ["node exp", "node exp"]


def test_a_value_that_exists_replaces_the_binding() -> None:
    mod = graph(lambda g, x: g.identity(x), x=(2,))
    out = rewrite(mod, [Rule("identity(x)", "x")])
    assert main(out).bindings == () and main(out).result is main(mod).params[0]


def test_results_in_tuples_are_replaced() -> None:
    def build(g: Graph, x):  # noqa: ANN001, ANN202
        return Tuple((g.identity(x), g.neg(x)))

    out = rewrite(graph(build, x=(2,)), [Rule("identity(x)", "x")])
    result = main(out).result
    assert isinstance(result, Tuple) and result.fields[0] is main(out).params[0]


def test_a_rule_that_changes_the_type_does_not_fit() -> None:
    wide = graph(lambda g, x: g.mul(x, c([[1.0], [1.0]])), x=(3,))
    rule = Rule("mul(x, 1)", "x")
    assert rewrite(wide, [rule]) is wide
    same_type_graph = graph(lambda g, x: g.mul(x, c([[1.0], [1.0]])), x=(2, 3))
    assert ops_of(rewrite(same_type_graph, [rule])) == []


def test_what_a_rule_built_is_undone_when_it_does_not_fit() -> None:
    def build(m: Match):  # noqa: ANN202
        m.emit("exp", m["x"])
        return m.emit("sum", m.emit("exp", m["x"]), axes=(0,), keepdims=False)

    mod = graph(lambda g, x: g.neg(x), x=(3,))
    assert rewrite(mod, [Rule("neg(x)", build)]) is mod


def test_rules_apply_to_what_rules_build() -> None:
    rules = [Rule("neg(x)", "exp(abs(x))"), Rule("abs(x)", "relu(x)")]
    assert ops_of(rewrite(graph(lambda g, x: g.neg(x), x=(3,)), rules)) == ["relu", "exp"]


def test_single_use_is_counted_over_the_whole_function() -> None:
    rule = Rule("exp(y := neg(x))", "reciprocal(exp(x))", lambda m: m.once("y"))
    shared = graph(lambda g, x: g.add(g.exp(y := g.neg(x)), y), x=(3,))
    assert rewrite(shared, [rule]) is shared
    result = graph(lambda g, x: Tuple((g.exp(y := g.neg(x)), y)), x=(3,))
    assert rewrite(result, [rule]) is result


def test_uses_that_a_rule_freed_count_as_free() -> None:
    rules = [
        Rule("identity(x)", "x"),
        Rule("exp(y := neg(x))", "reciprocal(exp(x))", lambda m: m.once("y")),
    ]
    mod = graph(lambda g, x: g.exp(g.identity(g.neg(x))), x=(3,))
    assert ops_of(rewrite(mod, rules)) == ["exp", "reciprocal"]


def test_endless_rules_are_an_internal_error_that_names_the_rule() -> None:
    mod = graph(lambda g, x: g.neg(x), x=(3,))
    flip = [Rule("neg(x)", "abs(x)"), Rule("abs(x)", "neg(x)")]
    with pytest.raises(InternalError, match=r"never reach a fixed point.*neg\(x\)|abs\(x\)"):
        rewrite(mod, flip)


def test_primitive_functions_are_left_alone() -> None:
    f = main(graph(lambda g, x: g.identity(x), x=(2,)))
    fused = Function("fused", f.params, f.bindings, f.result, type(f.attrs).of(primitive=True))
    mod = IRModule((fused,))
    assert rewrite(mod, [Rule("identity(x)", "x")]) is mod


def test_live_and_use_counts() -> None:
    g = Graph()
    x = g.param("x", main(graph(lambda g, x: x, x=(2,))).params[0].type)
    y = g.exp(x)
    g.neg(y)
    f = g.finish(g.add(y, y))
    uses = use_counts(f)
    assert uses[y] == 3 and uses[x] == 1
    live_function = live(f)
    assert [b.value.op for b in live_function.bindings if isinstance(b.value, Call)] == [
        "exp",
        "add",
    ]
    assert live(live_function) is live_function


def test_aliases_are_forwarded() -> None:
    g = Graph()
    x = g.param("x", main(graph(lambda g, x: x, x=(2,))).params[0].type)
    y = g.bind(x, x.type, "alias")
    f = g.finish(g.exp(y))
    out = forward_aliases(f)
    assert len(out.bindings) == 1
    assert isinstance(out.bindings[0], Binding) and out.bindings[0].value.args == (x,)
    assert forward_aliases(out) is out
