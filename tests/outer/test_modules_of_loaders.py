"""call_packed of functions that Python registered, that modules of loaders have (in Python and in
C), that the library itself has, and that tvm-ffi knows: all kinds of values, there and back. And
modules that call the library which they are modules of."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tensorkiln as tk
from tensorkiln.external import External
from tensorkiln.runtime import Tensor, load
from tensorkiln.script import from_source

TYPES = ("R.Object", "R.Object")
# One graph function that a loader's module computes a part of, so that the library has a container.
MODULE = """
@R.function
def main(x: R.Tensor((4,), "float32")) -> R.Tensor((4,), "float32"):
    a: R.Tensor((4,), "float32") = R.mul(x, R.const(2.0, "float32"))
    return a

@R.function
def own(x: R.Object) -> R.Object:
    return x

@R.function
def pack(x: R.Object, y: R.Object) -> R.Tuple(R.Object, R.Object):
    return R.tuple(x, y)

@R.function
def registered(x: R.Object) -> R.Object:
    y: R.Object = R.call_packed("tests.identity", x)
    return y

@R.function
def python(x: R.Object) -> R.Object:
    y: R.Object = R.call_packed("python_identity", x)
    return y

@R.function
def native(x: R.Object) -> R.Object:
    y: R.Object = R.call_packed("native_identity", x)
    return y

@R.function
def foreign(x: R.Object) -> R.Object:
    y: R.Object = R.call_packed("tests.foreign_identity", x)
    return y

@R.function
def library(x: R.Object) -> R.Object:
    y: R.Object = R.call_packed("own", x)
    return y

@R.function
def nested(x: R.Object) -> R.Object:
    y: R.Object = R.call_packed("python_twice", x, x, R.prim_value(5), R.shape(2, 3), R.str("text"))
    return y
"""
NATIVE = r"""
#include <kiln.h>
#include <string.h>
static int load(void *context, const char *key, const kiln_artifact *a, int n, void **module)
{ (void)context; (void)key; (void)a; (void)n; *module = 0; return 0; }
static int call(void *module, const char *function, const kiln_value *args, int32_t count,
                kiln_value *result)
{
    (void)module;
    if (strcmp(function, "native_identity") != 0 || count != 1)
        return KILN_ERROR_NAME;
    kiln_retain(&args[0]);
    *result = args[0];
    return 0;
}
static const kiln_loader loader = {sizeof loader, 0, load, call, 0};
__attribute__((constructor)) static void announce(void)
{ kiln_register_loader("native_test", &loader); }
"""


def identity(x: Any) -> Any:
    return x


def emit(function: Any, symbol: str) -> list[tk.Artifact]:
    return [
        tk.Artifact("python", "python_test", f"{symbol}.txt", b""),
        tk.Artifact("native", "native_test", "native.txt", b""),
    ]


@pytest.fixture(scope="module")
def functions(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tk.runtime.Executor]:
    calls: list[Any] = []

    def made(artifacts: Any, devices: Any) -> dict[str, Callable[..., Any]]:
        def double(x: Any, out: Any) -> None:
            out.numpy()[...] = 2 * x.numpy()
            return object()  # type: ignore[return-value]  # a kernel has no result

        def twice(*values: Any) -> Any:
            return (values, [calls, values[0]][1])

        return {
            f"{Path(artifacts[0].file_name).stem}": double,
            "python_identity": identity,
            "python_twice": twice,
        }

    external = External("devices", lambda call, target: call.op == "mul", emit)
    exe = tk.compile(from_source(MODULE), externals=[external])
    driver = tk.ArtifactSet(
        (*exe.artifacts, tk.Artifact("driver", "native", "driver.c", NATIVE.encode())),
        exe.artifacts.imports,
    )
    tk.runtime.register_loader("python_test", made)
    tk.runtime.register_function("tests.identity", identity)
    try:
        import tvm_ffi

        tvm_ffi.register_global_func("tests.foreign_identity", identity, override=True)
    except ImportError:
        tk.runtime.register_function("tests.foreign_identity", identity)
    path = tk.export_library(driver, tmp_path_factory.mktemp("packed") / "net.so")
    module = tk.runtime.load_module(path)
    yield tk.runtime.Executor(module, tk.cpu())
    tk.runtime.load.unregister_loader("python_test")
    tk.runtime.unregister_function("tests.identity")
    tk.runtime.unregister_function("tests.foreign_identity")


def plain(value: Any) -> Any:
    """What can be compared."""
    if isinstance(value, tuple):
        return tuple(map(plain, value))
    if isinstance(value, np.ndarray | np.generic | Tensor):
        array = value.numpy() if isinstance(value, Tensor) else np.asarray(value)
        return ("tensor", str(array.dtype), array.tolist())
    if callable(value):
        return ("function", plain(value(3)))
    return (type(value).__name__, value)


VALUES = {
    "tensor": np.arange(6, dtype=np.float32).reshape(2, 3),
    "integers": np.arange(3, dtype=np.int64),
    "bools": np.array([True, False]),
    "empty": np.zeros((0, 3), np.float32),
    "no dimensions": np.array(2.5),
    "strided": np.arange(12, dtype=np.float64).reshape(3, 4)[:, ::2],
    "int": 7,
    "large": 2**62,
    "negative": -1,
    "true": True,
    "float": 0.5,
    "none": None,
    "short text": "abc",
    "long text": "a text of more than seven bytes: ü",
    "no text": "",
    "tuple": (1, "two", None),
    "nested": (np.ones(2, np.float32), (True, ("x", (2.5, np.arange(2)))), ()),
    "function": lambda x: x + 1,
    "function in a tuple": (lambda x: x * 2, 3),
}


@pytest.mark.parametrize("callee", ["registered", "python", "native", "library", "foreign", "own"])
def test_values_go_there_and_back(functions: tk.runtime.Executor, callee: str) -> None:
    wrong = {}
    for name, value in VALUES.items():
        result = functions[callee](value)
        if plain(result) != plain(value):
            wrong[name] = result
    assert not wrong


def test_shapes_and_several_arguments(functions: tk.runtime.Executor) -> None:
    x = np.ones(2, np.float32)
    arguments, first = functions["nested"](x)
    assert plain(arguments) == plain((x, x, 5, (2, 3), "text"))
    assert plain(first) == plain(x)


def test_kernels_of_modules_still_write_their_results(functions: tk.runtime.Executor) -> None:
    assert functions["main"](np.ones(4, np.float32)).numpy().tolist() == [2] * 4


RECURSE = """
import sys, threading
import numpy as np
import tensorkiln as tk
from tensorkiln.external import External
from tensorkiln.script import from_source
from tests.outer.test_modules_of_loaders import emit

text = '''
@R.function
def main(x: R.Tensor((4,), "float32")) -> R.Tensor((4,), "float32"):
    a: R.Tensor((4,), "float32") = R.mul(x, R.const(2.0, "float32"))
    return a

@R.function
def outer(x: R.Object) -> R.Object:
    y: R.Object = R.call_packed("again", x)
    return y
'''

def made(artifacts, devices):
    def kernel(x, out):
        executor["main"](x.numpy())
    return {artifacts[0].file_name.removesuffix(".txt"): kernel,
            "again": lambda x: executor["outer"](x)}

tk.runtime.register_loader("python_test", made)
external = External("devices", lambda call, target: call.op == "mul", emit)
exe = tk.compile(from_source(text), externals=[external])
executor = tk.runtime.Executor(exe, tk.cpu())

def run(name):
    try:
        executor[name](np.ones(4, np.float32))
    except RecursionError as error:
        print(name, "RecursionError", flush=True)
    except BaseException as error:
        print(name, type(error), error, flush=True)

sys.setrecursionlimit(LIMIT)
for name in ("main", "outer"):
    run(name)
    threading.stack_size(SIZE)
    thread = threading.Thread(target=run, args=[name])
    thread.start()
    thread.join()
"""


@pytest.mark.parametrize("limit", [1000, 100_000])
@pytest.mark.parametrize("size", [512 << 10, 8 << 20])
def test_a_module_that_recurses(limit: int, size: int) -> None:
    """Python's limit or the thread's stack, whichever comes first: the same exception."""
    script = RECURSE.replace("LIMIT", str(limit)).replace("SIZE", str(size))
    root = Path(__file__).resolve().parents[2]
    process = subprocess.run(
        [sys.executable, "-c", script], cwd=root, capture_output=True, text=True, timeout=120
    )
    assert process.returncode == 0, (process.returncode, process.stdout, process.stderr[-3000:])
    assert process.stdout.splitlines() == ["main RecursionError"] * 2 + ["outer RecursionError"] * 2


LOADING = r"""
#include <kiln.h>
#include <stdio.h>
static int load(void *context, const char *key, const kiln_artifact *a, int n, void **module)
{
    (void)key; (void)a; (void)n;
    *module = 0;
    kiln_value result;
    if (context == 0) /* of its own, by both ways */
        return kiln_module("python_test", "") != 0 ? 99
               : kiln_call_import("python_test", "", "f", 0, 0, &result);
    return kiln_module("python_test", "") != 0 ? 99 : KILN_ERROR_LOADER; /* and round */
}
static int call(void *m, const char *f, const kiln_value *args, int32_t count, kiln_value *result)
{ (void)m; (void)f; (void)args; (void)count; (void)result; return 0; }
static int round_load(void *context, const char *key, const kiln_artifact *a, int n, void **module)
{ (void)context; (void)key; (void)a; (void)n; *module = 0;
  return kiln_module("native_test", "") != 0 ? 99 : KILN_ERROR_LOADER; }
static const kiln_loader self = {sizeof self, 0, load, call, 0};
static const kiln_loader back = {sizeof back, (void *)1, load, call, 0};
static const kiln_loader there = {sizeof there, 0, round_load, call, 0};
__attribute__((constructor)) static void announce(void)
{
    kiln_register_loader("python_test", ROUND ? &there : &self);
    if (ROUND)
        kiln_register_loader("native_test", &back);
}
"""


@pytest.mark.parametrize("in_a_circle", [0, 1])
def test_a_loader_that_asks_for_its_own_module(
    in_a_circle: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(load, "_loaders", {})
    external = External("devices", lambda call, target: call.op == "mul", emit)
    exe = tk.compile(from_source(MODULE), externals=[external])
    text = f"#define ROUND {in_a_circle}\n{LOADING}"
    artifacts = (*exe.artifacts, tk.Artifact("driver", "native", "driver.c", text.encode()))
    module = tk.load_artifacts(tk.ArtifactSet(artifacts, exe.artifacts.imports))
    for _ in range(2):
        with pytest.raises(LookupError, match="asks for the module that it is loading"):
            tk.runtime.Executor(module, tk.cpu())["main"](np.ones(4, np.float32))
