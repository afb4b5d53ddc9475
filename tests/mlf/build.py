"""Programs from archives: unpacked by `tar`, compiled with a C compiler, run on given inputs."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest

from tensorkiln.artifact.mlf.load import open_model_library
from tensorkiln.artifact.mlf.metadata import Function, Model

needs_gcc = pytest.mark.skipif(shutil.which("gcc") is None, reason="gcc is not installed")
needs_gxx = pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is not installed")
# Headers and C of archives are free of these warnings, and of what they do not see.
STRICT = ("-std=c99", "-Wall", "-Wextra", "-Wpedantic", "-Wconversion", "-Wshadow", "-Werror")


def unpacked(archive: Path) -> Path:
    """The folder into which `tar` unpacks it, beside it."""
    folder = archive.with_suffix("")
    folder.mkdir()
    subprocess.run(["tar", "-xf", archive, "-C", folder], check=True)
    return folder


def only_model(archive: Path) -> Model:
    """What it says of its only model."""
    return open_model_library(archive).model()


def size_of(shape: Sequence[int | str] | None, sizes: Mapping[str, int]) -> int:
    """The elements of a shape for values of its symbolic sizes."""
    count = 1
    for dim in shape or ():
        count *= dim if isinstance(dim, int) else eval(dim, {}, dict(sizes))
    return count


def driver(model: Model, name: str, sizes: Mapping[str, int]) -> str:
    """A C program that reads the inputs of a function from standard input, in order, runs it in a
    workspace of exactly the size that metadata states, and writes its outputs."""
    f = model.functions[name]
    stem = f.symbol.removesuffix("_run")
    lines = [f'#include "{Path(model.header).name}"', "#include <stdio.h>", "#include <stdlib.h>"]
    lines += ["", "int main(void)", "{"]
    lines += [f"    struct {stem}_inputs in; struct {stem}_outputs out; struct {stem}_pools pools;"]
    for struct, tensors in (("in", f.inputs), ("out", f.outputs)):
        for t in tensors:
            size = size_of(t.shape, sizes) * np.dtype(t.dtype).itemsize
            lines.append(
                f"    void *{struct}_{t.member} = aligned_alloc(64, {-(-size // 64) * 64});"
            )
            lines.append(f"    {struct}.{t.member} = {struct}_{t.member};")
            if struct == "in":
                lines.append(
                    f"    if (fread({struct}_{t.member}, 1, {size}, stdin) != {size}) return 9;"
                )
    arguments = "".join(f", {sizes[s]}" for s in f.symbols)
    (pool,) = f.pools
    stated = workspace_text(f, stem, sizes)
    lines += [
        f"    const size_t bytes = (size_t)({stated});",
        "    char *memory = malloc(bytes + 64); if (memory == NULL) return 8;",
        "    char *start = memory + (64 - (size_t)memory % 64) % 64;",
        f"    pools.{pool.name} = start;",
        f"    const int code = {f.symbol}(&in, &out, &pools{arguments});",
        '    if (code != 0) { fprintf(stderr, "%d", code); return 7; }',
    ]
    for t in f.outputs:
        size = size_of(t.shape, sizes) * np.dtype(t.dtype).itemsize
        lines.append(f"    fwrite(out_{t.member}, 1, {size}, stdout);")
    lines += [
        f"    free({s}_{t.member});" for s, ts in (("in", f.inputs), ("out", f.outputs)) for t in ts
    ]
    lines += ["    free(memory);", "    return 0;", "}"]
    return "\n".join(lines) + "\n"


def workspace_text(f: Function, stem: str, sizes: Mapping[str, int]) -> str:
    """C for the size of the workspace: the header's macro, or a call."""
    if isinstance(f.workspace_size_bytes, int):
        (pool,) = f.pools
        return f"{stem.upper()}_{pool.name.upper()}_SIZE"
    return f"{stem}_workspace_size({', '.join(str(sizes[s]) for s in f.symbols)})"


def compiled(
    folder: Path, main: str, archives: Sequence[Path], *options: str, compiler: str = "gcc"
) -> Path:
    """The program of `main` (C) and all sources and objects of unpacked archives, as the archive's
    own documentation says: the generated files with every warning an error."""
    folder.mkdir(exist_ok=True)
    (folder / "main.c").write_text(main)
    includes, parts = [], []
    for archive in archives:
        includes += [f"-I{archive}/codegen/host/include", f"-I{archive}/runtime"]
        for source in sorted(archive.glob("codegen/host/src/*.c")):
            object_path = folder / f"{source.stem}.o"
            run([compiler, *STRICT, *options, *includes, "-c", source, "-o", object_path])
            parts.append(object_path)
        parts += sorted(archive.glob("codegen/host/lib/*.o"))
    program = folder / "program"
    run(
        [compiler, "-std=c11", *options, *includes, folder / "main.c", *parts, "-lm", "-o", program]
    )
    return program


def run(command: Sequence[object]) -> None:
    """Run it; the test fails with what it says."""
    process = subprocess.run([*map(str, command)], capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stderr


def output(program: Path, *inputs: np.ndarray) -> bytes:
    """What the program answers; under valgrind where it is there, which sees a byte beyond."""
    valgrind = ["valgrind", "-q", "--error-exitcode=9", "--leak-check=full"]
    command = [*(valgrind if shutil.which("valgrind") else []), program]
    input_bytes = b"".join(x.tobytes() for x in inputs)
    process = subprocess.run(command, input=input_bytes, capture_output=True, check=False)
    assert process.returncode == 0, (process.returncode, process.stderr.decode())
    return process.stdout
