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
    object_path = folder / f"{hashlib.sha256(code.encode()).hexdigest()}.so"
    command = [require("gcc"), "-g", "-O1", "-Wall", "-Wextra", "-Werror", *flags]
    subprocess.run([*command, "-shared", "-fPIC", "-o", object_path, source], check=True)
    return object_path


class Stand:
    """The stand-in and a program in C, built for a sanitizer or plain."""

    def __init__(self, folder: Path, kind: str, sanitizer: str):
        gcc = require("gcc")
        self.folder = folder
        sanitizer_flags = _FLAGS[sanitizer]
        artifacts_of_library = device_library.artifacts(kind=kind)
        compiler = " ".join([gcc, *sanitizer_flags]) if sanitizer_flags else None
        self.library = link_artifacts(artifacts_of_library, folder / "gpu.so", fcompile=compiler)
        build_driver(folder, kind, *sanitizer_flags)
        if kind == "cuda":
            build_kernels(folder, device_library.PTX, _CUDA.parent / "kernels.c", *sanitizer_flags)
        host = [f"-I{CRT}", f'-DDRIVER="device_host_{kind}.h"', "-o", folder / "host"]
        host += [HERE / "device_host.c", "-ldl", "-lpthread"]
        subprocess.run(
            [gcc, "-g", "-Wall", "-Wextra", "-Werror", *sanitizer_flags, *host], check=True
        )

    def run(self, scenario: str, library: Path | None = None, **environment: str) -> list[str]:
        """The lines that the program prints."""
        place = {"LD_LIBRARY_PATH": str(self.folder), "LOOKALIKE_DIR": str(self.folder)}
        path = library or self.library
        process = run(self.folder / "host", path, scenario, **{**place, **environment})
        assert process.returncode == 0, (
            f"{process.returncode}: {process.stdout[-2000:]}{process.stderr[-6000:]}"
        )
        return process.stdout.splitlines()

    def check_valgrind(self) -> None:
        """One life of the library without a complaint."""
        options = ["-q", "--error-exitcode=9", "--leak-check=full"]
        command = [require("valgrind"), *options, self.folder / "host", self.library, "once"]
        place = {"LD_LIBRARY_PATH": str(self.folder), "LOOKALIKE_DIR": str(self.folder)}
        process = run(*command, seconds=300, **place)
        assert (process.returncode, process.stdout) == (0, "0 \n"), process.stderr
