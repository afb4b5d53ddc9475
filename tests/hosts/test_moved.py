"""Weights beside a library are those beside the file that was opened, wherever the process goes and
whatever its names come to mean before the first call."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import tensorkiln as tk
from tests.hosts.build import HERE, ROOT, c_program, cpp_program, rust_program
from tests.transform.graphs import graph, rand

W, V = rand(40, 24), rand(24, 7, seed=1)
WANTED = float((np.maximum(np.ones((1, 40)) @ W.array, 0) @ V.array)[0, 0])

MOVE = """
import ctypes, os, sys
import numpy as np
{open}
if sys.argv[2] != "-":
    os.chdir(sys.argv[2])
if sys.argv[3] != "-":
    os.unlink(sys.argv[3])
    os.symlink(sys.argv[4], sys.argv[3])
x, y = np.ones((2, 40), np.float32), np.zeros((2, 7), np.float32)
{run}
print(code, format(y[0, 0], ".4f"))
"""
PYTHON = {
    "ctypes": MOVE.format(
        open="library = ctypes.CDLL(sys.argv[1])",
        run="p = ctypes.c_void_p\ncode = library.model_main(p(x.ctypes.data), p(y.ctypes.data))",
    ),
    "Python": MOVE.format(
        open="import tensorkiln as tk\nlibrary = tk.runtime.load_module(sys.argv[1])",
        run='tk.runtime.Executor(library, tk.cpu())["main"](x, out=y)\ncode = 0',
    ),
}
CALLERS = (*PYTHON, "dlopen", "C", "C++", "Rust")


@pytest.fixture(scope="module")
def compiled() -> tk.Executable:
    return tk.compile(graph(lambda g, x: g.matmul(g.relu(g.matmul(x, W)), V), x=(2, 40)))


def command(caller: str, folder: Path) -> list[str]:
    if caller in PYTHON:
        return [sys.executable, "-c", PYTHON[caller]]
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


# How the library is named from its folder's parent, and what happens between opening and calling.
NAMES = {"relative": "./{0}/net.so", "absolute": "{1}/{0}/net.so", "link": "./link.so"}
MOVES = ("nothing", "chdir", "link")


@pytest.mark.parametrize("move", MOVES)
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("caller", CALLERS)
def test_the_files_that_were_opened(
    compiled: tk.Executable, programs: Path, tmp_path: Path, caller: str, name: str, move: str
) -> None:
    """Where the process goes there are others of the same names, with other numbers; their header
    says the right hash."""
    words = command(caller, programs)
    for place in (tmp_path, tmp_path / "elsewhere"):
        (place / "v1").mkdir(parents=True)
        compiled.export_library(place / "v1" / "net.so", weights="beside")
    (tmp_path / "elsewhere" / "v1").rename(tmp_path / "elsewhere" / "v2")
    decoy = tmp_path / "elsewhere" / "v2" / "net.safetensors"
    data = bytearray(decoy.read_bytes())
    size = compiled.artifacts["weights.bin"].size
    data[-size:] = bytes(size)
    decoy.write_bytes(data)
    (tmp_path / "elsewhere" / "v1").symlink_to("v2")
    (tmp_path / "elsewhere" / "link.so").symlink_to("v2/net.so")
    (tmp_path / "link.so").symlink_to("v1/net.so")
    arguments = [
        NAMES[name].format("v1", tmp_path),
        "elsewhere" if move == "chdir" else "-",
        *(("link.so", "elsewhere/v2/net.so") if move == "link" else ("-", "-")),
    ]
    done = subprocess.run(
        [*words, *arguments],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"},
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stdout + done.stderr
    code, first = done.stdout.split()
    assert code == "0"
    assert float(first) == pytest.approx(WANTED, rel=1e-3, abs=1e-3)


def test_a_library_that_is_gone(compiled: tk.Executable, programs: Path, tmp_path: Path) -> None:
    """Its weights went with it before the first call: that is an error, nobody else's are taken."""
    compiled.export_library(tmp_path / "net.so", weights="beside")
    words = command("dlopen", programs)
    (tmp_path / "net.safetensors").rename(tmp_path / "gone.safetensors")
    done = subprocess.run([*words, "./net.so", "-", "-", "-"], capture_output=True, cwd=tmp_path)
    assert done.stdout == b"18 0.0000\n"
