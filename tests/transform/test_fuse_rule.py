"""Rules of a caller's for fusion, and for rewriting: what they join, keep apart and refuse."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tensorkiln as tk
from tensorkiln.base.errors import UserError
from tensorkiln.ir.module import IRModule
from tensorkiln.kernels.case import rand
from tensorkiln.ops.evaluate import evaluate
from tensorkiln.passes import pass_name
from tensorkiln.pipeline import relax_passes
from tensorkiln.transform.relax.fuse_ops import FuseOps
from tensorkiln.transform.relax.fuse_rule import FuseRule
from tensorkiln.transform.rewriting.rewrite import RewriteOps, Rule
from tests.transform.graphs import arguments, graph, ops_of

NATIVE = tk.Target("native")
CONV = {"strides": (1, 1), "padding": (1, 1, 1, 1), "dilation": (1, 1), "groups": 1}


def groups(mod: IRModule, *rules: FuseRule, default: bool = True) -> list[list[str]]:
    """Operators of each fused group, in order."""
    fused = FuseOps(NATIVE, tuple(rules), default)(mod)
    return [[b.value.op for b in f.bindings] for f in fused.functions if f.is_primitive]


def numbers_hold(mod: IRModule, *rules: FuseRule) -> tk.Executable:
    """Compile with the rules in the whole pipeline and compare with float64."""
    passes = [
        FuseOps(NATIVE, tuple(rules)) if pass_name(p) == "fuse_ops" else p
        for p in relax_passes(NATIVE)
    ]
    exe = tk.compile(mod, relax_pipeline=passes)
    inputs = arguments(mod)
    (want,) = evaluate(mod, inputs, dtype="float64")
    have = tk.runtime.Executor(exe, tk.cpu())["main"](*inputs.values()).numpy()
    np.testing.assert_allclose(have, want, rtol=3e-5, atol=3e-6)
    return exe


POOL = graph(lambda g, x: g.relu(g.max_pool2d(x, kernel=(2, 2))), x=(1, 16, 6, 6))
SOFT = graph(lambda g, x: g.mul(g.softmax(x, axis=-1), 3.0), x=(5, 7))
STEM = graph(
    lambda g, x: g.sigmoid(
        g.relu(g.max_pool2d(g.conv2d(x, rand(16, 3, 3, 3), **CONV), kernel=(2, 2)))
    ),
    x=(1, 3, 8, 8),
)


def test_a_rule_joins_what_fusion_keeps_apart() -> None:
    rule = FuseRule("mul(softmax(x), y)")
    assert groups(SOFT) == [["softmax"], ["mul"]]
    assert groups(SOFT, rule) == [["softmax", "mul"]]
    exe = numbers_hold(SOFT, rule)
    assert [k.kernel for k in exe.placement()] == ["softmax_mul"]


def test_a_rule_that_asks_for_what_is_done_anyway_keeps_the_schedule() -> None:
    rule = FuseRule("relu(max_pool2d(x))")
    assert groups(POOL, rule) == groups(POOL) == [["max_pool2d", "relu"]]
    assert numbers_hold(POOL, rule).kernels == tk.compile(POOL).kernels


def test_a_rule_over_three_operators_stops_at_the_second_anchor() -> None:
    rule = FuseRule("sigmoid(relu(max_pool2d(conv2d(*_))))")
    assert groups(STEM, rule) == [["conv2d"], ["max_pool2d", "relu", "sigmoid"]]
    numbers_hold(STEM, rule)


def test_a_rule_keeps_apart() -> None:
    mod = graph(lambda g, x: g.relu(g.exp(x)), x=(4,))
    assert groups(mod) == [["exp", "relu"]]
    apart = FuseRule("relu(exp(x))", fuse=False)
    assert groups(mod, apart) == [["exp"], ["relu"]]
    # The first rule that fits decides.
    assert groups(mod, FuseRule("relu(exp(x))"), apart) == [["exp", "relu"]]
    numbers_hold(mod, apart)


def test_a_value_read_twice_is_not_fused() -> None:
    def build(g: Any, x: Any) -> Any:
        p = g.softmax(x, axis=-1)
        return g.add(g.exp(p), p)

    mod = graph(build, x=(4, 6))
    rule = FuseRule("exp(softmax(x))")
    assert groups(mod, rule) == groups(mod)
    numbers_hold(mod, rule)


def test_only_the_rules() -> None:
    mod = graph(lambda g, x: g.neg(g.relu(g.exp(x))), x=(4,))
    assert groups(mod, default=False) == [["exp"], ["relu"], ["neg"]]
    rule = FuseRule("relu(exp(x))")
    assert groups(mod, rule, default=False) == [["exp", "relu"], ["neg"]]


@pytest.mark.parametrize(
    ("text", "code", "says"),
    [
        ("relu(", "bad-rule", "is not a pattern"),
        ("relu(x) + y", "bad-rule", "is not a pattern"),
        ("relu(x)", "bad-rule", "no operator inside an operator"),
        ("x", "bad-rule", "matches no call"),
        ("(y := relu(exp(x)))", "bad-rule", "matches no call"),
        ("relu(exp(x)) | (y := relu(neg(x)))", "bad-rule", "matches no call"),
        ("relu(exp(x)) | x", "bad-rule", "matches no call"),
        ("rellu(conv2d(*_))", "unknown-operator", "no operator is called 'rellu'"),
    ],
)
def test_what_is_no_rule(text: str, code: str, says: str) -> None:
    with pytest.raises(UserError, match=says) as caught:
        FuseOps(NATIVE, (FuseRule(text),))(POOL)
    assert caught.value.code == code and caught.value.where == "FuseRule"
    assert "relu" in caught.value.hint


def test_rewriting_rows_of_a_caller() -> None:
    mod = graph(lambda g, x: g.mul(x, g.clip(g.add(x, 1.0), min=0.0, max=1.0)), x=(8,))
    rule = Rule("mul(x, clip(add(x, 1), min=0.0, max=1.0))", "mul(x, sigmoid(mul(x, 2)))")
    new = RewriteOps((rule,))(mod)
    assert ops_of(new) == ["mul", "sigmoid", "mul"]
    assert RewriteOps((rule,))(new) is new
    for before, after in (("mull(x, x)", "x"), ("mul(x, x)", "sqare(x)")):
        with pytest.raises(UserError, match="no operator is called") as caught:
            RewriteOps((Rule(before, after),))(mod)
        assert caught.value.where == "Rule"
    for before in ("x", "W", "2", "(y := mul(x, x))", "mul(x, x) | x", "neg(x) | (exp(x) | y)"):
        with pytest.raises(UserError, match="matches no call") as caught:
            RewriteOps((Rule(before, "neg(x)"),))(mod)
        assert caught.value.code == "bad-rule" and caught.value.where == "Rule"
