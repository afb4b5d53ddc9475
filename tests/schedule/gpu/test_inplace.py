"""Kernels of devices whose result takes the memory of an operand: each thread reads what it writes
next."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from tensorkiln.ir.relax import Call, RVar
from tensorkiln.ops.builder import GraphBuilder
from tensorkiln.schedule.choose import schedule_group
from tests.schedule.battery import random_array
from tests.schedule.gpu.runner import Kernels, fused, groups_for
from tests.transform.graphs import graph


def _linear(g: GraphBuilder, x: RVar, w: RVar, y: RVar) -> RVar:
    return g.emit("relu", g.emit("add", g.emit("linear", x, w), y))


def _conv(g: GraphBuilder, x: RVar, w: RVar, y: RVar) -> RVar:
    product = g.emit("conv2d", x, w, padding=(1, 1, 1, 1))
    return g.emit("relu", g.emit("add", product, y))


def _elementwise(g: GraphBuilder, x: RVar, w: RVar, y: RVar) -> RVar:
    return g.emit("add", g.emit("mul", x, w), y)


# name -> (graph, shapes of x, w and y)
CASES = {
    "linear": (_linear, (70, 33), (33, 65), (70, 65)),
    "linear_one_row": (_linear, (1, 33), (33, 65), (1, 65)),
    "conv": (_conv, (2, 5, 9, 7), (12, 5, 3, 3), (2, 12, 9, 7)),
    "elementwise": (_elementwise, (11, 13), (11, 13), (11, 13)),
}


def _of_exp(build: Callable[..., RVar]) -> Callable[..., RVar]:
    return lambda g, x, w, y: build(g, g.emit("exp", x), w, y)


def _depthwise(g: GraphBuilder, x: RVar, w: RVar, y: RVar) -> RVar:
    product = g.emit("conv2d", x, w, padding=(1, 1, 1, 1), groups=3)
    return g.emit("add", product, y)


# What the anchor reads by way of a prologue, other elements than the one that is written next.
READ_ELSEWHERE = {
    "linear": (_of_exp(_linear), (70, 33), (33, 33), (70, 33)),
    "conv": (_of_exp(_conv), (2, 5, 9, 7), (5, 5, 3, 3), (2, 5, 9, 7)),
    "depthwise": (_of_exp(_depthwise), (1, 3, 9, 7), (3, 1, 3, 3), (1, 3, 9, 7)),
}


@pytest.mark.parametrize("name", READ_ELSEWHERE)
def test_what_a_prologue_reads_is_kept(name: str) -> None:
    build, *shapes = READ_ELSEWHERE[name]
    mod = graph(build, **dict(zip("xwy", shapes, strict=True)))
    *_, group = groups_for(mod)
    *_, call = (b.value for b in fused(mod)["main"].bindings if isinstance(b.value, Call))
    params = [a.name for a in call.args if isinstance(a, RVar)]
    assert sorted(params) == ["w", "x", "y"], "the prologue is a kernel of its own"
    f = schedule_group(group, group.target)
    assert [params[i] for i in f.inplace] == ["y"]


@pytest.mark.parametrize("name", CASES)
def test_the_result_takes_an_operands_memory(name: str) -> None:
    build, *shapes = CASES[name]
    mod = graph(build, **dict(zip("xwy", shapes, strict=True)))
    (group,) = groups_for(mod)
    f = schedule_group(group, group.target)
    (call,) = (b.value for b in fused(mod)["main"].bindings if isinstance(b.value, Call))
    params = [a.name for a in call.args if isinstance(a, RVar)]
    assert params.index("y") in f.inplace
    arrays = {
        n: random_array(k, np.dtype("float32"), shape)
        for k, (n, shape) in enumerate(zip("xwy", shapes, strict=True))
    }
    apart, kernels = np.zeros(shapes[2], np.float32), Kernels([f])
    kernels.run(f.name, {}, *(arrays[n] for n in params), apart)
    y = arrays["y"]
    before = y.copy()
    kernels.run(f.name, {}, *(arrays[n] for n in params), y)
    assert y.tobytes() == apart.tobytes() and not np.array_equal(y, before)
