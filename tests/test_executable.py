"""What the executor proposal prints of an Executable, and what one looks like."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import tensorkiln as tk
from tensorkiln.artifact import Artifact, ArtifactSet
from tensorkiln.base.errors import UserError
from tensorkiln.external.example import C_REFERENCE
from tensorkiln.ir.relax import constant
from tensorkiln.schedule.primitives import Schedule
from tensorkiln.script import from_source
from tests.transform.graphs import graph

PROGRAM = """
@T.prim_func
def {name}(X: T.Buffer((4,), "float32"), Y: T.Buffer((4,), "float32")):
    for i in range(4):
        Y[i] = X[i] + T.float32({k})
"""
GRAPH = """
@R.function
def {name}(x: R.Tensor((4,), "float32")) -> R.Tensor((4,), "float32"):
    y: R.Tensor((4,), "float32") = R.neg(x)
    return y
"""
X = np.arange(4, dtype=np.float32)


def text(template: str, name: str, k: float = 1.0) -> str:
    return template.replace("{name}", name).replace("{k}", str(k))


def called(exe: tk.Executable, name: str, k: float) -> None:
    y = np.zeros(4, np.float32)
    exe[name](X, y)
    assert y.tolist() == (X + k).tolist()


@pytest.mark.parametrize("kind", ["native", "llvmjit"])
@pytest.mark.parametrize("whole", [True, False], ids=["module", "function"])
def test_a_tensor_program_called_main(kind: str, whole: bool, tmp_path: Path) -> None:
    mod = from_source(text(PROGRAM, "main"))
    exe = tk.compile(mod if whole else mod["main"], kind)
    called(exe, "main", 1)
    y = np.zeros(4, np.float32)
    assert exe(X, y) is None and y.tolist() == (X + 1).tolist()
    assert [f.info.name for f in exe.functions] == ["main"]
    again = tk.compile(exe.module, exe.target, relax_pipeline=None, tir_pipeline=None)
    assert again.artifacts == exe.artifacts
    if kind == "native":
        library = tk.runtime.load_module(exe.export_library(tmp_path / "net.so"))
        library["main"](X, y)
        for name in ("net.a", "net.o"):
            assert exe.export_library(tmp_path / name).is_file()


def test_a_graph_calls_a_program_called_main() -> None:
    mod = from_source(
        text(PROGRAM, "main")
        + """
@R.function
def run(x: R.Tensor((4,), "float32")) -> R.Tensor((4,), "float32"):
    y: R.Tensor((4,), "float32") = R.call_tir(Module.main, [x], R.Tensor((4,), "float32"))
    z: R.Tensor((4,), "float32") = R.neg(y)
    return z
"""
    )
    exe = tk.compile(mod)
    assert exe.create_executor()["run"](X).numpy().tolist() == (-X - 1).tolist()
    called(exe, "main", 1)
    assert exe.entry == "main"


def test_a_graph_function_alone() -> None:
    mod = from_source(text(GRAPH, "f"))
    exe = tk.compile(mod["f"])
    assert exe.entry == "f" and exe(X).tolist() == (-X).tolist()
    library, executor = exe.jit(), exe._model
    exe(X)
    assert exe.jit() is library and exe._model is executor
    for devices in (tk.cpu(), [tk.cpu()], None):
        assert exe.create_executor(devices)["f"](X).numpy().tolist() == (-X).tolist()
        assert library.create_executor(devices)["f"](X).numpy().tolist() == (-X).tolist()


def test_which_function_a_call_means() -> None:
    two = from_source(text(PROGRAM, "f") + text(PROGRAM, "g", 2))
    with pytest.raises(UserError, match="or only one function, received f, g") as caught:
        tk.compile(two)(X, X)
    assert caught.value.code == "no-entry" and "create_executor()['f']" in caught.value.hint


def test_two_functions_of_one_public_name() -> None:
    called_f = "    T.func_attr({'global_symbol': 'f'})\n    for i"
    named = text(PROGRAM, "g", 2).replace("    for i", called_f)
    with pytest.raises(UserError, match="f and g are both 'f' in the library"):
        tk.compile(from_source(text(PROGRAM, "f") + named))
    exe = tk.compile(from_source(named))
    called(exe, "f", 2)
    assert exe.module["g"].attrs["global_symbol"] == "f"


@pytest.mark.parametrize("kind", ["native", "llvmjit"])
def test_addons_of_jit(kind: str, tmp_path: Path) -> None:
    """An object with the C function that a program calls; without it the call names it."""
    call = 'T.call_extern("float32", "extra", X[i])'
    extern = text(PROGRAM, "f").replace("X[i] + T.float32(1.0)", call)
    object_path = tmp_path / "extra.o"
    command = [sys.executable, "-m", "ziglang", "cc", "-O1", "-c", "-fPIC", "-x", "c", "-"]
    source = b"float extra(float x) { return 3 * x; }"
    subprocess.run([*command, "-o", str(object_path)], input=source, check=True)
    exe = tk.compile(from_source(extern), kind)
    with pytest.raises(UserError, match="f calls extra"):
        exe.jit()
    y = np.zeros(4, np.float32)
    exe.jit(addons=[object_path])["f"](X, y)
    assert y.tolist() == (3 * X).tolist()
    exe["f"](X, y)  # kept
    with pytest.raises(UserError, match="addons are a list"):
        exe.jit(addons=object_path)  # type: ignore[arg-type]


def test_force_recompile() -> None:
    exe = tk.compile(from_source(text(GRAPH, "f")))
    first = exe.jit()
    assert exe.jit() is first and exe.jit(force_recompile=True) is not first
    assert exe(X).tolist() == (-X).tolist()


def test_hosts_are_targets_too() -> None:
    cpu = tk.Target({"kind": "llvm", "mcpu": "znver3"})
    expected = tk.Target({"kind": "cuda", "host": cpu.to_json()})
    assert tk.Target("cuda", host=cpu) == tk.Target("cuda", cpu) == expected
    assert tk.Target({"kind": "cuda", "host": cpu}) == expected
    assert tk.Target(expected, host=cpu) == expected
    assert expected.replace(host=cpu) == expected
    with pytest.raises(UserError, match="received two hosts"):
        tk.Target(expected, host="llvm")


def test_what_everything_looks_like() -> None:
    """One line each, whatever it holds: 50 MB of weights here, and 60 functions."""
    weights = np.ones((2500, 5000), np.float32)
    net = graph(lambda g, x: g.tanh(g.matmul(x, constant(weights, "w"))), x=(4, 2500))
    many_functions = from_source("".join(text(PROGRAM, f"f{i}", i) for i in range(60)))
    mod = net.with_functions((*net.functions, *many_functions.functions))
    exe = tk.compile(mod)
    executor = exe.create_executor()
    y = executor["main"](np.ones((4, 2500), np.float32))
    main, program = mod["main"], mod["f7"]
    objects_shown: list[object] = [
        mod,
        exe,
        exe.artifacts,
        *exe.artifacts,
        exe.jit(),
        executor,
        executor["main"],
        exe["f7"],
        exe.target,
        y,
        main,
        program,
        exe.module,
        *exe.module.functions,
        *main.bindings,
        Schedule(program),
        tk.cpu(),
        *exe.functions,
        *exe.kernels,
        exe.placement()[0],
        C_REFERENCE,
        *exe.artifacts.groups(),
        net["main"].result,
    ]
    for thing in objects_shown:
        assert len(repr(thing)) < 2000, type(thing)
    one_line = (mod, exe, exe.artifacts, *exe.artifacts, exe.jit(), main, program, exe.module)
    assert not any("\n" in repr(x) for x in one_line)
    assert repr(exe).startswith("<Executable") and "main(x: float32 [4, 2500])" in repr(exe)
    page = exe._repr_html_()
    assert len(page) < 8000 and page.count("<tr>") == 55
    # Columns are padded to the tile of this processor.
    assert re.search(r"50,(080|240),000 bytes", page)
    assert "<td>graph, 1 kernel call(s)</td>" in page


def test_artifacts_of_loader_metadata_are_refused(tmp_path: Path) -> None:
    exe = tk.compile(from_source(text(GRAPH, "f")))
    root = Artifact("mine", "metadata", "root.bin", b"")
    artifacts = ArtifactSet((*exe.artifacts, root))
    for use in (
        lambda: tk.load_artifacts(artifacts),
        lambda: tk.load_artifacts(ArtifactSet((root,)), library=exe.jit()),
        lambda: tk.export_library(artifacts, tmp_path / "net.so"),
        lambda: tk.export_library(artifacts, tmp_path / "net.a"),
    ):
        with pytest.raises(UserError, match=r"mine/root\.bin is of loader 'metadata'") as caught:
            use()
        assert caught.value.code == "bad-loader"


def test_threads_of_what_compile_returns() -> None:
    """Those of its calls, as for a library that was loaded; no other attribute can be assigned."""
    exe = tk.compile(from_source(text(GRAPH, "main")))
    default = exe.num_threads
    exe.num_threads = 1
    assert exe.num_threads == 1
    exe.num_threads = 0
    assert exe.num_threads == default >= 1
    limited = exe.with_threads(1)
    assert limited.num_threads == 1 and exe.num_threads == default
    assert limited(X).tolist() == exe(X).tolist() == (-X).tolist()
    with pytest.raises(UserError):
        exe.num_threads = -1
    with pytest.raises(AttributeError):
        exe.threads = 1  # type: ignore[attr-defined]
