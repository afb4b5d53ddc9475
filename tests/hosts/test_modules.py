"""Modules of loaders while threads use them, change them, and end the process."""

from __future__ import annotations

from pathlib import Path

import pytest

import tensorkiln as tk
from tensorkiln.external import External
from tests.hosts.build import HERE, c_program, require, run
from tests.hosts.test_forks import Module, emit
from tests.hosts.test_unload import ENVIRONMENT, SANITIZERS


@pytest.fixture(scope="module", params=list(SANITIZERS))
def sanitized_program(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[str, Path, Path]:
    """The sanitizer, the program and the library."""
    folder = tmp_path_factory.mktemp(f"modules-{request.param}")
    flags = SANITIZERS[request.param]
    external = External("doubler", lambda call, target: call.op == "add", emit)
    command = " ".join([require("gcc"), *flags]) if flags else None
    library = tk.compile(Module, externals=[external]).export_library(folder / "net.so", command)
    program = c_program(HERE / "modules.c", folder / "modules", *flags, "-O1", "-g")
    return request.param, program, library


@pytest.mark.in_turn()
@pytest.mark.parametrize("mode", ["exit", "inside", "after"])
def test_modules_of_many_threads(sanitized_program: tuple[str, Path, Path], mode: str) -> None:
    """Calls that are under way at exit() go on, and later ones find no loader."""
    sanitizer, program, library = sanitized_program
    # A module that is set anew is not unloaded: a call may be in it.
    environment = {**ENVIRONMENT[sanitizer], "ASAN_OPTIONS": "detect_leaks=0"}
    for _ in range(1 if mode == "after" else 5):  # where it stands when the process ends is chance
        process = run(program, library, mode, KILN_NUM_THREADS="1", **environment)
        assert (process.returncode, process.stdout + process.stderr) == (0, "")
