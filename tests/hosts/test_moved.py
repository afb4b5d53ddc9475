"""Weights beside a library are those beside the file that was opened, wherever the process goes and
whatever its names come to mean before the first call."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import tensorkiln as tk
from tensorkiln.kernels.case import rand
from tests.hosts.build import HERE, ROOT, c_program, cpp_program, rust_program
from tests.transform.graphs import graph

W, V = rand(40, 24), rand(24, 7, seed=1)
WANTED = float((np.maximum(np.ones((1, 40)) @ W.array, 0) @ V.array)[0, 0])

# A child for each line of standard input: where it begins, and what the programs in other languages
# are given. Importing takes longer than all the rest.
MOVE = """
import ctypes, os, sys
import numpy as np
{imports}
def once(folder, path, to, name, target):
    os.chdir(folder)
    {open}
    if to != "-":
        os.chdir(to)
    if name != "-":
        os.unlink(name)
        os.symlink(target, name)
    x, y = np.ones((2, 40), np.float32), np.zeros((2, 7), np.float32)
    {run}
    print(code, format(y[0, 0], ".4f"), flush=True)
for line in sys.stdin:
    if os.fork() == 0:
        once(*line[:-1].split("\\t"))
        os._exit(0)
    if os.wait()[1]:
        print("failed", flush=True)
"""
PYTHON = {
    "ctypes": MOVE.format(
        imports="p = ctypes.c_void_p",
        open="library = ctypes.CDLL(path)",
        run="code = library.model_main(p(x.ctypes.data), p(y.ctypes.data))",
    ),
    "Python": MOVE.format(
        imports="import tensorkiln as tk; tk.runtime.load_module",
        open="library = tk.runtime.load_module(path)",
        run='tk.runtime.Executor(library, tk.cpu())["main"](x, out=y); code = 0',
    ),
}
CALLERS = (*PYTHON, "dlopen", "C", "C++", "Rust")


@pytest.fixture(scope="module")
def compiled() -> tk.Executable:
    return tk.compile(graph(lambda g, x: g.matmul(g.relu(g.matmul(x, W)), V), x=(2, 40)))


def command(caller: str, folder: Path) -> list[str]:
    """A program that is built when it is first asked for."""
    output = folder / f"moved-{caller}"
    if not output.exists():
        if caller in ("dlopen", "C"):
            plain = ("-DPLAIN",) if caller == "dlopen" else ()
            c_program(HERE / "moved.c", output, *plain)
        elif caller == "C++":
            cpp_program(HERE / "moved.cpp", output)
        else:
            rust_program(HERE / "moved.rs", output)
    return [str(output)]


@pytest.fixture(scope="module")
def interpreters() -> Iterator[dict[str, subprocess.Popen[str]]]:
    """One for each way of Python's, which forks for each test."""
    running = {
        caller: subprocess.Popen(
            [sys.executable, "-c", script],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"},
        )
        for caller, script in PYTHON.items()
    }
    yield running
    for process in running.values():
        process.communicate()
        assert process.returncode == 0


@pytest.fixture(scope="module")
def tree(compiled: tk.Executable, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The library, its names, and beside them a folder where all have the same names and other
    numbers; the header of its weights says the right hash."""
    folder = tmp_path_factory.mktemp("moved")
    (folder / "v1").mkdir()
    compiled.export_library(folder / "v1" / "net.so", weights="beside")
    shutil.copytree(folder / "v1", folder / "elsewhere" / "v2")
    decoy = folder / "elsewhere" / "v2" / "net.safetensors"
    data = bytearray(decoy.read_bytes())
    size = compiled.artifacts["weights.bin"].size
    data[-size:] = bytes(size)
    decoy.write_bytes(data)
    (folder / "elsewhere" / "v1").symlink_to("v2")
    (folder / "elsewhere" / "link.so").symlink_to("v2/net.so")
    (folder / "link.so").symlink_to("v1/net.so")
    return folder


# How the library is named from its folder's parent, and what happens between opening and calling.
NAMES = {"relative": "./{0}/net.so", "absolute": "{1}/{0}/net.so", "link": "./link.so"}
MOVES = ("nothing", "chdir", "link")


@pytest.mark.in_turn("caller", "move")
@pytest.mark.parametrize("move", MOVES)
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("caller", CALLERS)
def test_the_files_that_were_opened(
    tree: Path,
    interpreters: dict[str, subprocess.Popen[str]],
    programs: Path,
    tmp_path: Path,
    caller: str,
    name: str,
    move: str,
) -> None:
    """Where the process goes there are others of the same names, with other numbers."""
    place = tmp_path / "place"
    shutil.copytree(tree, place, symlinks=True)
    arguments = [
        NAMES[name].format("v1", place),
        "elsewhere" if move == "chdir" else "-",
        *(("link.so", "elsewhere/v2/net.so") if move == "link" else ("-", "-")),
    ]
    if caller in PYTHON:
        process = interpreters[caller]
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write("\t".join([str(place), *arguments]) + "\n")
        process.stdin.flush()
        answer = process.stdout.readline()
    else:
        words = [*command(caller, programs), *arguments]
        completed_run = subprocess.run(words, capture_output=True, text=True, cwd=place)
        assert (completed_run.returncode, completed_run.stderr) == (0, ""), (
            completed_run.stdout + completed_run.stderr
        )
        answer = completed_run.stdout
    code, first = answer.split()
    assert code == "0"
    assert float(first) == pytest.approx(WANTED, rel=1e-3, abs=1e-3)


def test_a_library_that_is_gone(compiled: tk.Executable, programs: Path, tmp_path: Path) -> None:
    """Its weights went with it before the first call: that is an error, nobody else's are taken."""
    compiled.export_library(tmp_path / "net.so", weights="beside")
    words = command("dlopen", programs)
    (tmp_path / "net.safetensors").rename(tmp_path / "gone.safetensors")
    process = subprocess.run([*words, "./net.so", "-", "-", "-"], capture_output=True, cwd=tmp_path)
    assert process.stdout == b"18 0.0000\n"
