"""Layers that CMSIS-NN computes: bit for bit its fixed-point arithmetic, and near the model's."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import tensorkiln as tk
from tensorkiln.external.cmsis_nn import CMSIS_NN
from tests.external.cmsis_nn_cases import Case, Conv, Linear, Pool, Q, add, module, softmax

STAND_IN = Path(__file__).parent / "cmsis_nn_stand_in"
A, B, LOW, HIGH = Q(0.05, 3), Q(0.2, -7), Q(0.1, -128), Q(0.1, 127)

CONVOLUTIONS = [
    Conv("plain"),
    Conv("one scale", per_channel=False),
    Conv("no bias", biased=False),
    Conv("relu", relu="relu"),
    Conv("relu6", relu="relu6", qy=Q(0.05, -100)),
    Conv("no padding", padding=(0, 0, 0, 0)),
    Conv("asymmetric padding", padding=(0, 1, 2, 1), strides=(2, 2)),
    Conv("strides", strides=(2, 3), x=(1, 3, 9, 11)),
    Conv("dilation", dilation=(2, 3), x=(1, 2, 12, 13)),
    Conv("1x1", kernel=(1, 1), padding=(0, 0, 0, 0), x=(1, 8, 5, 5)),
    Conv("1x1 strided", kernel=(1, 1), padding=(0, 0, 0, 0), strides=(2, 2), x=(1, 5, 7, 6)),
    Conv("one row", kernel=(1, 4), padding=(0, 1, 0, 2), x=(1, 3, 1, 16)),
    Conv("odd channels", x=(1, 7, 5, 5), out=13),
    Conv("one channel", x=(1, 1, 49, 10), out=8, kernel=(10, 4), padding=(4, 1, 5, 1)),
    Conv("batch", x=(3, 3, 6, 6)),
    Conv("lowest zero points", qx=LOW, qy=LOW),
    Conv("highest zero points", qx=HIGH, qy=HIGH),
    Conv("factor above one", qx=Q(0.5, 0), qy=Q(0.004, 0), x=(1, 1, 4, 4), scale=0.02),
    Conv("tiny factor", qx=Q(1e-5, 0), qy=Q(1.0, 5), scale=3e-4),
    Conv("depthwise", groups=3, out=3),
    Conv("depthwise, one scale", groups=3, out=3, per_channel=False, relu="relu"),
    Conv("depthwise, batch", x=(2, 5, 6, 7), groups=5, out=5, strides=(2, 1)),
    Conv("depthwise, multiplier", groups=3, out=6),
    Conv("depthwise, dilation", x=(1, 4, 9, 9), groups=4, out=4, dilation=(2, 2)),
    Conv("depthwise, 5x3", x=(1, 20, 9, 9), groups=20, out=20, kernel=(5, 3), biased=False),
]
PRODUCTS = [
    Linear("plain"),
    Linear("columns first", rows_first=False),
    Linear("per channel", per_channel=True),
    Linear("per channel, columns first", per_channel=True, rows_first=False, relu="relu"),
    Linear("no bias", biased=False),
    Linear("batch", x=(4, 9), relu="relu6", qy=Q(0.04, -20)),
    Linear("three dimensions", x=(2, 3, 8)),
    Linear("one output", out=1),
    Linear("extreme zero points", qx=HIGH, qy=LOW),
]
POOLS = [
    Pool("max"),
    Pool("max, overlapping", kernel=(3, 2), strides=(1, 2), padding=(1, 0, 1, 1)),
    Pool("max, batch", x=(3, 5, 6, 6), relu="relu"),
    Pool("max, ceil", x=(1, 3, 7, 7), ceil=True),
    Pool("max, whole", kernel=None),
    Pool("avg", "avg"),
    Pool("avg, padding", "avg", kernel=(3, 3), strides=(1, 2), padding=(1, 1, 1, 1)),
    Pool("avg, batch", "avg", x=(2, 7, 5, 9), kernel=(5, 3), relu="relu6", q=Q(0.1, -30)),
    Pool("avg, ceil", "avg", x=(1, 3, 7, 8), kernel=(3, 3), ceil=True),
    Pool("avg, whole", "avg", x=(1, 9, 6, 5), kernel=None),
    Pool("avg, whole, flat", "avg", x=(2, 9, 3, 3), kernel=None, keepdims=False),
]
OTHERS = [
    softmax("rows", (1, 10), 1, Q(0.1, 5)),
    softmax("wide range", (3, 12), 1, Q(0.9, 5)),
    softmax("small range", (3, 12), 1, Q(0.0005, 5)),
    softmax("one value", (2, 1), 1, A),
    softmax("channels", (2, 6, 3, 4), 1, Q(0.05, -3)),
    softmax("last of three", (2, 3, 7), 2, Q(3.0, 0)),
    softmax("another scale", (4, 9), 1, A, Q(1 / 255, -128)),
    softmax("coarse scale", (4, 9), 1, A, Q(0.01, 3)),
    add("plain", (1, 4, 5, 6), A, B, Q(0.2, 4)),
    add("vectors", (3, 17), A, B, Q(0.3, 4)),
    add("relu", (2, 3, 4, 5), B, A, Q(0.1, -128), "relu"),
    add("far scales", (1, 40), Q(1e-3, 0), Q(5.0, 1), Q(4.0, 2)),
    add("saturating", (1, 300), LOW, HIGH, Q(0.02, 0), "relu6"),
    add("itself", (1, 3, 4, 4), A, A, B, doubled=True),
]
CASES = [c.case() for c in (*CONVOLUTIONS, *PRODUCTS, *POOLS)] + OTHERS


def stand_in(folder: Path, *options: str) -> Path:
    """The stand-in as an object file."""
    object_file = folder / "cmsis_nn.o"
    command = ["gcc", "-std=c99", "-O1", "-fPIC", *options, "-c", "-o", object_file]
    subprocess.run([*command, STAND_IN / "arm_nnfunctions.c"], check=True)
    return object_file


COMPILER = f"gcc -Wall -Wextra -Wconversion -Werror -I{STAND_IN}"


def results(cases: list[Case], object_: Path, compiler: str = COMPILER) -> list[np.ndarray]:
    """What a library with one function per case computes."""
    exe = tk.compile(module(cases), externals=[CMSIS_NN])
    executor = exe.jit(compiler, addons=[object_]).create_executor()
    return [executor[f"case{i}"](*c.inputs()).numpy() for i, c in enumerate(cases)]


@pytest.fixture(scope="module", params=["scalar", "vector"])
def computed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator:
    """All cases, linked with the stand-in as on cores with and without vector instructions."""
    options = ["-DARM_MATH_MVEI"] if request.param == "vector" else []
    folder = tmp_path_factory.mktemp("stand_in")
    compiler = " ".join([COMPILER, *options])
    yield results(CASES, stand_in(folder, *options), compiler)


@pytest.mark.parametrize("i", range(len(CASES)), ids=[f"{c.kinds[0]}-{c.name}" for c in CASES])
def test_a_layer_is_computed_exactly(computed: list[np.ndarray], i: int) -> None:
    case = CASES[i]
    np.testing.assert_array_equal(computed[i], case.expected(*case.inputs()))


def test_every_layer_is_taken_and_near_the_models_arithmetic() -> None:
    """Ours rounds once, as QLinearConv does; the fixed point differs by at most one step."""
    exe = tk.compile(module(CASES), externals=[CMSIS_NN])
    assert exe.refusals() == ()
    classes = {k.kernel_class for k in exe.placement() if not k.kernel.startswith("transpose")}
    assert classes == {"external:cmsis_nn"}
    own_kernels = tk.compile(module(CASES)).create_executor()
    for i, case in enumerate(CASES):
        exact = case.expected(*case.inputs()).astype(int)
        near = own_kernels[f"case{i}"](*case.inputs()).numpy().astype(int)
        assert np.abs(exact - near).max() <= 1, case.name


_Q = st.builds(Q, st.floats(0.01, 0.4), st.integers(-128, 127))


@st.composite
def convolutions(draw: st.DrawFn) -> Conv:
    depthwise = draw(st.booleans())
    channels = draw(st.integers(2 if depthwise else 1, 9))
    kernel = draw(st.tuples(st.integers(1, 4), st.integers(1, 4)))
    dilation = draw(st.tuples(st.integers(1, 2), st.integers(1, 2)))
    return Conv(
        "drawn",
        x=(draw(st.integers(1, 2)), channels, draw(st.integers(7, 10)), draw(st.integers(7, 10))),
        out=channels * draw(st.integers(1, 2)) if depthwise else draw(st.integers(1, 9)),
        kernel=kernel,
        strides=draw(st.tuples(st.integers(1, 3), st.integers(1, 3))),
        padding=draw(st.tuples(*[st.integers(0, k - 1) for k in (*kernel, *kernel)])),
        dilation=dilation,
        groups=channels if depthwise else 1,
        per_channel=draw(st.booleans()),
        biased=draw(st.booleans()),
        relu=draw(st.sampled_from(["", "relu", "relu6"])),
        qx=draw(_Q),
        qy=draw(_Q),
        scale=draw(st.floats(0.001, 0.02)),
    )


@st.composite
def others(draw: st.DrawFn) -> Linear | Pool:
    relu = draw(st.sampled_from(["", "relu"]))
    if draw(st.booleans()):
        shape = (
            *draw(st.lists(st.integers(1, 3), min_size=1, max_size=2)),
            draw(st.integers(1, 40)),
        )
        flags = [draw(st.booleans()) for _ in range(3)]
        return Linear("drawn", shape, draw(st.integers(1, 9)), *flags, relu, draw(_Q), draw(_Q))
    kernel = draw(st.tuples(st.integers(1, 3), st.integers(1, 3)))
    return Pool(
        "drawn",
        draw(st.sampled_from(["max", "avg"])),
        x=tuple(draw(st.integers(a, b)) for a, b in ((1, 2), (1, 9), (3, 9), (3, 9))),
        kernel=kernel,
        strides=draw(st.tuples(st.integers(1, 3), st.integers(1, 3))),
        padding=draw(st.tuples(*[st.integers(0, k - 1) for k in (*kernel, *kernel)])),
        ceil=draw(st.booleans()),
        relu=relu,
        q=draw(_Q),
    )


@settings(max_examples=6, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(convolutions(), min_size=8, max_size=8), st.lists(others(), min_size=8, max_size=8))
def test_any_layer_is_computed_exactly(
    tmp_path_factory: pytest.TempPathFactory, a: list[Conv], b: list[Linear | Pool]
) -> None:
    cases = [c.case() for c in (*a, *b)]
    object_file = stand_in(tmp_path_factory.mktemp("stand_in"))
    for case, result in zip(cases, results(cases, object_file), strict=True):
        np.testing.assert_array_equal(result, case.expected(*case.inputs()), case.name)
