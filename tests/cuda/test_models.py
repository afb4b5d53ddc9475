"""Models on CUDA, alone and beside CPUs: the results of a CPU. On the machine's GPU, or by the
emulator behind the stand-in for its driver."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tensorkiln as tk
from tensorkiln.ir.expr import Var
from tensorkiln.ir.module import IRModule
from tensorkiln.ir.relax import tensor
from tensorkiln.kernels.case import rand
from tensorkiln.runtime import Executor, load_module
from tensorkiln.script import from_source
from tensorkiln.transform.tir.fold_grid import MOST_ALONG_Y
from tests.cuda.emulator.build import build_all
from tests.cuda.lookalike import require_cuda
from tests.devices.test_opencl import DSP, NETWORKS, _block
from tests.transform.graphs import graph

pytestmark = pytest.mark.filterwarnings("ignore:.*is the baseline")


def check(mod: IRModule, target: Any, *shapes: tuple[int, ...]) -> tk.Executable:
    """Compile for a target; for inputs of each shape its results are those of a CPU."""
    exe = tk.compile(mod, target)
    if not require_cuda():
        build_all(exe.artifacts, Path(os.environ["LOOKALIKE_DIR"]))
    on_cpu = tk.compile(mod)
    for shape in shapes:
        x = np.random.default_rng(shape).normal(size=shape).astype("float32")
        have, want = np.asarray(exe(x)), np.asarray(on_cpu(x))
        scale = np.abs(want).max(initial=1e-6)
        np.testing.assert_allclose(have, want, rtol=1e-5, atol=1e-5 * scale)
    return exe


@pytest.mark.parametrize("name", ["linear", "layer_norm", "conv", "pool", "attention"])
def test_operators_run_wholly_on_the_device(name: str) -> None:
    build, shape = NETWORKS[name]
    exe = check(graph(build, x=shape), "cuda", shape)
    assert {p.device for p in exe.placement()} == {"cuda"}
    assert [m.type_key for m in exe.jit().imported_modules] == ["cuda"]


def test_symbolic_sizes_and_several_architectures(tmp_path: Path) -> None:
    def build(g: Any, x: Any) -> Any:
        return g.softmax(g.linear(g.exp(g.linear(x, rand(6, 20))), rand(20, 9)), axis=1)

    mod = graph(build, x=tensor((Var("n"), 6), "float32"))
    target = {"kind": "cuda", "arch": "sm_75", "also": ["sm_80", "sm_90"]}
    exe = check(mod, target, (1, 6), (5, 6), (300, 6))
    lib = load_module(exe.export_library(tmp_path / "net.so"))
    assert lib.imported_modules[0].type_key == "cuda"
    x = np.ones((7, 6), "float32")
    assert np.array_equal(Executor(lib, tk.cuda(0))["main"](x), np.asarray(exe(x)))


def test_beside_two_cpus() -> None:
    gpu = {"kind": "cuda", "operators": ["linear", "gelu", "softmax"]}
    exe = check(graph(_block, x=(10, 24)), {"devices": [gpu, DSP, "llvm"]}, (10, 24))
    assert {p.device for p in exe.placement()} == {"cuda", "dsp", "llvm"}


@pytest.mark.parametrize("dtype", ["float16", "uint8"])
def test_products_on_tensor_cores(dtype: str) -> None:
    """In a whole library: sums of float16 within their rounding, those of integers exactly."""
    weight_dtype, total = ("int8", "int32") if dtype == "uint8" else (dtype, dtype)
    mod = graph(
        lambda g, x, w: g.linear(x, w),
        x=tensor((Var("n"), 40), dtype),
        w=tensor((40, 24), weight_dtype),
    )
    exe = tk.compile(mod, {"kind": "cuda", "arch": "sm_80"})
    assert {p.kernel_class for p in exe.placement()} == {"gpu_tensor_cores"}
    if not require_cuda():
        build_all(exe.artifacts, Path(os.environ["LOOKALIKE_DIR"]))
    for rows in (1, 9, 70):
        rng = np.random.default_rng(rows)
        x = rng.integers(0, 100, (rows, 40)).astype(dtype)
        w = rng.integers(-3, 4, (40, 24)).astype(weight_dtype)
        have, want = np.asarray(exe(x, w)), x.astype("int64") @ w.astype("int64")
        assert have.dtype == total
        np.testing.assert_allclose(have.astype("float64"), want, rtol=2**-11 * (total != "int32"))


ROWS = """
@ir_module
class Model:
    @T.prim_func
    def next(X: T.Buffer(("n", 2), "int32"), Y: T.Buffer(("n", 2), "int32")):
        T.func_attr({"target": "cuda"})
        for z in T.thread_binding(n, thread="blockIdx.z"):
            for x in T.thread_binding(2, thread="blockIdx.x"):
                Y[z, x] = X[z, x] + 1

    @R.function
    def main(x: R.Tensor(("n", 2), "int32")):
        n = T.int64()
        y = R.call_tir(cls.next, (x,), R.Tensor((n, 2), "int32"))
        return y
"""


def test_more_blocks_than_an_axis_has() -> None:
    """A library with a symbolic extent along z, at the limits of a grid."""
    exe = tk.compile(from_source(ROWS), "cuda")
    if not require_cuda():
        build_all(exe.artifacts, Path(os.environ["LOOKALIKE_DIR"]))
    for n in (1, MOST_ALONG_Y, MOST_ALONG_Y + 1, 2 * MOST_ALONG_Y + 7):
        x = np.arange(2 * n, dtype=np.int32).reshape(n, 2)
        np.testing.assert_array_equal(np.asarray(exe(x)), x + 1)
