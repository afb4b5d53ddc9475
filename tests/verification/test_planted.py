"""A fault is planted after each pass and in the program of a kernel of each class, and found at the
right node; without one, a network agrees."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tensorkiln as tk
from tensorkiln.ir.module import IRModule
from tensorkiln.ir.relax import Constant, Function, constant
from tensorkiln.kernels.folders import built_in_families
from tensorkiln.passes import pass_name
from tensorkiln.pipeline import relax_passes
from tensorkiln.target import Target
from tensorkiln.transform.relax.name_values import name_values
from tensorkiln.verification import Verification
from tests.codegen.opencl.device import device
from tests.cuda.networks import let_run
from tests.processors import require
from tests.transform.graphs import graph
from tests.verification.families import ONLY_IN_TILES, RUN_HERE, cases, families
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


def _conv(g: Any, x: Any, inputs: int, outputs: int, size: int = 3, groups: int = 1) -> Any:
    channels, pad = inputs // groups, size // 2
    w = weights(outputs, channels, size, size, terms=channels * size * size)
    return g.conv2d(x, w, padding=(pad, pad, pad, pad), groups=groups)


@cache
def residual() -> IRModule:
    """A ResNet-18 in small: every kind of layer that it has."""

    def build(g: Any, x: Any) -> Any:
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

    def build(g: Any, x: Any) -> Any:
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

    def build(g: Any, x: Any) -> Any:
        width, heads = 32, 2
        scale, zeros = (constant(np.full(width, v, "float32")) for v in (1, 0))

        def linear(y: Any, n: int, m: int) -> Any:
            return g.linear(y, weights(n, m, terms=n), weights(m, terms=1))

        def split(y: Any) -> Any:
            y = g.reshape(y, shape=(1, 10, heads, width // heads))
            return g.transpose(y, axes=(0, 2, 1, 3))

        y = x
        for _ in range(2):
            q, k, v = (split(linear(y, width, width)) for _ in range(3))
            a = g.attention(q, k, v, scale=0.25)
            a = g.reshape(g.transpose(a, axes=(0, 2, 1, 3)), shape=(1, 10, width))
            y = g.layer_norm(g.add(linear(a, width, width), y), scale, zeros, axis=-1)
            z = g.gelu(linear(y, width, 64))
            y = g.layer_norm(g.add(linear(z, 64, width), y), scale, zeros, axis=-1)
        return g.softmax(y, axis=-1)

    return graph(build, x=(1, 10, 32))


NETWORKS = {"residual": residual, "separable": separable, "transformer": transformer}


@pytest.mark.parametrize("network", NETWORKS)
def test_a_network_agrees(network: str) -> None:
    mod = NETWORKS[network]()
    verification = tk.verify(tk.compile(mod, TARGET, debug=True), mod)
    assert verification and verification.exit_code == 0 and verification.first is None
    assert verification.worst is not None and verification.compared >= 8
    assert 0 < (verification.worst.local.times or 0) < 0.5
    assert "agrees with the model" in str(verification) and "nearest to its limit, of" in str(
        verification
    )


@pytest.mark.parametrize("after", EARLY)
def test_a_fault_after_a_pass(after: str) -> None:
    network = list(NETWORKS)[EARLY.index(after) % len(NETWORKS)]
    mod = NETWORKS[network]()
    spoil = SpoiledConstant()
    passes = passes_with(spoil, after, TARGET)
    exe = tk.compile(mod, TARGET, relax_pipeline=passes, debug=True)
    verification = tk.verify(exe, mod)
    assert not verification and verification.exit_code == 1
    first = verification.first
    assert first is not None and first.fault == "passes", str(verification)
    assert first.passed == "spoiled_constant", str(verification)
    spoiled = _group_of(exe, spoil.name)
    assert first.value in spoiled, str(verification)
    assert first.kernel and first.kernel_class and (first.local.times or 0) > 100


def _group_of(exe: tk.Executable, name: str) -> set[str]:
    """The value of that name, and of the kernel whose group computes it."""
    assert exe.debug is not None
    names = {name}
    for f in exe.debug.fused.functions:
        if isinstance(f, Function) and f.is_primitive and name in {b.var.name for b in f.bindings}:
            names.add(f.bindings[-1].var.name)
    return names


# Emulated, it takes seconds.
_ATTENTIONS = ("gpu_attention", "gpu_attention_tensor_cores", "gpu_attention_wgmma")
SLOW = {("cuda", c) for c in (*_ATTENTIONS, "gpu_wgmma")}
FAMILIES = cases()
COMPILED = [kind for on, kind in FAMILIES if on == "cpu" and kind not in ONLY_IN_TILES]


def test_every_family_has_a_case() -> None:
    assert set(FAMILIES) == set(families())
    assert {d for f in built_in_families() for d in f.devices} == {*RUN_HERE, "webgpu"}


@pytest.mark.parametrize(
    ("on", "kind"),
    [pytest.param(*k, marks=pytest.mark.conformance if k in SLOW else ()) for k in FAMILIES],
)
def test_a_fault_in_a_kernel(on: str, kind: str) -> None:
    """Right, and with a kernel spoiled."""
    case = FAMILIES[on, kind]
    kind = case.kernel or kind
    mod, target = case.module(), Target(case.config(on))
    if on == "cpu":
        require(target)
    if on == "opencl":
        device()  # skips where there is none
    sound = tk.compile(mod, target, debug=True)
    spoil = SpoiledKernel(lambda f: f.op_class == kind)
    spoiled = tk.compile(mod, target, tir_pipeline=tir_with(spoil, target), debug=True)
    if on == "cuda":
        let_run(sound, watch=False)
    verification = tk.verify(sound, mod, dims=case.dims())
    assert verification and verification.compared, str(verification)
    if on == "cuda":
        let_run(spoiled, watch=False)
    _assert_kernel(tk.verify(spoiled, mod, dims=case.dims()), spoil.name, kind)


@pytest.mark.conformance
@pytest.mark.parametrize("on", ["c", "llvmjit"])
@pytest.mark.parametrize("kind", COMPILED)
def test_a_fault_in_a_kernel_as_c_or_in_memory(on: str, kind: str) -> None:
    case = FAMILIES["cpu", kind]
    mod, target = case.module(), Target({**case.config("cpu"), "kind": on})
    spoil = SpoiledKernel(lambda f: f.op_class == kind)
    exe = tk.compile(mod, target, tir_pipeline=tir_with(spoil, target), debug=True)
    verification = tk.verify(exe, mod, dims=case.dims())
    name = f"{mod.name}_kernel_{spoil.name}" if on == "c" else spoil.name
    _assert_kernel(verification, name, kind)


def _assert_kernel(verification: Verification, kernel: str, kind: str) -> None:
    first = verification.first
    assert kernel and first is not None, str(verification)
    assert (first.kernel, first.kernel_class) == (kernel, kind), str(verification)
    assert (first.fault, first.passed) == ("kernel", ""), str(verification)
    assert first.schedule


# ---- networks of the zoo -----------------------------------------------------------------------

ZOO = ("resnet18", "mobilenetv2", "bert_2")


def zoo(name: str) -> tuple[Path, list[np.ndarray]]:
    """A network's file, and inputs."""
    for package in ("torch", "onnx", "onnxscript"):
        pytest.importorskip(package)
    from tests.zoo.export import model_path
    from tests.zoo.registry import EXPORTS, inputs
    from tests.zoo.registry import NETWORKS as KNOWN

    return model_path(name), list(inputs(KNOWN[EXPORTS[name].network], 0).values())


@pytest.mark.conformance
@pytest.mark.parametrize("name", ZOO)
def test_a_network_of_the_zoo_agrees(name: str) -> None:
    path, feeds = zoo(name)
    exe = tk.compile(tk.frontend.from_onnx(path), debug=True)
    for reference in ("float64", "onnxruntime"):
        verification = tk.verify(exe, path, feeds, reference=reference)
        assert verification and verification.compared > 10, str(verification)
        assert verification.worst is not None and (verification.worst.local.times or 0) < 0.5


@pytest.mark.conformance
@pytest.mark.parametrize("after", EARLY)
def test_a_fault_in_the_zoo_after_a_pass(after: str) -> None:
    name = ZOO[EARLY.index(after) % len(ZOO)]
    path, feeds = zoo(name)
    mod = tk.frontend.from_onnx(path)
    spoil = SpoiledConstant()
    exe = tk.compile(mod, TARGET, relax_pipeline=passes_with(spoil, after, TARGET), debug=True)
    verification = tk.verify(exe, mod, feeds)
    assert verification.first is not None and verification.first.fault == "passes", str(
        verification
    )
    is_in_group = verification.first.value in _group_of(exe, spoil.name)
    assert is_in_group or spoil.span in verification.first.nodes, str(verification)


@pytest.mark.conformance
@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("resnet18", "conv2d_winograd"),
        ("resnet18", "conv2d_direct"),
        ("resnet18", "pool_blocked"),
        ("mobilenetv2", "conv2d_depthwise"),
        ("mobilenetv2", "global_pool_blocked"),
        ("mobilenetv2", "movement"),
        ("bert_2", "attention_fused"),
        ("bert_2", "linear_packed"),
        ("bert_2", "layer_norm_rows"),
        ("bert_2", "loops"),
    ],
)
def test_a_fault_in_a_kernel_of_the_zoo(name: str, kind: str) -> None:
    path, feeds = zoo(name)
    mod = tk.frontend.from_onnx(path)
    spoil = SpoiledKernel(lambda f: f.op_class == kind and not f.name.startswith("keep_"))
    exe = tk.compile(mod, TARGET, tir_pipeline=tir_with(spoil, TARGET), debug=True)
    _assert_kernel(tk.verify(exe, mod, feeds), spoil.name, kind)


# ---- 500 nodes ---------------------------------------------------------------------------------


@cache
def long() -> IRModule:
    """500 nodes."""

    def build(g: Any, x: Any) -> Any:
        w = weights(16, 16, terms=64)
        y = x
        for _ in range(125):
            y = g.add(g.tanh(g.relu(g.linear(y, w))), x)
        return y

    return graph(build, x=(4, 16))


TARGETS = {"llvm": TARGET, "c": Target({"kind": "c", "mcpu": "x86-64-v3"})}
TARGETS |= {kind: Target(kind) for kind in ("opencl", "cuda")}


@pytest.mark.parametrize("target", TARGETS)
def test_one_operator_of_500(target: str, tmp_path: Path) -> None:
    if target == "opencl":
        device()  # skips where there is none
    compile_target = TARGETS[target]
    mod = long()
    assert len(name_values(mod)["main"].bindings) == 500  # type: ignore[union-attr]
    spoil = SpoiledOperator("tanh", "sigmoid", 77)
    passes = passes_with(spoil, "eliminate_dead_code", compile_target)
    exe = tk.compile(mod, compile_target, relax_pipeline=passes, debug=True)
    if target == "cuda":
        let_run(exe, watch=False)
    for compiled in (exe, exe.export_library(tmp_path / "net.so")):
        verification = tk.verify(compiled, mod, seed=3)
        assert verification.first is not None, str(verification)
        n = 77 * 4 + 2
        assert spoil.name == f"n{n}_tanh_77"
        assert verification.first.value in (spoil.name, f"n{n + 1}_add_77")
        assert verification.first.node in ("node tanh", "node add")
        assert (verification.first.local.absolute, verification.compared > 124) > (0.1, False)
    sound = tk.compile(mod, compile_target, debug=True)
    if target == "cuda":
        let_run(sound, watch=False)
    assert tk.verify(sound, mod, seed=3)
