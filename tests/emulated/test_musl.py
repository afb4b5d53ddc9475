"""Libraries for Linux with musl, in processes of musl: the same results as with glibc, to the bit;
their threads, memory, errors and forks; and which process refuses which library, in which words."""

from __future__ import annotations

import functools
import subprocess
from pathlib import Path
from tempfile import mkdtemp

import numpy as np
import pytest

pytest.importorskip("onnx", reason="onnx is not installed")

import tensorkiln as tk
from tensorkiln.artifact.c_library import MUSL as MUSL_LIBRARY
from tensorkiln.artifact.read_binary import read_binary
from tensorkiln.base import machine as this_machine
from tensorkiln.base.errors import UserError
from tensorkiln.kernels.case import rand
from tensorkiln.runtime import Executor, load_module
from tests.emulated.machine import MACHINES, MUSL, Emulated, Machine, riscv_processor
from tests.firmware import models
from tests.hosts import test_forks
from tests.hosts.build import HERE, ROOT
from tests.link import sample
from tests.transform.graphs import graph

pytestmark = pytest.mark.emulated
F = np.float32
ON_MUSL = pytest.mark.parametrize("machine", MUSL, ids=lambda m: m.target)
# What qemu calls processors that have all of them.
EMULATED = {"x86_64": "max", "aarch64": "max", "riscv64": riscv_processor(0)}
# Processors with what the kernels of the levels use, by architecture.
CPUS = {"x86_64": "x86-64-v3", "aarch64": "cortex-a76", "riscv64": "sifive-u74"}


def floats(*shape: int) -> np.ndarray:
    return np.random.default_rng(shape).standard_normal(shape).astype(F)


@functools.cache
def library(machine: Machine) -> Emulated:
    """The sample of tests of the link."""
    machine.require()
    path = sample.build(Path(mkdtemp(prefix="kiln-musl-")) / "mlp.so", triple=machine.target)
    return Emulated(machine, path, EMULATED[machine.arch])


# -- what is made ----------------------------------------------------------------------------------


@ON_MUSL
def test_what_a_library_asks_of_musl(machine: Machine, tmp_path: Path) -> None:
    """One file, of which every musl has each symbol; no versions, which musl has none of."""
    path = sample.build(tmp_path / "mlp.so", triple=machine.target)
    binary = read_binary(path)
    assert binary.machine == machine.arch and binary.needed() == ("libc.so",)
    needs = {s.name for s in binary.symbols(dynamic=True) if not s.is_defined and s.name}
    assert needs <= MUSL_LIBRARY.symbols and "pthread_atfork" in needs
    assert b"GLIBC" not in path.read_bytes()
    machine.require()
    loader = next(machine.root.glob(machine.loader))
    present = {s.name for s in read_binary(loader).symbols(dynamic=True) if s.is_defined}
    assert MUSL_LIBRARY.symbols <= present


@ON_MUSL
@pytest.mark.parametrize("threads", [1, 2, 5])
@pytest.mark.parametrize("rows", [0, 1, 3, 200])
def test_functions_on_threads(machine: Machine, rows: int, threads: int) -> None:
    run = library(machine)
    run.set_num_threads(threads)
    x = floats(rows, 8)
    np.testing.assert_allclose(run["main"](x), sample.expected(x), rtol=1e-5, atol=1e-5)
    y = np.zeros(7, F)
    run["add_one"](floats(7), y)
    np.testing.assert_array_equal(y, floats(7) + 1)


@ON_MUSL
def test_errors(machine: Machine) -> None:
    run = library(machine)
    words = "main: input 'x' must have 2 dimensions, [n, 8], received 1: [8]"
    for _ in range(2):
        with pytest.raises(RuntimeError) as caught:
            run["main"](floats(8))
        assert str(caught.value) == words


@ON_MUSL
def test_weights_beside_the_library(machine: Machine, tmp_path: Path) -> None:
    machine.require()
    path = sample.build(tmp_path / "mlp.so", triple=machine.target, beside=())
    x = floats(3, 8)
    received = Emulated(machine, path, EMULATED[machine.arch])["main"](x)
    np.testing.assert_allclose(received, sample.expected(x), rtol=1e-5, atol=1e-5)
    (tmp_path / "mlp.safetensors").unlink()
    with pytest.raises(RuntimeError, match="weights in .*mlp.safetensors, which cannot be opened"):
        Emulated(machine, path, EMULATED[machine.arch])["main"](x)


@ON_MUSL
@pytest.mark.parametrize("form", [".a", ".o"])
def test_static_libraries(machine: Machine, form: str, tmp_path: Path) -> None:
    """Linked into a program of musl, which needs no dynamic loader at all."""
    machine.require()
    w, b = rand(784, 10), rand(10)
    target = {"mtriple": machine.target, "mcpu": CPUS[machine.arch]}
    exe = tk.compile(graph(lambda g, x: g.linear(x, w, b), x=(1, 784)), target)
    net = exe.export_library(tmp_path / f"net{form}")
    (tmp_path / f"{exe.name}.h").write_text(exe.header())
    (tmp_path / "main.c").write_text(
        f'#include "{exe.name}.h"\n#include <stdio.h>\n'
        "static float x[784], y[10];\n"
        "int main(void)\n{\n    for (int i = 0; i < 784; i++)\n        x[i] = (float)i / 784;\n"
        f"    if ({exe.name}_main(x, y) != 0)\n"
        f"        return puts({exe.name}_last_error()), 1;\n"
        "    return fwrite(y, 4, 10, stdout) != 10;\n}\n"
    )
    program = machine.build(tmp_path / "program", tmp_path / "main.c", net, "-I", tmp_path)
    output = subprocess.run(
        machine.command(EMULATED[machine.arch], program), check=True, capture_output=True
    )
    x = (np.arange(784, dtype=F) / F(784)).astype(np.float64)
    received = np.frombuffer(output.stdout, F)
    np.testing.assert_allclose(received, x @ w.array + b.array, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("machine", MUSL[:1], ids=lambda m: m.target)
def test_children_of_fork(machine: Machine, tmp_path: Path) -> None:
    """A child can use what its parent loaded, whatever other threads were doing. Not under
    qemu, which aborts in children of a process with threads."""
    machine.require()
    target = {"mtriple": machine.target}
    external = test_forks.External("doubler", lambda call, _: call.op == "add", test_forks.emit)
    first = tk.compile(test_forks.Module, target, externals=[external])
    libraries = [first.export_library(tmp_path / "1.so")]
    for name in ("2.so", "3.so"):
        libraries.append(tk.compile(test_forks.Module, target).export_library(tmp_path / name))
    host = ROOT / "tensorkiln" / "hosts"
    program = machine.build(tmp_path / "forks", HERE / "forks.c", "-I", HERE, "-I", host)
    process = subprocess.run(
        machine.command("max", program, "40", *libraries[:1]),
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert process.returncode == 0, process.stdout + process.stderr


# -- the same results ------------------------------------------------------------------------------


def outputs(machine: Machine, exe: tk.Executable, path: Path, *inputs: np.ndarray) -> bytes:
    """What a library gives on a machine of its C library, on two threads."""
    library_path = exe.export_library(path)
    in_process = machine.is_here and not machine.folder
    run = (
        Executor(load_module(library_path))
        if in_process
        else Emulated(machine, library_path, EMULATED[machine.arch])
    )
    run.set_num_threads(2)
    received = run["main"](*inputs)
    results = received if isinstance(received, tuple | list) else (received,)
    return b"".join(np.asarray(y).tobytes() for y in results)


GLIBC = {"x86_64": Machine("x86_64", "x86_64-linux-gnu", ""), **MACHINES}


def compare(machine: Machine, model: object, tmp_path: Path, *inputs: np.ndarray) -> None:
    machine.require()
    glibc = GLIBC[machine.arch]
    if not glibc.is_here:
        glibc.require()
    results = []
    for place, name in ((machine, "musl.so"), (glibc, "glibc.so")):
        target = {"mtriple": place.target, "mcpu": CPUS[machine.arch]}
        exe = tk.compile(model, target)
        results.append(outputs(place, exe, tmp_path / name, *inputs))
    assert results[0] == results[1] and any(results[0])


@ON_MUSL
@pytest.mark.parametrize(
    ("network", "precision"),
    [("keywords", "int8"), ("person", "int8"), ("anomaly", "float32"), ("images", "float32")],
)
def test_networks_of_firmware(
    machine: Machine, network: str, precision: str, tmp_path: Path
) -> None:
    if precision == "int8":
        pytest.importorskip("onnxruntime.quantization", reason="onnxruntime is not installed")
    x = models.inputs(network, precision, 0)
    compare(machine, models.model(network, precision), tmp_path, x)


@pytest.mark.slow
@ON_MUSL
def test_resnet18(machine: Machine, tmp_path: Path) -> None:
    for package in ("torch", "onnxscript"):
        pytest.importorskip(package, reason=f"{package} is not installed")
    from tests.models.test_models import fetch, random_inputs

    compare(machine, str(fetch("resnet18")), tmp_path, *random_inputs("resnet18", 0, {}).values())


# -- which process loads which library -------------------------------------------------------------


def refusal(path: Path) -> UserError:
    with pytest.raises(UserError) as caught:
        load_module(path)
    assert caught.value.code == "wrong-machine"
    return caught.value


def test_python_with_glibc_refuses_it_by_name(tmp_path: Path) -> None:
    module = graph(lambda g, x: g.exp(x), x=(9,))
    exe = tk.compile(module, {"mtriple": "x86_64-linux-musl"})
    error = refusal(exe.export_library(tmp_path / "net.so"))
    name, version = this_machine.c_library() or ("", "")
    assert error.message.endswith(f"needs musl 1.1 or newer, this process has {name} {version}")
    assert error.hint == "mtriple x86_64-linux-gnu"


@pytest.mark.parametrize(
    ("process", "words"),
    [
        (("musl", ""), "needs glibc 2.17 or newer, this process has musl"),
        (("glibc", "2.12"), "needs glibc 2.17 or newer, this process has glibc 2.12"),
        (("glibc", "2.17"), ""),
        (None, ""),
    ],
)
def test_a_library_for_glibc_elsewhere(
    process: tuple[str, str] | None, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tk.compile(graph(lambda g, x: g.exp(x), x=(9,))).export_library(tmp_path / "net.so")
    monkeypatch.setattr("tensorkiln.runtime.native.c_library", lambda: process)
    if words:
        assert refusal(path).message.endswith(words)
    else:
        load_module(path)
