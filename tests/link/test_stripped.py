"""The stripped form: a C program provides the memory, and gets the library's numbers."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

import tensorkiln as tk
from tensorkiln.artifact.elf import elf_of
from tensorkiln.base.errors import UnsupportedError, UserError
from tensorkiln.external.c_reference import C_REFERENCE
from tensorkiln.ir.expr import Var
from tensorkiln.ir.module import IRModule
from tensorkiln.ir.relax import RVar, Value
from tensorkiln.link.rename import rename_symbols
from tensorkiln.script import from_source
from tests.audit.process import ROOT, python
from tests.transform.graphs import Graph, graph, rand

EXAMPLE = ROOT / "examples/stripped"
AVX2 = tk.Target({"kind": "llvm", "mcpu": "haswell"})  # valgrind knows no AVX-512
STRICT = ["-std=c11", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-O1"]
needs_gcc = pytest.mark.skipif(shutil.which("gcc") is None, reason="gcc is not installed")
RUN = "import runpy, sys; sys.argv = sys.argv[1:]; runpy.run_path(sys.argv[0], run_name='__main__')"


def build(folder: Path, sources: list[Path], exported: list[Path], *options: str) -> Path:
    program = folder / "program"
    inputs = [str(s) for s in sources]
    for e in exported:
        inputs += [f"-I{e}", *map(str, sorted(e.glob("*.c"))), *map(str, e.glob("kernels/*.[oc]"))]
    command = ["gcc", *STRICT, *options, "-o", str(program), *inputs, "-lm"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return program


@needs_gcc
def test_the_example(tmp_path: Path) -> None:
    python(RUN, (EXAMPLE / "make.py", tmp_path), folder=tmp_path)
    sources = [EXAMPLE / "main.c", tmp_path / "expected.c"]
    program = build(tmp_path, sources, [tmp_path / "net"])
    done = subprocess.run([program], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [
        "one: 4 numbers as expected",
        "many: 4 numbers as expected",
        "many: 12 numbers as expected",
        "many: 20 numbers as expected",
        "0 rows: -1",
    ]


def _conv(g: Graph, x: RVar) -> Value:
    y = g.conv2d(x, rand(16, 16, 3, 3), padding=(1, 1, 1, 1))
    z = g.relu(g.add(g.conv2d(y, rand(16, 16, 3, 3, seed=1), padding=(1, 1, 1, 1)), y))
    return g.mean(g.conv2d(z, rand(32, 16, 1, 1)), axes=(2, 3))


def _linear(g: Graph, x: RVar) -> Value:
    return g.tanh(g.linear(g.relu(g.linear(x, rand(8, 8))), rand(8, 8, seed=1)))


def named(mod: IRModule, name: str) -> IRModule:
    return IRModule(mod.functions, name)


MAIN = r"""
#include "conv.h"
#include "flat.h"
#include <stdio.h>
#include <stdlib.h>

static int loops;

void conv_parallel_for(conv_body body, void *closure, int64_t n)
{
    for (int64_t i = n - 1; i >= 0; i--) /* any order, any split */
        body(closure, i, i + 1);
    loops++;
}

int main(void)
{
    static float x[2 * 16 * 14 * 14], y[2 * 32], u[8], v[8];
    void *storage[] = {aligned_alloc(64, (size_t)conv_main_storage_size(0, 2))};
    void *other[] = {aligned_alloc(64, FLAT_MAIN_STORAGE_0_BYTES)};
    if (conv_main_storage_size(1, 2) != -1 || conv_main_storage_count() != 1)
        return 2;
    if (fread(x, sizeof x, 1, stdin) != 1 || fread(u, sizeof u, 1, stdin) != 1)
        return 3;
    if (conv_main_run(storage, x, y, 2) || flat_main_run(other, u, v))
        return 4;
    if (conv_main_run(storage, x, y, 0) != -1)
        return 6;
    if (loops == 0 || flat_weights_size() == 0 || conv_weights() == flat_weights())
        return 5;
    fwrite(y, sizeof y, 1, stdout);
    fwrite(v, sizeof v, 1, stdout);
    free(storage[0]);
    free(other[0]);
    return 0;
}
"""


@needs_gcc
def test_two_networks_in_one_program(tmp_path: Path) -> None:
    """Their kernels have the same names and their weights too; threads are the program's."""
    conv = tk.compile(named(graph(_conv, x=(Var("N"), 16, 14, 14)), "conv"), AVX2)
    flat = tk.compile(named(graph(_linear, x=(1, 8)), "flat"), AVX2, externals=[C_REFERENCE])
    folders = [conv.export_stripped(tmp_path / "conv"), flat.export_stripped(tmp_path / "flat")]
    assert [p.name for p in (tmp_path / "flat/kernels").glob("*.c")]  # the external's
    (tmp_path / "main.c").write_text(MAIN)
    program = build(tmp_path, [tmp_path / "main.c"], folders)
    rng = np.random.default_rng(0)
    x, u = (rng.standard_normal(s).astype("float32") for s in ((2, 16, 14, 14), (1, 8)))
    # Storages are exactly as large as the library says: valgrind sees a byte beyond.
    valgrind = ["valgrind", "-q", "--error-exitcode=9", "--leak-check=full"]
    command = [*(valgrind if shutil.which("valgrind") else []), str(program)]
    done = subprocess.run(command, input=x.tobytes() + u.tobytes(), capture_output=True)
    assert done.returncode == 0, done.stderr.decode()
    got = np.frombuffer(done.stdout, np.float32)
    for exe, given, part in ((conv, x, got[:64]), (flat, u, got[64:])):
        expected = tk.runtime.Executor(exe, tk.cpu())["main"](given).numpy()
        assert part.tobytes() == expected.tobytes()


@needs_gcc
def test_inputs_may_be_called_anything(tmp_path: Path) -> None:
    def build_graph(g: Graph, *values: RVar) -> Value:
        total = values[0]
        for v in values[1:]:
            total = g.linear(g.relu(g.add(total, v)), rand(8, 8))
        return total

    names = ("storage", "weights", "index", "in_storage", "workspace", "out_output0", "s_index")
    mod = graph(build_graph, **dict.fromkeys(names, (Var("index"), 8)))
    folder = tk.compile(named(mod, "odd")).export_stripped(tmp_path / "odd")
    (tmp_path / "main.c").write_text('#include "odd.h"\nint main(void) { return 0; }\n')
    build(tmp_path, [tmp_path / "main.c"], [folder])


def test_the_folder_is_replaced_only_when_it_is_ours(tmp_path: Path) -> None:
    exe = tk.compile(named(graph(_linear, x=(1, 8)), "flat"))
    folder = exe.export_stripped(tmp_path / "out")
    before = {p.name: p.read_bytes() for p in folder.rglob("*") if p.is_file()}
    exe.export_stripped(folder)
    assert before == {p.name: p.read_bytes() for p in folder.rglob("*") if p.is_file()}
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/thesis.txt").write_text("")
    with pytest.raises(
        UserError, match="'thesis.txt' in it was not written by a former run"
    ) as caught:
        exe.export_stripped(tmp_path / "mine")
    assert caught.value.code == "cannot-write" and "a folder that is new" in caught.value.hint
    assert (tmp_path / "mine/thesis.txt").exists()


def test_a_module_without_graphs_has_nothing_to_strip(tmp_path: Path) -> None:
    kernels = tk.compile(graph(_linear, x=(1, 8))).module.with_programs().prim_funcs
    from dataclasses import replace

    only = IRModule(tuple(replace(f, public=True) for f in kernels))
    exe = tk.compile(only, relax_pipeline=None, tir_pipeline=None)
    with pytest.raises(UserError, match="no graph function") as caught:
        exe.export_stripped(tmp_path / "out")
    assert caught.value.code == "nothing-to-export"
    assert not (tmp_path / "out").exists()


def test_host_steps_cannot_be_stripped(tmp_path: Path) -> None:
    text = """
@R.function
def main(x: R.Tensor((4,), "float32")) -> R.Object:
    y: R.Object = R.call_packed("f", x)
    return y
"""
    with pytest.raises(UnsupportedError, match="main: host steps .* allocate"):
        tk.compile(from_source(text)).export_stripped(tmp_path / "out")


def test_symbols_get_other_names() -> None:
    exe = tk.compile(graph(_linear, x=(1, 8)))
    data = next(a.view for a in exe.artifacts if a.file_name == "linear_relu.o")
    new = {"linear_relu": "a_much_longer_name_than_before", "absent": "x"}
    before = {s.name for s in elf_of(data, "").symbols()}
    after = {s.name for s in elf_of(memoryview(rename_symbols(data, new)), "").symbols()}
    assert before - after == {"linear_relu"}
    assert after - before == {"a_much_longer_name_than_before"}
