"""Convolutions of which many taps lie outside of the image, on every level of x86-64."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tensorkiln as tk
from tensorkiln import ops
from tensorkiln.codegen.stack import local_bytes
from tensorkiln.families.conv_parts.row import halo_of, phase_parts, window_parts
from tensorkiln.ir.module import IRModule
from tensorkiln.ir.relax import Constant, Tuple, constant, tensor
from tensorkiln.kernels.knobs import MOST_ON_STACK
from tensorkiln.ops.builder import GraphBuilder
from tensorkiln.ops.evaluate import evaluate
from tensorkiln.ops.transposed import Phases
from tensorkiln.ops.window import Window
from tensorkiln.schedule.choose import schedule_group
from tensorkiln.target import Target
from tests.codegen.kernels import LEVELS
from tests.rotation import NATIVE, rows_in_turn
from tests.schedule.groups import groups_of

# (channels, filters, image, kernel, strides, dilation, padding)
CASES = (
    (16, 32, (9, 11), (3, 3), (1, 1), (4, 4), (4, 4, 4, 4)),
    (40, 19, (6, 7), (3, 3), (1, 1), (6, 12), (6, 12, 6, 12)),  # taps that are always outside
    (16, 33, (10, 9), (2, 4), (2, 1), (5, 3), (5, 1, 0, 6)),
    (20, 64, (1, 40), (1, 3), (1, 1), (1, 16), (0, 16, 0, 16)),
    (16, 16, (4, 4), (2, 2), (1, 1), (9, 9), (9, 9, 9, 9)),  # outputs without any tap
    (16, 40, (12, 5), (3, 1), (3, 1), (5, 1), (5, 0, 5, 0)),
    (264, 264, (18, 17), (3, 3), (1, 1), (12, 12), (12, 12, 12, 12)),  # pieces outermost
    (40, 136, (46, 48), (3, 3), (1, 1), (20, 20), (20, 20, 20, 20)),  # of each part
    (152, 264, (24, 25), (3, 3), (1, 1), (12, 12), (12, 12, 12, 12)),
)


@given(
    st.builds(
        Window,
        kernel=st.integers(1, 5),
        stride=st.integers(1, 3),
        before=st.integers(0, 9),
        after=st.just(0),
        dilation=st.integers(1, 7),
    ),
    st.integers(1, 20),
    st.integers(1, 24),
)
def test_parts_of_windows_are_their_taps_inside(w: Window, extent: int, size: int) -> None:
    terms: dict[int, set[tuple[int, int]]] = {}
    parts = window_parts(w, extent, size)
    for p in parts:
        for q in range(p.count):
            at = p.source + q * p.source_step
            terms[p.first + q] = {
                (at + j * p.source_tap, p.tap + j * p.tap_step) for j in range(p.taps)
            }
    for i in range(size):
        places = [(i * w.stride - w.before + k * w.dilation, k) for k in range(w.kernel)]
        assert terms[i] == {(y, k) for y, k in places if 0 <= y < extent}
    assert halo_of(parts, extent) == 0


@given(
    st.builds(
        Phases,
        kernel=st.integers(1, 9),
        stride=st.integers(1, 5),
        before=st.integers(-4, 9),
        after=st.just(0),
    ),
    st.integers(1, 12),
    st.integers(1, 30),
)
def test_parts_of_phases_are_what_is_added(p: Phases, extent: int, size: int) -> None:
    terms: dict[int, set[tuple[int, int]]] = {}
    parts = phase_parts(p, size)
    halo = halo_of(parts, extent)
    for part in parts:
        for r in range(part.number):
            for q in range(part.count):
                place = part.first + r + q * part.step
                assert place not in terms
                terms[place] = {
                    (
                        part.source + q * part.source_step + j * part.source_tap,
                        part.tap + r + j * part.tap_step,
                    )
                    for j in range(part.taps)
                }
    assert sorted(terms) == list(range(size))
    for o, found in terms.items():
        assert all(-halo <= i < extent + halo and 0 <= k < p.kernel for i, k in found)
        inside = {(i, k) for i, k in found if 0 <= i < extent}
        assert inside == {
            (i, o + p.before - i * p.stride)
            for i in range(extent)
            if 0 <= o + p.before - i * p.stride < p.kernel
        }


def _constant(*shape: int) -> Constant:
    rng = np.random.default_rng(shape)
    scale = float(np.prod(shape[1:])) ** -0.5 if len(shape) > 1 else 1.0
    return constant((rng.standard_normal(shape) * scale).astype("f4"))


@pytest.mark.parametrize("level", LEVELS)
def test_only_taps_inside_are_summed(level: str) -> None:
    cases = CASES if level == NATIVE else rows_in_turn(CASES, str, lambda _: "")
    rng = np.random.default_rng(5)
    g, inputs, outs = GraphBuilder(), {}, []
    for k, (channels, filters, image, kernel, strides, dilation, padding) in enumerate(cases):
        inputs[f"x{k}"] = rng.standard_normal((2, channels, *image)).astype("f4")
        x = g.param(f"x{k}", tensor(inputs[f"x{k}"].shape, "float32"))
        bias = [_constant(filters)] if k % 2 else []
        attrs = {"strides": strides, "dilation": dilation, "padding": padding}
        y = g.emit("conv2d", x, _constant(filters, channels, *kernel), *bias, **attrs)
        if k % 3:
            shape = y.tensor.static_shape()
            assert shape is not None
            y = g.emit("add", g.emit("relu", y), _constant(*shape))
        if k % 3 == 2:  # a reader with a halo
            y = g.emit("conv2d", y, _constant(8, filters, 3, 3), padding=(1, 1, 1, 1))
        outs.append(y)
    mod = IRModule((g.finish(Tuple(tuple(outs))),))
    exe = tk.compile(mod, LEVELS[level])
    assert sum(p.kernel_class == "conv2d_dilated" for p in exe.placement()) == len(cases)
    ys = tk.runtime.Executor(exe.jit(), tk.cpu())["main"](*inputs.values())
    ys = [ys] if len(cases) == 1 else ys
    for k, want in enumerate(evaluate(mod, inputs, dtype="float64")):
        np.testing.assert_allclose(ys[k].numpy(), want, rtol=1e-4, atol=3e-5, err_msg=f"case {k}")


@pytest.mark.parametrize("mcpu", ["x86-64-v3", "znver5", "sapphirerapids"])
@pytest.mark.parametrize(("size", "dilation"), [(33, 12), (65, 30), (100, 40), (160, 60)])
def test_totals_of_all_parts_fit_the_stack(mcpu: str, size: int, dilation: int) -> None:
    g, target = GraphBuilder(), Target({"kind": "llvm", "mcpu": mcpu})
    x = g.param("x", tensor((1, 128, size, size), "float32"))
    attrs = {"dilation": (dilation,) * 2, "padding": (dilation,) * 4}
    mod = IRModule((g.finish(g.emit("conv2d", x, _constant(256, 128, 3, 3), **attrs)),))
    (group,) = [x for x in groups_of(mod, target) if x.anchor is not None]
    kernel = schedule_group(group, target)
    assert kernel.op_class == "conv2d_dilated"
    assert local_bytes(kernel) <= MOST_ON_STACK + (64 << 10)  # and tiles of what is not in pieces


@pytest.mark.parametrize(("winograd", "expected"), [(0, "conv2d_direct"), (4, "conv2d_winograd")])
def test_a_small_dilation_keeps_the_halo(winograd: int, expected: str) -> None:
    rng = np.random.default_rng(6)
    image = rng.standard_normal((1, 16, 28, 28)).astype("f4")
    g, w = GraphBuilder(), _constant(32, 16, 3, 3)
    x = g.param("x", tensor(image.shape, "float32"))
    attrs = {"dilation": (2, 2), "padding": (2,) * 4}
    target = {"kind": "llvm", "mcpu": "x86-64-v3", "winograd": winograd}
    exe = tk.compile(IRModule((g.finish(g.emit("conv2d", x, w, **attrs)),)), target)
    assert expected in {p.kernel_class for p in exe.placement()}
    conv = ops.get("conv2d")
    want = conv.numpy([image.astype("f8"), w.array.astype("f8")], conv.complete(attrs))
    np.testing.assert_allclose(exe(image), want, rtol=0, atol=3e-5)
