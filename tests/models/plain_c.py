"""Models as C beside the same models of LLVM: how both are compiled, run and compared."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

import tensorkiln as tk
from tensorkiln.ir.module import IRModule
from tests.codegen.c_like.build import Fcompile, compiler, require_compiler
from tests.models.library import load

Array = np.ndarray
Inputs = Sequence[Sequence[Array]]
# Contraction to FMA may differ, and adds up; LLVM's results themselves are compared elsewhere.
OF_SCALE = 1e-5
SANITIZERS = ("-O1", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")


def library(
    module: IRModule, target: tk.Target, path: Path, fcompile: Fcompile | str | None
) -> Path:
    """The library of a module for a target."""
    tk.compile(module, target).export_library(path, fcompile=fcompile)
    return path


def compare(
    model: Path | IRModule,
    feeds: Inputs,
    command: str | None,
    folder: Path,
    *flags: str,
    of_scale: float = OF_SCALE,
) -> float:
    """Asserts that a model as C, compiled by `command` with `flags`, gives LLVM's results within
    `of_scale` of the largest; returns the largest difference as a part of that."""
    started = time.perf_counter()
    module = model if isinstance(model, IRModule) else tk.frontend.from_onnx(str(model))
    name, native = model.stem if isinstance(model, Path) else "a graph", tk.Target("native")
    want_from = library(module, native, folder / "llvm.so", None)
    link = compiler(command, *flags) if command else None
    have_from = library(module, native.replace(kind="c"), folder / "c.so", link)
    want = [load(want_from)(*inputs) for inputs in feeds]
    have = sanitized(have_from, feeds, folder) if SANITIZERS[2] in flags else None
    if have is None:
        have = [load(have_from)(*inputs) for inputs in feeds]
    worst = max(distance(a, b, of_scale) for a, b in zip(have, want, strict=True))
    taken = time.perf_counter() - started
    print(f"{name}, {command or 'zig'}: off LLVM {worst:.3g} of scale, {taken:.0f} s")
    return worst


def distance(have: Sequence[Array], want: Sequence[Array], of_scale: float) -> float:
    """The largest difference of outputs relative to their scale; asserts that it is within."""
    worst = 0.0
    for a, b in zip(have, want, strict=True):
        assert a.dtype == b.dtype and a.shape == b.shape
        assert np.isfinite(b).all()
        scale = float(np.abs(b).max(initial=0.0)) or 1.0
        worst = max(worst, float(np.abs(a - b).max(initial=0.0)) / scale)
        np.testing.assert_allclose(a, b, rtol=0, atol=of_scale * scale)
    return worst


def sanitized(file: Path, feeds: Inputs, folder: Path) -> list[list[Array]]:
    """The results of a library that was compiled with sanitizers, run in a process of its own,
    since an address sanitizer has to be there from the start."""
    require_compiler("gcc")
    runtime = subprocess.run(
        ["gcc", "-print-file-name=libasan.so"], capture_output=True, text=True, check=True
    ).stdout.strip()
    environ = {**os.environ, "LD_PRELOAD": runtime, "ASAN_OPTIONS": "detect_leaks=0"}
    for i, arrays in enumerate(feeds):
        np.savez(folder / f"in{i}.npz", *arrays)
    command = [sys.executable, "-m", "tests.models.plain_c", str(file), str(len(feeds))]
    done = subprocess.run(
        command, capture_output=True, text=True, env=environ, cwd=Path(__file__).parents[2]
    )
    assert done.returncode == 0 and "runtime error" not in done.stderr, done.stderr[-6000:]
    return [_arrays(folder / f"out{i}.npz") for i in range(len(feeds))]


def _arrays(file: Path) -> list[Array]:
    with np.load(file) as arrays:
        return [arrays[f"arr_{i}"] for i in range(len(arrays.files))]


def main(file: Path, count: int) -> None:
    """Run a library on the inputs beside it, and write the outputs there."""
    run = load(file)
    for i in range(count):
        np.savez(file.parent / f"out{i}.npz", *run(*_arrays(file.parent / f"in{i}.npz")))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
