"""Machines of other architectures, by emulation, and other C libraries: libraries linked for them
run in a process of qemu's user mode, or of that C library, which answers requests (driver.c)."""

from __future__ import annotations

import os
import platform
import shutil
import struct
import subprocess
import tempfile
import weakref
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tensorkiln.base.config import read_config
from tensorkiln.executable import Executable
from tensorkiln.link.shared import CRT
from tensorkiln.link.toolchain import zig_path
from tensorkiln.runtime import Executor
from tensorkiln.runtime.library_file import read_library_file
from tensorkiln.runtime.tensor import dtype_named
from tensorkiln.target import Target
from tensorkiln.target.triple import LIBRARY_SYSTEMS
from tests.codegen.c_like.build import compiler

Array = np.ndarray
_KINDS = {"i": 0, "u": 1, "f": 2, "b": 6}
_NAMES = {0: "int", 1: "uint", 2: "float", 4: "bfloat"}


@dataclass(frozen=True, slots=True)
class Machine:
    """An architecture and a C library: the triple zig knows it by, how to get the C library, where
    that is if not in Debian's folder for programs of that architecture, and its dynamic loader."""

    arch: str
    triple: str
    get: str
    folder: str = ""
    loader: str = "lib/ld-linux-*"
    # What libraries are compiled for, where it is another system: the driver then has what that has
    # and this has not, in a further source.
    stood_in_for: str = ""

    @property
    def target(self) -> str:
        """The triple that libraries are compiled for."""
        return self.stood_in_for or self.triple.rstrip(".0123456789")

    @property
    def sources(self) -> tuple[Path, ...]:
        """Further sources of programs."""
        return (Path(__file__).parent / "bionic.c",) if self.stood_in_for else ()

    @property
    def is_here(self) -> bool:
        """Whether it runs on this processor."""
        return self.arch == platform.machine()

    @property
    def emulator(self) -> str | None:
        """Where the emulator is."""
        names = (f"qemu-{self.arch}", f"qemu-{self.arch}-static")
        return next(filter(None, map(shutil.which, names)), None)

    @property
    def root(self) -> Path:
        """What programs see as `/`, as far as it is there: Debian's name for it."""
        if self.folder:
            return Path(self.folder)
        return Path(os.environ.get("QEMU_LD_PREFIX", f"/usr/{self.arch}-linux-gnu"))

    @property
    def missing(self) -> str:
        """What is not installed and how to get it; empty where all is."""
        lacks = [] if self.is_here or self.emulator else [f"no qemu-{self.arch} on the PATH"]
        if not list(self.root.glob(self.loader)):
            name = "musl's loader" if "musl" in self.loader else "C library"
            lacks.append(f"no {name} in {self.root}")
        return f"{' and '.join(lacks)}: {self.get}" if lacks else ""

    def require(self) -> None:
        """Skip the test where the emulator is missing; fail where REQUIRE_QEMU is set."""
        if self.missing:
            (pytest.fail if os.environ.get("REQUIRE_QEMU") else pytest.skip)(self.missing)

    def command(self, cpu: str, *program: str | Path) -> list[str]:
        """A program of that machine as a command of this one."""
        if self.is_here:
            return [*map(str, program)]
        assert self.emulator is not None
        return [self.emulator, "-L", str(self.root), "-cpu", cpu, *map(str, program)]

    def build(self, output: Path, *arguments: str | Path) -> Path:
        """A C program for the machine: arguments as a C compiler takes them."""
        place = str(read_config().cache_dir / "zig")
        environ = {**os.environ, "ZIG_GLOBAL_CACHE_DIR": place, "ZIG_LOCAL_CACHE_DIR": place}
        command = [zig_path(), "cc", "-target", self.triple, "-std=c99", "-D_GNU_SOURCE", "-O2"]
        command += ["-Wall", "-Wextra", "-Werror", "-I", CRT, *arguments, "-o", output]
        command += ["-dynamic", "-rdynamic", *self.sources]  # which for musl is not usual
        subprocess.run([*map(str, command), "-lpthread", "-ldl"], env=environ, check=True)
        return output


AARCH64 = Machine(
    "aarch64", "aarch64-linux-gnu.2.17", "apt-get install qemu-user libc6-arm64-cross"
)
RISCV64 = Machine(
    "riscv64", "riscv64-linux-gnu.2.27", "apt-get install qemu-user libc6-riscv64-cross"
)
# With the GNU C library, by architecture.
MACHINES = {machine.arch: machine for machine in (AARCH64, RISCV64)}
MUSL = (
    Machine("x86_64", "x86_64-linux-musl", "apt-get install musl", "/", "lib/ld-musl-x86_64.*"),
    Machine(
        "aarch64",
        "aarch64-linux-musl",
        "apt-get install qemu-user, dpkg --add-architecture arm64, apt-get install musl:arm64",
        "/",
        "lib/ld-musl-aarch64.*",
    ),
    Machine(
        "riscv64",
        "riscv64-linux-musl",
        "apt-get install qemu-user, and package musl of riscv64, from Debian 13 on",
        "/",
        "lib/ld-musl-riscv64.*",
    ),
)
# The functions of bionic that libraries use are musl's, but for two that bionic.c has.
ANDROID = tuple(
    replace(machine, stood_in_for=f"{machine.arch}-linux-android")
    for machine in MUSL
    if machine.arch in LIBRARY_SYSTEMS["linux"]["android"].architectures
)
# Processors that qemu knows by name have just their features: an instruction that is too new is
# an illegal one. Others are all features that it has; of RISC-V those of RV64GC and the vectors.
_PROCESSORS = ("cortex-a53", "cortex-a57", "cortex-a72", "cortex-a76", "neoverse-n1", "a64fx")


def riscv_processor(vector_bits: int) -> str:
    """qemu's name of a RISC-V with vector registers of so many bits; 0: without any."""
    vectors = f",v=true,vext_spec=v1.0,vlen={vector_bits},elen=64" if vector_bits else ""
    return f"rv64{vectors}"


def _processor(target: Target) -> str:
    """qemu's name of a processor that has what the target has."""
    if target.arch == "riscv64":
        return riscv_processor(8 * target.vector_bytes if target.has("v") else 0)
    return target.mcpu if target.mcpu in _PROCESSORS else "max"


@cache
def _driver(machine: Machine) -> Path:
    folder = tempfile.mkdtemp(prefix="kiln-driver-")
    return machine.build(Path(folder) / "driver", Path(__file__).parent / "driver.c")


class Emulated:
    """A library in an emulated process; called like an Executor, or like a Module.

    `emulated["f"](x)` of a graph function gives what it returns; of a tensor function, it writes
    into the arrays given. An error that the library reports is a RuntimeError, and so is the end
    of the process.
    """

    def __init__(self, machine: Machine, library: Path, cpu: str):
        command = machine.command(cpu, _driver(machine), library)
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        weakref.finalize(self, self.process.communicate)  # it ends with its input
        metadata = read_library_file(library).metadata
        self.functions = {f["name"]: f for f in metadata["functions"]}

    def __getitem__(self, name: str) -> Callable[..., Any]:
        graph = self.functions.get(name, {}).get("kind", "graph") == "graph"
        return lambda *arrays: (self._run if graph else self._call)(name, *map(np.asarray, arrays))

    def set_num_threads(self, threads: int) -> None:
        """As Executor's."""
        self._ask(b"t", "", threads)
        self._status()

    def metadata(self) -> str:
        """What the library says of itself when it is asked."""
        self._ask(b"m", "", 0)
        self._status()
        return self._text()

    def _run(self, name: str, *inputs: Array) -> Any:
        outputs = self.functions[name]["outputs"] if name in self.functions else []
        dtypes = [dtype_named(o["dtype"]) for o in outputs]
        self._ask(
            b"r",
            name,
            len(inputs),
            *map(_tensor, inputs),
            struct.pack("<I", len(dtypes)),
            *map(_dtype, dtypes),
        )
        self._status()
        results = tuple(self._tensor() for _ in dtypes)
        return results[0] if len(results) == 1 else results

    def _call(self, name: str, *arguments: Array) -> None:
        self._ask(b"c", name, len(arguments), *map(_tensor, arguments), struct.pack("<I", 0))
        self._status()
        for a in arguments:
            a[...] = self._tensor()

    def _ask(self, what: bytes, name: str, count: int, *rest: bytes) -> None:
        assert self.process.stdin is not None
        text = name.encode()
        head = what + struct.pack("<I", len(text)) + text + struct.pack("<I", count)
        try:
            self.process.stdin.write(head + b"".join(rest))
            self.process.stdin.flush()
        except BrokenPipeError:
            self._died()

    def _read(self, size: int) -> bytes:
        assert self.process.stdout is not None
        data = self.process.stdout.read(size)
        return data if len(data) == size else self._died()

    def _died(self) -> Any:
        _, errors = self.process.communicate()
        words = errors.decode(errors="replace").strip()
        raise RuntimeError(f"the emulated process ended ({self.process.returncode}): {words}")

    def _text(self) -> str:
        return self._read(struct.unpack("<I", self._read(4))[0]).decode()

    def _status(self) -> None:
        (status,) = struct.unpack("<i", self._read(4))
        if status:
            raise RuntimeError(self._text())

    def _tensor(self) -> Array:
        code, bits, ndim = struct.unpack("<BBi", self._read(6))
        shape = struct.unpack(f"<{ndim}q", self._read(8 * ndim))
        dtype = np.dtype(bool) if code == 6 else dtype_named(f"{_NAMES[code]}{bits}")
        size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        return np.frombuffer(self._read(size), dtype).reshape(shape)


def _dtype(dtype: np.dtype[Any]) -> bytes:
    code = 4 if dtype.name == "bfloat16" else _KINDS[dtype.kind]
    return struct.pack("<BB", code, dtype.itemsize * 8)


def _tensor(a: Array) -> bytes:
    head = struct.pack(f"<i{a.ndim}q", a.ndim, *a.shape)
    return _dtype(a.dtype) + head + np.ascontiguousarray(a).tobytes()


Library = Executor | Emulated


def load(executable: Executable) -> Library:
    """An executable, ready to be called: in this process, or where it is for another machine in
    an emulated one. Skips the test where no emulator is installed. C is compiled by gcc without
    optimisation, which takes a quarter of the time, or where there is none as for a user."""
    target = executable.target
    if target.arch not in MACHINES:
        quick = target.kind == "c" and shutil.which("gcc")
        return Executor(executable.jit(compiler("gcc", "-O0") if quick else None))
    machine = MACHINES[target.arch]
    machine.require()
    with tempfile.TemporaryDirectory(prefix="kiln-emulated-") as temporary:
        path = executable.export_library(Path(temporary) / f"{executable.name}.so")
        run = Emulated(machine, path, _processor(target))
        run.set_num_threads(0)  # answered: the library is loaded, so its file may go
    return run
