"""Libraries for Linux with musl, in processes of musl, and those for Android there too, as far as
musl stands in for bionic: the same results as with glibc, to the bit; their threads, memory, errors
and forks; and which process refuses which library, in which words."""

from __future__ import annotations

import functools
import os
import re
import struct
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
from tensorkiln.base.config import read_config
from tensorkiln.base.errors import UserError
from tensorkiln.kernels.case import rand
from tensorkiln.link.object_format import format_of
from tensorkiln.link.shared import CRT
from tensorkiln.link.toolchain import zig_path
from tensorkiln.runtime import Executor, load_module
from tests.emulated.machine import ANDROID, MACHINES, MUSL, Emulated, Machine, riscv_processor
from tests.firmware import models
from tests.hosts import test_forks
from tests.hosts.build import HERE, ROOT
from tests.link import sample
from tests.transform.graphs import graph

pytestmark = pytest.mark.emulated
F = np.float32
ON_EACH = pytest.mark.parametrize("machine", (*MUSL, *ANDROID), ids=lambda m: m.target)
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


@ON_EACH
def test_what_a_library_asks_of_the_system(machine: Machine, tmp_path: Path) -> None:
    """Files and symbols of the C library's table; no versions, which theirs need not have."""
    c_library = format_of(machine.target).c_library
    path = sample.build(tmp_path / "mlp.so", triple=machine.target)
    binary = read_binary(path)
    assert binary.machine == machine.arch
    assert "libc.so" in binary.needed() and set(binary.needed()) <= set(c_library.files)
    needs = {s.name for s in binary.symbols(dynamic=True) if not s.is_defined and s.name}
    assert needs <= c_library.symbols and needs & {"pthread_atfork", "__register_atfork"}
    assert b"GLIBC" not in path.read_bytes()
    if machine in ANDROID:
        assert "sysconf" not in c_library.symbols  # its numbers are others in musl's headers
        assert "stdout" not in c_library.symbols  # which musl's headers declare as constants
        return
    machine.require()
    loader = next(machine.root.glob(machine.loader))
    present = {s.name for s in read_binary(loader).symbols(dynamic=True) if s.is_defined}
    assert MUSL_LIBRARY.symbols <= present


def asked_by_androids_linker(data: bytes) -> None:
    """What the linker of Android asks of a file before it maps it, and of its dynamic section, by
    the rules for apps of the newest level, which are those of API 24 and more."""
    head = struct.unpack_from("<16sHHIQQQIHHHHHH", data)
    ident, kind, machine, version, _, phoff, shoff, _, _, phsize, phnum, shsize, shnum, names = head
    assert (ident[:7], kind, version, phsize, shsize) == (b"\x7fELF\2\1\1", 3, 1, 56, 64)
    assert names and phoff % 8 == shoff % 8 == 0 and shoff + 64 * shnum <= len(data)
    programs = [struct.unpack_from("<IIQQQQQQ", data, phoff + 56 * i) for i in range(phnum)]
    sections = [struct.unpack_from("<IIQQQQIIQQ", data, shoff + 64 * i) for i in range(shnum)]
    assert 7 not in {row[0] for row in programs}  # variables of threads: from API 29 on
    loads = [row for row in programs if row[0] == 1]
    end = 0
    for _, flags, offset, address, _, stored, size, align in loads:
        assert align >= 16384 and align & (align - 1) == 0  # pages of 16 KiB: Android 15
        assert (offset - address) % align == 0 or not stored
        assert end <= address and offset + stored <= len(data) and flags & 3 != 3
        end = address + size
        assert flags & 3 != 3  # both written and executed
    (dynamic,) = (row for row in sections if row[1] == 6)
    (program,) = (row for row in programs if row[0] == 2)
    assert (dynamic[4], dynamic[5]) == (program[2], program[5]) and sections[dynamic[6]][1] == 3
    tags = dict(struct.iter_unpack("<qQ", data[program[2] : program[2] + program[5]]))
    assert {5, 6, 0x6FFFFEF5} <= tags.keys()  # strings, symbols, DT_GNU_HASH
    # DT_REL, DT_TEXTREL, DT_RELR (API 28), and those that only lld packs for Android
    assert not tags.keys() & {17, 22, 35, 36, 0x6000000F, 0x60000011}
    assert tags.get(30, 0) & 4 == 0  # DF_TEXTREL
    # BIND_NOW; nothing else of DT_FLAGS_1 is warned of
    assert tags.get(0x6FFFFFFB, 1) == 1 and tags[11] == 24 and tags.get(9, 24) == 24
    assert tags.get(20, 7) == 7
    relocations = {62: {1, 6, 7, 8}, 183: {257, 1025, 1026, 1027}}[machine]
    for start, size in ((tags.get(7), tags.get(8, 0)), (tags.get(23), tags.get(2, 0))):
        for i in range(0, size, 24):
            row = next(p for p in loads if p[3] <= start < p[3] + p[5])
            assert struct.unpack_from("<8xI", data, start - row[3] + row[2] + i)[0] in relocations


@pytest.mark.parametrize("machine", ANDROID, ids=lambda m: m.target)
@pytest.mark.parametrize("beside", [None, ()], ids=["inside", "beside"])
def test_what_androids_linker_asks_of_a_file(
    machine: Machine, beside: tuple[()] | None, tmp_path: Path
) -> None:
    options = {} if beside is None else {"beside": beside}
    path = sample.build(tmp_path / "mlp.so", triple=machine.target, **options)
    asked_by_androids_linker(path.read_bytes())


@pytest.mark.parametrize("machine", ANDROID, ids=lambda m: m.target)
def test_musls_headers_are_bionics_where_they_are_used(machine: Machine, tmp_path: Path) -> None:
    """And the runtime includes nothing else."""
    source = ROOT / "tests" / "emulated" / "bionic_abi.c"
    place = str(read_config().cache_dir / "zig")
    environ = {**os.environ, "ZIG_GLOBAL_CACHE_DIR": place, "ZIG_LOCAL_CACHE_DIR": place}
    command = [zig_path(), "cc", "-target", machine.triple, "-std=c11", "-D_GNU_SOURCE", "-Wall"]
    command += ["-Wextra", "-Werror", "-c", source, "-o", tmp_path / "abi.o"]
    subprocess.run([*map(str, command)], env=environ, check=True)
    includes = {
        name
        for file in CRT.glob("*.[ch]")
        if not file.name.endswith("_windows.c")
        for name in re.findall(r"^#include <(.*)>$", file.read_text(encoding="utf-8"), re.M)
    }
    checked = set(re.findall(r"^#include <(.*)>$", source.read_text(encoding="utf-8"), re.M))
    assert includes - checked == {"stdarg.h", "stdint.h"}  # the compiler's own


@ON_EACH
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


@ON_EACH
def test_errors(machine: Machine) -> None:
    run = library(machine)
    words = "main: input 'x' must have 2 dimensions, [n, 8], received 1: [8]"
    for _ in range(2):
        with pytest.raises(RuntimeError) as caught:
            run["main"](floats(8))
        assert str(caught.value) == words


@ON_EACH
def test_weights_beside_the_library(machine: Machine, tmp_path: Path) -> None:
    machine.require()
    path = sample.build(tmp_path / "mlp.so", triple=machine.target, beside=())
    x = floats(3, 8)
    received = Emulated(machine, path, EMULATED[machine.arch])["main"](x)
    np.testing.assert_allclose(received, sample.expected(x), rtol=1e-5, atol=1e-5)
    (tmp_path / "mlp.safetensors").unlink()
    with pytest.raises(RuntimeError, match="weights in .*mlp.safetensors, which cannot be opened"):
        Emulated(machine, path, EMULATED[machine.arch])["main"](x)


@ON_EACH
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


@pytest.mark.parametrize("machine", (MUSL[0], ANDROID[0]), ids=lambda m: m.target)
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


@ON_EACH
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
@ON_EACH
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


@pytest.mark.parametrize(
    ("triple", "needs"),
    [
        ("x86_64-linux-musl", "musl 1.1"),
        ("x86_64-linux-android", "bionic API 24"),
        ("x86_64-linux-android30", "bionic API 30"),
    ],
)
def test_python_with_glibc_refuses_it_by_name(triple: str, needs: str, tmp_path: Path) -> None:
    exe = tk.compile(graph(lambda g, x: g.exp(x), x=(9,)), {"mtriple": triple})
    error = refusal(exe.export_library(tmp_path / "net.so"))
    name, version = this_machine.c_library() or ("", "")
    assert error.message.endswith(f"needs {needs} or newer, this process has {name} {version}")
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
