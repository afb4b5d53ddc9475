"""Models as C in a 32-bit process of this machine, in which their kernels are called one after the
other as the plan says."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

import tensorkiln as tk
from tensorkiln.codegen.host.function import HostFunction, Ptr
from tests.codegen.c_like.build import require_compiler

Array = np.ndarray
FLAGS = ("-m32", "-msse2", "-mfpmath=sse", "-std=c99", "-O2", "-Wall", "-Wextra", "-Werror")


def require_32_bits(folder: Path) -> None:
    """Skips the test where gcc does not link 32-bit programs."""
    require_compiler("gcc")
    (folder / "empty.c").write_text("#include <stdint.h>\nint main(void) { return 0; }\n")
    command = ["gcc", "-m32", "empty.c", "-o", "empty"]
    if subprocess.run(command, cwd=folder, capture_output=True).returncode:
        pytest.skip("gcc -m32 is not installed")


def run_in_32_bits(
    executable: tk.Executable, inputs: Sequence[Array], like: Sequence[Array], folder: Path
) -> list[Array]:
    """The outputs of `main`, which have the shapes and dtypes of `like`, by the calls of its plan
    in a program of its own."""
    (main,) = executable.functions
    weights = next(a for a in executable.artifacts.plain if a.file_name == "weights.bin")
    (folder / "kernels.c").write_text(executable.artifacts["kernels.c"].text())
    (folder / "weights.bin").write_bytes(bytes(weights.view))
    for i, x in enumerate(inputs):
        (folder / f"arg{i}.bin").write_bytes(x.tobytes())
    sizes = [x.nbytes for x in (*inputs, *like)]
    outputs = range(len(inputs), len(sizes))
    (folder / "main.c").write_text(
        PROGRAM.format(
            workspace=main.workspace_bytes,
            weights=weights.size,
            args="\n".join(f"BYTES arg{i}[{size} + 1];" for i, size in enumerate(sizes)),
            loads="".join(
                f' || load("arg{i}.bin", arg{i}, {x.nbytes})' for i, x in enumerate(inputs)
            ),
            calls="\n".join(calls_of(main)),
            saves="".join(f' || save("arg{i}.bin", arg{i}, {sizes[i]})' for i in outputs),
        )
    )
    command = ["gcc", *FLAGS, "kernels.c", "main.c", "-o", "main", "-lm"]
    process = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert process.returncode == 0, process.stderr
    subprocess.run([folder / "main"], cwd=folder, check=True)
    files = [(folder / f"arg{i}.bin").read_bytes() for i in outputs]
    return [np.frombuffer(b, y.dtype).reshape(y.shape) for b, y in zip(files, like, strict=True)]


def calls_of(main: HostFunction) -> list[str]:
    """C text of each kernel call of a plan."""

    def place(a: object) -> str:
        assert isinstance(a, Ptr)
        offset_text = a.offset
        if a.base == "workspace":
            offset_text = f"{main.storages[a.index].start} + {offset_text}"
        return f"{a.base}{a.index if a.base == 'arg' else ''} + {offset_text}"

    lines = []
    for call in main.calls:
        places = list(map(place, call.args))
        lines.append(f"    void {call.symbol}({', '.join(['void *'] * len(places))});")
        lines.append(f"    {call.symbol}({', '.join(places)});")
    return lines


PROGRAM = """
#include <stdint.h>
#include <stdio.h>

#define BYTES static unsigned char __attribute__((aligned(64)))
BYTES workspace[{workspace} + 1];
BYTES weights[{weights}];
{args}

void kiln_parallel_for(void (*body)(void *, int64_t, int64_t), void *closure, int64_t n);
void kiln_parallel_for(void (*body)(void *, int64_t, int64_t), void *closure, int64_t n)
{{
    body(closure, 0, n);
}}

static int load(const char *name, unsigned char *to, size_t size)
{{
    FILE *file = fopen(name, "rb");
    if (file == NULL || fread(to, 1, size, file) != size)
        return 1;
    return fclose(file);
}}

static int save(const char *name, const unsigned char *from, size_t size)
{{
    FILE *file = fopen(name, "wb");
    if (file == NULL || fwrite(from, 1, size, file) != size)
        return 1;
    return fclose(file);
}}

int main(void)
{{
    if (load("weights.bin", weights, sizeof weights){loads})
        return 1;
{calls}
    return 0{saves};
}}
"""
