from __future__ import annotations

import os
import shutil
import struct
import subprocess
from itertools import product
from operator import itemgetter
from pathlib import Path

import numpy as np
import pytest

from tensorkiln.codegen.host.function import (
    Condition,
    KernelCall,
    Ptr,
    host_function,
    tensor_param,
)
from tensorkiln.codegen.host.header import header_h
from tensorkiln.ir.expr import binary
from tensorkiln.link.shared import ALL_KINDS, CRT, crt_sources, runtime_source
from tensorkiln.link.toolchain import zig_path
from tests.crt.formulas import M, N, entry_of, size
from tests.link import sample
from tests.rotation import rows_in_turn

ROOT = Path(__file__).parents[2]
STRICT = ["-std=c99", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-O2", "-fno-builtin"]
needs_gcc = pytest.mark.skipif(shutil.which("gcc") is None, reason="gcc is not installed")


def _compile(command: list[str], source: Path, folder: Path) -> None:
    process = subprocess.run(
        [*command, *STRICT, "-fPIC", "-I", str(CRT), "-c", str(source), "-o", str(folder / "x.o")],
        capture_output=True,
        text=True,
        env={**os.environ, "ZIG_LOCAL_CACHE_DIR": str(folder), "ZIG_GLOBAL_CACHE_DIR": str(folder)},
    )
    assert process.returncode == 0, process.stderr


@needs_gcc
@pytest.mark.parametrize("source", crt_sources(devices=ALL_KINDS), ids=lambda path: path.name)
def test_each_file_compiles_alone_without_a_warning(source: Path, tmp_path: Path) -> None:
    _compile(["gcc"], source, tmp_path)


TRIPLES = ("x86_64-linux-gnu.2.17", "aarch64-linux-gnu", "x86_64-linux-musl")
DEVICES: tuple[tuple[str, ...], ...] = ((), ("opencl",), ("cuda",))


@pytest.mark.parametrize(
    ("triple", "devices"),
    rows_in_turn(product(TRIPLES, DEVICES), family=itemgetter(0)),
    ids=str,
)
def test_all_of_it_compiles_with_clang_without_a_warning(
    triple: str, devices: tuple[str, ...], tmp_path: Path
) -> None:
    together = tmp_path / "runtime.c"
    together.write_text(runtime_source(devices=devices))
    _compile(
        [str(zig_path()), "cc", "-target", triple, "-fno-sanitize=undefined"], together, tmp_path
    )


@needs_gcc
def test_generated_files_compile_without_a_warning(tmp_path: Path) -> None:
    (tmp_path / "entry.c").write_text(sample.entry())
    _compile(["gcc"], tmp_path / "entry.c", tmp_path)
    (tmp_path / "mlp.h").write_text(sample.header())
    (tmp_path / "host.c").write_text('#include "mlp.h"\n#include "mlp.h"\n#include "kiln.h"\n')
    _compile(["gcc"], tmp_path / "host.c", tmp_path)
    command = ["gcc", "-x", "c++", "-std=c++17", "-Wall", "-Werror", "-c", "-I", str(CRT)]
    subprocess.run([*command, str(tmp_path / "host.c"), "-o", str(tmp_path / "y.o")], check=True)


ODD = (
    '100% "\u00e9" ??/ */ /* \\'  # what a format, a literal, a comment and a trigraph stumble over
)


@needs_gcc
def test_any_names_compile_without_a_warning(tmp_path: Path) -> None:
    symbols = {"n": ODD, "m": "m"}
    function = host_function(
        "f",
        "graph",
        inputs=(tensor_param(ODD, "float32", ("s_n", "s_m", size(N * 2)), symbols),),
        outputs=(tensor_param(f"out {ODD}", "float32", ("s_n",), symbols, role="out"),),
        symbols=symbols,
        calls=(KernelCall("k", (Ptr("arg", 0), Ptr("arg", 1)), ODD),),
        requires=(
            Condition(size(binary("le", N + M // 2, 512)), f"{ODD} + m // 2 <= 512"),
            Condition(size(binary("eq", M, 3)), "m == 3"),
        ),
    )
    (tmp_path / "entry.c").write_text(entry_of([function], "odd"))
    (tmp_path / "odd.h").write_text(header_h([function], library_name="odd"))
    (tmp_path / "host.c").write_text('#include "odd.h"\n')
    for name in ("entry.c", "host.c"):
        assert (tmp_path / name).read_text().isascii()
        _compile(["gcc"], tmp_path / name, tmp_path)
        _compile([str(zig_path()), "cc"], tmp_path / name, tmp_path)


@needs_gcc
def test_a_c_program_of_forty_lines_runs_a_model(library: Path, tmp_path: Path) -> None:
    source = ROOT / "examples/c_host/main.c"
    assert len(source.read_text().splitlines()) < 60
    host = tmp_path / "c_host"
    flags = ["-std=c99", "-Wall", "-Wextra", "-Werror", "-o", str(host), str(source), "-ldl"]
    subprocess.run(["gcc", *flags], check=True)
    x = np.random.default_rng(3).standard_normal((1, 8)).astype(np.float32)
    (tmp_path / "in.f32").write_bytes(x.tobytes())
    command = [str(host), str(library), "mlp_fixed", "8", "4", "in.f32", "out.f32"]
    subprocess.run(command, check=True, cwd=tmp_path, env={})
    output = np.frombuffer((tmp_path / "out.f32").read_bytes(), np.float32)
    np.testing.assert_allclose(output, sample.expected(x)[0], rtol=1e-5, atol=1e-5)


@needs_gcc
def test_a_program_links_the_library_with_its_header(library: Path, tmp_path: Path) -> None:
    (tmp_path / "mlp.h").write_text(sample.header())
    (tmp_path / "host.c").write_text(
        r"""
        #include "mlp.h"
        #include <stdio.h>
        int main(void)
        {
            float x[16] = {1, 2, 3}, y[8], z[3] = {1, 2, 3};
            if (mlp_main(2, x, y) != 0 || mlp_add_one(3, z, z) != 0 || mlp_scale(3, z, 2.0, 1) != 0)
                return 1;
            printf("%g %g %g\n", z[0], z[1], z[2]);
            if (mlp_main(-1, x, y) == 0 || mlp_main(2, NULL, y) == 0)
                return 2;
            puts(mlp_last_error());
            mlp_set_num_threads(1);
            return mlp_get_num_threads() == 1 ? 0 : 3;
        }
        """
    )
    command = ["gcc", "-Wall", "-Werror", "host.c", str(library), "-o", "host"]
    subprocess.run(command, check=True, cwd=tmp_path)
    process = subprocess.run([str(tmp_path / "host")], capture_output=True, text=True)
    assert process.returncode == 0, process.stdout
    assert process.stdout.splitlines() == [
        "5 7 9",
        "main: input 'x' has no data: its address is null",
    ]


MEM_TEST = r"""
#include <stdio.h>
#include <stdlib.h>
void *kiln_memcpy(void *, const void *, size_t);
void *kiln_memmove(void *, const void *, size_t);
void *kiln_memset(void *, int, size_t);
int kiln_memcmp(const void *, const void *, size_t);
static unsigned char a[9000], b[9000];
int main(void)
{
    for (int n = 0; n < 4200; n += n < 80 ? 1 : 97)
        for (int shift = -40; shift <= 40; shift += n < 80 ? 1 : 13) {
            for (int i = 0; i < 9000; i++) a[i] = b[i] = (unsigned char)(i * 7 + i / 256);
            kiln_memmove(a + 100 + shift, a + 100, n);
            for (int i = 0; i < 9000; i++) {
                int inside = i >= 100 + shift && i < 100 + shift + n;
                if (a[i] != (inside ? b[i - shift] : b[i])) return 1;
            }
            kiln_memset(a + 3, shift, n);
            for (int i = 0; i < n; i++) if (a[3 + i] != (unsigned char)shift) return 2;
            kiln_memcpy(a + 1, b + 2, n);
            for (int i = 0; i < n; i++) if (a[1 + i] != b[2 + i]) return 3;
            if (kiln_memcmp(a + 1, b + 2, n) != 0) return 4;
            kiln_memcpy(a + 3, b + 11, n);
            for (int i = 0; i < n; i++) if (a[3 + i] != b[11 + i]) return 6;
        }
    a[5] = 1; b[5] = 200;
    return kiln_memcmp(a + 5, b + 5, 1) < 0 ? 0 : 5;
}
"""


@needs_gcc
@pytest.mark.parametrize("loads_words_from", ["any address", "multiples of 8"])
def test_memory_functions(loads_words_from: str, tmp_path: Path) -> None:
    """On x86-64, and as on machines that load words only from multiples of their size."""
    names = ["memcpy", "memmove", "memset", "memcmp"]
    rename = [f"-D{name}=kiln_{name}" for name in names] + ["-Dbcmp=kiln_bcmp"]
    (tmp_path / "t.c").write_text(MEM_TEST)
    other_machine = "#undef __x86_64__\n" if loads_words_from == "multiples of 8" else ""
    (tmp_path / "memory.c").write_text(f'#include <stdint.h>\n{other_machine}#include "mem.c"\n')
    build = ["gcc", "-O2", "-fno-builtin", "-o", "t", "t.c"]
    subprocess.run(
        ["gcc", *STRICT, *rename, "-I", str(CRT), "-c", "memory.c", "-o", "mem.o"],
        check=True,
        cwd=tmp_path,
    )
    subprocess.run([*build, "mem.o"], check=True, cwd=tmp_path)
    assert subprocess.run([str(tmp_path / "t")]).returncode == 0


def test_struct_layouts_are_those_of_dlpack_and_tvm_ffi() -> None:
    """Sizes by hand, against what tensorkiln.runtime declares for ctypes."""
    import ctypes

    from tensorkiln.runtime.native import Value
    from tensorkiln.runtime.tensor import DLTensor

    assert ctypes.sizeof(DLTensor) == struct.calcsize("PiiiBBHPPQ")
    assert ctypes.sizeof(Value) == 16
