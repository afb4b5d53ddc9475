"""Workloads: the kernels of a model, each by itself, as text."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import tensorkiln as tk
from tensorkiln.base.errors import UserError
from tensorkiln.ir.expr import Var
from tensorkiln.ir.module import IRModule
from tensorkiln.kernels.case import Graph, rand
from tensorkiln.runtime.timing import time_kernel
from tensorkiln.runtime.trial import TrialMemory, trial_of
from tensorkiln.target import Target
from tensorkiln.tuning.workloads import (
    Workload,
    compiled,
    fused_module,
    library_of,
    trial_for,
    workloads_of,
)
from tests.transform.graphs import graph

TARGETS = [
    {"kind": "llvm", "mcpu": "x86-64-v2"},
    {"kind": "llvm", "mcpu": "x86-64-v3"},
    {"kind": "llvm", "mtriple": "aarch64-linux-gnu", "mcpu": "cortex-a72"},
]


def _conv(g: Graph, x: Any) -> Any:
    y = g.relu(g.conv2d(x, rand(20, 6, 3, 3), padding=(1, 1, 1, 1)))
    return g.max_pool2d(y, kernel=(2, 2), strides=(2, 2), padding=(0, 0, 0, 0), dilation=(1, 1))


def _attention(g: Graph, x: Any) -> Any:
    parts = [
        g.transpose(g.reshape(g.linear(x, rand(32, 32)), shape=(1, 16, 4, 8)), axes=(0, 2, 1, 3))
        for _ in range(3)
    ]
    scores = g.softmax(g.matmul(parts[0], g.transpose(parts[1], axes=(0, 1, 3, 2))), axis=-1)
    return g.matmul(scores, parts[2])


# name -> a module with kernels that have knobs, and the sizes of its symbolic dimensions
MODELS: dict[str, tuple[Callable[[], IRModule], dict[str, int]]] = {
    "products": (
        lambda: graph(lambda g, x: g.gelu(g.linear(x, rand(32, 64))), x=(24, 32)),
        {},
    ),
    "rows": (lambda: graph(lambda g, x: g.softmax(x, axis=-1), x=(24, 48)), {}),
    "images": (lambda: graph(_conv, x=(1, 6, 12, 12)), {}),
    "winograd": (
        lambda: graph(
            lambda g, x: g.conv2d(x, rand(32, 32, 3, 3), padding=(1, 1, 1, 1)), x=(1, 32, 16, 16)
        ),
        {},
    ),
    "attention": (lambda: graph(_attention, x=(16, 32)), {}),
    "symbolic": (
        lambda: graph(lambda g, x: g.linear(x, rand(32, 64)), x=(Var("n"), 32)),
        {"n": 12},
    ),
}


def found(name: str, target: Target) -> tuple[IRModule, list[Workload]]:
    make, sizes = MODELS[name]
    mod = make()
    rows, _ = workloads_of(fused_module(mod, target), target, sizes)
    return mod, rows


@pytest.mark.in_turn("name")
@pytest.mark.parametrize("target_spec", TARGETS, ids=lambda t: t["mcpu"])
@pytest.mark.parametrize("name", MODELS)
def test_the_kernel_is_that_of_the_model(name: str, target_spec: dict[str, object]) -> None:
    """Byte for byte: the object of the library of a workload, and of the whole model."""
    target = Target(target_spec)
    mod, rows = found(name, target)
    assert rows
    whole = tk.compile(mod, target)
    for w in rows:
        alone = compiled(w.text, w.target, w.family.op_class)
        (kernel,) = alone.kernels
        assert (kernel.symbol, kernel.kernel_class) == (w.name, w.family.op_class)
        assert w.family.op_class in {k.kernel_class for k in whole.kernels if k.symbol == w.name}
        assert _object(alone, w.name) == _object(whole, w.name)
        first, again = (library_of(w.text, w.target, w.family.op_class) for _ in range(2))
        assert first == again, "the same text and target, the same bytes"


def _object(exe: tk.Executable, name: str) -> Any:
    (content,) = [a.content for a in exe.artifacts if a.name == f"llvm/{name}.o"]
    return content


@pytest.mark.parametrize("name", MODELS)
def test_an_untuned_kernel_is_right(name: str) -> None:
    """By what NumPy says in float64; and something else is not."""
    target = Target("native")
    _, rows = found(name, target)
    for w in rows:
        library, symbol = library_of(w.text, w.target, w.family.op_class)
        trial = trial_for(w.text, symbol, dict(w.sizes), {"seconds": 0.01})
        verdict = time_kernel(trial, library, library)
        assert (verdict.state, verdict.reason) == ("ok", ""), w.name
        assert 0.3 < verdict.value / verdict.untuned < 3
        want = np.frombuffer(trial.want) + 1.0
        other_trial = trial_for(w.text, symbol, dict(w.sizes), {"seconds": 0.01, "seed": 5})
        assert other_trial.want != trial.want
        verdict = time_kernel(replace(trial, want=want.tobytes()), library, library)
        assert verdict.state == "error" and "the untuned kernel: " in verdict.reason


def test_weights_are_as_cold_as_in_a_run() -> None:
    """Two layers of 256 KiB and their biases: calls of one find the other's weights in between."""

    def build(g: Graph, x: Any) -> Any:
        for seed in (1, 2):
            x = g.relu(g.linear(x, rand(256, 256, seed=seed), rand(256, seed=seed)))
        return x

    target = Target("native")
    (w,), _ = workloads_of(fused_module(graph(build, x=(12, 256)), target), target, {})
    layer_bytes = 4 * (256 * 256 + 256)
    assert (w.weights, w.network_bytes) == ((1, 2), 2 * layer_bytes)
    library, symbol = library_of(w.text, w.target, w.family.op_class)
    options = {"seconds": 0.01, "weights": w.weights, "network_bytes": 5 * layer_bytes}
    trial = trial_for(w.text, symbol, {}, options)
    assert trial_of(json.dumps(trial.to_json()).encode(), trial.want, trial.may) == trial
    walk = TrialMemory(trial).walk()
    assert len(walk) == 5 and all(inputs[0] is walk[0][0] for inputs in walk)
    for i in w.weights:
        assert len({inputs[i].ctypes.data for inputs in walk}) == 5
        assert all(np.array_equal(inputs[i], walk[0][i]) for inputs in walk)
    small = replace(trial, weights=(2,))  # a kilobyte: copies of it would be too many
    assert len(TrialMemory(small).walk()) == 1
    verdict = time_kernel(trial, library, library)
    assert (verdict.state, verdict.reason) == ("ok", "")
    with pytest.raises(UserError, match="places of operands"):
        trial_of(json.dumps(replace(trial, weights=(3,)).to_json()).encode(), trial.want, trial.may)


def test_equal_groups_are_one_workload() -> None:
    def build(g: Graph, x: Any) -> Any:
        for _ in range(3):
            x = g.linear(x, rand(32, 32))
        return x

    target = Target("native")
    rows, other_workloads = workloads_of(fused_module(graph(build, x=(8, 32)), target), target, {})
    assert [(w.calls, len(w.nodes)) for w in rows] == [(3, 3)] and not other_workloads


def test_the_costliest_comes_first() -> None:
    def build(g: Graph, x: Any) -> Any:
        x = g.linear(x, rand(32, 512))
        x = g.linear(x, rand(512, 512))
        return g.linear(x, rand(512, 16))

    target = Target("native")
    rows, _ = workloads_of(fused_module(graph(build, x=(64, 32)), target), target, {})
    assert [w.total for w in rows] == sorted((w.total for w in rows), reverse=True)
    assert "R.Tensor((512, 512)" in rows[0].text and len(rows) == 3


def test_a_family_that_declines_is_told() -> None:
    target = Target("native")
    _, (w,) = found("products", target)
    with pytest.raises(UserError, match="linear_packed computes it, conv2d_direct declines"):
        library_of(w.text, target, "conv2d_direct")
    with pytest.raises(UserError, match="no knob 'speed'"):
        library_of(w.text, target, w.family.op_class, [("speed", 3)])
