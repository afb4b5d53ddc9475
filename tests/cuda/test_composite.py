"""One library of many hands: a processor, CUDA, an external that emits C and one whose loader is in
Python. Its results are those of a processor alone."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tensorkiln as tk
from tensorkiln.artifact import Artifact
from tensorkiln.external import External
from tensorkiln.ir.relax import Call, Function
from tensorkiln.runtime import load_module, register_loader, unregister_loader
from tensorkiln.runtime.cuda_memory import CUDA_DRIVER
from tensorkiln.target import register_target_kind, unregister_target_kind
from tests.cuda.networks import let_run, runner
from tests.devices.test_opencl import DSP, _block, _emit
from tests.transform.graphs import graph

pytestmark = pytest.mark.filterwarnings("ignore:.*is the baseline")

X = np.random.default_rng(7).normal(size=(10, 24)).astype(np.float32)
GPU = {"kind": "cuda", "operators": ["linear", "softmax"]}


class _Gelus:
    """The module of the loader: each function computes GELU; `log` has what was called."""

    def __init__(self, log: list[str]):
        self._log = log

    def __getitem__(self, name: str) -> Any:
        def call(*tensors: Any) -> None:
            x, out = (np.asarray(t) for t in tensors)
            self._log.append(name)
            out[...] = 0.5 * x * (1 + np.vectorize(math.erf)(x / math.sqrt(2)))

        return call


def _emit_gelu(f: Function, symbol: str) -> list[Artifact]:
    (call,) = (b.value for b in f.bindings if isinstance(b.value, Call))
    assert call.op == "gelu"
    return [Artifact("gelus", "gelus", f"{symbol}.txt", b"gelu")]


@pytest.fixture
def called() -> Iterator[list[str]]:
    """The kinds `normer`, by C, and `geluer`, by a loader; yields which of its functions ran."""
    log: list[str] = []
    norms = External("norms", lambda call, target: call.op == "layer_norm", _emit)
    gelus = External("gelus", lambda call, target: call.op == "gelu", _emit_gelu)
    register_target_kind("normer", "ext_dev", relax_codegen=lambda target: [norms])
    register_target_kind("geluer", "ext_dev", relax_codegen=lambda target: [gelus])
    register_loader("gelus", lambda artifacts, devices: _Gelus(log))
    try:
        yield log
    finally:
        unregister_loader("gelus")
        unregister_target_kind("geluer")
        unregister_target_kind("normer")


def _expected() -> np.ndarray:
    return np.asarray(tk.compile(graph(_block, x=X.shape))(X))


def test_a_processor_cuda_and_two_externals(called: list[str], tmp_path: Path) -> None:
    """Exported and loaded: five groups of artifacts, each made and run by its own."""
    target = {"devices": ["normer", "geluer", GPU, DSP, "llvm"]}
    exe = tk.compile(graph(_block, x=X.shape), target)
    let_run(exe)
    by_class = {p.kernel_class: p.device for p in exe.placement()}
    assert by_class["external:norms_normer"] == "normer"
    assert by_class["external:gelus_geluer"] == "geluer"
    on_device = {device for name, device in by_class.items() if name.startswith("gpu_")}
    assert on_device == {"cuda"} and "llvm" in by_class.values()
    lib = load_module(exe.export_library(tmp_path / "all.so"))
    assert {m.type_key for m in lib.imported_modules} == {"cuda", "gelus"}
    (have,) = runner(lib)(X)
    np.testing.assert_allclose(have, _expected(), rtol=1e-5, atol=1e-6)
    assert len(called) == 1


@pytest.mark.parametrize("order", [[0, 1, 2], [2, 1, 0], [1, 2, 0]])
def test_devices_in_any_order(order: list[int], called: list[str]) -> None:
    """CUDA, another processor and an external: operators that name their device go there, the rest
    where the first device for all is."""
    devices = [GPU, {**DSP, "operators": ["attention"]}, "geluer"]
    exe = tk.compile(graph(_block, x=X.shape), {"devices": [devices[k] for k in order]})
    let_run(exe)
    device_by_class = {p.kernel_class: p.device for p in exe.placement()}
    assert device_by_class["gpu_softmax"] == "cuda" and {"dsp", "host"} <= set(
        device_by_class.values()
    )
    (have,) = runner(exe.jit())(X)
    np.testing.assert_allclose(have, _expected(), rtol=1e-5, atol=1e-6)


def test_two_devices_of_cuda(called: list[str]) -> None:
    """A library for two: values go from one to the other, and externals read from both."""
    left_device = {"kind": "cuda", "target_key": "left", "operators": ["linear"]}
    right = {"kind": "cuda", "target_key": "right", "arch": "sm_80"}
    exe = tk.compile(
        graph(_block, x=X.shape), {"devices": ["normer", "geluer", left_device, right]}
    )
    let_run(exe)
    assert {p.device for p in exe.placement()} == {"left", "right", "normer", "geluer"}
    lib = exe.jit()
    assert [m.group.target_key for m in lib.imported_modules if m.type_key == "cuda"] == [
        "left",
        "right",
    ]
    second = 1 if CUDA_DRIVER.count_devices() > 1 else 0
    main = tk.runtime.Executor(lib, {"left": tk.cuda(0), "right": tk.cuda(second)})["main"]
    np.testing.assert_allclose(main(X).numpy(), _expected(), rtol=1e-5, atol=1e-6)
