"""Models on OpenCL, alone and beside CPUs and somebody's accelerator: the results of a CPU."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tensorkiln as tk
from tensorkiln.artifact import Artifact
from tensorkiln.external import External
from tensorkiln.ir.expr import Var
from tensorkiln.ir.module import IRModule
from tensorkiln.ir.relax import Call, Function, tensor
from tensorkiln.kernels.case import Build, rand
from tensorkiln.pipeline import relax_passes
from tensorkiln.runtime.device_tensor import DeviceTensor
from tensorkiln.script import from_source
from tensorkiln.target import Target, register_target_kind, unregister_target_kind
from tests.codegen.opencl.device import device
from tests.transform.graphs import graph

pytestmark = pytest.mark.filterwarnings("ignore:.*is the baseline")


@pytest.fixture(autouse=True)
def _opencl() -> None:
    device()  # skips where there is none


def run(exe: tk.Executable, *inputs: np.ndarray) -> list[np.ndarray]:
    found = exe(*inputs)
    return [np.asarray(x) for x in (found if isinstance(found, tuple | list) else (found,))]


def check(mod: IRModule, target: Any, *inputs: np.ndarray) -> tk.Executable:
    """Compile for a target; its results are those of a CPU."""
    exe = tk.compile(mod, target)
    for have, want in zip(run(exe, *inputs), run(tk.compile(mod), *inputs), strict=True):
        assert have.dtype == want.dtype and have.shape == want.shape
        if have.dtype.kind == "f":
            scale = np.abs(want).max(initial=1e-6)
            np.testing.assert_allclose(have, want, rtol=1e-5, atol=1e-5 * scale)
        else:
            np.testing.assert_array_equal(have, want)
    return exe


def data(*shape: int, dtype: str = "float32") -> np.ndarray:
    return np.random.default_rng(shape).normal(size=shape).astype(dtype)


def _two_results(g: Any, x: Any) -> Any:
    y = g.exp(x)
    g.also = g.relu(x)
    return y


NETWORKS: dict[str, tuple[Build, tuple[int, ...]]] = {
    "elementwise": (lambda g, x: g.relu(g.add(g.mul(x, 2.0), 1.0)), (3, 7)),
    "one_element": (lambda g, x: g.exp(x), (1,)),
    "no_dimensions": (lambda g, x: g.exp(x), ()),
    "constant_operand": (lambda g, x: g.add(x, rand(5, 1)), (5, 9)),
    "linear": (lambda g, x: g.gelu(g.linear(x, rand(33, 20), rand(20))), (17, 33)),
    "view": (lambda g, x: g.exp(g.reshape(g.exp(x), shape=(21,))), (3, 7)),
    "view_of_parameter": (lambda g, x: g.reshape(x, shape=(21,)), (3, 7)),
    "parameter_returned": (lambda g, x: x, (3, 7)),
    "concat": (lambda g, x: g.concat(g.exp(x), g.relu(x), axis=1), (3, 7)),
    "transpose": (lambda g, x: g.transpose(x, axes=(2, 0, 1)), (3, 7, 5)),
    "softmax": (lambda g, x: g.softmax(g.mul(x, 3.0), axis=1), (9, 130)),
    "layer_norm": (lambda g, x: g.layer_norm(x, rand(70), rand(70)), (9, 70)),
    "mean": (lambda g, x: g.mean(x, axes=(1, 2)), (4, 13, 9)),
    "conv": (
        lambda g, x: g.relu(g.conv2d(x, rand(9, 5, 3, 3), rand(9), padding=(1, 1, 1, 1))),
        (2, 5, 8, 7),
    ),
    "depthwise": (
        lambda g, x: g.conv2d(x, rand(6, 1, 3, 3), rand(6), groups=6, strides=(2, 2)),
        (1, 6, 9, 9),
    ),
    "pool": (lambda g, x: g.max_pool2d(x, kernel=(3, 3), strides=(2, 2)), (1, 4, 9, 9)),
    "attention": (lambda g, x: g.attention(x, x, x, scale=0.25, causal=True), (1, 2, 9, 16)),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_operators_run_wholly_on_the_device(name: str) -> None:
    build, shape = NETWORKS[name]
    exe = check(graph(build, x=shape), "opencl", data(*shape))
    where = "host" if "parameter" in name else "opencl"  # which copies it, since it is a result
    assert {p.device for p in exe.placement()} == {where}


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "int64", "float16"])
def test_element_types(dtype: str) -> None:
    mod = graph(lambda g, x: g.emit("add", x, x), x=tensor((3, 11), dtype))
    exe = check(mod, "opencl", (data(3, 11) * 20).astype(dtype))
    assert {p.device for p in exe.placement()} == {"opencl"}


def test_what_the_device_lacks_runs_on_the_host() -> None:
    """float64 needs an extension that the target does not say the device has."""
    mod = graph(lambda g, x: g.add(x, x), x=tensor((5,), "float64"))
    exe = check(mod, "opencl", data(5, dtype="float64"))
    assert {p.device for p in exe.placement()} == {"host"}
    assert {r for p in exe.placement() for r in p.reasons} == {"opencl: no kernel"}
    exe = check(mod, {"kind": "opencl", "supports_float64": True}, data(5, dtype="float64"))
    assert {p.device for p in exe.placement()} == {"opencl"}


@pytest.mark.parametrize("n", [1, 5, 300])
def test_symbolic_sizes(n: int) -> None:
    def build(g: Any, x: Any) -> Any:
        return g.softmax(g.linear(g.exp(g.linear(x, rand(6, 20))), rand(20, 9)), axis=1)

    mod = graph(build, x=tensor((Var("n"), 6), "float32"))
    check(mod, "opencl", data(n, 6))


# -- several devices -------------------------------------------------------------------------------


def _block(g: Any, x: Any) -> Any:
    """Attention and a feed-forward part, with residuals, as in a transformer."""
    q, k, v = (g.linear(x, rand(24, 24, seed=i)) for i in range(3))
    heads = [g.transpose(g.reshape(t, shape=(1, 10, 3, 8)), axes=(0, 2, 1, 3)) for t in (q, k, v)]
    a = g.transpose(g.attention(*heads, scale=0.35), axes=(0, 2, 1, 3))
    y = g.layer_norm(g.add(g.reshape(a, shape=(10, 24)), x), rand(24), rand(24))
    z = g.linear(g.gelu(g.linear(y, rand(24, 40))), rand(40, 24))
    return g.softmax(g.add(z, y), axis=1)


DSP = {"kind": "llvm", "mcpu": "x86-64-v2", "target_key": "dsp", "operators": ["layer_norm"]}
GPU = {"kind": "opencl", "operators": ["linear", "gelu", "softmax"]}


def test_a_cpu_and_opencl() -> None:
    exe = check(graph(_block, x=(10, 24)), {"devices": [GPU, DSP, "llvm"]}, data(10, 24))
    assert {p.device for p in exe.placement()} == {"opencl", "dsp", "llvm"}
    assert all(p.reasons for p in exe.placement() if p.nodes)


def test_no_more_copies_than_the_cut_needs() -> None:
    """x to the device; three products back; the norm there and, after both layers and the sum on
    the host, its operand back; the sum there and the softmax back."""
    exe = tk.compile(graph(_block, x=(10, 24)), {"devices": [GPU, "llvm"]})
    copies = [(c.source, c.destination) for c in exe.copies()]
    there, back = ("host", "opencl"), ("opencl", "host")
    assert sorted(copies) == sorted([there] * 3 + [back] * 5)
    assert sum(c.nbytes or 0 for c in exe.copies()) == 8 * 960
    alone = tk.compile(graph(_block, x=(10, 24)), "opencl")
    assert [(c.source, c.destination) for c in alone.copies()] == [there, back]


def _emit(f: Function, symbol: str) -> list[Artifact]:
    (call,) = (b.value for b in f.bindings if isinstance(b.value, Call))
    assert call.op == "layer_norm"
    text = f"""
#include <math.h>
void {symbol}(const float *x, const float *g, const float *b, float *y);
void {symbol}(const float *x, const float *g, const float *b, float *y) {{
    for (int i = 0; i < 10; i++) {{
        double sum = 0, squares = 0;
        for (int j = 0; j < 24; j++) sum += x[24 * i + j];
        for (int j = 0; j < 24; j++) {{
            double d = x[24 * i + j] - sum / 24;
            squares += d * d;
        }}
        for (int j = 0; j < 24; j++)
            y[24 * i + j] = (float)((x[24 * i + j] - sum / 24) / sqrt(squares / 24 + 1e-5)
                                    * g[j] + b[j]);
    }}
}}
"""
    return [Artifact("norms", "native", f"{symbol}.c", text.encode())]


def test_a_cpu_opencl_and_an_external() -> None:
    norms = External("norms", lambda call, target: call.op == "layer_norm", _emit)
    register_target_kind("normer", "ext_dev", relax_codegen=lambda target: [norms])
    try:
        target = {"devices": ["normer", GPU, "llvm"]}
        exe = check(graph(_block, x=(10, 24)), target, data(10, 24))
        assert {p.device for p in exe.placement()} == {"normer", "opencl", "llvm"}
        assert "external:norms_normer" in {p.kernel_class for p in exe.placement()}
    finally:
        unregister_target_kind("normer")


def test_two_devices_of_one_kind() -> None:
    """Both are the machine's first device; a value goes from one to the other through the host."""
    left = {"kind": "opencl", "target_key": "left", "operators": ["linear"]}
    right = {"kind": "opencl", "target_key": "right"}
    exe = check(graph(_block, x=(10, 24)), {"devices": [left, right]}, data(10, 24))
    keys = {a.target_key for a in exe.artifacts if a.loader == "opencl"}
    assert keys == {"left", "right"}


# -- devices in types ------------------------------------------------------------------------------

_ON = """
@R.function
def main(x: R.Tensor((4, 8), "float32"{x}), w: R.Tensor((8, 8), "float32")){result}:
{body}
"""
_T, _GPU = 'R.Tensor((4, 8), "float32")', 'R.Tensor((4, 8), "float32", device="gpu")'
_EXP, _LINEAR = f"    y: {_GPU} = R.exp(x)", f"    y: {_GPU} = R.linear(x, w)"
# the body, the declared result, whether x is on the device, the devices of the kernels, the copies
PINNED: dict[str, tuple[str, str, bool, list[str], int]] = {
    "stays_there": (f"{_EXP}\n    return y", "", True, ["gpu"], 0),
    "comes_back": (f"{_EXP}\n    return y", f"{_T[:-1]}, device='host')", True, ["gpu"], 1),
    "goes_there": (f"{_EXP}\n    return y", "", False, ["gpu"], 1),
    "weights_go_there": (
        f"{_LINEAR}\n    z = R.relu(y)\n    return z, y",
        "",
        True,
        ["gpu", "host"],
        2,
    ),
    "returned": ("    return x", _GPU, True, ["host"], 2),
    "moved_there": ("    return x", _GPU, False, ["host"], 1),
    "moved_back": ("    return x", f"{_T[:-1]}, device='host')", True, ["host"], 1),
    "view": (
        f"    y: {_GPU.replace('4, 8', '32,')} = R.reshape(x, shape=(32,))\n    return y",
        "",
        True,
        ["gpu"],
        0,
    ),
    "twice": (f"{_EXP}\n    return y, y", f"R.Tuple({_GPU}, {_T})", False, ["gpu", "host"], 3),
}


@pytest.mark.parametrize("name", PINNED)
def test_devices_in_types(name: str) -> None:
    """Operators run, and parameters and results are, where their types say."""
    body, result, there, devices, copies = PINNED[name]
    target = {"devices": [{"kind": "opencl", "target_key": "gpu", "operators": ["softmax"]}]}

    def text(x: str, end: str, lines: str) -> IRModule:
        return from_source(_ON.format(x=x, result=f" -> {end}" if end else "", body=lines))

    exe = tk.compile(text(', device="gpu"' if there else "", result, body), target)
    assert [p.device for p in exe.placement()] == devices and len(exe.copies()) == copies
    head = exe.header()
    assert ("void *x," in head and "x            float32 [4, 8], on device 1" in head) == there
    (info,) = exe.jit().metadata["functions"]
    x, w = data(4, 8), data(8, 8)
    bare = text("", "", body.replace(', device="gpu"', ""))
    wanted = run(tk.compile(bare), x, w)
    given = tk.nd.array(x, tk.opencl(0)) if there else x
    found = tk.runtime.Executor(exe)["main"](given, w)
    found = found if isinstance(found, tuple | list) else (found,)
    for have, want, row in zip(found, wanted, info["outputs"], strict=True):
        assert isinstance(have, DeviceTensor) == bool(row.get("device"))
        np.testing.assert_allclose(have.numpy(), want, rtol=1e-5)
    if there:
        with pytest.raises(ValueError, match="'x' must be in memory of a device of opencl"):
            tk.runtime.Executor(exe)["main"](x, w)


# -- libraries -------------------------------------------------------------------------------------

_RUN = """
import sys, numpy as np, tensorkiln as tk
lib = tk.runtime.load_module(sys.argv[1])
x = np.arange(21, dtype=np.float32).reshape(3, 7)
try:
    print(tk.runtime.Executor(lib)["main"](x).numpy().sum())
except Exception as error:
    print(type(error).__name__, error)
"""


def test_a_library_loads_without_opencl_and_says_what_lacks(tmp_path: Path) -> None:
    exe = tk.compile(graph(NETWORKS["elementwise"][0], x=(3, 7)), "opencl")
    library = exe.export_library(tmp_path / "net.so")
    command = [sys.executable, "-c", _RUN, str(library)]
    found = subprocess.run(command, capture_output=True, text=True, check=True)
    assert float(found.stdout) == pytest.approx(2 * 210 + 21)
    nowhere = {
        "OCL_ICD_VENDORS": str(tmp_path / "none"),
        "PATH": "",
        "PYTHONPATH": ":".join(sys.path),
    }
    lacking = subprocess.run(command, capture_output=True, text=True, env=nowhere, check=False)
    assert lacking.returncode == 0 and "OpenCL" in lacking.stdout, lacking.stdout + lacking.stderr


def test_artifacts_can_be_read() -> None:
    exe = tk.compile(graph(NETWORKS["linear"][0], x=(17, 33)), "opencl")
    text, table = (exe.artifacts[f"opencl/opencl/kernels{s}"].text() for s in (".cl", ".fmap.json"))
    rows = json.loads(table)["functions"]
    assert all(f"void {name}(" in text for name in rows)
    assert Target(json.loads(exe.target.__str__())) == exe.target


# The composite targets of the proposal, with OpenCL in the place of CUDA, in its spelling.
PROPOSED = {
    "beside_a_cpu": {"id": "composite", "targets": [{"id": "llvm"}, {"id": "opencl"}]},
    "around_a_host": {
        "id": "composite",
        "target_host": {"id": "llvm"},
        "targets": [{"id": "opencl"}],
    },
    "host_in_the_device": {"id": "opencl", "target_host": {"id": "llvm"}},
}


@pytest.mark.parametrize("name", PROPOSED)
def test_proposed_composites(name: str) -> None:
    check(graph(_block, x=(10, 24)), PROPOSED[name], data(10, 24))


def test_a_named_composite_has_a_lowering_of_its_own() -> None:
    """Its hook pins all of a function to the device that its kind prefers."""

    def passes(target: Target, externals: Any) -> Any:
        def pin(mod: IRModule) -> IRModule:
            return mod.map_graphs(
                lambda f: dataclasses.replace(f, attrs=type(f.attrs).of(**f.attrs, target="gpu"))
            )

        return [pin, *relax_passes(target, externals)]

    register_target_kind("gpu_first", "", composite=True, relax_pipeline=passes)
    try:
        devices = ["llvm", {"kind": "opencl", "target_key": "gpu"}]
        target = {"kind": "gpu_first", "devices": devices}
        exe = check(graph(_block, x=(10, 24)), target, data(10, 24))
        assert {p.device for p in exe.placement()} == {"gpu"}
    finally:
        unregister_target_kind("gpu_first")


BERT = {
    "two_cpus": {"devices": [{**DSP, "operators": ["linear", "layer_norm"]}, "llvm"]},
    "a_cpu_and_opencl": {"devices": [GPU, "llvm"]},
    "two_cpus_and_opencl": {"devices": [{"kind": "opencl", "operators": ["linear"]}, DSP, "llvm"]},
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "target"),
    [
        *((n, "opencl") for n in ("mlp", "mobilenetv2", "bert_2", "resnet18")),
        *(("bert_2", key) for key in BERT),
    ],
)
def test_networks(name: str, target: str) -> None:
    pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
    from tests.models.test_models import fetch, random_inputs

    mod = tk.frontend.from_onnx(str(fetch(name)))
    exe = check(mod, BERT.get(target, target), *random_inputs(name, 0, {}).values())
    used = {p.device for p in exe.placement() if p.kernel_class != "indices"}  # checked on the host
    assert used == {"opencl"} if target == "opencl" else len(used) == len(BERT[target]["devices"])


def test_an_empty_tensor_that_stays_on_a_device() -> None:
    there = 'R.Tensor((0, 8), "float32", device="opencl")'
    source = f"""
@R.function
def main(x: {there}) -> {there}:
    y: {there} = R.exp(x)
    return y
"""
    exe = tk.compile(from_source(source), {"devices": ["opencl"], "host": "native"})
    found = exe(tk.nd.zeros((0, 8), "float32", tk.opencl(0)))
    assert isinstance(found, DeviceTensor) and found.shape == (0, 8)
