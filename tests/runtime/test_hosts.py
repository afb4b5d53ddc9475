"""The same library in fresh processes: other hosts, missing packages, orders of import."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.link import sample

ROOT = Path(__file__).parents[2]


def has(name: str) -> bool:
    return importlib.util.find_spec(name) is not None


needs_ffi = pytest.mark.skipif(not has("tvm_ffi"), reason="apache-tvm-ffi is not installed")


def run(script: str, library: Path, **environ: str) -> str:
    process = subprocess.run(
        [sys.executable, "-c", script, str(library)],
        env={**os.environ, "PYTHONPATH": str(ROOT), **environ},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert process.returncode == 0, process.stdout + process.stderr
    return process.stdout


FFI = """
import sys
sys.modules["tensorkiln"] = sys.modules["torch"] = sys.modules["llvmlite"] = None
import numpy as np, tvm_ffi
lib = tvm_ffi.load_module(sys.argv[1])
x = np.ones((3, 8), np.float32)
made = lib["main"](x)
assert tuple(made.shape) == (3, 4) and made.dtype == "float32", made
filled = np.zeros((3, 4), np.float32)
assert lib["main"](x, filled) is None
assert (np.from_dlpack(made) == filled).all() and filled.any()
assert (np.from_dlpack(lib["main"](tvm_ffi.from_dlpack(x))) == filled).all()
left, right = lib["split"](x)
assert np.from_dlpack(left).shape == (3, 4) and np.from_dlpack(right).tolist() == [2] * 12
y = np.zeros(2, np.float32)
lib["add_one"](y, y)
lib["scale"](y, 3.0, 4)
assert y.tolist() == [7, 7], y
for arguments, kind, words in [
    ((x[0],), ValueError, "input 'x' must have 2 dimensions, [n, 8], received 1: [8]"),
    ((x.astype(float),), TypeError, "must be float32, received float64"),
    ((), TypeError, "main: expected 1 input, or 2 with the output to fill, received 0"),
    ((None,), TypeError, "must be a tensor of shape [n, 8], received nothing"),
    ((x, x), ValueError, "output 'out' must have shape [n, 4], received [3, 8]"),
]:
    try:
        lib["main"](*arguments)
    except kind as error:
        assert words in str(error), error
    else:
        raise AssertionError(words)
for i in range(2000):
    made = lib["main"](x)
del lib
print(np.from_dlpack(made).sum() == filled.sum())
"""


@needs_ffi
def test_tvm_ffi_with_numpy_alone(library: Path) -> None:
    assert run(FFI, library) == "True\n"


@needs_ffi
def test_loaded_long_before_tvm_ffi_and_then_an_error(library: Path) -> None:
    script = """
import ctypes, sys
early = ctypes.CDLL(sys.argv[1])
early.kiln_open()
import numpy as np, tvm_ffi
lib = tvm_ffi.load_module(sys.argv[1])
try:
    lib["main"](np.zeros(3, np.float32))
except ValueError as error:
    print(error)
"""
    assert "must have 2 dimensions" in run(script, library)


def test_no_tvm_ffi_in_the_process(library: Path) -> None:
    """The entry called by hand: it cannot return a tensor, and says so."""
    script = """
import ctypes, sys
import numpy as np
from tensorkiln.runtime.native import Value
from tensorkiln.runtime.tensor import view_of
lib = ctypes.CDLL(sys.argv[1])
lib.kiln_last_error.restype = ctypes.c_char_p
address, kept = view_of(np.ones((1, 8), np.float32), "x")
value, result = Value(7, 0), Value()
value.payload.pointer = address
assert lib.__tvm_ffi_main(None, ctypes.byref(value), 1, ctypes.byref(result)) == -1
print(lib.kiln_last_error().decode())
"""
    assert "tvm-ffi is not loaded in this process" in run(script, library)


def test_without_compiler_packages(library: Path) -> None:
    script = """
import sys
for name in ("llvmlite", "ziglang", "onnx", "onnxruntime", "torch", "ml_dtypes", "tvm_ffi"):
    sys.modules[name] = None
import numpy as np
from tensorkiln import runtime
out = runtime.Executor(runtime.load_module(sys.argv[1]), runtime.cpu())["main"](
    np.ones((2, 8), np.float32))
used = {m.split(".")[1] for m in sys.modules if m.startswith("tensorkiln.")}
print(out.shape, used <= {"base", "artifact", "runtime"})
"""
    assert run(script, library) == "(2, 4) True\n"


@pytest.mark.parametrize("order", ["before", "after"])
def test_big_neighbours(library: Path, order: str) -> None:
    names = [name for name in ("torch", "onnxruntime") if has(name)]
    if not names:
        pytest.skip("neither torch nor onnxruntime is installed")
    script = f"""
import sys
if {order!r} == "before": import {", ".join(names)}
import numpy as np
from tensorkiln import runtime
run = runtime.Executor(runtime.load_module(sys.argv[1]))["main"]
x = np.ones((64, 8), np.float32)
first = run(x).numpy()
if {order!r} == "after": import {", ".join(names)}
assert (run(x).numpy() == first).all()
print(runtime.load_module(sys.argv[1]).num_threads)
"""
    assert int(run(script, library)) >= 1


def test_no_thread_is_made_when_one_is_asked_for(library: Path) -> None:
    script = """
import os, sys
import numpy as np
from tensorkiln import runtime
module = runtime.load_module(sys.argv[1])
executor = runtime.Executor(module)
x = np.ones((500, 8), np.float32)
before = len(os.listdir("/proc/self/task"))
executor.set_num_threads(1)
executor["main"](x)
module.set_num_threads(1)
runtime.Executor(module)["main"](x)
alone = len(os.listdir("/proc/self/task"))
executor.set_num_threads(3)
executor["main"](x)
print(alone - before, len(os.listdir("/proc/self/task")) - before)
"""
    assert run(script, library) == "0 2\n"
    assert (
        run(
            script.replace("set_num_threads(1)", "set_num_threads(0)"),
            library,
            KILN_NUM_THREADS="1",
        )
        == "0 2\n"
    )


def test_libraries_share_one_pool(library: Path, tmp_path: Path) -> None:
    other_path = sample.build(tmp_path / "other.so", name="other")
    script = f"""
import os, sys
import numpy as np
from tensorkiln import runtime
x = np.ones((500, 8), np.float32)
runs = []
for path in (sys.argv[1], {str(other_path)!r}):
    executor = runtime.Executor(runtime.load_module(path))
    executor.set_num_threads(4)
    runs.append(executor["main"])
before = len(os.listdir("/proc/self/task"))
same = (runs[1](x).numpy() == runs[0](x).numpy()).all()
print(len(os.listdir("/proc/self/task")) - before, same)
"""
    assert run(script, library) == "3 True\n"


def test_a_closed_library_is_gone_though_others_use_its_threads(
    library: Path, tmp_path: Path
) -> None:
    """tests/hosts/test_unload.py does the same and more without Python."""
    other_path = sample.build(tmp_path / "other.so", name="other")
    script = f"""
import os, sys, time
from pathlib import Path
import numpy as np
from tensorkiln import runtime
def mapped(module): return str(module.path) in Path("/proc/self/maps").read_text()
def threads(wanted):  # a thread that was joined is listed for a moment more
    for _ in range(1000):
        if len(os.listdir("/proc/self/task")) == before + wanted: break
        time.sleep(0.002)
    return len(os.listdir("/proc/self/task")) - before
x = np.ones((500, 8), np.float32)
before = len(os.listdir("/proc/self/task"))
def load(path):
    module = runtime.load_module(path)
    module.set_num_threads(2)
    return module, runtime.Executor(module)["main"]
first, run_first = load(sys.argv[1])
want = run_first(x).numpy()
second, run_second = load({str(other_path)!r})
assert (run_second(x).numpy() == want).all() and threads(1) == 1
first.close()
assert not mapped(first) and mapped(second)
for _ in range(100):
    assert (run_second(x).numpy() == want).all()
assert threads(1) == 1
second.close()
print(mapped(second), threads(0))
"""
    assert run(script, library) == "False 0\n"


def test_fork_after_use(library: Path) -> None:
    script = """
import os, sys
import numpy as np
from tensorkiln import runtime
executor = runtime.Executor(runtime.load_module(sys.argv[1]))
executor.set_num_threads(3)
x = np.ones((500, 8), np.float32)
want = executor["main"](x).numpy()
child = os.fork()
if child == 0:
    good = (executor["main"](x).numpy() == want).all() and len(os.listdir("/proc/self/task")) == 3
    os._exit(0 if good else 1)
status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
print(status, (executor["main"](x).numpy() == want).all())
"""
    assert run(script, library) == "0 True\n"


def test_idle_threads_use_no_cpu(library: Path) -> None:
    script = """
import os, sys, time
import numpy as np
from tensorkiln import runtime
executor = runtime.Executor(runtime.load_module(sys.argv[1]))
executor.set_num_threads(4)
executor["main"](np.ones((500, 8), np.float32))
time.sleep(0.05)
before = time.process_time()
time.sleep(0.5)
print(time.process_time() - before)
"""
    assert float(run(script, library)) < 0.05
