"""Which convolutions read compacted pixels, and what that does to memory."""

from __future__ import annotations

import numpy as np
import pytest

import tensorkiln as tk
from tensorkiln.ir.expr import Var
from tensorkiln.ir.module import IRModule
from tensorkiln.ir.relax import RVar, Value
from tensorkiln.kernels.case import Graph, rand
from tensorkiln.ops.evaluate import evaluate
from tensorkiln.pipeline import relax_passes
from tensorkiln.target import Target
from tensorkiln.transform.relax.select_algorithms import SelectAlgorithms
from tests.transform.graphs import arguments, assert_same_values, graph, ops_of
from tests.transform.test_plan_memory import check_plan

TARGETS = [Target({"kind": "llvm", "mcpu": name}) for name in ("x86-64-v4", "haswell", "x86-64")]


def _conv(
    outputs: int = 256, kernel: int = 1, x: tuple[object, ...] = (2, 16, 189, 177), **attrs: object
) -> IRModule:
    attrs = {"strides": (2, 2), **attrs}
    inputs = int(x[1]) // int(attrs.get("groups", 1))  # type: ignore[call-overload]
    return graph(
        lambda g, x: g.conv2d(x, rand(outputs, inputs, kernel, kernel), rand(outputs), **attrs), x=x
    )


@pytest.mark.parametrize("strides", [(2, 2), (1, 2), (3, 1), (8, 8)])
def test_values_are_kept(strides: tuple[int, int]) -> None:
    mod = _conv(strides=strides)
    after = SelectAlgorithms(TARGETS[0])(mod)
    assert ops_of(after) == ["slice", "conv2d"]
    assert_same_values(mod, after)


def test_a_number_of_images_may_be_a_symbol() -> None:
    mod = _conv(x=(Var("N"), 16, 189, 177))
    after = SelectAlgorithms(TARGETS[0])(mod)
    assert ops_of(after) == ["slice", "conv2d"]
    assert_same_values(mod, after, N=3)


@pytest.mark.parametrize(
    "mod",
    [
        _conv(outputs=240),
        _conv(kernel=3),
        _conv(strides=(1, 1)),
        _conv(padding=(1, 1, 1, 1)),
        _conv(groups=2),
        _conv(x=(1, 16, 180, 180)),
        _conv(x=(1, 16, Var("H"), 1 << 16)),
        graph(
            lambda g, x, w: g.conv2d(x, w, strides=(2, 2)), x=(1, 16, 189, 177), w=(256, 16, 1, 1)
        ),
    ],
)
def test_others_stay_the_same_object(mod: IRModule) -> None:
    assert SelectAlgorithms(TARGETS[0])(mod) is mod


def shortcut(g: Graph, x: RVar) -> Value:
    """The block that begins a stage: its shortcut skips pixels of all that came before."""
    x = g.relu(g.conv2d(x, rand(192, 16, 1, 1)))
    y = g.relu(g.conv2d(x, rand(64, 192, 1, 1)))
    y = g.relu(g.conv2d(y, rand(64, 64, 3, 3), padding=(1, 1, 1, 1), strides=(2, 2)))
    y = g.conv2d(y, rand(256, 64, 1, 1))
    z = g.relu(g.add(y, g.conv2d(x, rand(256, 192, 1, 1), strides=(2, 2))))
    return g.mean(z, axes=(2, 3))  # of 2.4 MB


@pytest.mark.parametrize("target", TARGETS, ids=lambda t: t.mcpu)
def test_pixels_go_where_the_image_was(target: Target) -> None:
    """The workspace is what the first layer reads and writes."""
    mod = graph(shortcut, x=(1, 16, 56, 56))
    sizes = []
    for skipped in (None, SelectAlgorithms):
        planned = mod
        for p in relax_passes(target)[:-1]:
            planned = planned if type(p) is skipped else p(planned)
        sizes.append(check_plan(planned))
    image, border = 192 * 56 * 56 * 4, 64 * 58 * 58 * 4
    assert sizes[0] == image + border < sizes[1]


@pytest.mark.parametrize("threads", [1, 2])
def test_in_place_values(threads: int) -> None:
    mod = graph(shortcut, x=(1, 16, 56, 56))
    inputs = arguments(mod)
    (want,) = evaluate(mod, inputs, dtype="float64")
    library = tk.compile(mod).jit()
    library.set_num_threads(threads)
    run = tk.runtime.Executor(library)["main"]
    for _ in range(3):
        got = run(*inputs.values()).numpy()
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)
