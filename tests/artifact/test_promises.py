"""What artifacts promise as a whole: many makers and loaders in one library, nothing left behind,
weights that are read as they are needed."""

from __future__ import annotations

import ctypes
import gc
import os
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tensorkiln as tk
from tensorkiln.base.errors import UserError
from tensorkiln.external import External
from tensorkiln.external.example import C_REFERENCE
from tensorkiln.ir.relax import Call, Function
from tensorkiln.kernels.case import rand
from tensorkiln.runtime import load as loading
from tensorkiln.runtime import python_modules
from tests.artifact.test_loaders import DRIVER, LAUNCHER, STREAMER, StreamModule, X, run
from tests.transform.graphs import graph

ROOT = Path(__file__).parents[2]
on_linux = pytest.mark.skipif(sys.platform != "linux", reason="/proc is Linux's")


@pytest.fixture(autouse=True)
def loaders() -> Iterator[None]:
    """What a test registers goes with it."""
    before = dict(loading._loaders)
    yield
    loading._loaders.clear()
    loading._loaders.update(before)


# ---- three native code generators, two loaders, nested imports, two target keys -----------------


def constant_of(call: Call) -> float | None:
    numbers = [float(a.array) for a in call.args if hasattr(a, "array") and a.array.size == 1]
    return numbers[0] if numbers else None


def objects(function: Function, symbol: str) -> list[tk.Artifact]:
    """A code generator that makes machine code: |x| of an object file."""
    source = (
        f"void {symbol}(const float *x, float *out, long n) {{\n"
        "    for (long i = 0; i < n * 4; i++) out[i] = x[i] < 0 ? -x[i] : x[i];\n}\n"
    )
    folder = os.environ["PYTEST_OBJECTS"]
    command = [sys.executable, "-m", "ziglang", "cc", "-c", "-O1", "-fPIC", "-x", "c", "-", "-o"]
    file = Path(folder) / f"{symbol}.o"
    subprocess.run([*command, str(file)], input=source.encode(), check=True)
    return [tk.Artifact("objects", "native", file.name, file.read_bytes())]


def routed(function: Function, symbol: str) -> tk.ArtifactSet:
    """A router without functions of its own, and below it the streams that have them."""
    (stream,) = STREAMER.emit(function, symbol)
    assert isinstance(stream, tk.Artifact)
    files = (
        tk.Artifact("streamer", "router", "routes.txt", symbol.encode()),
        replace(stream, target_key="k"),
    )
    return tk.ArtifactSet(files).importing("router", ("stream", "k"))


def adding(key: str, number: float) -> External:
    """Code for the host that starts the test device, and a stream for it: one addition."""

    def emit(function: Function, symbol: str) -> list[tk.Artifact]:
        stream = np.array([2], np.int32).tobytes() + np.array([number], np.float32).tobytes()
        launcher = LAUNCHER.format(symbol=symbol, key=key)
        files = [
            tk.Artifact(f"launcher-{key}", "native", f"{symbol}.c", launcher.encode()),
            tk.Artifact("streams", "teststream", "program.bin", stream, target_key=key),
        ]
        driver = tk.Artifact("driver", "native", "driver.c", DRIVER.encode())
        return [*files, driver] if key == "npu0" else files

    return External(
        f"adds_{key}", lambda call, _: call.op == "add" and constant_of(call) == number, emit
    )


EVERYTHING = [
    replace(C_REFERENCE, supports=lambda call, target: call.op == "relu"),
    External("objects", lambda call, target: call.op == "abs", objects),
    External("streamer", lambda call, target: call.op == "mul", routed),
    adding("npu0", 3.0),
    adding("npu1", 0.5),
]


# llvm, stream, npu0; llvm, c_reference, objects; npu1, llvm
EVERY_OP = (
    "tanh({})",
    "mul({}, R.const(2.0, 'float32'))",
    "add({}, R.const(3.0, 'float32'))",
    "exp({})",
    "relu({})",
    "abs({})",
    "add({}, R.const(0.5, 'float32'))",
    "tanh({})",
)


def chain(operators: Sequence[str]) -> Any:
    """One operator after the other, on rows of four."""
    rows = 'R.Tensor(("n", 4), "float32")'
    lines = ["@R.function", f"def main(v0: {rows}) -> {rows}:"]
    lines += [f"    v{i}: {rows} = R.{op.format(f'v{i - 1}')}" for i, op in enumerate(operators, 1)]
    return tk.script.from_source("\n".join([*lines, f"    return v{len(operators)}\n"]))


def wanted(x: np.ndarray, number: float = 3.0) -> np.ndarray:
    return np.tanh(np.exp(2 * np.tanh(x.astype(np.float64)) + number) + 0.5)


def test_many_makers_and_loaders_in_one_library(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTEST_OBJECTS", str(tmp_path))
    tk.runtime.register_loader("stream", lambda artifacts, devices: StreamModule(artifacts))
    tk.runtime.register_loader("router", lambda artifacts, devices: {})
    exe = tk.compile(chain(EVERY_OP), externals=EVERYTHING)
    natives = {a.codegen_id for a in exe.artifacts if a.loader == "native"}
    assert natives >= {"llvm", "c_reference", "objects", "host"}
    groups = [g for g in exe.artifacts.groups() if g.loader not in ("native", "header", "text")]
    assert groups == [
        ("router", ""),
        ("stream", "k"),
        ("teststream", "npu0"),
        ("teststream", "npu1"),
    ]
    x = np.linspace(-4, 0, 12, dtype=np.float32).reshape(3, 4) - 2
    before = run(exe.jit(), x)
    assert np.allclose(before, wanted(x), rtol=1e-5)
    exe.export_library(tmp_path / "net.so")
    lib = tk.runtime.load_module(tmp_path / "net.so")
    assert np.array_equal(run(lib, x), before)
    assert [m.group for m in lib.imports] == [groups[0], *groups[2:]]
    assert [m.group for m in lib.imports[0].imports] == [groups[1]]
    # Taken out, linked again; then with one artifact of each way to be loaded changed.
    exe.artifacts.save(tmp_path / "set")
    tk.export_library(tk.ArtifactSet.load(tmp_path / "set"), tmp_path / "again.so")
    assert np.array_equal(run(tk.runtime.load_module(tmp_path / "again.so"), x), before)
    program = tmp_path / "set" / "streams" / "npu0" / "program.bin"
    changed = program.read_bytes()[:4] + np.float32(2.5).tobytes()
    artifacts = tk.ArtifactSet.load(tmp_path / "set").replace("streams/npu0/program.bin", changed)
    tk.export_library(artifacts, tmp_path / "edited.so")
    y = run(tk.runtime.load_module(tmp_path / "edited.so"), x)
    assert np.allclose(y, wanted(x, 2.5), rtol=1e-5)
    assert not np.allclose(y, before, rtol=1e-3)


def test_one_file_is_edited_and_the_set_linked_again(tmp_path: Path) -> None:
    """By hand, in the folder: the C of a kernel, then the weights."""
    bias = np.array([1, 2, 3, 4], np.float32)
    rows = 'R.Tensor(("n", 4), "float32")'
    mod = tk.script.from_source(
        f"@R.function\ndef main(x: {rows}) -> {rows}:\n"
        f"    a: {rows} = R.mul(x, R.const(2.0, 'float32'))\n"
        f"    b: {rows} = R.tanh(a)\n"
        f"    c: {rows} = R.add(b, R.const('bias', 'float32', (4,)))\n"
        "    return c\n",
        constants={"bias": bias},
    )
    exe = tk.compile(mod, externals=[replace(C_REFERENCE, supports=lambda c, t: c.op == "mul")])
    x = np.linspace(-2, 2, 12, dtype=np.float32).reshape(3, 4)

    def answers(factor: float, added: np.ndarray) -> None:
        artifacts = tk.ArtifactSet.load(tmp_path / "set", edited=True)
        path = tk.export_library(artifacts, tmp_path / f"edited{factor}{added[0]}.so")
        want = np.tanh(factor * x.astype(np.float64)) + added
        for lib in (tk.load_artifacts(artifacts), tk.runtime.load_module(path)):
            np.testing.assert_allclose(run(lib, x), want, rtol=1e-5, atol=1e-6)

    exe.artifacts.save(tmp_path / "set")
    answers(2.0, bias)
    (source,) = (tmp_path / "set" / "c_reference").glob("*.c")
    source.write_text(source.read_text().replace("2.0f", "-3.0f"))
    answers(-3.0, bias)
    file = tmp_path / "set" / "host" / "weights.bin"
    weights = bytearray(file.read_bytes())
    assert weights.count(bias.tobytes()) == 1
    file.write_bytes(weights.replace(bias.tobytes(), (10 * bias).tobytes()))
    answers(-3.0, 10 * bias)


# ---- nothing is left behind ---------------------------------------------------------------------


@pytest.fixture(scope="module")
def streaming(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A library with a loader in Python and one in C."""
    executable = tk.compile(chain(EVERY_OP[:4]), externals=[STREAMER, adding("npu0", 3.0)])
    return Path(executable.export_library(tmp_path_factory.mktemp("streaming") / "net.so"))


def streamed(lib: tk.runtime.Module) -> None:
    y = run(lib, X)
    assert np.allclose(y, np.exp(2 * np.tanh(X) + 3), rtol=1e-5)


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def load_run_and_close(library: str) -> None:
    """A thousand times; prints the bytes that the process took in the last 700."""
    tk.runtime.register_loader("stream", lambda artifacts, devices: StreamModule(artifacts))
    module_counts = len(python_modules._modules), len(python_modules._in_use)
    resident_sizes = []
    for cycle in range(1000):
        lib = tk.runtime.load_module(library)
        streamed(lib)
        lib.close()
        if cycle in (299, 999):
            gc.collect()
            resident_sizes.append(resident())
    assert (len(python_modules._modules), len(python_modules._in_use)) == module_counts
    assert library not in Path("/proc/self/maps").read_text()
    print(resident_sizes[1] - resident_sizes[0])


@on_linux
def test_a_thousand_libraries_leave_nothing(streaming: Path) -> None:
    """In a process of their own: what other tests left to collect comes and goes with megabytes."""
    script = "import sys, tests.artifact.test_promises as t; t.load_run_and_close(sys.argv[1])"
    command = [sys.executable, "-c", script, str(streaming)]
    process = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    # One page for each cycle would be 2.8 MB; the allocator takes a quarter of a megabyte at once.
    assert int(process.stdout) <= 512 << 10, f"{process.stdout} bytes in 700 cycles"


def test_eight_threads_load_call_and_close(streaming: Path, tmp_path: Path) -> None:
    """Four have a file of their own, four share one, which is one library to the system."""
    tk.runtime.register_loader("stream", lambda artifacts, devices: StreamModule(artifacts))
    failures: list[BaseException] = []
    started = threading.Barrier(8)

    def work(path: Path) -> None:
        try:
            started.wait(60)
            for _ in range(25):
                lib = tk.runtime.load_module(path)
                streamed(lib)
                streamed(lib)
                lib.close()
        except BaseException as error:
            failures.append(error)

    paths = [streaming] * 4
    for i in range(4):
        paths.append(tmp_path / f"own{i}.so")
        paths[-1].write_bytes(streaming.read_bytes())
    threads = [threading.Thread(target=work, args=(p,)) for p in paths]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


def test_a_file_that_is_loaded_twice_keeps_its_modules(streaming: Path) -> None:
    """The system has it once: closing either must not take the modules of the other."""
    tk.runtime.register_loader("stream", lambda artifacts, devices: StreamModule(artifacts))
    module_count = len(python_modules._modules)
    first, second = (tk.runtime.load_module(streaming) for _ in range(2))
    second.close()
    streamed(first)
    del second  # the one that told it of its modules last
    streamed(first)
    third = tk.runtime.load_module(streaming)
    first.close()
    streamed(third)
    third.close()
    assert len(python_modules._modules) == module_count


def test_what_outlives_a_library_says_that_it_is_closed(streaming: Path) -> None:
    tk.runtime.register_loader("stream", lambda artifacts, devices: StreamModule(artifacts))
    lib = tk.runtime.load_module(streaming)
    executor = tk.runtime.Executor(lib, tk.cpu())
    main = executor["main"]
    main(X)
    lib.close()
    for use in (
        lambda: main(X),
        lambda: executor["main"](X),
        lambda: executor.workspace_bytes,
        lambda: tk.runtime.Executor(lib, tk.cpu()),
    ):
        with pytest.raises(UserError) as caught:
            use()
        assert caught.value.code == "closed"
    lib.close()  # a second time is no error


def test_a_loaders_function_cannot_close_its_library(streaming: Path) -> None:
    codes: list[str] = []

    def load(artifacts: Any, devices: Any) -> Any:
        streams = StreamModule(artifacts)

        def closing(x: Any, out: Any) -> None:
            with pytest.raises(UserError, match="has called a Python function") as caught:
                lib.close()
            codes.append(caught.value.code)
            streams[name](x, out)

        (name,) = streams.streams
        return {name: closing}

    tk.runtime.register_loader("stream", load)
    lib = tk.runtime.load_module(streaming)
    streamed(lib)
    lib.close()
    assert codes == ["in-use"]


def test_modules_are_freed_with_their_library(streaming: Path) -> None:
    import weakref

    module_refs: list[weakref.ref[StreamModule]] = []

    def load(artifacts: Any, devices: Any) -> StreamModule:
        module = StreamModule(artifacts)
        module_refs.append(weakref.ref(module))
        return module

    tk.runtime.register_loader("stream", load)
    lib = tk.runtime.load_module(streaming)
    streamed(lib)
    lib.close()
    del lib
    gc.collect()
    assert module_refs[0]() is None


# ---- weights ------------------------------------------------------------------------------------


def mapped(path: Path) -> int:
    """Resident bytes of a file's mappings."""
    resident_bytes, is_ours = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        word = line.split()[0]
        if "-" in word and not word.endswith(":"):
            is_ours = line.endswith(str(path))
        elif word == "Rss:" and is_ours:
            resident_bytes += int(line.split()[1]) << 10
    return resident_bytes


def drop_from_cache(path: Path) -> None:
    """Pages that are in the system's cache are mapped around a fault; so let there be none."""
    with path.open("rb") as stream:
        os.fsync(stream.fileno())
        os.posix_fadvise(stream.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        os.posix_fadvise(stream.fileno(), 0, 0, os.POSIX_FADV_RANDOM)


@on_linux
def test_weights_become_resident_as_they_are_touched(tmp_path: Path) -> None:
    """100 MB in two layers."""
    size = 3600  # squared, in float32: 52 MB
    first, second = rand(size, size), rand(size, size, seed=1)
    two_layers = graph(lambda g, x: g.matmul(g.relu(g.matmul(x, first)), second), x=(1, size))
    weights = 2 * 4 * size * size
    path = Path(tk.compile(two_layers).export_library(tmp_path / "net.so"))
    assert path.stat().st_size > weights
    drop_from_cache(path)
    before = anonymous()
    lib = tk.runtime.load_module(path)
    executor = tk.runtime.Executor(lib, tk.cpu())
    executor.set_num_threads(2)  # whose threads go with it
    main = executor["main"]
    loaded = mapped(path)
    assert loaded < 8 << 20, f"{loaded} bytes of {weights} are resident before any call"
    x = np.ones((1, size), np.float32)
    y = main(x).numpy()
    assert weights * 0.95 < mapped(path) < path.stat().st_size + (8 << 20)
    assert anonymous() - before < 16 << 20, "weights were copied"
    assert np.isfinite(y).all() and y.any()
    lib.close()
    assert mapped(path) == 0


def anonymous() -> int:
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    text = Path("/proc/self/status").read_text()
    return int(text.split("RssAnon:")[1].split()[0]) << 10
