"""Convolutions of 1x1 to a few channels, of row-major images and channel blocks, on every level."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tensorkiln as tk
from tensorkiln.ir.expr import Var
from tensorkiln.ir.relax import RVar, Value
from tensorkiln.kernels.case import Build, Graph, rand
from tensorkiln.runtime.module import Executor
from tensorkiln.target import Target
from tests.codegen.kernels import LEVELS
from tests.schedule.battery import Battery
from tests.transform.graphs import graph

N, H = Var("N"), Var("H")
# Images: fewer pixels than a vector, as many, one more; rows of one pixel, and one row; more than a
# piece of pixels, and two of them with a rest.
IMAGES = [
    *((1, 7), (2, 4), (2, 8), (3, 3), (1, 17), (19, 1), (9, 13)),
    *((7, 73), (16, 128), (1, 4103), (140, 141)),
]
CHANNELS = (2, 7, 8, 16, 21, 64, 145)
KIND = "conv2d_few_outputs"


def _one(channels: int, outputs: int, bias: bool = True) -> Build:
    w, b = rand(outputs, channels, 1, 1), [rand(outputs)] * bias
    return lambda g, x: g.sigmoid(g.conv2d(x, w, *b))


def _blocks(channels: int, outputs: int, halo: bool) -> Build:
    """Behind a convolution; a halo is what another reader of its result asks for."""

    def build(g: Graph, x: RVar) -> Value:
        y = g.relu(g.conv2d(x, rand(channels, 5, 1, 1)))
        few = g.conv2d(y, rand(outputs, channels, 1, 1), rand(outputs))
        if not halo:
            return g.neg(few)
        return g.add(few, g.conv2d(y, rand(outputs, channels, 3, 3), padding=(1, 1, 1, 1)))

    return build


def _then(*shape: int) -> Build:
    """An operand of the epilogue of a shape."""
    return lambda g, x: g.relu(g.add(_one(19, 2)(g, x), rand(*shape)))


def _residual(g: Graph, x: RVar, y: RVar) -> Value:
    return g.mul(g.conv2d(x, rand(3, 12, 1, 1)), y)


def battery() -> Battery:
    """Rows of images, channels and outputs, where each value meets several of the others."""
    b = Battery()
    for k, image in enumerate(IMAGES):
        for j in (0, 3):
            channels = CHANNELS[(k + j) % len(CHANNELS)]
            outputs, size = 1 + (k + j) % 3, "x".join(map(str, image))
            name = f"of_{channels}_{size}_to_{outputs}"
            b.add(f"{name}_rows", _one(channels, outputs, bool(k % 2)), (2, channels, *image))
            b.add(f"{name}_blocks", _blocks(channels, outputs, bool((k + j) % 2)), (2, 5, *image))
    b.add("no_image", _one(16, 1), (0, 16, 9, 9))
    b.add("batch", _one(24, 2), (N, 24, 9, 9), sizes=[{"N": n} for n in (0, 1, 5)])
    b.add("rows", _one(24, 2), (1, 24, H, 9), sizes=[{"H": n} for n in (1, 8)])
    for shape in ((2, 1, 1), (1, 1, 33), (1, 7, 1), (2, 7, 33), (1, 7, 33)):
        b.add(f"then_{'x'.join(map(str, shape))}", _then(*shape), (2, 19, 7, 33))
    b.add("residual", _residual, (2, 12, 7, 33), (2, 3, 7, 33))
    return b


BATTERY = battery()


@pytest.fixture(scope="module", params=LEVELS)
def run(request: pytest.FixtureRequest) -> Executor:
    return Executor(BATTERY.compile(LEVELS[request.param]).jit())


@pytest.mark.parametrize("name", BATTERY.cases)
def test_values(name: str, run: Executor) -> None:
    BATTERY.check(name, run)


def _kinds(build: Build, target: Target, *shape: int | Var) -> list[str]:
    exe = tk.compile(graph(build, x=shape), target)
    return [p.kernel_class for p in exe.placement()]


AVX2 = Target({"kind": "llvm", "mcpu": "x86-64-v3"})


def test_an_image_is_read_as_it_is() -> None:
    """No layout changes, neither of a parameter nor of what is in blocks."""
    assert _kinds(_one(32, 1), AVX2, 1, 32, 30, 30) == [KIND]
    assert _kinds(_blocks(32, 3, False), AVX2, 1, 5, 30, 30).count(KIND) == 1
    assert _kinds(_blocks(32, 3, False), AVX2, 1, 5, 30, 30)[-1] == KIND


def _conv(outs: int, ins: int, size: int = 1, **attrs: Any) -> Build:
    return lambda g, x: g.conv2d(x, rand(outs, ins // attrs.get("groups", 1), size, size), **attrs)


OTHERS: dict[str, tuple[Build, tuple[int | Var, ...]]] = {
    "several": (_conv(4, 16), (1, 16, 9, 9)),
    "windows": (_conv(1, 16, 3), (1, 16, 9, 9)),
    "strides": (_conv(1, 16, strides=(2, 2)), (1, 16, 9, 9)),
    "padding": (_conv(1, 16, padding=(1, 1, 1, 1)), (1, 16, 9, 9)),
    "groups": (_conv(2, 16, groups=2), (1, 16, 9, 9)),
    "long sums": (_conv(1, 1153), (1, 1153, 9, 9)),
    "few pixels": (_conv(1, 16), (1, 16, 1, 7)),
    "open": (_conv(1, 16), (1, 16, H, 9)),
}


@pytest.mark.parametrize("name", OTHERS)
def test_what_other_kernels_compute(name: str) -> None:
    build, shape = OTHERS[name]
    assert KIND not in _kinds(build, AVX2, *shape)


def test_weights_that_are_computed() -> None:
    def build(g: Graph, x: RVar) -> Value:
        return g.conv2d(x, g.reshape(g.mean(x, axes=(0, 2, 3)), shape=(1, 16, 1, 1)))

    assert KIND not in _kinds(build, AVX2, 1, 16, 9, 9)


def test_a_sum_is_as_exact_as_in_blocks() -> None:
    """Of 1000 terms, beside float64."""
    x = np.random.default_rng(1).standard_normal((1, 1000, 16, 16)).astype(np.float32)
    run: Callable[..., Any] = tk.compile(graph(_conv(1, 1000), x=x.shape), AVX2)
    weights = rand(1, 1000, 1, 1).array.reshape(-1).astype(np.float64)
    want = np.einsum("c,nchw->nhw", weights, x.astype(np.float64))[:, None]
    scale = np.abs(weights) @ np.abs(x[0].astype(np.float64)).reshape(1000, -1)
    error = np.abs(np.asarray(run(x)) - want) / scale.reshape(want.shape)
    assert error.max() < 4e-7
