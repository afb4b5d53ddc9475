"""Libraries that are linked into a program: archives, objects, several at once."""

from __future__ import annotations

import subprocess
import sys
import tarfile
from pathlib import Path

import numpy as np
import pytest

import tensorkiln as tk
from release.archives import unpack
from tensorkiln.base.errors import UnsupportedError, UserError
from tensorkiln.script import from_source

CRT = Path(tk.__file__).parent / "crt"
WEIGHTS = np.arange(12, dtype=np.float32).reshape(4, 3)


def module(op: str) -> tk.IRModule:
    return from_source(
        f"""
@R.function
def main(x: R.Tensor((2, 4), "float32")) -> R.Tensor((2, 3), "float32"):
    a: R.Tensor((2, 3), "float32") = R.matmul(x, w)
    b: R.Tensor((2, 3), "float32") = R.{op}(a)
    return b
""",
        namespace={"w": WEIGHTS},
    )


X = np.linspace(-1, 1, 8, dtype=np.float32).reshape(2, 4)
PROGRAM = r"""
#include "one.h"
#include "two.h"
#include "kiln.h"
#include "kiln_system.h"
#include <stdio.h>

typedef int (*index_function)(const char *);
typedef int (*call_function)(int, const kiln_value *, int);

static int by_list(const char *prefix, float *x, float *y)
{
    const kiln_system_library *found = kiln_find_system_library(prefix);
    if (found == NULL)
        return 100;
    const index_function index = (index_function)kiln_system_symbol(found, "kiln_function_index");
    const call_function call = (call_function)kiln_system_symbol(found, "kiln_call");
    int64_t in[] = {2, 4}, out[] = {2, 3};
    kiln_tensor tensors[] = {{x, 1, 0, 2, {2, 32, 1}, in, NULL, 0},
                             {y, 1, 0, 2, {2, 32, 1}, out, NULL, 0}};
    const kiln_value values[] = {{KILN_TENSOR, 0, {.pointer = &tensors[0]}},
                                 {KILN_TENSOR, 0, {.pointer = &tensors[1]}}};
    return call(index("main"), values, 2);
}

int main(void)
{
    float x[8], y[4][6];
    for (int i = 0; i < 8; i++)
        x[i] = -1 + 2.0f * (float)i / 7;
    int code = one_main(x, y[0]) | two_main(x, y[1]);
    code |= by_list("one_", x, y[2]) | by_list("two_", x, y[3]);
    code |= kiln_find_system_library("three_") != NULL;
    for (int i = 0; i < 24; i++)
        printf("%.9g ", y[i / 6][i % 6]);
    return code;
}
"""


@pytest.mark.parametrize("suffix", [".a", ".o"])
def test_two_libraries_in_one_program(tmp_path: Path, suffix: str) -> None:
    for prefix, op in (("one_", "tanh"), ("two_", "exp")):
        exe = tk.compile(module(op), system_lib_prefix=prefix)
        exe.export_library(tmp_path / f"{prefix}{suffix}")
        (tmp_path / f"{prefix.rstrip('_')}.h").write_text(exe.header())
    (tmp_path / "program.c").write_text(PROGRAM)
    command = [
        "gcc",
        "-O1",
        "-Wall",
        "-Werror",
        f"-I{CRT}",
        "program.c",
        f"one_{suffix}",
        f"two_{suffix}",
        "-o",
        "program",
        "-lpthread",
        "-ldl",
        "-lm",
    ]
    subprocess.run(command, cwd=tmp_path, check=True)
    done = subprocess.run([tmp_path / "program"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0
    found = np.array(done.stdout.split(), np.float32).reshape(4, 2, 3)
    product = X.astype(np.float64) @ WEIGHTS
    for i, f in enumerate((np.tanh, np.exp, np.tanh, np.exp)):
        assert np.allclose(found[i], f(product), rtol=1e-5)


THREADS = r"""
#include "one.h"
#include "two.h"
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>

static int threads(void)
{
    int count = -2;
    DIR *folder = opendir("/proc/self/task");
    while (readdir(folder) != NULL)
        count++;
    closedir(folder);
    return count;
}

int main(void)
{
    float *x = calloc(512 * 512, sizeof *x), *y = calloc(512 * 512, sizeof *y);
    one_set_num_threads(3);
    two_set_num_threads(4);
    int code = one_main(x, y);
    printf("%d ", threads());
    code |= two_main(x, y) | one_main(x, y);
    printf("%d", threads());
    return code;
}
"""


def test_two_libraries_in_one_program_share_threads(tmp_path: Path) -> None:
    square = 'R.Tensor((512, 512), "float32")'
    text = f"@R.function\ndef main(x: {square}) -> {square}:\n"
    text += f"    y: {square} = R.matmul(x, x)\n    return y\n"
    for prefix in ("one_", "two_"):
        exe = tk.compile(from_source(text), system_lib_prefix=prefix)
        exe.export_library(tmp_path / f"{prefix}.a")
        (tmp_path / f"{prefix.rstrip('_')}.h").write_text(exe.header())
    (tmp_path / "program.c").write_text(THREADS)
    command = [
        "gcc",
        "-O1",
        f"-I{CRT}",
        "program.c",
        "one_.a",
        "two_.a",
        "-o",
        "program",
        "-lpthread",
        "-ldl",
        "-lm",
    ]
    subprocess.run(command, cwd=tmp_path, check=True)
    done = subprocess.run([tmp_path / "program"], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, "3 4")


def test_the_same_bytes_each_time(tmp_path: Path) -> None:
    exe = tk.compile(module("tanh"), system_lib_prefix="net_")
    for suffix in (".a", ".tar", ".so"):
        first = exe.export_library(tmp_path / f"a{suffix}").read_bytes()
        assert exe.export_library(tmp_path / f"b{suffix}").read_bytes() == first


def test_tvm_ffi_finds_a_system_library(tmp_path: Path) -> None:
    """A shared library of somebody's that two of ours are linked into, in a tvm-ffi host."""
    pytest.importorskip("tvm_ffi")
    for prefix, op in (("one_", "tanh"), ("two_", "exp")):
        exe = tk.compile(module(op), system_lib_prefix=prefix)
        exe.export_library(tmp_path / f"{prefix}.a")
    command = [
        "gcc",
        "-shared",
        "-Wl,--whole-archive",
        "one_.a",
        "two_.a",
        "-Wl,--no-whole-archive",
        "-o",
        "both.so",
        "-lpthread",
        "-ldl",
        "-lm",
    ]
    subprocess.run(command, cwd=tmp_path, check=True)
    script = (
        "import ctypes, sys, numpy as np, tvm_ffi\n"
        "ctypes.CDLL(sys.argv[1])\n"
        "x = tvm_ffi.from_dlpack(np.load(sys.argv[2]))\n"
        "y = [np.from_dlpack(tvm_ffi.system_lib(p)['main'](x)) for p in ('one_', 'two_')]\n"
        "np.save(sys.argv[2], np.stack(y))\n"
    )
    np.save(tmp_path / "x.npy", X)
    arguments = [str(tmp_path / "both.so"), str(tmp_path / "x.npy")]
    subprocess.run([sys.executable, "-c", script, *arguments], check=True, timeout=120)
    one, two = np.load(tmp_path / "x.npy")
    product = X.astype(np.float64) @ WEIGHTS
    assert np.allclose(one, np.tanh(product), rtol=1e-5)
    assert np.allclose(two, np.exp(product), rtol=1e-5)


def test_a_tar_holds_the_folder(tmp_path: Path) -> None:
    exe = tk.compile(module("tanh"))
    with tarfile.open(exe.export_library(tmp_path / "net.tar")) as archive:
        unpack(archive, tmp_path / "net")
    assert tk.ArtifactSet.load(tmp_path / "net") == exe.artifacts


@pytest.mark.parametrize(
    ("name", "kind", "says"),
    [
        ("net.dll", UnsupportedError, "no libraries for Windows yet"),
        ("net.dylib", UnsupportedError, "no libraries for macOS yet"),
        ("net.wasm", UnsupportedError, "no libraries for WebAssembly yet"),
        ("net.s", UserError, "expected a name ending in .so, .a, .o or .tar"),
        ("net", UserError, "expected a name ending in .so, .a, .o or .tar"),
    ],
)
def test_suffixes_say_what_to_make(
    tmp_path: Path, name: str, kind: type[Exception], says: str
) -> None:
    exe = tk.compile(module("tanh"))
    with pytest.raises(kind, match=says):
        exe.export_library(tmp_path / name)
    assert not list(tmp_path.iterdir())


def test_prefixes_that_are_none() -> None:
    for prefix in ("", "a-b", "1a"):
        with pytest.raises(UserError, match="symbols cannot begin with it"):
            tk.compile(module("tanh"), system_lib_prefix=prefix)
    exe = tk.compile(module("tanh"))
    with pytest.raises(UserError, match="takes a command or nothing"):
        exe.export_library("net.a", fcompile=lambda output, files, options: None)


# ---- symbols are looked at before the linker does ----------------------------------------------


def external(name: str, text: str) -> tk.external.External:
    return tk.external.External(
        name,
        lambda call, target: call.op == "tanh",
        lambda f, symbol: [
            tk.Artifact(name, "native", f"{symbol}.c", text.format(symbol=symbol).encode())
        ],
    )


def test_a_symbol_that_two_files_of_one_origin_define_names_both(tmp_path: Path) -> None:
    """Files of different ones do not meet: tests/link/test_isolate.py."""

    def emit(f: object, symbol: str) -> list[tk.Artifact]:
        text = f"void {symbol}(void){{}}\nvoid kiln_pack(void){{}}\n"
        more = tk.Artifact("mine", "native", "more.c", b"void kiln_pack(void){}")
        return [tk.Artifact("mine", "native", f"{symbol}.c", text.encode()), more]

    twice = tk.external.External("mine", lambda call, target: call.op == "tanh", emit)
    with pytest.raises(UserError, match="'kiln_pack' is defined by mine/.* and by mine/more.c"):
        tk.compile(module("tanh"), externals=[twice]).export_library(tmp_path / "net.so")
    assert not list(tmp_path.iterdir())


def test_a_symbol_that_nobody_defines_names_who_needs_it(tmp_path: Path) -> None:
    lacking = external("mine", "void lost(void);\nvoid {symbol}(void){{ lost(); }}\n")
    with pytest.raises(
        UserError, match=r"no linked object defines lost \(needed by mine/mine_tanh.c\)"
    ):
        tk.compile(module("tanh"), externals=[lacking]).export_library(tmp_path / "net.so")


@pytest.mark.parametrize("suffix", ["so", "a"])
def test_addons_and_exports_are_looked_at(tmp_path: Path, suffix: str) -> None:
    """Whatever cannot be linked is said in our words, and nothing is written."""
    exe = tk.compile(module("tanh"))
    made = {}
    for name, target in (("here", "x86_64-linux"), ("there", "aarch64-linux")):
        made[name] = tmp_path / f"{name}.o"
        command = [sys.executable, "-m", "ziglang", "cc", "-target", target, "-c", "-x", "c", "-"]
        text = b"int extra(void) { return 1; }"
        subprocess.run([*command, "-fPIC", "-o", str(made[name])], input=text, check=True)
    (tmp_path / "text.o").write_text("no object")
    library = tmp_path / f"net.{suffix}"
    before = sorted(tmp_path.iterdir())
    for addons, exports, says in (
        ([tmp_path / "none.o"], (), "cannot read .*none.o"),
        ([str(tmp_path / "text.o")], (), "not an ELF file"),
        ([made["there"]], (), "for aarch64; an addon is an object file for x86_64"),
        (made["here"], (), "addons are a list"),
        ([made["here"], made["here"].read_bytes()], (), "'extra' is defined by .*here.o and by"),
        ([made["here"]], ["extr"], "exports name 'extr', which no linked"),
    ):
        with pytest.raises(UserError, match=says):
            exe.export_library(library, addons=addons, exports=exports)  # type: ignore[arg-type]
    with pytest.raises(UserError, match="a file has that name"):
        exe.export_library(library, workspace_dir=tmp_path / "text.o")
    assert sorted(tmp_path.iterdir()) == before
    exe.export_library(library, addons=[str(made["here"])], exports=["extra"])


def test_every_call_of_a_library_resolves(tmp_path: Path) -> None:
    """What an exported library asks of the system is in the table of what it may."""
    from tensorkiln.artifact.c_library import SYSTEM_SYMBOLS
    from tensorkiln.artifact.read_binary import read_binary

    path = tk.compile(module("tanh")).export_library(tmp_path / "net.so")
    asked = {s.name for s in read_binary(path).symbols(dynamic=True) if not s.is_defined and s.name}
    assert asked <= SYSTEM_SYMBOLS
