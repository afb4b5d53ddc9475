"""C compilers for tests of kernels as C: as callables that link libraries, with flags of a test."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from tensorkiln.link.shared import CRT

Fcompile = Callable[[str, list[str], list[str]], None]
# Flags under which generated C has no warnings, beside -Werror.
STRICT = ("-Wall", "-Wextra", "-Wpedantic", "-Wconversion", "-Wshadow", "-Wvla", "-Werror")


def require_compiler(command: str) -> str:
    """The command; skips the test where it is not installed."""
    if shutil.which(command) is None:
        pytest.skip(f"{command} is not installed")
    return command


def compiler(command: str, *flags: str, strict: bool = True) -> Fcompile:
    """An `fcompile` that runs a compiler with `flags` after those of the link. Generated C is
    compiled with the flags of STRICT too."""
    require_compiler(command)

    def link(output: str, files: list[str], options: list[str]) -> None:
        folder = Path(output).parent
        objects = []
        compile_options = [o for o in options if not o.startswith(("-Wl,", "-l", "-shared"))]
        # However kernels are optimized, the runtime is not: it is the same for all of them.
        shared = [o for o in compile_options if str(folder) not in o]
        shared += [*(flag for flag in flags if not flag.startswith(("-O", "-W"))), "-O0"]
        for file in files:
            if not file.endswith(".c"):
                objects.append(file)
                continue
            if Path(file).parent == CRT:
                objects.append(_runtime_object(file, command, *shared))
                continue
            warn = STRICT if strict and Path(file).name.startswith("c_kernels") else ()
            objects.append(str(folder / f"{Path(file).stem}.test.o"))
            _run([command, *compile_options, *warn, *flags, "-c", file, "-o", objects[-1]])
        last = [o for o in options if o.startswith(("-Wl,", "-l", "-shared", "-fPIC"))]
        _run([command, *flags, *objects, *last, "-o", output])

    return link


@cache
def _runtime_object(source: str, *command: str) -> str:
    """A file of the C runtime, compiled once for all libraries of this process: it has more than
    thirty, which take longer than the kernels of most tests."""
    output = Path(tempfile.mkdtemp(prefix="kiln-crt-")) / f"{Path(source).stem}.o"
    _run([*command, "-c", source, "-o", str(output)])
    return str(output)


def _run(command: list[str]) -> None:
    process = subprocess.run(command, capture_output=True, text=True)
    assert process.returncode == 0, (
        f"{' '.join(command[:3])} ... {command[-3]}\n{process.stderr[:6000]}"
    )
