"""Instructions that each kernel of a model executes, counted by valgrind's callgrind.

The C file that calls the kernels is compiled with callgrind's marks around the first call of each,
and run once on one thread; further calls of a kernel are left out, for valgrind is a hundred times
slower than the processor, and the twelve layers of BERT are the same kernels. Valgrind does not
know AVX-512 and is ten times slower with FMA, so the code is for x86-64-v3 without FMA, on every
machine: what is counted is the work of the schedules.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

import tensorkiln as tk
from tensorkiln.base.errors import UserError
from tensorkiln.executable import Executable
from tensorkiln.link.toolchain import zig_path
from tensorkiln.measure.calls import around_calls, graph_function

TARGET = {"kind": "llvm", "mcpu": "x86-64-v3", "mattr": ["-fma"]}
MARKS = Path("/usr/include/valgrind/callgrind.h")
HEAD = f"""
#include "{MARKS}"
#include <string.h>
static int is_first(const char *symbol)
{{
    static const char *seen[4096];
    int n = 0;
    while (seen[n] != 0 && strcmp(seen[n], symbol) != 0)
        n++;
    const int first = seen[n] == 0 && n + 1 < 4096;
    if (first)
        seen[n] = symbol;
    return first;
}}
"""
# What is around a call stands in a loop that runs once.
BEFORE = "if (!is_first(SYMBOL)) break; CALLGRIND_TOGGLE_COLLECT"
AFTER = "CALLGRIND_TOGGLE_COLLECT; CALLGRIND_DUMP_STATS_AT(SYMBOL)"

HOST = """
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

static void *filled(size_t bytes, int real)
{{
    char *data = aligned_alloc(64, (bytes + 63) / 64 * 64);
    uint32_t state = 1;
    for (size_t i = 0; real && i < bytes / 4; i++) {{
        state = state * 1664525u + 1013904223u;
        ((float *)data)[i] = (float)(int32_t)state / 2147483648.0f;
    }}
    for (size_t i = 0; !real && i < bytes; i++)
        data[i] = i % 8 == 0; /* 1 in every int64 */
    return data;
}}

int main(int argc, char **argv)
{{
    void *library = argc > 1 ? dlopen(argv[1], RTLD_NOW) : NULL;
    int (*entry)({types}) = library ? (int (*)({types}))dlsym(library, "{symbol}") : NULL;
    if (entry == NULL) {{
        fprintf(stderr, "%s\\n", dlerror());
        return 1;
    }}
    return entry({values});
}}
"""


def missing() -> str:
    """What is not there for counting; empty when all is."""
    if shutil.which("valgrind") is None or not MARKS.exists():
        return "valgrind with its headers is not installed"
    return ""


def count_instructions(mod: tk.IRModule) -> dict[str, int]:
    """Compiles a module and counts instructions of the first call of each kernel.

    A kernel is known by the first node of the model that it computes, else by its symbol.

    Raises UserError where valgrind is missing, or stops the program.
    """
    if missing():
        raise UserError(missing(), code="no-valgrind", hint="apt-get install valgrind")
    exe = tk.compile(mod, TARGET)
    marked = around_calls(exe, BEFORE, AFTER, HEAD)
    with tempfile.TemporaryDirectory(prefix="kiln-count-") as name:
        folder = Path(name)
        library = marked.export_library(folder / "marked.so")
        (folder / "host.c").write_text(_host_c(exe), encoding="utf-8")
        build = [zig_path(), "cc", "-O1", "-mcpu=baseline", "host.c", "-o", "host", "-ldl"]
        _run([str(part) for part in build], folder)
        _run(
            [
                "valgrind",
                "--tool=callgrind",
                "--collect-atstart=no",
                "--callgrind-out-file=counts",
                "--combine-dumps=yes",
                "./host",
                str(library),
            ],
            folder,
        )
        counts = _parse((folder / "counts").read_text(encoding="utf-8"))
    return {(*k.nodes, k.symbol)[0]: counts[k.symbol] for k in exe.kernels}


def _host_c(exe: Executable) -> str:
    """A program that calls the library once, with numbers between -1 and 1."""
    function = graph_function(exe, "main").info
    values = []
    for p in (*function.inputs, *function.outputs):
        count = 1
        for d in p.shape or ():
            if not isinstance(d, int):
                raise UserError(f"{p.name} has symbolic dimensions", hint="freeze them")
            count *= d
        size = count * tk.runtime.tensor.dtype_named(p.dtype).itemsize
        values.append(f"filled({size}, {int(p.dtype.startswith('float'))})")
    types = ", ".join(["void *"] * len(values))
    symbol = f"{exe.name}_{function.name}"
    return HOST.format(types=types, symbol=symbol, values=", ".join(values))


def _run(command: list[str], folder: Path) -> None:
    environment = {**os.environ, "KILN_NUM_THREADS": "1"}
    process = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    if process.returncode != 0:
        raise UserError(f"{command[0]} ended {process.returncode}: {process.stderr.strip()[-400:]}")


def _parse(text: str) -> dict[str, int]:
    """Dumps of callgrind: what asked for each, and its total."""
    pattern = r"^desc: Trigger: Client Request: (\S+)$.*?^(?:totals|summary): (\d+)$"
    return {name: int(total) for name, total in re.findall(pattern, text, re.M | re.S)}
