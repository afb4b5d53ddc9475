"""Random tensor programs against the evaluator of the language, through every caller.

`make fuzz` runs 20,000; the seed of a program that differs is in the message, and
`FUZZ_SEED=seed` draws others. Results are compared to the bit, NaN with NaN.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
import shutil
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tensorkiln as tk
from tensorkiln.base.errors import UserError
from tensorkiln.ir.buffer import Buffer
from tensorkiln.ir.expr import int_value
from tensorkiln.ir.module import IRModule
from tensorkiln.target import Target
from tests.codegen.random_programs import FLOATS, INTS, Program, draw

SEED = os.environ.get("FUZZ_SEED", "programs")
SCALARS = (*INTS, *FLOATS, "bool")
TARGETS = {
    "jit": Target({**Target("native").to_json(), "kind": "llvmjit"}),
    "jit of x86-64-v2": Target({"kind": "llvmjit", "mcpu": "x86-64-v2"}),
    "baseline": Target("llvm"),
    "native": Target("native"),
}
BATCH, PARTS, ALL = 100, 10, 20_000
MEMORY = ("aligned", "misaligned", "strided")

Arguments = list[Any]
Caller = Callable[[int, Program, Arguments], None]


class Refused(Exception):
    """What a caller is told."""


def python_caller(library: Any) -> Caller:
    def call(k: int, p: Program, arguments: Arguments) -> None:
        try:
            library[p.f.name](*arguments)
        except UserError as e:
            raise Refused(str(e)) from None

    return call


def ffi_caller(path: Path) -> Caller:
    import tvm_ffi

    library = tvm_ffi.load_module(str(path))

    def call(k: int, p: Program, arguments: Arguments) -> None:
        try:
            library[p.f.name](*arguments)
        except AssertionError as e:
            raise Refused(str(e)) from None

    return call


def c_caller(path: Path, header: str, programs: list[Program]) -> Caller:
    """A program in C that includes the header and calls the plain entries by number."""
    (path.parent / "model.h").write_text(header)
    source, driver = path.parent / "driver.c", path.parent / "driver.so"
    source.write_text(driver_text(programs))
    command = ["gcc", "-std=c99", "-shared", "-fPIC", "-O1", "-Wall", "-Werror=implicit"]
    command += [str(source), "-o", str(driver), str(path), f"-Wl,-rpath,{path.parent}"]
    process = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert process.returncode == 0, process.stderr
    library = ctypes.CDLL(str(driver))
    library.said.restype = ctypes.c_char_p

    def call(k: int, p: Program, arguments: Arguments) -> None:
        arrays = [a for a in arguments if isinstance(a, np.ndarray)]
        data = (ctypes.c_void_p * max(1, len(arrays)))(*(a.ctypes.data for a in arrays))
        if library.run(k, data, ctypes.c_int64(symbol(p))):
            raise Refused(library.said().decode())

    return call


def driver_text(programs: list[Program]) -> str:
    lines = [
        "#include <math.h>",
        '#include "model.h"',
        "const char *said(void) { return model_last_error(); }",
        "int run(int k, void *const *d, int64_t n)",
        "{",
        "    switch (k) {",
    ]
    for k, p in enumerate(programs):
        args = ["n"] if any(symbolic(b) for b in p.f.buffers) else []
        data_index = 0
        for x in p.f.params:
            if isinstance(x, Buffer):
                args.append(f"d[{data_index}]")
                data_index += 1
            else:
                args.append(c_number(p.inputs[x.name]))
        lines.append(f"    case {k}: return model_{p.f.name}({', '.join(args)});")
    return "\n".join([*lines, "    }", "    return -1;", "}", ""])


def c_number(value: Any) -> str:
    if isinstance(value, float):
        return value.hex()
    return f"(int64_t){int(value) & (1 << 64) - 1}u"


def symbolic(b: Buffer) -> bool:
    return any(int_value(d) is None for d in b.shape)


def symbol(p: Program) -> int:
    """The size that is not known before the call."""
    for b in p.f.buffers:
        if symbolic(b):
            return int(p.inputs[b.name].shape[0])
    return 0


def placed(x: np.ndarray, memory: str) -> np.ndarray:
    """A copy at a multiple of 64 bytes, one byte behind it, or with gaps."""
    shape = tuple(2 * n for n in x.shape) if memory == "strided" else x.shape
    count = int(np.prod(shape, dtype=int)) * x.itemsize
    raw = np.zeros(count + 129, "uint8")
    start = -raw.ctypes.data % 64 + (memory == "misaligned")
    out = raw[start : start + count].view(x.dtype).reshape(shape)
    if memory == "strided":
        out = out[(*(slice(None, None, 2) for _ in shape), ...)]
    out[...] = x
    return out


def same(output: np.ndarray, want: np.ndarray) -> bool:
    """Bit for bit, but for which NaN it is."""
    if want.dtype.name not in FLOATS:
        return np.array_equal(output, want)
    unknown = np.isnan(want)
    if not np.array_equal(np.isnan(output), unknown):
        return False
    bits = f"uint{8 * want.itemsize}"
    a, b = np.ascontiguousarray(output).view(bits), np.ascontiguousarray(want).view(bits)
    return bool(np.all((a == b) | unknown.reshape(a.shape)))


def compare(k: int, p: Program, caller: str, call: Caller, memory: str) -> str | None:
    """What is wrong; None where nothing is."""
    arguments: Arguments = []
    for x in p.f.params:
        value = p.inputs[x.name]
        arguments.append(placed(value, memory) if isinstance(value, np.ndarray) else value)
    try:
        call(k, p, arguments)
        if p.failed is not None:
            return f"{p.failed!r} holds"
    except Refused as e:
        if p.failed is None:
            return f"refused: {e}"
        return None if "message " in str(e) else f"refused for something else: {e}"
    for x, output in zip(p.f.params, arguments, strict=True):
        want = p.results[x.name]
        if isinstance(want, np.ndarray) and not same(output, want):
            return f"{x.name}:\n{output}\nis not\n{want}"
    return None


def callers_of(
    kind: str, executable: Any, programs: list[Program], folder: Path
) -> Iterator[tuple[str, Caller]]:
    if kind.startswith("jit"):
        yield "python", python_caller(executable.jit())
        return
    path = folder / "model.so"
    executable.export_library(path)
    yield "python", python_caller(tk.runtime.load_module(path))
    if importlib.util.find_spec("tvm_ffi"):
        yield "ffi", ffi_caller(path)
    if shutil.which("gcc"):
        header = next(a for a in executable.artifacts if a.file_name == "model.h")
        yield "c", c_caller(path, bytes(header.content).decode(), programs)


def run_batch(seed: str, count: int, kind: str, folder: Path, tally: Counter[str]) -> list[str]:
    """Draw `count` programs into one library and call each in several ways; what differs."""
    folder.mkdir()
    programs = [draw(f"{seed} {k}", f"f{k}", SCALARS) for k in range(count)]
    functions = [f for p in programs for f in (*p.helpers, p.f)]
    module = IRModule(tuple(functions), "model")
    executable = tk.compile(module, TARGETS[kind])
    wrong = []
    for name, call in callers_of(kind, executable, programs, folder):
        for k, p in enumerate(programs):
            memory = MEMORY[(k + len(name)) % (2 if name == "c" else 3)]
            if name == "ffi" and any(b.dtype.name == "bfloat16" for b in p.f.buffers):
                continue  # NumPy does not export it
            difference = compare(k, p, name, call, memory)
            tally[f"{name} {memory}"] += 1
            if difference is not None:
                text = IRModule((*p.helpers, p.f), "model").script()
                inputs = {
                    n: v.tolist() if isinstance(v, np.ndarray) else v for n, v in p.inputs.items()
                }
                wrong.append(
                    f"seed {seed} {k}, {kind}, {name}, {memory}\n{text}\n{inputs}\n{difference}"
                )
    shutil.rmtree(folder)
    tally["programs"] += count
    tally["failing"] += sum(p.failed is not None for p in programs)
    tally["calling others"] += sum(bool(p.helpers) for p in programs)
    return wrong


@pytest.mark.filterwarnings("ignore:x86-64 is the baseline")
@pytest.mark.parametrize("kind", TARGETS)
def test_random_programs(kind: str, tmp_path: Path) -> None:
    wrong = run_batch(f"{SEED} quick {kind}", 25, kind, tmp_path / "quick", Counter())
    assert not wrong, wrong[0]


@pytest.mark.fuzz
@pytest.mark.filterwarnings("ignore:x86-64 is the baseline")
@pytest.mark.parametrize("part", range(PARTS))
def test_twenty_thousand_programs(part: int, tmp_path: Path) -> None:
    tally: Counter[str] = Counter()
    # Libraries take longer than linking in memory, so they are fewer.
    kinds = [*TARGETS, "jit", "jit of x86-64-v2"] + ["jit", "jit of x86-64-v2"] * 2
    for k in range(ALL // PARTS // BATCH):
        kind = kinds[(part + k) % len(kinds)]
        wrong = run_batch(f"{SEED} {part} {k}", BATCH, kind, tmp_path / str(k), tally)
        assert not wrong, wrong[0]
    rows = ", ".join(f"{name}: {n}" for name, n in sorted(tally.items()))
    print(f"\npart {part} of seed {SEED!r}: no mismatch; {rows}")
