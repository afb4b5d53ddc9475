"""Archives become programs with nothing but a C compiler, and these give Python's numbers."""

from __future__ import annotations

import subprocess
from pathlib import Path

import numpy as np
import pytest

import tensorkiln as tk
from tensorkiln.external.example import C_REFERENCE
from tensorkiln.ir.expr import Var
from tensorkiln.ir.relax import RVar, Value, tensor
from tensorkiln.kernels.case import Graph, rand
from tensorkiln.script import from_source
from tests.mlf.build import (
    STRICT,
    compiled,
    driver,
    needs_gcc,
    needs_gxx,
    only_model,
    output,
    run,
    unpacked,
)
from tests.transform.graphs import graph

AVX2 = tk.Target({"kind": "llvm", "mcpu": "haswell"})  # valgrind knows no AVX-512


def cnn(g: Graph, x: RVar) -> Value:
    y = g.conv2d(x, rand(16, 3, 3, 3), padding=(1, 1, 1, 1))
    z = g.relu(g.add(g.conv2d(y, rand(16, 16, 3, 3, seed=1), padding=(1, 1, 1, 1)), y))
    return g.softmax(g.linear(g.mean(z, axes=(2, 3)), rand(16, 10)), axis=-1)


def linear(g: Graph, x: RVar) -> Value:
    return g.tanh(g.linear(g.relu(g.linear(x, rand(8, 8))), rand(8, 8, seed=1)))


def scaled(g: Graph, x: RVar) -> Value:
    return g.relu(g.add(g.mul(x, rand(8)), rand(8, seed=1)))


CASES = {
    "cnn": (graph(cnn, x=(1, 3, 14, 14)), {}, ()),
    "cnn of any batch": (graph(cnn, x=(Var("N"), 3, 14, 14)), {"N": 3}, ()),
    "linear": (graph(linear, x=(2, 8)), {}, ()),
    "C and constants in C": (graph(scaled, x=(2, 8)), {}, (C_REFERENCE,)),
    "C kernels": (graph(linear, x=(2, 8)), {}, (C_REFERENCE,)),
    "nothing but a copy": (graph(lambda g, x: g.reshape(x, shape=(4,)), x=(2, 2)), {}, ()),
}


def numbers(*shape: int) -> np.ndarray:
    return np.random.default_rng([3, *shape]).standard_normal(shape).astype("float32")


@pytest.mark.in_turn("name")
@needs_gcc
@pytest.mark.parametrize("kind", ["llvm", "c"])
@pytest.mark.parametrize("name", CASES)
def test_a_program_gives_pythons_numbers(name: str, kind: str, tmp_path: Path) -> None:
    mod, sizes, externals = CASES[name]
    exe = tk.compile(mod, AVX2 if kind == "llvm" else tk.Target("c"), externals=externals)
    archive = exe.export_model_library_format(tmp_path / "net.tar")
    model = only_model(archive)
    assert kind == "llvm" or not model.objects
    assert all(k.path and k.symbol.count("kernel_") == 1 for k in model.kernels)
    program = compiled(tmp_path / "build", driver(model, "main", sizes), [unpacked(archive)])
    (input_info,) = model.functions["main"].inputs
    x = numbers(*(sizes.get(d, d) for d in input_info.shape or ()))  # type: ignore[arg-type]
    assert output(program, x) == np.asarray(exe(x)).tobytes()


TWO = r"""
#include "kiln_conv.h"
#include "kiln_flat.h"
#include <stdio.h>
#include <stdlib.h>

static int loops;

void kiln_conv_parallel_for(kiln_conv_body body, void *closure, int64_t n)
{
    for (int64_t i = n - 1; i >= 0; i--) /* any order, any split */
        body(closure, i, i + 1);
    loops++;
}

int main(void)
{
    static float x[2 * 3 * 14 * 14], y[2 * 10], u[8], v[8];
    const size_t most = (size_t)kiln_conv_workspace_size(2) + KILN_FLAT_WORKSPACE_SIZE;
    void *memory = aligned_alloc(64, (most + 63) / 64 * 64); /* for one after the other */
    const struct kiln_conv_inputs conv_in = {x};
    const struct kiln_conv_outputs conv_out = {y};
    const struct kiln_conv_pools conv_pools = {memory};
    const struct kiln_flat_inputs flat_in = {u};
    const struct kiln_flat_outputs flat_out = {v};
    const struct kiln_flat_pools flat_pools = {memory};
    if (fread(x, sizeof x, 1, stdin) != 1 || fread(u, sizeof u, 1, stdin) != 1)
        return 3;
    if (kiln_conv_run(&conv_in, &conv_out, &conv_pools, 2) ||
        kiln_flat_run(&flat_in, &flat_out, &flat_pools))
        return 4;
    if (loops == 0)
        return 5;
    fwrite(y, sizeof y, 1, stdout);
    fwrite(v, sizeof v, 1, stdout);
    free(memory);
    return 0;
}
"""


@needs_gcc
@pytest.mark.parametrize("together", [True, False], ids=["one archive", "two archives"])
def test_two_models_in_one_program(together: bool, tmp_path: Path) -> None:
    """Their graphs and kernels have the same names; threads are the program's."""
    conv = tk.compile(CASES["cnn of any batch"][0], AVX2)
    flat = tk.compile(graph(linear, x=(1, 8)), AVX2, externals=[C_REFERENCE])
    models = {"conv": conv, "flat": flat}
    if together:
        archives = [tk.export_model_library_format(models, tmp_path / "both.tar")]
    else:
        archives = [e.export_model_library_format(tmp_path / f"{n}.tar") for n, e in models.items()]
    program = compiled(tmp_path / "build", TWO, [unpacked(a) for a in archives])
    x, u = numbers(2, 3, 14, 14), numbers(1, 8)
    expected = np.asarray(conv(x)).tobytes() + np.asarray(flat(u)).tobytes()
    assert output(program, x, u) == expected


@needs_gcc
def test_two_models_of_one_name_do_not_link(tmp_path: Path) -> None:
    exe = tk.compile(graph(linear, x=(1, 8)), AVX2)
    folders = [exe.export_model_library_format(tmp_path / n, name="net") for n in ("a", "b")]
    with pytest.raises(AssertionError, match="multiple definition of `kiln_net_run'"):
        compiled(tmp_path / "build", "int main(void) { return 0; }\n", folders)


ANSWERS = r"""
#include "kiln_net.h"
#include <stdio.h>

static float x[16 * 8 + 1], y[16 * 8];
static char memory[1 << 16] __attribute__((aligned(64)));

static int code(const float *in, float *out, void *workspace, int64_t n)
{
    const struct kiln_net_inputs inputs = {in};
    const struct kiln_net_outputs outputs = {out};
    const struct kiln_net_pools pools = {workspace};
    return (int)kiln_net_run(&inputs, &outputs, &pools, n);
}

int main(void)
{
    float *const odd = (float *)((char *)x + 1);
    printf("%d %d %d %d %d %d %d", code(x, y, memory, 16), code(x, y, memory, 0),
           code(x, y, memory, -5), code(odd, y, memory, 1), code(x, odd, memory, 1),
           code(x, y, memory + 4, 1), code(x, y, memory, INT64_MAX));
    printf(" %d %d", (int)kiln_net_workspace_size(0), (int)kiln_net_workspace_size(INT64_MAX / 8));
    return kiln_net_workspace_size(16) > (int64_t)sizeof memory;
}
"""


@needs_gcc
def test_what_a_run_refuses(tmp_path: Path) -> None:
    exe = tk.compile(graph(linear, x=(Var("n"), 8)), AVX2)
    folder = exe.export_model_library_format(tmp_path / "net")
    program = compiled(tmp_path / "build", ANSWERS, [folder])
    assert output(program) == b"0 0 -1 -2 -2 -2 -1 0 -1"


INDICES = r"""
#include "kiln_net.h"
#include <stdio.h>

static const float x[10] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9};
static int32_t i[4] = {0, -5, 4, 0};
static float y[8];
static char memory[4096] __attribute__((aligned(64)));

int main(void)
{
    const struct kiln_net_inputs inputs = {x, i};
    const struct kiln_net_outputs outputs = {y};
    const struct kiln_net_pools pools = {memory};
    printf("%d", (int)kiln_net_run(&inputs, &outputs, &pools, 5, 4));
    printf(" %g", (double)y[4]);
    printf(" %d", (int)kiln_net_run(&inputs, &outputs, &pools, 4, 4));
    i[3] = -6;
    printf(" %d", (int)kiln_net_run(&inputs, &outputs, &pools, 5, 4));
    printf(" %d", (int)kiln_net_run(&inputs, &outputs, &pools, 5, 3));
    return 0;
}
"""


@needs_gcc
@pytest.mark.parametrize("target", [AVX2, "c"], ids=["llvm", "c"])
def test_an_index_outside(target: tk.Target, tmp_path: Path) -> None:
    mod = graph(
        lambda g, x, i: g.take(x, i, axis=0), x=(Var("n"), 2), i=tensor((Var("k"),), "int32")
    )
    folder = tk.compile(mod, target).export_model_library_format(tmp_path / "net")
    program = compiled(tmp_path / "build", INDICES, [folder])
    assert output(program) == b"0 8 -3 -3 0"


NULLS = r"""
#include "kiln_net.h"
#include <stdio.h>

static float x[8], y[8];
static char memory[KILN_NET_WORKSPACE_SIZE] __attribute__((aligned(64)));

int main(void)
{
    for (int i = 0; i < 4; i++) {
        const struct kiln_net_inputs inputs = {i == 0 ? 0 : x};
        const struct kiln_net_outputs outputs = {i == 1 ? 0 : y};
        const struct kiln_net_pools pools = {i == 2 ? 0 : memory};
        printf("%d ", (int)kiln_net_run(&inputs, &outputs, &pools));
    }
    return 0;
}
"""


@needs_gcc
def test_addresses_that_are_null(tmp_path: Path) -> None:
    folder = tk.compile(graph(linear, x=(1, 8)), AVX2).export_model_library_format(tmp_path / "net")
    assert output(compiled(tmp_path / "build", NULLS, [folder])) == b"-2 -2 -2 0 "


@needs_gcc
def test_tensors_may_be_called_anything(tmp_path: Path) -> None:
    """As words of C and C++, as arguments and as what the C itself uses."""
    names = ("workspace", "weights", "pools", "new", "in_x", "errno", "s_index", "a.b", "1st", "ü")

    def sum_of(g: Graph, *values: RVar) -> Value:
        total: Value = values[0]
        for v in values[1:]:
            total = g.linear(g.relu(g.add(total, v)), rand(8, 8))
        return total

    mod = graph(sum_of, **dict.fromkeys(names, (Var("in_x"), 8)))
    exe = tk.compile(mod, AVX2)
    archive = exe.export_model_library_format(tmp_path / "odd.tar")
    model = only_model(archive)
    members = [t.member for t in model.functions["main"].inputs]
    assert members[3:9] == ["new_", "in_x", "errno_", "s_index", "a_b", "_1st"]
    main = "#include <errno.h>\n" + driver(
        model, "main", dict.fromkeys(model.functions["main"].symbols, 3)
    )
    program = compiled(tmp_path / "build", main, [unpacked(archive)])
    arrays = [numbers(3, 8) + i for i in range(len(names))]
    assert output(program, *arrays) == np.asarray(exe(*arrays)).tobytes()


CPP = r"""
#include "kiln_net.h"
#include "kiln_net.h"

int main()
{
    kiln_net_inputs inputs;
    kiln_net_outputs outputs;
    kiln_net_pools pools;
    inputs.x = 0;
    outputs.output0 = 0;
    pools.workspace = 0;
    return kiln_net_run(&inputs, &outputs, &pools) + 2;
}
"""


@needs_gxx
@pytest.mark.parametrize("standard", ["c++98", "c++11", "c++20"])
def test_the_header_in_cpp(standard: str, tmp_path: Path) -> None:
    folder = tk.compile(graph(linear, x=(1, 8)), AVX2).export_model_library_format(tmp_path / "net")
    (tmp_path / "main.cc").write_text(CPP)
    main, source = tmp_path / "main.o", tmp_path / "net.o"
    include = f"-I{folder}/codegen/host/include"
    flags = ["-Wall", "-Wextra", "-Wpedantic", "-Werror", "-Wno-long-long"]
    run(["g++", f"-std={standard}", *flags, include, "-c", tmp_path / "main.cc", "-o", main])
    run(["gcc", include, "-c", folder / "codegen/host/src/kiln_net.c", "-o", source])
    objects = sorted(folder.glob("codegen/host/lib/*.o"))
    run(["g++", main, source, *objects, "-o", tmp_path / "program"])
    run([tmp_path / "program"])


@needs_gcc
def test_tensor_programs(tmp_path: Path) -> None:
    """Functions that are no graphs: numbers are members too, and results are outputs."""
    exe = tk.compile(from_source(PROGRAM), AVX2)
    archive = exe.export_model_library_format(tmp_path / "net.tar")
    function = only_model(archive).functions["scale"]
    assert [(t.name, t.role) for t in function.inputs] == [("x", "in"), ("factor", "scalar")]
    assert [(t.name, t.role) for t in function.outputs] == [("y", "out")]
    program = compiled(tmp_path / "build", SCALED, [unpacked(archive)])
    assert output(program) == b"3.5 7"


PROGRAM = """
@T.prim_func
def scale(
    x: T.Buffer((2,), "float32", align=4),
    factor: T.float32,
    y: T.Buffer((2,), "float32", align=4),
):
    for i in range(2):
        y[i] = x[i] * factor
"""
SCALED = r"""
#include "kiln_net.h"
#include <stdio.h>

int main(void)
{
    static const float x[] = {1, 2};
    float y[2];
    const struct kiln_net_inputs inputs = {.x = x, .factor = 3.5f};
    const struct kiln_net_outputs outputs = {.y = y};
    const struct kiln_net_pools pools = {0};
    if (kiln_net_run(&inputs, &outputs, &pools) != 0)
        return 1;
    printf("%g %g", (double)y[0], (double)y[1]);
    return 0;
}
"""


@needs_gcc
@pytest.mark.parametrize("name", ["cnn of any batch", "C and constants in C"])
def test_pointers_of_32_bits(name: str, tmp_path: Path) -> None:
    """What is generated, without a C library: all it includes is there without one."""
    mod, _, externals = CASES[name]
    folder = tk.compile(mod, AVX2, externals=externals).export_model_library_format(tmp_path / "m")
    include = [f"-I{folder}/codegen/host/include", f"-I{folder}/runtime"]
    flags = ["-m32", "-ffreestanding", "-nostdinc", *STRICT, *include]
    gcc_include = Path(
        subprocess.check_output(["gcc", "-print-file-name=include"], text=True).strip()
    )
    generated_sources = [
        folder / "codegen/host/src/kiln_m.c",
        *folder.glob("codegen/host/src/*_weights.c"),
    ]
    assert len(generated_sources) == (2 if externals else 1)
    for source in generated_sources:
        run(["gcc", *flags, "-isystem", gcc_include, "-c", source, "-o", tmp_path / "m.o"])
