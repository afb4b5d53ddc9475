"""The library of device_library.py with a stand-in for a driver, whose calls fail on request, and a
program in C that uses both."""

from __future__ import annotations

import hashlib
import subprocess
from pathlib import Path

import numpy as np

from tensorkiln.link.artifacts import link_artifacts
from tensorkiln.link.shared import CRT
from tests.hosts.build import CHECKED, require, run
from tests.runtime import device_library

HERE = Path(__file__).parent
_CUDA = HERE.parent / "cuda" / "driver"
_DRIVERS = {
    "opencl": ("libOpenCL.so.1", [HERE / "fake_opencl.c"]),
    "cuda": ("libcuda.so.1", [*sorted(_CUDA.glob("*.c")), CRT / "sha256.c"]),
}
_FLAGS = {"none": [], "address": list(CHECKED), "thread": ["-fsanitize=thread", "-g", "-O1"]}


def numbers(n: int) -> np.ndarray:
    """Random numbers, the same for each length."""
    return np.random.default_rng(n).standard_normal(n).astype(np.float32)


def build_driver(folder: Path, kind: str, *flags: str) -> Path:
    """The stand-in for the driver of a kind of devices, under the name that programs look for."""
    name, sources = _DRIVERS[kind]
    command = [require("gcc"), "-g", "-O1", "-Wall", "-Wextra", "-Werror", "-D_GNU_SOURCE", *flags]
    command += ["-shared", "-fPIC", f"-Wl,-soname,{name}", f"-I{CRT}"]
    subprocess.run([*command, "-o", folder / name, *sources, "-ldl", "-lpthread"], check=True)
    return folder / name


def build_kernels(folder: Path, code: str, source: Path, *flags: str) -> Path:
    """What the look-alike of CUDA's driver runs for a module: `source`, under its code's hash."""
    made = folder / f"{hashlib.sha256(code.encode()).hexdigest()}.so"
    command = [require("gcc"), "-g", "-O1", "-Wall", "-Wextra", "-Werror", *flags]
    subprocess.run([*command, "-shared", "-fPIC", "-o", made, source], check=True)
    return made


class Stand:
    """The stand-in and a program in C, built for a sanitizer or plain."""

    def __init__(self, folder: Path, kind: str, sanitizer: str):
        gcc = require("gcc")
        self.folder = folder
        more = _FLAGS[sanitizer]
        made = device_library.artifacts(kind=kind)
        compiler = " ".join([gcc, *more]) if more else None
        self.library = link_artifacts(made, folder / "gpu.so", fcompile=compiler)
        build_driver(folder, kind, *more)
        if kind == "cuda":
            build_kernels(folder, device_library.PTX, _CUDA.parent / "kernels.c", *more)
        host = [f"-I{CRT}", f'-DDRIVER="device_host_{kind}.h"', "-o", folder / "host"]
        host += [HERE / "device_host.c", "-ldl", "-lpthread"]
        subprocess.run([gcc, "-g", "-Wall", "-Wextra", "-Werror", *more, *host], check=True)

    def run(self, what: str, library: Path | None = None, **environment: str) -> list[str]:
        """The lines that the program prints."""
        place = {"LD_LIBRARY_PATH": str(self.folder), "LOOKALIKE_DIR": str(self.folder)}
        path = library or self.library
        done = run(self.folder / "host", path, what, **{**place, **environment})
        assert done.returncode == 0, (
            f"{done.returncode}: {done.stdout[-2000:]}{done.stderr[-6000:]}"
        )
        return done.stdout.splitlines()

    def check_valgrind(self) -> None:
        """One life of the library without a complaint."""
        options = ["-q", "--error-exitcode=9", "--leak-check=full"]
        command = [require("valgrind"), *options, self.folder / "host", self.library, "once"]
        place = {"LD_LIBRARY_PATH": str(self.folder), "LOOKALIKE_DIR": str(self.folder)}
        done = run(*command, seconds=300, **place)
        assert (done.returncode, done.stdout) == (0, "0 \n"), done.stderr
