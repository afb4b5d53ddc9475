"""The examples that the design grew from run as printed, after `import tensorkiln as tvm`."""

# ruff: noqa: ANN201, ANN202 - the types of scripts are not Python's
from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tensorkiln as tvm
from tensorkiln.base.errors import UserError
from tensorkiln.base.progress import Progress
from tensorkiln.ir.module import IRModule
from tensorkiln.pipeline import relax_passes, tir_passes
from tensorkiln.script import R, T
from tests.audit.process import python

# One compile for all tests; letter for letter the script of the executor proposal.
PRINTED = """
@tvm.script.ir_module
class MyModule:
    @T.prim_func
    def add_one(
        X: T.Buffer((4,), "float32"),
        Y: T.Buffer((4,), "float32")
    ):
        for i in range(4):
            Y[i] = X[i] + 1

    @R.function
    def main(x: R.Tensor((4, ), "float32")):
        cls = MyModule
        with R.dataflow():
            y = R.call_tir(cls.add_one, [x], R.Tensor((4,), "float32"))
        return y

# jit can be skipped as it can be performed automatically once
# user start to access the function via getitem
lib = tvm.compile(MyModule, "llvm")
x = tvm.nd.array(np.arange(4, dtype="float32"))
y = tvm.nd.empty(4, dtype="float32")
# each function in module maps to a function at runtime
# can directly access TIR function)
lib["add_one"](x, y)
# if we would like to access the relax function, wrap an executor
vm = tvm.runtime.Executor(lib, tvm.cpu())
print(vm["main"](x).numpy())
# the public TIR function continues to be accessible
vm["add_one"](x, y)
"""


@tvm.script.ir_module
class MyModule:
    @T.prim_func
    def add_one(X: T.Buffer((4,), "float32"), Y: T.Buffer((4,), "float32")):
        for i in range(4):
            Y[i] = X[i] + 1

    @R.function
    def main(x: R.Tensor((4,), "float32")):
        cls = MyModule
        with R.dataflow():
            y = R.call_tir(cls.add_one, [x], R.Tensor((4,), "float32"))
        return y


@tvm.script.ir_module
class Unlowered:
    @R.function
    def main(x: R.Tensor((4,), "float32")) -> R.Tensor((4,), "float32"):
        y: R.Tensor((4,), "float32") = R.neg(x)
        z: R.Tensor((4,), "float32") = R.relu(y)
        return z


@pytest.fixture(scope="module")
def lib() -> tvm.Executable:
    return tvm.compile(MyModule, "llvm")


def test_the_executor_example_as_printed(tmp_path: Path) -> None:
    script = tmp_path / "example.py"
    head = "import numpy as np\nimport tensorkiln as tvm\nfrom tensorkiln.script import R, T\n"
    script.write_text(f"{head}{PRINTED}print(y.numpy())\n")
    run = "import runpy, sys; runpy.run_path(sys.argv[1])"
    shown = python(run, (script,)).splitlines()
    assert shown[:2] == ["[1. 2. 3. 4.]", "[1. 2. 3. 4.]"]
    assert "is the baseline of" in shown[2]


def test_the_words_of_the_script_are_reachable_from_the_package() -> None:
    assert tvm.script.T is T and tvm.script.R is R
    assert tvm.script.tir is T and tvm.script.relax is R


def test_functions_map_one_to_one(lib: tvm.Executable) -> None:
    assert [(f.info.name, f.info.kind) for f in lib.functions] == [
        ("main", "graph"),
        ("add_one", "tensor"),
    ]
    y = tvm.nd.empty(4, dtype="float32")
    lib["add_one"](tvm.nd.array(np.full(4, 2, "float32")), y)
    assert y.numpy().tolist() == [3, 3, 3, 3]
    assert lib.jit() is lib.jit()


def test_a_graph_function_needs_an_executor(lib: tvm.Executable) -> None:
    with pytest.raises(LookupError, match=r'"?main"?.*graph function.*Executor') as caught:
        lib["main"]
    assert caught.value.code == "needs-executor"
    assert 'Executor(lib, tk.cpu())["main"]' in caught.value.hint


@pytest.mark.parametrize("executor", [False, True])
def test_an_unknown_function_offers_the_nearest(lib: tvm.Executable, executor: bool) -> None:
    where = tvm.runtime.Executor(lib, tvm.cpu()) if executor else lib
    with pytest.raises(LookupError, match="'add_one'") as caught:
        where["add_on"]
    assert caught.value.code == "no-function"


def test_export_and_load(lib: tvm.Executable, tmp_path: Path) -> None:
    """The steps of the serialization example: `deploy.so` in a temporary folder, and back."""
    path_lib = str(tmp_path / "deploy.so")
    lib.export_library(path_lib)
    loaded_lib = tvm.runtime.load_module(path_lib)
    assert loaded_lib.type_key == loaded_lib.kind == "library"
    assert loaded_lib.imported_modules == loaded_lib.imports == []
    vm = tvm.runtime.Executor(loaded_lib, [tvm.cpu()])
    assert vm["main"](np.zeros(4, "float32")).numpy().tolist() == [1, 1, 1, 1]


def test_fcompile_and_workspace_dir(lib: tvm.Executable, tmp_path: Path) -> None:
    seen: list[Any] = []
    pytest.importorskip("ziglang", reason="ziglang is not installed: nothing to compile with")

    def fcompile(output: str, files: Sequence[str], options: Sequence[str]) -> None:
        seen.append((output, list(files)))
        command = [sys.executable, "-m", "ziglang", "cc", *options, "-o", output, *files]
        subprocess.run(command, check=True, capture_output=True)

    work = tmp_path / "work"
    library = lib.export_library(tmp_path / "deploy.so", fcompile=fcompile, workspace_dir=work)
    assert len(seen) == 1
    names = {Path(f).name for f in seen[0][1]}
    assert {"entry.c", "kernel_0000.o"} <= names
    assert {"entry.c", "exports.map", "library.so"} <= {p.name for p in work.iterdir()}
    vm = tvm.runtime.Executor(tvm.runtime.load_module(library), tvm.cpu())
    assert vm["main"](np.ones(4, "float32")).numpy().tolist() == [2, 2, 2, 2]


def test_a_library_has_a_suffix(lib: tvm.Executable, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"did you mean 'deploy\.so'"):
        lib.export_library(tmp_path / "deploy")


class _Notes(Progress):
    def __init__(self) -> None:
        super().__init__()
        self.notes: list[str] = []

    def note(self, text: str) -> None:
        self.notes.append(text)


def test_the_baseline_is_noted() -> None:
    progress = _Notes()
    exe = tvm.compile(MyModule, "llvm", progress=progress)
    assert exe.target.is_baseline
    assert len(progress.notes) == 1 and "baseline" in progress.notes[0]
    progress = _Notes()
    assert not tvm.compile(MyModule, progress=progress).target.is_baseline
    assert progress.notes == []


# -- pipelines -------------------------------------------------------------------------------------


def test_no_pipeline_rejects_what_is_not_lowered() -> None:
    with pytest.raises(UserError) as caught:
        tvm.compile(Unlowered, relax_pipeline=None)
    text = str(caught.value)
    assert caught.value.code == "not-lowered"
    assert "main: y = neg(...) is an operator: run fuse_ops, lower_groups" in text
    assert "z = relu(...)" in text
    assert "main: its values have no place in memory: run plan_memory" in text
    assert '"auto"' in caught.value.hint


def test_no_tir_pipeline_rejects_loops_that_are_not_lowered() -> None:
    @tvm.script.ir_module
    class Loops:
        @T.prim_func
        def f(X: T.Buffer((8,), "float32"), Y: T.Buffer((8,), "float32")):
            for i in T.vectorized(8):
                Y[i] = X[i] * T.float32(2)

    with pytest.raises(UserError, match="f: a loop is still vectorized: run vectorize_loops"):
        tvm.compile(Loops, tir_pipeline=None)
    y = tvm.nd.empty((8,))
    tvm.compile(Loops)["f"](np.arange(8, dtype="float32"), y)
    assert y.numpy().tolist() == [0, 2, 4, 6, 8, 10, 12, 14]


def test_no_pipelines_on_a_lowered_module(lib: tvm.Executable) -> None:
    again = tvm.compile(lib.module, "llvm", relax_pipeline=None, tir_pipeline=None)
    assert again.artifacts == lib.artifacts
    (text,) = (a.text() for a in lib.artifacts if a.file_name == "module.py")
    parsed = tvm.script.from_source(text)
    again = tvm.compile(parsed, "llvm", relax_pipeline=None, tir_pipeline=None)
    assert again.artifacts == lib.artifacts


@pytest.mark.parametrize("name", ["auot", "defautl", "fuse_ops"])
def test_an_unknown_pipeline(name: str) -> None:
    expected = "expected 'auto', 'default', 'none', None, a pass or a list"
    with pytest.raises(UserError, match=expected) as caught:
        tvm.compile(MyModule, tir_pipeline=name)
    assert caught.value.code == "unknown-pipeline"
    assert "tir_pipeline" in str(caught.value)


def test_a_pass_a_list_and_a_callable_are_pipelines(lib: tvm.Executable) -> None:
    target = tvm.Target("llvm")
    seen: list[IRModule] = []

    def whole(mod: IRModule) -> IRModule:
        for p in relax_passes(target):
            mod = p(mod)
        return mod

    def look(mod: IRModule) -> IRModule:
        seen.append(mod)
        return mod

    tir = [look, *tir_passes(target), look]
    exe = tvm.compile(MyModule, target, relax_pipeline=whole, tir_pipeline=tir)
    assert exe.artifacts == lib.artifacts
    assert len(seen) == 2 and seen[1] == exe.module
    partial_pass = partial(whole)
    assert tvm.compile(MyModule, target, relax_pipeline=partial_pass).artifacts == lib.artifacts


@pytest.mark.parametrize(
    ("pipeline", "says"),
    [
        (3, "relax_pipeline: pass 0 is 3"),
        ([relax_passes(tvm.Target("llvm"))[0], "fuse_ops"], "relax_pipeline: pass 1 is 'fuse_ops'"),
        (lambda mod: None, "returned NoneType, expected an IRModule"),
    ],
)
def test_what_is_no_pass(pipeline: Any, says: str) -> None:
    with pytest.raises(UserError, match=says) as caught:
        tvm.compile(MyModule, relax_pipeline=pipeline)
    assert caught.value.code == "bad-pass"


def test_system_lib_prefix_names_the_entries() -> None:
    exe = tvm.compile(MyModule, system_lib_prefix="my_")
    assert "int my_add_one(" in exe.header()
    assert '"my_"' in exe.artifacts["system_lib.c"].text()  # tests/link/test_static.py runs two


def test_compile_takes_a_module() -> None:
    with pytest.raises(UserError, match="expected a model, received function"):
        tvm.compile(test_compile_takes_a_module)
