"""Artifacts that are no host code: who loads them, and what a library does with them.

Each test reads like the part of the design it is about.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tensorkiln as tk
from tensorkiln.base.errors import UserError
from tensorkiln.external import External
from tensorkiln.ir.relax import Call, Function
from tensorkiln.runtime import Tensor
from tensorkiln.script import from_source
from tensorkiln.target import Target

MODULE = """
@R.function
def main(x: R.Tensor(("n", 4), "float32")) -> R.Tensor(("n", 4), "float32"):
    a: R.Tensor(("n", 4), "float32") = R.tanh(x)
    b: R.Tensor(("n", 4), "float32") = R.mul(a, R.const(2.0, "float32"))
    c: R.Tensor(("n", 4), "float32") = R.exp(b)
    return c
"""
X = np.linspace(-2, 2, 12, dtype=np.float32).reshape(3, 4)
WANTED = np.exp(2 * np.tanh(X.astype(np.float64)))


def takes(op: str) -> Any:
    return lambda call, target: call.op == op


def run(lib: object, x: np.ndarray = X) -> np.ndarray:
    main = tk.runtime.Executor(lib, tk.cpu())["main"]  # type: ignore[arg-type]
    return np.asarray(main(x).numpy())


def close(y: np.ndarray) -> bool:
    return bool(np.allclose(y, WANTED, rtol=1e-5))


@pytest.fixture(autouse=True)
def loaders() -> Iterator[None]:
    """What a test registers goes with it."""
    from tensorkiln.runtime import load

    before = dict(load._loaders)
    yield
    load._loaders.clear()
    load._loaders.update(before)


# ---- a loader in Python: sixty lines, a device that adds, multiplies and counts -----------------


def stream_of(function: Function, symbol: str) -> list[tk.Artifact]:
    """A command stream: `mul 2.0`, one line per operator."""
    lines = []
    for binding in function.bindings:
        assert isinstance(binding.value, Call)
        (number,) = [a.array for a in binding.value.args if hasattr(a, "array")]
        lines.append(f"{binding.value.op} {float(number)}")
    return [tk.Artifact("streamer", "stream", f"{symbol}.cmd", "\n".join(lines).encode())]


STREAMER = External("streamer", takes("mul"), stream_of)


class StreamModule:
    """Functions of all streams, each the name of its file."""

    def __init__(self, artifacts: tuple[tk.Artifact, ...]):
        self.streams = {a.file_name.removesuffix(".cmd"): a.text() for a in artifacts}
        self.calls = 0

    def __getitem__(self, name: str) -> Any:
        stream = self.streams[name]

        def call(x: Tensor, out: Tensor) -> None:
            self.calls += 1
            value = x.numpy().copy()
            for line in stream.splitlines():
                op, number = line.split()
                value = {"mul": np.multiply, "add": np.add}[op](value, np.float32(number))
            out.numpy()[...] = value

        return call


def test_a_loader_in_python_runs_before_and_after_export(tmp_path: Path) -> None:
    modules: list[StreamModule] = []

    @tk.runtime.register_loader("stream")
    def load_stream(artifacts: Any, devices: Any) -> StreamModule:
        assert devices == (tk.cpu(),)
        modules.append(StreamModule(artifacts))
        return modules[-1]

    exe = tk.compile(from_source(MODULE), externals=[STREAMER])
    lib = exe.jit()
    assert close(run(lib))
    exe.export_library(tmp_path / "net.so")
    loaded_lib = tk.runtime.load_module(tmp_path / "net.so")
    assert loaded_lib.type_key == "library"
    assert loaded_lib.imported_modules[0].type_key == "stream"
    assert close(run(loaded_lib))
    assert [m.calls for m in modules] == [1, 1]
    # The same function without the graph around it.
    (name,) = modules[1].streams
    out = tk.nd.empty((3, 4), "float32")
    loaded_lib.imports[0][name](tk.nd.array(X), out)
    assert np.array_equal(out.numpy(), 2 * X)
    assert loaded_lib.imports[0].root() is loaded_lib


def test_a_loader_nobody_registered_fails_when_it_is_needed(tmp_path: Path) -> None:
    exe = tk.compile(from_source(MODULE), externals=[STREAMER])
    lib = tk.runtime.load_module(exe.export_library(tmp_path / "net.so"))
    with pytest.raises(LookupError, match="loader 'stream' is not registered") as caught:
        run(lib)
    assert "streamer_mul.cmd" in str(caught.value)
    assert "known: none" in str(caught.value)
    assert caught.value.code == "unknown-loader"  # type: ignore[attr-defined]
    with pytest.raises(LookupError, match="loader 'stream' is not registered"):
        lib.imports[0]["streamer_mul"](X, X.copy())


def test_what_a_function_of_a_module_raises_arrives(tmp_path: Path) -> None:
    class Broken(Exception):
        pass

    def broken(x: Tensor, out: Tensor) -> None:
        raise Broken("the device is on fire")

    tk.runtime.register_loader("stream", lambda artifacts, devices: {"streamer_mul": broken})
    lib = tk.compile(from_source(MODULE), externals=[STREAMER]).jit()
    with pytest.raises(Broken, match="on fire"):
        run(lib)
    tk.runtime.register_loader("stream", lambda artifacts, devices: {"other": broken})
    lib = tk.compile(from_source(MODULE), externals=[STREAMER]).jit()
    with pytest.raises(LookupError, match="no function 'streamer_mul'"):
        run(lib)
    with pytest.raises(LookupError, match="no function 'streamer_mul'.*") as caught:
        lib.imports[0]["streamer_mul"]
    assert "other" in caught.value.hint  # type: ignore[attr-defined]


# ---- seed 000: one kind, three files, one loader -------------------------------------------------


def test_a_kind_of_three_artifacts_and_one_loader(tmp_path: Path) -> None:
    """Device source, its format, and the table of functions: three files that a person can read,
    and one loader that gets them together."""
    from tensorkiln.target import register_target_kind, unregister_target_kind

    def generate(target: Target, functions: Any) -> list[tk.Artifact]:
        table = "\n".join(f.name for f in functions)
        source = "".join(f"kernel {f.name} {f.op_class}\n" for f in functions)
        key = {"target_key": "gpu0"}
        return [
            tk.Artifact("toygpu", "toygpu", "kernels.src", source.encode(), **key),
            tk.Artifact("toygpu", "toygpu", "format.txt", b"src", **key),
            tk.Artifact("toygpu", "toygpu", "functions.txt", table.encode(), **key),
        ]

    @tk.runtime.register_loader("toygpu")
    def load_toygpu(artifacts: Any, devices: Any) -> dict[str, Any]:
        _, fmt, table = artifacts
        assert fmt.text() == "src"
        assert [a.target_key for a in artifacts] == ["gpu0"] * 3

        def kernel(*arguments: Tensor | int) -> None:  # tensors, and the size of their first axis
            x, out = (t.numpy() for t in arguments if isinstance(t, Tensor))
            out[...] = np.exp(2 * np.tanh(x))

        return dict.fromkeys(table.text().splitlines(), kernel)

    register_target_kind("toygpu", "cpu", tir_codegen=generate)
    try:
        exe = tk.compile(from_source(MODULE), Target({"kind": "toygpu"}))
        names = [a.name for a in exe.artifacts if a.loader == "toygpu"]
        assert names == [
            "toygpu/gpu0/kernels.src",
            "toygpu/gpu0/format.txt",
            "toygpu/gpu0/functions.txt",
        ]
        assert close(run(exe.jit()))
        lib = tk.runtime.load_module(exe.export_library(tmp_path / "net.so"))
        assert lib.imports[0].group == ("toygpu", "gpu0")
        assert close(run(lib))
    finally:
        unregister_target_kind("toygpu")


# ---- seed 000: an external's launcher and its command stream -------------------------------------

DRIVER = """
#include "loader.h"
#include <stdlib.h>
#include <string.h>

/* The driver of a device that runs command streams: pairs of an operation and a number. */
typedef struct device { char *program; uint64_t bytes; } device;

static int load(void *context, const char *key, const kiln_artifact *files, int count, void **made)
{
    device *d = malloc(sizeof *d);
    (void)context, (void)key;
    if (count != 1 || files[0].bytes % 8 != 0) {
        free(d);
        kiln_set_last_error("ValueError: a command stream has whole commands");
        return KILN_ERROR_CALLBACK;
    }
    *d = (device){malloc(files[0].bytes), files[0].bytes};
    memcpy(d->program, files[0].content, files[0].bytes);
    *made = d;
    return KILN_OK;
}

static int call(void *module, const char *function, const kiln_value *args, int32_t count,
                kiln_value *result)
{
    (void)module, (void)function, (void)args, (void)count, (void)result;
    return KILN_ERROR_NAME; /* all work goes through launchers */
}

static void unload(void *module)
{
    free(((device *)module)->program);
    free(module);
}

__attribute__((constructor)) static void announce(void)
{
    const kiln_loader loader = {sizeof loader, NULL, load, call, unload};
    kiln_register_loader("teststream", &loader);
}

void teststream_launch(void *module, const float *x, float *out, int64_t n);
void teststream_launch(void *module, const float *x, float *out, int64_t n)
{
    const device *d = module;
    for (int64_t i = 0; i < n; i++) {
        float value = x[i];
        for (uint64_t at = 0; at < d->bytes; at += 8) {
            int32_t op;
            float number;
            memcpy(&op, d->program + at, 4);
            memcpy(&number, d->program + at + 4, 4);
            value = op == 1 ? value * number : value + number;
        }
        out[i] = value;
    }
}
"""
LAUNCHER = """
#include "loader.h"
void teststream_launch(void *module, const float *x, float *out, int64_t n);
void {symbol}(const float *x, float *out, int64_t n);
void {symbol}(const float *x, float *out, int64_t n)
{{
    void *module = kiln_module("teststream", "{key}");
    if (module == NULL)
        kiln_kernel_failed(KILN_ERROR_LOADER);
    else
        teststream_launch(module, x, out, n * 4);
}}
"""


def launched(key: str, driver: bool, number: float | None = None) -> External:
    """A pair: code for the host that starts, and a stream that the device runs."""

    def emit(function: Function, symbol: str) -> list[tk.Artifact]:
        call = function.bindings[0].value
        assert isinstance(call, Call)
        (constant,) = [a.array for a in call.args if hasattr(a, "array")]
        value = float(constant) if number is None else number
        stream = np.array([1], np.int32).tobytes() + np.array([value], np.float32).tobytes()
        launcher = LAUNCHER.format(symbol=symbol, key=key)
        files = [
            tk.Artifact("launcher", "native", f"{symbol}.c", launcher.encode()),
            tk.Artifact("streams", "teststream", "program.bin", stream, target_key=key),
        ]
        if driver:
            files.append(tk.Artifact("driver", "native", "driver.c", DRIVER.encode()))
        return files

    return External(f"launched{key}", takes("mul"), emit)


def test_a_launcher_and_a_command_stream(tmp_path: Path) -> None:
    exe = tk.compile(from_source(MODULE), externals=[launched("npu0", driver=True)])
    assert close(run(exe.jit()))
    path = exe.export_library(tmp_path / "net.so")
    lib = tk.runtime.load_module(path)
    assert lib.imports[0].group == ("teststream", "npu0")
    assert close(run(lib))
    # Host code without Python: the loader is in the library.
    script = (
        "import tvm_ffi, numpy as np, sys\n"
        "x = tvm_ffi.from_dlpack(np.load(sys.argv[2]))\n"
        "y = tvm_ffi.load_module(sys.argv[1])['main'](x)\n"
        "np.save(sys.argv[3], np.from_dlpack(y))\n"
        "assert 'tensorkiln' not in sys.modules\n"
    )
    np.save(tmp_path / "x.npy", X)
    files = [str(tmp_path / n) for n in ("net.so", "x.npy", "y.npy")]
    subprocess.run([sys.executable, "-c", script, *files], check=True, timeout=120)
    assert close(np.load(tmp_path / "y.npy"))


def test_a_stream_can_be_taken_out_changed_and_put_back(tmp_path: Path) -> None:
    exe = tk.compile(from_source(MODULE), externals=[launched("npu0", driver=True)])
    exe.artifacts.save(tmp_path / "set")
    stream = tmp_path / "set" / "streams" / "npu0" / "program.bin"
    assert stream.read_bytes()[4:] == np.float32(2).tobytes()
    artifacts = tk.ArtifactSet.load(tmp_path / "set")
    changed = stream.read_bytes()[:4] + np.float32(3).tobytes()
    edited = artifacts.replace("program.bin", changed)
    expected = np.exp(3 * np.tanh(X.astype(np.float64)))
    assert np.allclose(run(tk.load_artifacts(edited)), expected, rtol=1e-5)
    tk.export_library(edited, tmp_path / "edited.so")
    assert np.allclose(run(tk.runtime.load_module(tmp_path / "edited.so")), expected, rtol=1e-5)


def test_artifacts_without_native_code_serve_a_library(tmp_path: Path) -> None:
    """Another stream for the device, with the host code that is there already."""
    tk.runtime.register_loader("stream", lambda artifacts, devices: StreamModule(artifacts))
    exe = tk.compile(from_source(MODULE), externals=[STREAMER])
    lib = tk.runtime.load_module(exe.export_library(tmp_path / "net.so"))
    assert close(run(lib))
    (stream,) = [a for a in exe.artifacts if a.loader == "stream"]
    other_stream = tk.ArtifactSet(
        (tk.Artifact("streamer", "stream", stream.file_name, b"mul 3.0"),)
    )
    assert tk.load_artifacts(other_stream, library=lib) is lib
    assert np.allclose(run(lib), np.exp(3 * np.tanh(X.astype(np.float64))), rtol=1e-5)
    assert [m.type_key for m in lib.imports] == ["stream"]
    assert lib.imports[0].root() is lib
    for artifacts, library in ((other_stream, None), (exe.artifacts, lib)):
        with pytest.raises(UserError) as caught:
            tk.load_artifacts(artifacts, library=library)
        assert caught.value.code == "no-library"
    unknown = tk.ArtifactSet((tk.Artifact("streamer", "steam", "a.cmd", b""),))
    with pytest.raises(LookupError, match="'steam' is not registered in Python.*a.cmd") as missing:
        tk.load_artifacts(unknown, library=lib)
    assert "stream" in missing.value.hint  # type: ignore[attr-defined]


def test_a_failing_loader_of_c_says_why(tmp_path: Path) -> None:
    exe = tk.compile(from_source(MODULE), externals=[launched("npu0", driver=True)])
    edited = exe.artifacts.replace("program.bin", b"12345")
    with pytest.raises(LookupError, match="whole commands"):
        run(tk.load_artifacts(edited))


# ---- seed 000: what cannot be written ----------------------------------------------------------


def test_an_artifact_in_memory_is_a_function_of_torch(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")

    def emit(function: Function, symbol: str) -> list[tk.InMemoryArtifact]:
        def exp(x: Tensor, out: Tensor) -> None:
            torch.exp(torch.from_dlpack(x), out=torch.from_dlpack(out))

        return [tk.InMemoryArtifact("pytorch", f"{symbol}.py", lambda: exp)]

    exe = tk.compile(from_source(MODULE), externals=[External("pytorch", takes("exp"), emit)])
    lib = exe.jit()
    assert lib.imports[0].type_key == "pytorch-pytorch_exp.py"
    assert close(run(lib))
    for refused in (
        lambda: exe.export_library(tmp_path / "net.so"),
        lambda: exe.artifacts.save(tmp_path / "set"),
        exe.artifacts.to_bytes,
    ):
        with pytest.raises(UserError, match="'pytorch/pytorch_exp.py' exists in memory only"):
            refused()
    assert not list(tmp_path.iterdir())


# ---- nested imports ----------------------------------------------------------------------------


def test_nested_imports_are_kept(tmp_path: Path) -> None:
    """A group may import another: what it lacks, the other has."""

    def emit(function: Function, symbol: str) -> tk.ArtifactSet:
        files = (
            tk.Artifact("nested", "front", "front.txt", b"front"),
            tk.Artifact("nested", "back", "back.txt", b"back", target_key="k"),
        )
        return tk.ArtifactSet(files).importing("front", ("back", "k"))

    calls = []

    def double(x: Tensor, out: Tensor) -> None:
        calls.append(1)
        out.numpy()[...] = 2 * x.numpy()

    tk.runtime.register_loader("front", lambda artifacts, devices: {})
    tk.runtime.register_loader("back", lambda artifacts, devices: {"nested_mul": double})
    exe = tk.compile(from_source(MODULE), externals=[External("nested", takes("mul"), emit)])
    lib = tk.runtime.load_module(exe.export_library(tmp_path / "net.so"))
    for module in (exe.jit(), lib):
        (front,) = module.imports
        (back,) = front.imports
        assert (front.type_key, back.group) == ("front", ("back", "k"))
        assert close(run(module))
    assert len(calls) == 2
    again = tk.ArtifactSet.from_bytes(exe.artifacts.to_bytes())
    assert again == exe.artifacts
    assert again.imports == exe.artifacts.imports != ()
