"""Pipelines by name, and what a name means for a target."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import tensorkiln as tk
from tensorkiln.base.errors import UserError
from tensorkiln.external.example import C_REFERENCE
from tensorkiln.ir.module import IRModule
from tensorkiln.kernels.case import rand
from tensorkiln.ops.evaluate import evaluate
from tensorkiln.passes import Timing, pass_name
from tensorkiln.pipeline import (
    RELAX_PIPELINES,
    TIR_PIPELINES,
    minimal_relax_passes,
    plan_for,
    relax_passes,
)
from tensorkiln.target import register_target_kind, unregister_target_kind
from tests.transform.graphs import arguments, graph

X = np.array([-2, -0.5, 1, 3], np.float32)
MODULE = graph(lambda g, x: g.tanh(g.mul(x, 2.0)), x=(4,))


def names(what: Any) -> list[str]:
    return [pass_name(p) for p in what]


def test_the_tables() -> None:
    assert list(RELAX_PIPELINES) == ["auto", "default", "minimal", "none"]
    assert list(TIR_PIPELINES) == ["auto", "default", "none"]
    target = tk.Target("native")
    for name in ("auto", "default"):
        plan = plan_for(target, (), name, name)
        assert names(plan.relax) == names(relax_passes(target))
    assert plan_for(target, (), "none", "none").passes == ()
    assert names(plan_for(target, (), "minimal").relax) == names(minimal_relax_passes(target))


@pytest.mark.parametrize(
    ("what", "name", "hint"),
    [
        ("relax_pipeline", "minimum", "'minimal'"),
        ("relax_pipeline", "fuse_ops", "pass the pass itself"),
        ("tir_pipeline", "minimal", "pass the pass itself"),
        ("tir_pipeline", "automatic", "'auto'"),
    ],
)
def test_an_unknown_name(what: str, name: str, hint: str) -> None:
    with pytest.raises(UserError, match=f"{what}='{name}': expected 'auto', 'default'") as caught:
        tk.compile(MODULE, **{what: name})
    assert caught.value.code == "unknown-pipeline" and hint in caught.value.hint


def test_none_by_name_rejects_what_is_not_lowered() -> None:
    with pytest.raises(UserError, match="is an operator: run fuse_ops, lower_groups") as caught:
        tk.compile(MODULE, relax_pipeline="none")
    assert caught.value.code == "not-lowered"


def convolutions(g: Any, x: Any) -> Any:
    conv = {"strides": (1, 1), "padding": (1, 1, 1, 1), "dilation": (1, 1), "groups": 1}
    h = g.relu(g.conv2d(x, rand(8, 3, 3, 3), **conv))
    pool = {"kernel": (2, 2), "strides": (2, 2), "padding": (0, 0, 0, 0)}
    h = g.max_pool2d(h, **pool)
    h = g.mean(g.add(h, g.sigmoid(h)), axes=(2, 3), keepdims=False)
    return g.softmax(g.add(g.matmul(h, rand(8, 5)), rand(5)), axis=-1)


def attention(g: Any, q: Any, k: Any, v: Any) -> Any:
    s = g.matmul(q, g.transpose(k, axes=(0, 1, 3, 2)))
    return g.matmul(g.softmax(g.mul(s, 0.35), axis=-1), v)


@pytest.mark.parametrize(
    "mod",
    [
        graph(convolutions, x=(2, 3, 8, 8)),
        graph(attention, q=(1, 2, 5, 8), k=(1, 2, 7, 8), v=(1, 2, 7, 8)),
        graph(lambda g, x: g.gelu(g.layer_norm(x, rand(6), rand(6), axis=-1, eps=1e-5)), x=(3, 6)),
        graph(lambda g, x: g.concat(x, g.transpose(x, axes=(1, 0)), axis=1), x=(4, 4)),
    ],
    ids=["convolutions", "attention", "layer_norm", "concat"],
)
def test_the_minimal_pipeline_computes_the_same(mod: IRModule) -> None:
    inputs = arguments(mod)
    exe = tk.compile(mod, relax_pipeline="minimal")
    (want,) = evaluate(mod, inputs, dtype="float64")
    have = tk.runtime.Executor(exe, tk.cpu())["main"](*inputs.values()).numpy()
    np.testing.assert_allclose(have, want, rtol=2e-5, atol=2e-6)
    calls = exe.module.plan("main").calls
    assert len(calls) == len(mod.graphs[0].bindings)  # a kernel per operator


@pytest.fixture
def kind() -> Iterator[Any]:
    yield lambda **hooks: register_target_kind("mine", "cpu", **hooks)
    unregister_target_kind("mine")


def test_a_kinds_own_pipeline_sees_the_callers_externals(kind: Any) -> None:
    given: list[Any] = []

    def mine(target: Any, externals: Any) -> Any:
        given.append(tuple(externals))
        return relax_passes(target, externals)

    kind(relax_codegen=lambda target: [], relax_pipeline=mine)
    exe = tk.compile(MODULE, "mine", externals=[C_REFERENCE])
    assert given == [(C_REFERENCE,)]
    assert [f.external for f in exe.module.externals] == ["c_reference"]
    assert tk.compile(MODULE, "mine").module.externals == ()


def test_default_is_ours_whatever_the_kind_says(kind: Any) -> None:
    def never(*given: Any) -> Any:
        raise AssertionError("asked")

    kind(relax_codegen=lambda target: [], relax_pipeline=never, tir_pipeline=never)
    timing = Timing()
    exe = tk.compile(
        MODULE, "mine", relax_pipeline="default", tir_pipeline="default", instruments=[timing]
    )
    np.testing.assert_allclose(
        tk.runtime.Executor(exe, tk.cpu())["main"](X).numpy(), np.tanh(2 * X), rtol=1e-6
    )
    with pytest.raises(UserError, match="relax_pipeline of kind 'mine' raised AssertionError"):
        tk.compile(MODULE, "mine")


def test_a_kinds_pipeline_may_be_a_name_of_no_table(kind: Any) -> None:
    kind(relax_codegen=lambda target: [], relax_pipeline=lambda target, externals: "auto")
    with pytest.raises(UserError, match="relax_pipeline='auto'"):
        tk.compile(MODULE, "mine")
