"""Which convolutions read compacted pixels, and what that does to memory; which go through an image
in strips, and what they compute."""

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
from tensorkiln.schedule.choose import schedule_group, trace_of
from tensorkiln.target import Target
from tensorkiln.transform.relax.select_algorithms import SelectAlgorithms
from tests.schedule.groups import groups_of
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


# (filters, image, bytes of the second-level cache, attributes): strips of one height and of two,
# the last one shorter than a tile; filters that reach beyond a strip, or skip rows; sums of one
# piece, and of two lengths; a last block of channels that is not full; an unknown number of images.
STRIPS: dict[str, tuple[tuple[int, int], tuple[int | Var, ...], int, dict[str, object]]] = {
    "whole": ((80, 1), (1, 296, 12, 18), 1 << 13, {}),
    "rest": ((80, 1), (2, 296, 13, 19), 1 << 17, {}),
    "few_terms": ((80, 1), (1, 48, 29, 23), 1 << 13, {}),
    "padded": ((72, 3), (1, 40, 46, 22), 1 << 18, {"padding": (1, 1, 1, 1)}),
    "strided": ((72, 3), (1, 37, 45, 40), 1 << 19, {"padding": (0, 1, 1, 0), "strides": (2, 2)}),
    "dilated": ((72, 3), (1, 24, 48, 33), 1 << 18, {"dilation": (3, 2)}),
    "blocks": ((75, 1), (1, 331, 9, 20), 1 << 15, {}),
    "images": ((80, 1), (Var("N"), 296, 13, 19), 1 << 17, {}),
}


@pytest.mark.parametrize("processor", ["x86-64-v2", "x86-64-v3"])
@pytest.mark.parametrize("name", STRIPS)
def test_strips(name: str, processor: str) -> None:
    """Results are those of the whole image in turn, to the bit, with any number of threads."""
    (filters, size), shape, cache, attrs = STRIPS[name]
    weights = rand(filters, int(shape[1]), size, size)  # type: ignore[arg-type]
    mod = graph(lambda g, x: g.relu(g.conv2d(x, weights, rand(filters), **attrs)), x=shape)
    inputs = arguments(mod, N=3)
    (want,) = evaluate(mod, inputs, dtype="float64")
    small = {"l1d_bytes": 1 << 10, "l2_bytes": cache}
    large = {"l1d_bytes": 1 << 20, "l2_bytes": 1 << 28}
    results = []
    for caches, threads in ((small, 1), (small, 3), (large, 1)):
        target = Target({"kind": "llvm", "mcpu": processor, "winograd": 0, **caches})
        groups = list(groups_of(mod, target))
        assert any("strip" in trace_of(group, target) for group in groups) == (caches is small)
        for group in groups:
            schedule_group(group, target, check=True)
        library = tk.compile(mod, target).jit()
        library.set_num_threads(threads)
        results.append(tk.runtime.Executor(library)["main"](*inputs.values()).numpy())
    np.testing.assert_allclose(results[0], want, rtol=1e-4, atol=1e-4)
    assert all(np.array_equal(results[0], y) for y in results[1:])


# Blocks of channels of which 2 make no whole number of panels, with a halo and without, written by
# one thread and shared.
@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("size", [(5, 1), (13, 12)])
@pytest.mark.parametrize("filters", [85, 88, 152])
def test_a_last_panel_that_is_not_full(filters: int, size: tuple[int, int], threads: int) -> None:
    weights, bias = rand(filters, 33, 1, 1), rand(filters)
    after = rand(24, filters, 3, 3)

    def build(g: Graph, x: RVar) -> Value:
        y = g.conv2d(x, weights, bias)
        z = g.relu(g.add(y, g.conv2d(x, weights)))
        return g.conv2d(z, after, padding=(1, 1, 1, 1))

    mod = graph(build, x=(2, 33, *size))
    inputs, target = arguments(mod), Target({"kind": "llvm", "mcpu": "x86-64-v3"})
    (want,) = evaluate(mod, inputs, dtype="float64")
    groups = list(groups_of(mod, target))
    packed = {g.main.args[1].type.physical_shape[0].value for g in groups if g.main.op == "conv2d"}
    assert -(-filters // 16) in packed
    for group in groups:
        schedule_group(group, target, check=True)
    library = tk.compile(mod, target).jit()
    library.set_num_threads(threads)
    result = tk.runtime.Executor(library)["main"](*inputs.values()).numpy()
    np.testing.assert_allclose(result, want, rtol=1e-4, atol=1e-4)
