"""A fault is planted after each pass and in the program of a kernel of each class, and found at the
right node; without one, a network agrees."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import pytest

import tensorkiln as tk
from tensorkiln.ir.module import IRModule
from tensorkiln.ir.relax import Constant, Function, constant
from tensorkiln.passes import pass_name
from tensorkiln.pipeline import relax_passes
from tensorkiln.target import Target
from tensorkiln.transform.relax.name_values import name_values
from tests.transform.graphs import graph
from tests.verification.faults import (
    SpoiledConstant,
    SpoiledKernel,
    SpoiledOperator,
    passes_with,
    tir_with,
)

TARGET = Target({"kind": "llvm", "mcpu": "x86-64-v3"})
PASSES = list(dict.fromkeys(map(pass_name, relax_passes(TARGET))))
# The passes after which there are graphs of operators, or calls of fused groups, with constants.
EARLY = PASSES[: PASSES.index("lower_groups")]


def weights(*shape: int, terms: int) -> Constant:
    """Weights that keep the size of values, for sums of so many terms."""
    rng = np.random.default_rng(shape)
    return constant((rng.normal(size=shape) / np.sqrt(terms)).astype("float32"), "w")


def _conv(g, x, inputs: int, outputs: int, size: int = 3, groups: int = 1):  # type: ignore[no-untyped-def]
    channels, pad = inputs // groups, size // 2
    w = weights(outputs, channels, size, size, terms=channels * size * size)
    return g.conv2d(x, w, padding=(pad, pad, pad, pad), groups=groups)


@cache
def residual() -> IRModule:
    """A ResNet-18 in small: every kind of layer that it has."""

    def build(g, x):  # type: ignore[no-untyped-def]
        y = g.max_pool2d(g.relu(_conv(g, x, 3, 16, 7)), kernel=(3, 3), strides=(2, 2))
        for _ in range(2):
            z = g.relu(_conv(g, y, 16, 16))
            y = g.relu(g.add(_conv(g, z, 16, 16), y))
        y = g.mean(y, axes=(2, 3), keepdims=False)
        return g.linear(y, weights(16, 10, terms=16))

    return graph(build, x=(1, 3, 24, 24))


@cache
def separable() -> IRModule:
    """A MobileNetV2 in small."""

    def build(g, x):  # type: ignore[no-untyped-def]
        y = g.clip(_conv(g, x, 3, 16), min=0.0, max=6.0)
        for _ in range(2):
            z = g.clip(_conv(g, y, 16, 32, 1), min=0.0, max=6.0)
            z = g.clip(_conv(g, z, 32, 32, 3, 32), min=0.0, max=6.0)
            y = g.add(_conv(g, z, 32, 16, 1), y)
        return g.linear(g.mean(y, axes=(2, 3), keepdims=False), weights(16, 10, terms=16))

    return graph(build, x=(1, 3, 20, 20))


@cache
def transformer() -> IRModule:
    """A BERT in small."""

    def build(g, x):  # type: ignore[no-untyped-def]
        width, heads = 32, 2
        ones, zeros = (constant(np.full(width, v, "float32")) for v in (1, 0))

        def linear(y, n: int, m: int):  # type: ignore[no-untyped-def]
            return g.linear(y, weights(n, m, terms=n), weights(m, terms=1))

        def split(y):  # type: ignore[no-untyped-def]
            y = g.reshape(y, shape=(1, 10, heads, width // heads))
            return g.transpose(y, axes=(0, 2, 1, 3))

        y = x
        for _ in range(2):
            q, k, v = (split(linear(y, width, width)) for _ in range(3))
            a = g.attention(q, k, v, scale=0.25)
            a = g.reshape(g.transpose(a, axes=(0, 2, 1, 3)), shape=(1, 10, width))
            y = g.layer_norm(g.add(linear(a, width, width), y), ones, zeros, axis=-1)
            z = g.gelu(linear(y, width, 64))
            y = g.layer_norm(g.add(linear(z, 64, width), y), ones, zeros, axis=-1)
        return g.softmax(y, axis=-1)

    return graph(build, x=(1, 10, 32))


NETWORKS = {"residual": residual, "separable": separable, "transformer": transformer}


def names(mod: IRModule) -> set[str]:
    f = name_values(mod)["main"]
    assert isinstance(f, Function)
    return {b.var.name for b in f.bindings}


@pytest.mark.parametrize("network", NETWORKS)
def test_a_network_agrees(network: str) -> None:
    mod = NETWORKS[network]()
    found = tk.verify(tk.compile(mod, TARGET, debug=True), mod)
    assert found and found.exit_code == 0 and found.first is None
    assert found.worst is not None and found.compared >= 8
    assert 0 < (found.worst.local.times or 0) < 0.5
    assert "agrees with the model" in str(found) and "worst of" in str(found)


@pytest.mark.parametrize("after", EARLY)
@pytest.mark.parametrize("network", NETWORKS)
def test_a_fault_after_a_pass(network: str, after: str) -> None:
    mod = NETWORKS[network]()
    spoil = SpoiledConstant()
    passes = passes_with(spoil, after, TARGET)
    exe = tk.compile(mod, TARGET, relax_pipeline=passes, debug=True)
    found = tk.verify(exe, mod)
    assert not found and found.exit_code == 1
    first = found.first
    assert first is not None and first.fault == "passes", str(found)
    assert first.passed == "spoiled_constant", str(found)
    spoiled = _group_of(exe, spoil.name)
    assert first.value in spoiled, str(found)
    assert first.kernel and first.kernel_class and (first.local.times or 0) > 100


def _group_of(exe: tk.Executable, name: str) -> set[str]:
    """The value of that name, and of the kernel whose group computes it."""
    assert exe.debug is not None
    found = {name}
    for f in exe.debug.fused.functions:
        if isinstance(f, Function) and f.is_primitive and name in {b.var.name for b in f.bindings}:
            found.add(f.bindings[-1].var.name)
    return found


CLASSES = [
    (network, kind)
    for network, kinds in {
        "residual": ("conv2d_direct", "conv2d_winograd", "movement", "pool_blocked"),
        "separable": ("conv2d_depthwise", "global_pool_blocked", "linear_packed"),
        "transformer": ("attention_fused", "layer_norm_rows", "softmax_rows"),
    }.items()
    for kind in kinds
]


@pytest.mark.parametrize(("network", "kind"), CLASSES)
def test_a_fault_in_a_kernel(network: str, kind: str) -> None:
    mod = NETWORKS[network]()
    spoil = SpoiledKernel(lambda f: f.op_class == kind)
    exe = tk.compile(mod, TARGET, tir_pipeline=tir_with(spoil, TARGET), debug=True)
    assert spoil.name, {k.kernel_class for k in exe.kernels}
    found = tk.verify(exe, mod)
    first = found.first
    assert first is not None, str(found)
    assert (first.kernel, first.kernel_class, first.fault) == (spoil.name, kind, "kernel")
    assert first.schedule


# ---- 500 nodes ---------------------------------------------------------------------------------


@cache
def long() -> IRModule:
    """500 nodes."""

    def build(g, x):  # type: ignore[no-untyped-def]
        w = weights(16, 16, terms=64)
        y = x
        for _ in range(125):
            y = g.add(g.tanh(g.relu(g.linear(y, w))), x)
        return y

    return graph(build, x=(4, 16))


TARGETS = {"llvm": TARGET, "c": Target({"kind": "c", "mcpu": "x86-64-v3"})}


@pytest.mark.parametrize("target", [*TARGETS, "opencl"])
def test_one_operator_of_500(target: str, tmp_path: Path) -> None:
    if target == "opencl":
        from tests.codegen.opencl.device import device

        device()  # skips where there is none
    asked = TARGETS.get(target) or Target("opencl")
    mod = long()
    assert len(name_values(mod)["main"].bindings) == 500  # type: ignore[union-attr]
    spoil = SpoiledOperator("tanh", "sigmoid", 77)
    passes = passes_with(spoil, "eliminate_dead_code", asked)
    exe = tk.compile(mod, asked, relax_pipeline=passes, debug=True)
    for compiled in (exe, exe.export_library(tmp_path / "net.so")):
        found = tk.verify(compiled, mod, seed=3)
        assert found.first is not None, str(found)
        n = 77 * 4 + 2
        assert spoil.name == f"n{n}_tanh_77"
        assert found.first.value in (spoil.name, f"n{n + 1}_add_77")
        assert found.first.node in ("node tanh", "node add")
        assert (found.first.local.absolute, found.compared > 124) > (0.1, False)
    sound = tk.compile(mod, asked, debug=True)
    assert tk.verify(sound, mod, seed=3)
