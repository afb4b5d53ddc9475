"""Symbols of code generators: every kind of symbol, every pair of owners, every form of output.

Two externals each define a helper of every kind under the same name; the kernel of the first
multiplies element i by what helper i gives, 2, that of the second by 100. One name that binds to
another owner's symbol is an element that is not 200.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

import tensorkiln as tk
from tensorkiln.base.errors import UnsupportedError, UserError
from tensorkiln.link.isolate import isolate
from tensorkiln.script import from_source

# name -> (what defines it, an expression that gives the owner's number). Flags are C_FLAGS, hence
# -fno-builtin: a function called like one of the C library is only that.
KINDS = {
    "strong": ("int both(void) { return NUMBER; }", "both()"),
    "weak": ("__attribute__((weak)) int feeble(void) { return NUMBER; }", "feeble()"),
    "hidden": (
        '__attribute__((visibility("hidden"))) int hidden(void) { return NUMBER; }',
        "hidden()",
    ),
    "shown": (
        '__attribute__((visibility("default"))) int shown(void) { return NUMBER; }',
        "shown()",
    ),
    "local": ("static int local(void) { return NUMBER; }", "local()"),
    "data": ("int data = NUMBER;", "data"),
    "weak data": ("__attribute__((weak)) int weak_data = NUMBER;", "weak_data"),
    # Set once, so that a variable of both gives the other's number in the second run.
    "common": (
        "__attribute__((common)) int common;\n"
        "static int commonly(void) { static int set;\n"
        "    if (!set) { set = 1; common = NUMBER; } return common; }",
        "commonly()",
    ),
    "thread": ("__thread int thread = NUMBER;", "thread"),
    "alias": (
        "static int aliased(void) { return NUMBER; }\n"
        'int alias(void) __attribute__((weak, alias("aliased")));',
        "alias()",
    ),
    "pointer": (
        "int pointed(void) { return NUMBER; }\nint (*const pointer)(void) = pointed;",
        "pointer()",
    ),
    "libc": ("int abs(int x) { return x + NUMBER; }", "abs(0)"),
    "weak libc": (
        "__attribute__((weak)) int atoi(const char *s) { return *s + NUMBER; }",
        'atoi("")',
    ),
    "malloc": (
        "void *malloc(unsigned long n) { return (void *)(n - 1); }",
        "(malloc(1) ? -1 : NUMBER)",
    ),
    "memory": (
        "void *memcpy(void *a, const void *b, unsigned long n) "
        "{ return (void *)(b == a ? n : 0); }",
        "(memcpy(0, 0, NUMBER) == (void *)NUMBER ? NUMBER : -1)",
    ),
    "libm": ("float sqrtf(float x) { return x + NUMBER; }", "(int)sqrtf(0)"),
    "threads": ("int pthread_self(void) { return NUMBER; }", "pthread_self()"),
    "runtime": ("int kiln_parallel_for(void) { return NUMBER; }", "kiln_parallel_for()"),
    "weak runtime": ("__attribute__((weak)) int kiln_call(void) { return NUMBER; }", "kiln_call()"),
    "state": ("int kiln_this_library = NUMBER;", "kiln_this_library"),
    "compiler": ("int __divti3(void) { return NUMBER; }", "__divti3()"),
    "entry": ("int model_main(void) { return NUMBER; }", "model_main()"),
    "tvm-ffi": ("int __tvm_ffi_main(void) { return NUMBER; }", "__tvm_ffi_main()"),
    "our kernel": ("int sigmoid(void) { return NUMBER; }", "sigmoid()"),
    "weak reference": (
        "extern __attribute__((weak)) int nowhere(void);",
        "(nowhere ? -1 : NUMBER)",
    ),
}
# Defined by the first only, where the second means somebody else's.
FIRST_ONLY = "long labs(long x) { return x * 2; }\nint nobodys(void) { return 0; }\n"
SECOND_ONLY = (
    "long labs(long);\nextern int nobodys(void) __attribute__((weak));\n"
    "#define MORE ((NOBODYS ? -1 : 1) * (float)labs(-100))\n"
)
IFUNC = (
    "static int chosen(void) { return NUMBER; }\n"
    "static int (*choose(void))(void) { return chosen; }\n"
    'int choice(void) __attribute__((ifunc("choose")));'
)
CXX = """
template <int N> struct Held { static int value; };
template <int N> int Held<N>::value = NUMBER;
template <int N> __attribute__((noinline)) int counted() { static int n = N; return n; }
inline __attribute__((noinline)) int twice(int x) { return 2 * x; }
struct Made { int n; __attribute__((noinline)) Made(int); };
__attribute__((weak, noinline)) Made::Made(int x) : n(x + NUMBER) {}
extern "C" int from_cxx() {
    return Held<1>::value + counted<3>() - 3 + Made(0).n + twice(NUMBER) - 3 * NUMBER; }
"""


def code(symbol: str, number: int, kinds: dict[str, tuple[str, str]], more: str) -> str:
    """C of a kernel that multiplies each element by what a helper of its kind gives."""
    lines = [f"#define NUMBER {number}", "#define MORE 2", *(text for text, _ in kinds.values())]
    lines += ["#undef MORE" if "MORE" in more else "", more]
    cases = "".join(
        f"    y[{i}] = x[{i}] * (float)({e});\n" for i, (_, e) in enumerate(kinds.values())
    )
    n = len(kinds)
    return "\n".join(
        [
            *lines,
            f"void {symbol}(const float *x, float *y) {{",
            cases,
            f"    y[{n}] = x[{n}] * (float)(MORE);",
            "}",
        ]
    )


def generator(
    name: str, op: str, text: str, objects: Sequence[tuple[str, bytes]] = ()
) -> tk.external.External:
    """An external for one operator; `SYMBOL` in its C is the kernel's."""
    return tk.external.External(
        name,
        lambda call, target: call.op == op,
        lambda f, symbol: [
            tk.Artifact(name, "native", f"{symbol}.c", text.replace("SYMBOL", symbol).encode()),
            *(tk.Artifact(name, "native", n, data) for n, data in objects),
        ],
    )


def module(length: int) -> tk.IRModule:
    kind = f'R.Tensor(({length},), "float32")'
    return from_source(
        f"""
@R.function
def main(x: {kind}) -> {kind}:
    a: {kind} = R.tanh(x)
    b: {kind} = R.exp(a)
    c: {kind} = R.sigmoid(b)
    d: {kind} = R.sqrt(x)
    return R.tuple(b, c, d)
""".replace(f"-> {kind}", f"-> R.Tuple({kind}, {kind}, {kind})")
    )


def compiled(
    kinds: dict[str, tuple[str, str]], target: str | None = None, cxx: bool = False
) -> tk.Executable:
    nobodys = "0" if target else "nobodys"  # a reference that nobody satisfies
    made = []
    for name, op, number, more in (
        ("first", "tanh", 2, FIRST_ONLY),
        ("second", "exp", 100, SECOND_ONLY.replace("NOBODYS", nobodys)),
    ):
        objects = [("cxx.o", object_of(CXX.replace("NUMBER", str(number)), "c++"))] if cxx else []
        made.append(generator(name, op, code("SYMBOL", number, kinds, more), objects))
    return tk.compile(module(len(kinds) + 1), target, externals=made, name="model")


def object_of(text: str, language: str = "c", *flags: str) -> bytes:
    driver = "c++" if language == "c++" else "cc"
    # A file of its own: a compiler run by root may put a file in the place of /dev/stdout.
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "object.o")
        command = [
            sys.executable,
            "-m",
            "ziglang",
            driver,
            "-target",
            "x86_64-linux-gnu.2.17",
            "-c",
            "-x",
            language,
            "-",
            "-o",
            str(path),
            "-fPIC",
            "-fno-exceptions",
            "-fno-rtti",
            "-fno-sanitize=undefined",
            "-fno-builtin",
            "-O1",
            *flags,
        ]
        subprocess.run(command, input=text.encode(), check=True, capture_output=True)
        return path.read_bytes()


def check(module: tk.runtime.Module, kinds: dict[str, tuple[str, str]]) -> None:
    x = np.linspace(0.25, 1, len(kinds) + 1, dtype=np.float32)
    run = tk.runtime.Executor(module, tk.cpu())["main"]
    for _ in range(2):
        b, c, d = (y.numpy() for y in run(x))
        wrong = {
            kind: float(v)
            for kind, v in zip([*kinds, "only"], b / x, strict=True)
            if round(float(v)) != 200
        }
        assert not wrong
        np.testing.assert_allclose(c, 1 / (1 + np.exp(-b.astype(np.float64))), rtol=1e-5)
        np.testing.assert_allclose(d, np.sqrt(x), rtol=1e-6)


WITH_IFUNC = {**KINDS, "ifunc": (IFUNC, "choice()")}
WITH_CXX = {**WITH_IFUNC, "c++": ("int from_cxx(void);", "from_cxx()")}
PROGRAM = """
#include "model.h"
#include <stdio.h>
int main(void)
{
    float x[N], y[3][N];
    for (int i = 0; i < N; i++)
        x[i] = 1;
    for (int k = 0; k < 2; k++)
        if (model_main(x, y[0], y[1], y[2]) != 0)
            return puts(model_last_error());
    for (int i = 0; i < N; i++)
        printf("%g ", (double)y[0][i]);
    return 0;
}
"""


@pytest.mark.parametrize("form", ["so", "gcc", "jit", "a", "o"])
def test_helpers_of_one_name_are_each_their_owners(form: str, tmp_path: Path) -> None:
    exe = compiled(WITH_CXX, cxx=True)
    if form in ("so", "gcc"):
        fcompile = "gcc" if form == "gcc" else None
        path = exe.export_library(tmp_path / "net.so", fcompile=fcompile)
        check(tk.runtime.load_module(path), WITH_CXX)
    elif form == "jit":
        check(exe.jit(), WITH_CXX)
    else:
        exe.export_library(tmp_path / f"net.{form}")
        (tmp_path / "model.h").write_text(exe.header())
        (tmp_path / "main.c").write_text(
            PROGRAM.replace("N]", f"{len(WITH_CXX) + 1}]").replace("< N", f"< {len(WITH_CXX) + 1}")
        )
        command = ["gcc", "main.c", f"net.{form}", "-o", "run", "-lpthread", "-ldl", "-lm"]
        subprocess.run(command, cwd=tmp_path, check=True)
        said = subprocess.run(["./run"], cwd=tmp_path, check=True, capture_output=True, text=True)
        assert set(said.stdout.split()) == {"200"}, said.stdout


def test_in_memory() -> None:
    """But for weak references, which LLVM's linker for memory does not leave open."""
    kinds = {k: v for k, v in KINDS.items() if k != "weak reference"}
    check(compiled(kinds, "llvmjit").jit(), kinds)
    with pytest.raises(UnsupportedError, match="llvmjit finds no nowhere"):
        compiled({"weak reference": KINDS["weak reference"]}, "llvmjit").jit()


def test_names_that_are_in_nobodys_way_stay() -> None:
    objects = [
        ("host/entry.c", object_of("void k(void); void e(void) { k(); }")),
        ("mine/k.c", object_of("void k(void) {} void mine(void) {} int abs(int x) { return x; }")),
        ("other/k.c", object_of("int theirs = 1;")),
    ]
    first, second, third = isolate(objects)
    assert first is objects[0][1] and third is objects[2][1]
    assert b"kiln_of_1_mine_abs\0" in second and b"_mine_k\0" not in second
    assert b"_mine_mine\0" not in second


KERNEL = """
@T.prim_func
def main(x: T.Buffer((4,), "float32"), y: T.Buffer((4,), "float32")):
    for i in range(4):
        y[i] = T.call_extern("float32", "{name}", x[i])
"""
ADDON = "float {name}(float x) {{ return 3 * x; }}"


def test_kernels_call_addons(tmp_path: Path) -> None:
    """Whatever else the addons define, and where an external has a function of the same name."""
    text = ADDON.format(name="own") + "void *malloc(unsigned long n) { return (void *)(n * 0); }"
    exe = tk.compile(from_source(KERNEL.format(name="own").replace("main", "program")))
    path = exe.export_library(tmp_path / "net.so", addons=[object_of(text)])
    x, y = np.ones(4, np.float32), np.zeros(4, np.float32)
    tk.runtime.load_module(path)["program"](x, y)
    assert (y == 3).all()


def refused(
    folder: Path, addons: Sequence[str] = (), name: str = "own", **options: object
) -> UserError:
    exe = tk.compile(from_source(KERNEL.format(name=name).replace("main", "program")))
    with pytest.raises(UserError) as caught:
        exe.export_library(folder / "net.so", addons=[object_of(t) for t in addons], **options)  # type: ignore[arg-type]
    assert not list(folder.iterdir())
    return caught.value


def test_what_could_mean_two_things_is_refused(tmp_path: Path) -> None:
    """With the names of both owners."""
    own = ADDON.format(name="own")
    error = refused(tmp_path, [ADDON.format(name="sqrtf")], "sqrtf")
    assert error.code == "symbol-clash"
    assert "'sqrtf', which llvm/program.o needs, is defined by the C library and by addon 0" in str(
        error
    )
    error = refused(tmp_path, [own, own])
    assert "'own' is defined by addon 0 and by addon 1" in str(error)
    error = refused(
        tmp_path, [own, "void *malloc(unsigned long n) { return 0; }"], exports=["malloc"]
    )
    assert "'malloc' of addon 1 is to be exported, but the runtime needs another" in str(error)
    error = refused(tmp_path, [own, "int program(void) { return 1; }"], exports=["program"])
    assert "'program', to be exported, is defined by llvm/program.o and by addon 1" in str(error)


KERNELS_OF = """
@R.function
def main(x: R.Tensor((4,), "float32")) -> R.Tensor((4,), "float32"):
    a: R.Tensor((4,), "float32") = R.tanh(x)
    b: R.Tensor((4,), "float32") = R.exp(a)
    return b
"""


@pytest.mark.parametrize("target", [None, "llvmjit"])
def test_kernels_of_one_name(target: str | None) -> None:
    plain = "void SYMBOL(const float *x, float *y) { *y = *x; }\n"
    thief = plain + "__attribute__((weak)) void second_exp(void) {}\n"
    externals = [generator("first", "tanh", thief), generator("second", "exp", plain)]
    with pytest.raises(UserError) as caught:
        tk.compile(from_source(KERNELS_OF), target, externals=externals).jit()
    assert caught.value.code == "symbol-clash"
    assert "'second_exp', which host/entry.c needs, is defined by first/first_tanh.c and by" in str(
        caught.value
    )


def test_parts_of_an_external_find_each_other() -> None:
    """Of different code generators, too, unless two have what a third one needs, or it is weak."""
    giver = "int given = 3;\nvoid SYMBOL(const float *x, float *y) { *y = *x; }\n"
    taker = "extern int given;\nvoid SYMBOL(const float *x, float *y) { *y = given; }\n"
    rest = "void SYMBOL(const float *x, float *y) { *y = *x; }\n"
    module = from_source(
        KERNELS_OF.replace(
            "return b",
            """c: R.Tensor((4,), "float32") = R.sin(b)
    return c""",
        )
    )

    def run(*texts: str) -> float:
        parts = zip(("first", "second", "third"), ("exp", "sin", "tanh"), texts, strict=True)
        exe = tk.compile(module, externals=[generator(*part) for part in parts])
        found = tk.runtime.Executor(exe, tk.cpu())["main"](np.ones(4, np.float32))
        return float(found.numpy()[0])

    assert run(giver, taker, rest) == 3
    with pytest.raises(
        UserError,
        match=r"'given', which second/second_sin.c needs, is defined by "
        "third/third_tanh.c and by first/first_exp.c",
    ):
        run(giver, taker, giver)
    with pytest.raises(UserError, match=r"defines given \(needed by second/second_sin.c") as caught:
        run("__attribute__((weak)) " + giver, taker, rest)
    assert caught.value.hint == "the symbol of first/first_exp.c is hidden"
