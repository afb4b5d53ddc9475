"""One library in many hosts: it needs nothing of the compiler and minds no neighbour."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.audit.conftest import Exported
from tests.audit.process import CHECK, only, python, without

pytestmark = pytest.mark.slow

OURS = """
import sys, numpy as np
import tensorkiln.runtime as runtime
library = runtime.load_module(sys.argv[1])
y = runtime.Executor(library, runtime.cpu())["main"](np.load(sys.argv[2])).numpy()
"""

FFI = """
import sys
sys.path.insert(0, sys.argv[4])
import numpy as np
import tvm_ffi
y = np.from_dlpack(tvm_ffi.load_module(sys.argv[1])["main"](np.load(sys.argv[2])))
outside = sorted(n for n in sys.modules if n.split(".")[0] in
                 {"tensorkiln", "llvmlite", "ziglang", "onnx", "torch"})
assert not outside, outside
"""


def files(exported: Exported) -> tuple[Path, Path, Path]:
    return exported.library, exported.x, exported.y


def test_runtime_without_the_compiler(resnet18: Exported, tmp_path: Path) -> None:
    """`tensorkiln.runtime` runs a library where llvmlite, ziglang and onnx are not installed."""
    script = without("llvmlite", "ziglang", "onnx", "ml_dtypes", "torch") + OURS + CHECK
    assert "same" in python(script, files(resnet18), folder=tmp_path)


def test_only_numpy_and_tvm_ffi(resnet18: Exported, tmp_path: Path) -> None:
    """A fresh Python in which nothing but numpy, tvm-ffi and its one dependency can be found."""
    packages = only(tmp_path / "site", "numpy", "tvm_ffi", "typing_extensions")
    arguments = (*files(resnet18), packages)
    output = python(FFI + CHECK, arguments, folder=tmp_path, flags=("-I", "-S"))
    assert "same" in output


@pytest.mark.parametrize("package", ["torch", "onnxruntime"])
@pytest.mark.parametrize("order", ["before", "after"])
def test_neighbours(resnet18: Exported, tmp_path: Path, package: str, order: str) -> None:
    """torch and onnxruntime, which bring thread pools of their own, imported before or after."""
    pytest.importorskip(package, reason=f"{package} is not installed")
    work = {
        "torch": "import torch\n(torch.ones(300, 300) @ torch.ones(300, 300)).sum().item()\n",
        "onnxruntime": "import sys, onnxruntime\nonnxruntime.InferenceSession(sys.argv[4])\n",
    }[package]
    parts = [work, OURS, work, OURS] if order == "before" else [OURS, work, OURS]
    arguments = (*files(resnet18), resnet18.model)
    assert "same" in python("".join(parts) + CHECK, arguments, folder=tmp_path)


def test_two_libraries_side_by_side(resnet18: Exported, small: Exported, tmp_path: Path) -> None:
    """Two libraries that both export `main` live in one process and keep apart."""
    script = OURS.replace("library", "second").replace("y =", "y2 =") + (
        "first = runtime.load_module(sys.argv[4])\n"
        'main = runtime.Executor(first, runtime.cpu())["main"]\n'
        "x1, want1 = np.load(sys.argv[5]), np.load(sys.argv[6])\n"
        "for _ in range(3):\n"
        "    y1 = main(x1).numpy()\n"
        '    y = runtime.Executor(second, runtime.cpu())["main"](np.load(sys.argv[2])).numpy()\n'
        "    np.testing.assert_allclose(y1, want1, rtol=1e-3, atol=1e-4)\n"
        "    np.testing.assert_array_equal(y, y2)\n"
    )
    arguments = (*files(resnet18), small.library, small.x, small.y)
    assert "same" in python(script + CHECK, arguments, folder=tmp_path)


def test_two_copies_of_one_library(small: Exported, tmp_path: Path) -> None:
    """The same library from two paths, as two plug-ins of one program would load it."""
    twin = tmp_path / "twin.so"

    twin.write_bytes(small.library.read_bytes())
    script = (
        OURS
        + "library = runtime.load_module(sys.argv[4])\n"
        + ('y = runtime.Executor(library, runtime.cpu())["main"](np.load(sys.argv[2])).numpy()\n')
    )
    assert "same" in python(script + CHECK, (*files(small), twin), folder=tmp_path)


def test_results_do_not_depend_on_threads(resnet18: Exported, tmp_path: Path) -> None:
    """The same bytes for any number of threads."""
    import hashlib

    digests = set()
    for threads in ("1", "2", "3"):
        script = OURS + CHECK + "import hashlib; print(hashlib.sha256(y.tobytes()).hexdigest())"
        output = python(
            script, files(resnet18), folder=tmp_path, environment={"KILN_NUM_THREADS": threads}
        )
        digests.add(output.split()[-1])
    assert len(digests) == 1 and len(digests.pop()) == hashlib.sha256().digest_size * 2
