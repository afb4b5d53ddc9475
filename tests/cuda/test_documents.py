"""The documents that the design grew from, where they speak of CUDA: tests that read like their
sentences and examples, after `import tensorkiln as tvm`.

Three documents: the artifact of a code generator, the serialization of modules, and the clean
executor. What a document leaves open is said where a test settles it."""

# ruff: noqa: ANN201, ANN202 - the types of scripts are not Python's
from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tensorkiln as tvm
from tensorkiln.artifact import ArtifactSet
from tensorkiln.artifact.sections import ARTIFACTS
from tensorkiln.kernels.case import rand
from tensorkiln.runtime import DeviceTensor
from tensorkiln.script import R, T
from tests.cuda.networks import host_kernels, let_run
from tests.transform.graphs import graph

pytestmark = pytest.mark.filterwarnings("ignore:.*is the baseline")


def residual_network() -> tvm.IRModule:
    """A block of ResNet-18, a pooling and a classifier, with weights of its own."""

    def build(g: Any, x: Any) -> Any:
        y = g.relu(g.conv2d(x, rand(8, 3, 3, 3), rand(8), padding=(1, 1, 1, 1)))
        z = g.conv2d(y, rand(8, 8, 3, 3, seed=1), rand(8), padding=(1, 1, 1, 1))
        p = g.mean(g.relu(g.add(z, y)), axes=(2, 3))
        return g.softmax(g.linear(p, rand(8, 10), rand(10)), axis=1)

    return graph(build, x=(1, 3, 8, 8))


X = np.random.default_rng(3).normal(size=(1, 3, 8, 8)).astype("float32")


@pytest.fixture(scope="module")
def artifacts() -> tvm.Executable:
    """`artifacts = build(...)`."""
    executable = tvm.compile(residual_network(), "cuda")
    let_run(executable)
    return executable


def result(module: Any, *devices: Any) -> np.ndarray:
    return np.asarray(tvm.runtime.Executor(module, [*devices] or None)["main"](X).numpy())


# ---- the serialization of modules ---------------------------------------------------------------


def test_module_export_example(artifacts: tvm.Executable, tmp_path: Path) -> None:
    """`resnet18_lib` for "cuda": one single dynamic shared library, and back."""
    resnet18_lib, temp = artifacts, tmp_path
    # file name
    file_name = "deploy.so"
    path_lib = str(temp / file_name)
    # export library
    resnet18_lib.export_library(path_lib)
    # load it back
    loaded_lib = tvm.runtime.load_module(path_lib)
    assert loaded_lib.type_key == "library"
    assert loaded_lib.imported_modules[0].type_key == "cuda"
    # "no matter whether it is CPU or GPU, only one single dynamic shared library"
    assert [path.name for path in temp.iterdir()] == [file_name]
    want = np.asarray(tvm.compile(residual_network())(X))
    np.testing.assert_allclose(result(loaded_lib, tvm.cuda(0)), want, rtol=1e-5, atol=1e-6)


def test_the_root_is_the_library_and_the_rest_is_in_a_blob(
    artifacts: tvm.Executable, tmp_path: Path
) -> None:
    """The host's code is linked, "to indicate this is a DSO module"; code of devices is kept as it
    is, in a section of its own."""
    path = tmp_path / "deploy.so"
    artifacts.export_library(path)
    code = next(a for a in artifacts.artifacts if a.file_name.endswith(".ptx"))
    raw = path.read_bytes()
    assert raw.count(bytes(code.view)) == 1 and ARTIFACTS.encode() in raw
    assert host_kernels(artifacts) == []


# ---- the artifact of a code generator -----------------------------------------------------------


def test_artifacts_overall_flow(artifacts: tvm.Executable, tmp_path: Path) -> None:
    """`runtime_mod = artifacts.jit()`, `artifacts.export_library("xyz.so")`,
    `runtime_mod = load_module("xyz.so")`: inference does not run differently between when a module
    is first generated and when it is deployed later on."""
    runtime_mod = artifacts.jit()
    first = result(runtime_mod)
    artifacts.export_library(tmp_path / "xyz.so")
    runtime_mod = tvm.runtime.load_module(tmp_path / "xyz.so")
    assert np.array_equal(result(runtime_mod), first)


def test_a_cuda_module_is_several_artifacts_of_one_loader(artifacts: tvm.Executable) -> None:
    """The data in its format, which the file's name has, and the function information table; a
    user need not take a binary format apart to read them."""
    cuda_artifacts = {a.file_name: a for a in artifacts.artifacts if a.loader == "cuda"}
    assert [*cuda_artifacts] == ["kernels.sm_75.ptx", "kernels.fmap.json"]
    assert {(a.codegen_id, a.target_key) for a in cuda_artifacts.values()} == {("cuda", "cuda")}
    functions = json.loads(cuda_artifacts["kernels.fmap.json"].text())["functions"]
    for name in functions:
        assert f".visible .entry {name}(" in cuda_artifacts["kernels.sm_75.ptx"].text()
    # the target_host functions are of loader "native"
    entry = artifacts.artifacts["entry.c"]
    assert entry.loader == "native" and "kiln_launch(" in entry.text()


def test_artifacts_are_written_to_disk_and_reloaded_without_change(
    artifacts: tvm.Executable, tmp_path: Path
) -> None:
    artifacts.artifacts.save(tmp_path / "set")
    again = tvm.load_artifacts(ArtifactSet.load(tmp_path / "set"))
    assert [m.type_key for m in again.imported_modules] == ["cuda"]
    assert np.array_equal(result(again), result(artifacts.jit()))


def test_two_identical_devices_by_target_key(tmp_path: Path) -> None:
    """`target_key: List[TVMDevice]`: several sub-targets of the same string are distinct, and file
    names have the key as their prefix."""
    keys = ("left", "right")
    gpus = [{"kind": "cuda", "target_key": key} for key in keys]
    gpus[0]["operators"] = ["conv2d"]  # type: ignore[assignment]
    executable = tvm.compile(residual_network(), {"kind": "composite", "devices": gpus})
    let_run(executable)
    names = [a.name for a in executable.artifacts if a.loader == "cuda"]
    assert {tuple(name.split("/")[:2]) for name in names} == {("cuda", key) for key in keys}
    executable.export_library(tmp_path / "two.so")
    lib = tvm.runtime.load_module(tmp_path / "two.so")
    assert [m.group.target_key for m in lib.imported_modules] == [*keys]
    vm = tvm.runtime.Executor(lib, {"left": [tvm.cuda(0)], "right": [tvm.cuda(0)]})
    want = np.asarray(tvm.compile(residual_network())(X))
    np.testing.assert_allclose(vm["main"](X).numpy(), want, rtol=1e-5, atol=1e-6)


# ---- the clean executor -------------------------------------------------------------------------


@tvm.script.ir_module
class MyModule:
    @T.prim_func
    def add_one(X: T.Buffer((4,), "float32"), Y: T.Buffer((4,), "float32")):
        T.func_attr({"target": "cuda"})
        for i in T.thread_binding(4, thread="threadIdx.x"):
            Y[i] = X[i] + 1

    @R.function
    def main(x: R.Tensor((4,), "float32")):
        cls = MyModule
        with R.dataflow():
            y = R.call_tir(cls.add_one, [x], R.Tensor((4,), "float32"))
        return y


def test_the_example_of_compile_with_cuda() -> None:
    """As printed, with threads in its loop and "cuda" for "llvm". The document does not say where
    the tensors of a program for a device are: they are there."""
    lib = tvm.compile(MyModule, "cuda")
    let_run(lib)
    x = tvm.nd.array(np.arange(4, dtype="float32"), tvm.cuda(0))
    y = tvm.nd.empty(4, "float32", tvm.cuda(0))
    # each function in module maps to a function at runtime
    # can directly access TIR function)
    lib["add_one"](x, y)
    assert isinstance(y, DeviceTensor) and y.numpy().tolist() == [1, 2, 3, 4]
    # if we would like to access the relax function, wrap an executor
    vm = tvm.runtime.Executor(lib, tvm.cuda(0))
    assert vm["main"](np.arange(4, dtype="float32")).numpy().tolist() == [1, 2, 3, 4]
    # the public TIR function continues to be accessible
    vm["add_one"](y, x)
    assert x.numpy().tolist() == [2, 3, 4, 5]
    # a tensor on the host is not copied behind one's back
    with pytest.raises(ValueError, match=r"add_one: argument 'X' must be in memory of a device of"):
        lib["add_one"](np.zeros(4, "float32"), y)
    assert "int model_add_one(void *X,\n" in lib.header()  # an address of the device


def test_plain_loops_stay_on_the_host() -> None:
    """The example letter for letter, for "cuda": a loop without threads is a program of the host,
    and so the library needs no device."""

    @tvm.script.ir_module
    class Plain:
        @T.prim_func
        def add_one(X: T.Buffer((4,), "float32"), Y: T.Buffer((4,), "float32")):
            for i in range(4):
                Y[i] = X[i] + 1

        @R.function
        def main(x: R.Tensor((4,), "float32")):
            cls = Plain
            with R.dataflow():
                y = R.call_tir(cls.add_one, [x], R.Tensor((4,), "float32"))
            return y

    lib = tvm.compile(Plain, "cuda")
    x, y = tvm.nd.array(np.arange(4, dtype="float32")), tvm.nd.empty(4, dtype="float32")
    lib["add_one"](x, y)
    vm = tvm.runtime.Executor(lib, tvm.cpu())
    assert vm["main"](x).numpy().tolist() == y.numpy().tolist() == [1, 2, 3, 4]
    assert lib.jit().imported_modules == []


def test_a_model_executable_makes_an_executor_of_devices(artifacts: tvm.Executable) -> None:
    """`create_executor` takes a list of devices."""
    vm = artifacts.create_executor([tvm.cuda(0)])
    assert np.array_equal(vm["main"](X).numpy(), result(artifacts.jit()))
    assert vm.devices == (tvm.cuda(0),)


def test_a_target_is_annotated_inside_the_module() -> None:
    """ "For multi-target build, target can be directly annotated inside the IRModule.\""""

    @tvm.script.ir_module
    class Two:
        @R.function
        def main(x: R.Tensor((4, 8), "float32")):
            y: R.Tensor((4, 8), "float32", device="cuda") = R.exp(x)
            z: R.Tensor((4, 8), "float32", device="host") = R.relu(y)
            return z

    lib = tvm.compile(Two, {"devices": ["cuda"]})
    let_run(lib)
    assert [p.device for p in lib.placement()] == ["cuda", "host"]
    x = np.linspace(-1, 1, 32, dtype="float32").reshape(4, 8)
    np.testing.assert_allclose(np.asarray(lib(x)), np.exp(x), rtol=1e-6)
