"""Target llvmjit: compiled and run without a linker, saved and loaded through bitcode."""

from __future__ import annotations

import gc
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import tensorkiln as tk
from tensorkiln.base.errors import UserError
from tensorkiln.link import toolchain
from tensorkiln.script import from_source

RNG = np.random.default_rng(11)
W = RNG.standard_normal((64, 48)).astype(np.float32)
MODULE = """
@R.function
def main(x: R.Tensor(("n", 64), "float32")) -> R.Tensor(("n", 48), "float32"):
    a: R.Tensor(("n", 48), "float32") = R.matmul(x, w)
    b: R.Tensor(("n", 48), "float32") = R.tanh(a)
    return b

@T.prim_func
def add_one(A: T.Buffer((4,), "float32"), B: T.Buffer((4,), "float32")):
    for i in T.serial(4):
        B[i] = A[i] + T.float32(1)
"""


def compiled() -> tk.Executable:
    return tk.compile(from_source(MODULE, namespace={"w": W}), "llvmjit")


def right(lib: object) -> bool:
    x = RNG.standard_normal((5, 64)).astype(np.float32)
    result = tk.runtime.Executor(lib, tk.cpu())["main"](x).numpy()  # type: ignore[arg-type]
    return np.allclose(result, np.tanh(x.astype(np.float64) @ W), rtol=1e-4, atol=1e-5)


def test_it_runs_without_a_linker(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_link(*arguments: object) -> None:
        raise AssertionError("a linker was started")

    monkeypatch.setattr(toolchain.ZigToolchain, "link", no_link)
    monkeypatch.setattr(toolchain.ZigToolchain, "merge", no_link)
    exe = compiled()
    assert {a.loader for a in exe.artifacts} == {"llvmjit", "header", "text"}
    lib = exe.jit()
    assert right(lib)
    a, b = np.arange(4, dtype=np.float32), np.empty(4, np.float32)
    lib["add_one"](a, b)
    assert np.array_equal(b, a + 1)
    with pytest.raises(ValueError, match="dimension 1 is 3, expected 64"):
        tk.runtime.Executor(lib, tk.cpu())["main"](np.zeros((2, 3), np.float32))


def test_its_threads_go_with_the_code() -> None:
    """In a process of its own: a thread in code that was freed ends it, sometimes at exit."""
    script = """
import os, time
import numpy as np
import tensorkiln as tk
from tensorkiln.script import from_source
MODULE = '''
@R.function
def main(x: R.Tensor((512, 512), "float32")) -> R.Tensor((512, 512), "float32"):
    y: R.Tensor((512, 512), "float32") = R.matmul(x, x)
    return y
'''
lib, kept = (tk.compile(from_source(MODULE), "llvmjit").jit() for _ in range(2))
x = np.ones((512, 512), np.float32)
before = len(os.listdir("/proc/self/task"))
for each in lib, kept:
    executor = tk.runtime.Executor(each)
    executor.set_num_threads(3)
    executor["main"](x)
    print(len(os.listdir("/proc/self/task")) - before)
lib.close()
for _ in range(1000):
    if len(os.listdir("/proc/self/task")) == before + 2:
        break
    time.sleep(0.002)
executor["main"](x)
print(len(os.listdir("/proc/self/task")) - before)
assert os.waitstatus_to_exitcode(os.waitpid(os.fork() or os._exit(0), 0)[1]) == 0
"""
    process = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert (process.returncode, process.stdout) == (0, "2\n4\n2\n"), process.stderr


def test_saved_and_loaded_through_bitcode(tmp_path: Path) -> None:
    exe = compiled()
    exe.artifacts.save(tmp_path / "set")
    kernels = list((tmp_path / "set" / "llvm").glob("*.bc"))
    assert kernels
    assert all(k.read_bytes()[:2] == b"BC" for k in kernels)
    again = tk.ArtifactSet.load(tmp_path / "set")
    assert again == exe.artifacts
    assert right(tk.load_artifacts(again))
    broken = again.replace(f"llvm/{kernels[0].name}", b"BC\xc0\xdeno")
    with pytest.raises(UserError, match="is not LLVM bitcode"):
        tk.load_artifacts(broken)


@pytest.mark.parametrize("name", ["net.so", "net.a"])
def test_export_is_refused_by_name(tmp_path: Path, name: str) -> None:
    with pytest.raises(UserError, match=r"artifact llvm/\w+.bc is of target llvmjit") as caught:
        compiled().export_library(tmp_path / name)
    assert "target llvm" in caught.value.hint
    assert not list(tmp_path.iterdir())


def test_several_live_side_by_side_and_go() -> None:
    libs = [compiled().jit() for _ in range(3)]
    assert all(map(right, libs))
    libs[1].close()
    assert right(libs[0])
    assert right(libs[2])
    with pytest.raises(UserError, match="is closed"):
        right(libs[1])
    del libs
    gc.collect()


def test_loaders_work_as_in_a_library() -> None:
    from tensorkiln.external import External

    def emit(function: object, symbol: str) -> list[tk.Artifact]:
        return [tk.Artifact("twice", "twice", f"{symbol}.txt", b"2")]

    def load(artifacts: tuple[tk.Artifact, ...], devices: object) -> object:
        def call(x: tk.runtime.Tensor, out: tk.runtime.Tensor) -> None:
            out.numpy()[...] = np.tanh(x.numpy())

        return call

    tk.runtime.register_loader("twice", load)
    try:
        external = External("twice", lambda call, target: call.op == "tanh", emit)
        mod = from_source(MODULE, namespace={"w": W})
        assert right(tk.compile(mod, "llvmjit", externals=[external]).jit())
    finally:
        tk.runtime.unregister_loader("twice")
