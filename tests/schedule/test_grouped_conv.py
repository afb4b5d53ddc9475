"""Grouped convolutions: the window of input channels per panel, and compiled results."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tensorkiln as tk
from tensorkiln.arith import simplify
from tensorkiln.ir.expr import Var, as_expr, int_value
from tensorkiln.ir.module import IRModule
from tensorkiln.ir.relax import Constant, Tuple, constant, tensor
from tensorkiln.ir.visit import substitute
from tensorkiln.ops.builder import GraphBuilder
from tensorkiln.ops.channel_window import ChannelWindow
from tensorkiln.ops.evaluate import evaluate

# (groups, input channels, output channels, kernel, stride, padding)
CASES = (
    (2, 32, 96, 3, 1, 1),  # whole blocks in every group
    (2, 96, 64, 5, 2, 2),
    (4, 24, 112, 1, 1, 0),  # channels per group that divide nothing
    (3, 51, 51, 1, 1, 0),
    (5, 85, 35, 3, 2, 1),
    (8, 8, 24, 3, 1, 1),  # one input channel per group, three outputs
    (4, 64, 20, 3, 1, 1),  # many groups in one panel
)


@given(
    st.integers(1, 9),
    st.integers(1, 40),
    st.integers(1, 40),
    st.sampled_from([(16, 4), (32, 16), (8, 4), (48, 16), (4, 4)]),
)
def test_windows_cover_every_group(
    groups: int, inputs: int, per_group: int, shape: tuple[int, int]
) -> None:
    nr, granule = shape
    window = ChannelWindow(groups, groups * per_group, inputs, nr, granule)
    p = Var("p")
    start, count = window.start(p), window.count(p)
    for panel in range(window.panels):
        first, number = window.range(panel)
        assert int_value(simplify(substitute(start, {p: as_expr(panel)}))) == first
        assert int_value(simplify(substitute(count, {p: as_expr(panel)}))) == number
        for o in range(panel * nr, min(panel * nr + nr, window.outputs)):
            low = o // per_group * inputs
            assert first * granule <= low
            assert low + inputs <= (first + number) * granule
    assert window.width == max(window.range(q)[1] for q in range(window.panels))


def test_spread_keeps_every_weight_where_its_channel_is() -> None:
    window = ChannelWindow(4, 20, 6, 16, 4)
    w = np.arange(20 * 6, dtype="float32").reshape(20, 6, 1, 1) + 1
    wide = window.spread(w)
    for o in range(20):
        begin = window.range(o // 16)[0] * 4
        for i in range(6):
            assert wide[o, o // 5 * 6 + i - begin] == w[o, i]
    assert np.count_nonzero(wide) == w.size


def _model() -> IRModule:
    """One output per case, with a bias and a ReLU on every other one."""
    rng = np.random.default_rng(0)
    g = GraphBuilder()
    outs = []
    for k, (groups, inputs, outputs, size, stride, pad) in enumerate(CASES):
        x = g.param(f"x{k}", tensor((2, inputs, 9, 7), "float32"))
        w = constant(rng.standard_normal((outputs, inputs // groups, size, size)).astype("f4"))
        bias: list[Constant] = []
        if k % 2:
            bias = [constant(rng.standard_normal(outputs).astype("f4"))]
        y = g.emit(
            "conv2d", x, w, *bias, groups=groups, strides=(stride, stride), padding=(pad,) * 4
        )
        outs.append(g.emit("relu", y) if k % 2 else y)
    return IRModule((g.finish(Tuple(tuple(outs))),))


@pytest.fixture(scope="module")
def compiled() -> tuple[tk.Executable, list[np.ndarray], list[np.ndarray]]:
    """The library, its inputs, and float64 results."""
    mod = _model()
    rng = np.random.default_rng(1)
    inputs = [rng.standard_normal((2, c[1], 9, 7)).astype("f4") for c in CASES]
    named = {f"x{k}": x for k, x in enumerate(inputs)}
    return tk.compile(mod), inputs, evaluate(mod, named, dtype="float64")


def test_grouped_convolutions_match_the_reference(
    compiled: tuple[tk.Executable, list[np.ndarray], list[np.ndarray]],
) -> None:
    exe, inputs, expected = compiled
    assert not any(k.kernel_class == "loops" and "conv2d" in k.symbol for k in exe.kernels)
    got = tk.runtime.Executor(exe.jit(), tk.cpu())["main"](*inputs)
    for case, have, want in zip(CASES, got, expected, strict=True):
        np.testing.assert_allclose(have.numpy(), want, rtol=2e-4, atol=2e-4, err_msg=str(case))


def test_threads_do_not_change_a_byte(
    compiled: tuple[tk.Executable, list[np.ndarray], list[np.ndarray]],
) -> None:
    exe, inputs, _ = compiled
    results = []
    for threads in (1, 2):
        executor = tk.runtime.Executor(exe.jit(), tk.cpu())
        executor.set_num_threads(threads)
        results.append([t.numpy().tobytes() for t in executor["main"](*inputs)])
    assert results[0] == results[1]
