"""Programs in C, C++ and Rust that run libraries, built with what the machine has."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from tensorkiln.link.headers import CRATE, HOSTS
from tensorkiln.link.shared import CRT

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).resolve().parent
WARN = ("-Wall", "-Wextra", "-Wpedantic", "-Wshadow", "-Wconversion", "-Werror")
# Everything undefined ends the program, and so does a leak.
CHECKED = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-g", "-O1")
GET = {
    "gcc": "apt-get install gcc",
    "g++": "apt-get install g++",
    "clang": "apt-get install clang",
    "clang++": "apt-get install clang",
    "cmake": "apt-get install cmake",
    "make": "apt-get install make",
    "pkg-config": "apt-get install pkg-config",
    "rustc": "rustup or apt-get install rustc",
    "cargo": "rustup or apt-get install cargo",
    "valgrind": "apt-get install valgrind",
}


def require(tool: str) -> str:
    """Where a tool is. Skips the test where it is missing; fails where REQUIRE_HOSTS is set."""
    path = shutil.which(tool)
    if path is None:
        missing = f"{tool} is not installed ({GET[tool]}): what needs it was not tested"
        (pytest.fail if os.environ.get("REQUIRE_HOSTS") else pytest.skip)(missing)
    return path


# What a program of a host test takes at most, many times over; one that hangs is found in no time.
SECONDS = 60
COMPILER_SECONDS = 300  # of rustc, beside other work
# `make hosts REPEATS=500`: what goes wrong one time in a hundred.
REPEATS = int(os.environ.get("HOST_REPEATS", "1"))


def run(
    *command: str | Path, seconds: float = SECONDS, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run a program, REPEATS times; the caller looks at its status, which is the same each time."""
    first = _once(command, seconds, environment)
    for k in range(1, REPEATS):
        again = _once(command, seconds, environment)
        assert again.returncode == first.returncode, f"run {k}: {again.stdout}\n{again.stderr}"
    return first


def _once(
    command: Sequence[str | Path], seconds: float, environment: Mapping[str, str]
) -> subprocess.CompletedProcess[str]:
    """One that does not end in time fails the test, which shows what it said."""
    words = [*map(str, command)]
    try:
        return subprocess.run(
            words,
            capture_output=True,
            text=True,
            timeout=seconds,
            env={**os.environ, **environment},
        )
    except subprocess.TimeoutExpired as late:
        outputs = [
            bytes(text or b"").decode(errors="replace") for text in (late.stdout, late.stderr)
        ]
        pytest.fail(
            f"{' '.join(words)} has not ended after {seconds} s\n"
            f"-- stdout --\n{outputs[0][-6000:]}\n-- stderr --\n{outputs[1][-6000:]}"
        )


def build(*command: str | Path) -> None:
    """Run a compiler; its complaints are the test's."""
    process = _once(command, COMPILER_SECONDS, {})
    assert process.returncode == 0, process.stderr


def c_program(source: Path, output: Path, *flags: str) -> Path:
    """C99 over kiln_host.h."""
    include = ("-I", CRT, "-I", HOSTS)
    head = (require("gcc"), "-std=c99", *WARN, *flags, *include)
    build(*head, source, "-o", output, "-ldl", "-lpthread")
    return output


def cpp_program(source: Path, output: Path, *flags: str) -> Path:
    """C++17 over kiln.hpp."""
    include = ("-I", CRT, "-I", HOSTS)
    head = (require("g++"), "-std=c++17", *WARN, *flags, *include)
    build(*head, source, "-o", output, "-ldl", "-lpthread")
    return output


def rust_crate(folder: Path) -> Path:
    """The crate as libtensorkiln.rlib."""
    output = folder / "libtensorkiln.rlib"
    if not output.exists():
        head = (require("rustc"), "--edition", "2021", "-O", "-D", "warnings")
        build(
            *head,
            "--crate-type",
            "rlib",
            "--crate-name",
            "tensorkiln",
            CRATE / "src/lib.rs",
            "-o",
            output,
        )
    return output


def rust_program(source: Path, output: Path) -> Path:
    """Rust over the crate, by rustc alone."""
    crate = rust_crate(output.parent)
    head = (require("rustc"), "--edition", "2021", "-O", "-D", "warnings")
    build(*head, "--extern", f"tensorkiln={crate}", source, "-o", output)
    return output
