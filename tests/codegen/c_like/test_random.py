"""Random tensor programs as C against the evaluator of the language: compiled with and without
optimisation, for processors with and without vectors, and under sanitizers."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

import tensorkiln as tk
from tensorkiln.ir.module import IRModule
from tensorkiln.target import Target
from tests.codegen.c_like.build import compiler, require_compiler
from tests.codegen.random_programs import Program, draw
from tests.codegen.test_random_programs import MEMORY, SCALARS, SEED, compare, python_caller

# What it is compiled for, and by.
BUILDS = {
    "gcc -O0": (Target("c"), "gcc", ("-O0",)),
    "gcc -O2 of avx2": (Target({"kind": "c", "mcpu": "haswell"}), "gcc", ("-O2",)),
    "gcc -O3": (Target("c"), "gcc", ("-O3",)),
    "clang -O2": (Target("c"), "clang", ("-O2",)),
    # Where it instruments, gcc 12 warns of a sign in `u32 ^ (uint32_t)i8`, which loses none.
    "undefined": (Target("c"), "gcc", ("-O1", "-fsanitize=undefined", "-Wno-sign-conversion")),
}


def wrong(seed: str, count: int, build: str, tally: Counter[str]) -> list[str]:
    """Draw `count` programs into one library and call each; what differs."""
    target, command, flags = BUILDS[build]
    programs: list[Program] = [draw(f"{seed} {k}", f"f{k}", SCALARS) for k in range(count)]
    functions = [f for p in programs for f in (*p.helpers, p.f)]
    # What programs say may be odd, such as x < x.
    odd = (
        "-Wno-bool-compare",
        "-Wno-tautological-compare",
        "-Wno-type-limits",
        "-Wno-unknown-warning-option",
    )
    link = compiler(command, *flags, *odd)
    call = python_caller(tk.compile(IRModule(tuple(functions), "model"), target).jit(link))
    differences = []
    for k, p in enumerate(programs):
        difference = compare(k, p, "python", call, MEMORY[k % len(MEMORY)])
        tally[build] += 1
        if difference is not None:
            text = IRModule((*p.helpers, p.f), "model").script()
            differences.append(f"seed {seed} {k}, {build}\n{text}\n{p.inputs}\n{difference}")
    return differences


@pytest.mark.in_turn()
@pytest.mark.filterwarnings("ignore:x86-64 is the baseline")
@pytest.mark.parametrize("build", BUILDS)
def test_random_programs(build: str, capfd: pytest.CaptureFixture[str]) -> None:
    differences = wrong(f"{SEED} c {build}", 15, build, Counter())
    assert not differences, differences[0]
    assert "runtime error" not in capfd.readouterr().err


@pytest.mark.filterwarnings("ignore:x86-64 is the baseline")
def test_no_access_outside_of_memory() -> None:
    """In a process of its own, since an address sanitizer has to be there from the start."""
    require_compiler("gcc")
    runtime = subprocess.run(
        ["gcc", "-print-file-name=libasan.so"], capture_output=True, text=True, check=True
    ).stdout.strip()
    environ = {**os.environ, "LD_PRELOAD": runtime, "ASAN_OPTIONS": "detect_leaks=0"}
    command = [sys.executable, "-m", "tests.codegen.c_like.test_random", SEED, "5"]
    root = Path(__file__).parents[3]
    process = subprocess.run(command, capture_output=True, text=True, env=environ, cwd=root)
    assert process.returncode == 0, process.stdout[-3000:] + process.stderr[-6000:]


@pytest.mark.fuzz
@pytest.mark.filterwarnings("ignore:x86-64 is the baseline")
@pytest.mark.parametrize("part", range(10))
@pytest.mark.parametrize("build", BUILDS)
def test_thousands(build: str, part: int, capfd: pytest.CaptureFixture[str]) -> None:
    differences = wrong(f"{SEED} c {build} {part}", 40, build, Counter())
    assert not differences, differences[0]
    assert "runtime error" not in capfd.readouterr().err


def main(seed: str, count: int) -> int:
    """Run programs in this process under the sanitizers that it was started with."""
    BUILDS["address"] = (Target("c"), "gcc", ("-O1", "-fsanitize=address,undefined"))
    differences = wrong(f"{seed} c address", count, "address", Counter())
    print("\n".join(differences))
    return 1 if differences else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], int(sys.argv[2])))
