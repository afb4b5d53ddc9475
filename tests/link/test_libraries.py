"""Arguments of a link: libraries, folders, addons, compilers. Each form works, or is refused by
name with a hint."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import tensorkiln as tk
from tensorkiln.base.dependency import ExternalDependency
from tensorkiln.base.errors import TensorkilnError, UnsupportedError, UserError
from tensorkiln.external import External
from tensorkiln.script import T, from_source
from tests.hosts.build import require
from tests.link.test_isolate import generator, object_of

MODULE = from_source("""
@R.function
def main(x: R.Tensor((4,), "float32")) -> R.Tensor((4,), "float32"):
    a: R.Tensor((4,), "float32") = R.tanh(x)
    return a
""")
HALVES = "float halve(float x);\nvoid SYMBOL(const float *x, float *y) { *y = halve(*x); }\n"


def executable(*libraries: str, text: str = HALVES, target: str | None = None) -> tk.Executable:
    external = generator("halver", "tanh", text)
    external = tk.external.External("halver", external.supports, external.emit, libraries=libraries)
    return tk.compile(MODULE, target, externals=[external])


def first(module: tk.runtime.Module) -> float:
    return float(
        tk.runtime.Executor(module, tk.cpu())["main"](np.full(4, 5, np.float32)).numpy()[0]
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`libhalve.so`, and the same as an archive in `archived`."""
    folder = tmp_path_factory.mktemp("libraries")
    (folder / "halve.c").write_text("float halve(float x) { return x / 2; }\n")
    command = [require("gcc"), "-shared", "-fPIC", "halve.c", "-o", "libhalve.so"]
    subprocess.run([*command, f"-Wl,-soname,{folder}/libhalve.so"], cwd=folder, check=True)
    (folder / "archived").mkdir()
    subprocess.run(["gcc", "-c", "-fPIC", "halve.c"], cwd=folder, check=True)
    subprocess.run(["ar", "rc", "archived/libhalve.a", "halve.o"], cwd=folder, check=True)
    (folder / "text.so").write_text("GROUP ( libhalve.so )")
    return folder


def test_every_form_of_a_library(folder: Path) -> None:
    for libraries in (
        (f"{folder}/libhalve.so",),
        (f"{folder}/archived/libhalve.a",),
        (f"-L{folder}", "-lhalve"),
        ("-lhalve", f"-L{folder}/archived"),
        ("-l:libhalve.so", f"-L{folder}"),
        (f"-L{folder}/archived", f"-L{folder}", "-lhalve", "-lhalve", "-lm", "-lc"),
        (f"{folder}/libhalve.so", f"-Wl,-rpath,{folder}"),
        ("-Wl,--whole-archive", f"{folder}/archived/libhalve.a", "-Wl,--no-whole-archive"),
    ):
        assert first(executable(*libraries).jit()) == 2.5, libraries


@pytest.mark.parametrize("fcompile", [None, "gcc"])
def test_the_c_library_may_be_named(fcompile: str | None, tmp_path: Path) -> None:
    roots = "float sqrtf(float);\nvoid SYMBOL(const float *x, float *y) { *y = sqrtf(*x + 4); }\n"
    exe = executable("-lm", "-lc", "-ldl", "-lpthread", text=roots)
    path = exe.export_library(tmp_path / "net.so", fcompile=fcompile)
    assert first(tk.runtime.load_module(path)) == 3
    exe.export_library(tmp_path / "net.a", fcompile=fcompile)
    if fcompile is None:
        memory = executable("-lm", text=roots, target="llvmjit")
        assert first(memory.jit()) == 3


def test_libraries_that_are_not_there(folder: Path) -> None:
    for libraries, code, says in (
        (("-lhalve",), "missing-library", "no libhalve.so or libhalve.a (no -L folder)"),
        (("-lnone", f"-L{folder}"), "missing-library", f"no libnone.so or libnone.a (in {folder})"),
        (("-l:halve.so", f"-L{folder}"), "missing-library", "no halve.so"),
        ((f"{folder}/libnone.so",), "missing-library", "there is no library"),
        ((f"{folder}",), "missing-library", "there is no library"),
        (("-lm",), "undefined-symbol", "defines halve (needed by halver/halver_tanh.c)"),
        ((f"{folder}/halve.c",), "link-failed", "halve.c"),
    ):
        with pytest.raises(UserError) as caught:
            executable(*libraries).jit()
        assert caught.value.code == code and says in str(caught.value), libraries
    with pytest.raises(UnsupportedError, match="llvmjit links no libraries"):
        executable(f"{folder}/libhalve.so", target="llvmjit").jit()


def test_a_missing_function_names_its_dependency() -> None:
    """Those of the external whose code calls it, and of `call_extern(dependencies=)`."""
    halve = ExternalDependency("halve", "https://example.org/halve.tar.gz", "url", "1.2", "MIT")
    tool = replace(halve, short_name="generator", build_time=True)
    made = generator("halver", "tanh", HALVES)
    external = External("halver", made.supports, made.emit, dependencies=(halve, tool))
    with pytest.raises(UserError, match="defines halve") as caught:
        tk.compile(MODULE, externals=[external]).jit()
    assert caught.value.code == "undefined-symbol" and "generator" not in caught.value.hint
    assert caught.value.hint.startswith(f"it comes with dependency {halve}")

    @T.prim_func
    def program(x: T.Buffer((1,), "float32"), y: T.Buffer((1,), "float32")) -> None:
        y[0] = T.call_extern("float32", "halve", x[0], dependencies=[halve])

    with pytest.raises(UserError, match="undefined C function: program calls halve") as caught:
        tk.compile(program).jit()
    assert caught.value.hint.startswith(f"it comes with dependency {halve}; C functions")


@pytest.mark.parametrize(
    ("option", "wrong", "says"),
    [
        ("addons", "one.o", "addons are a list"),
        ("addons", Path("one.o"), "addons are a list"),
        ("addons", b"\x7fELF", "addons are a list"),
        ("addons", 5, "addons are a list"),
        ("addons", [5], "an addon is a path or bytes"),
        ("addons", [None], "an addon is a path or bytes"),
        ("addons", ["none.o"], "cannot read 'none.o'"),
        ("addons", ["-lm"], "cannot read '-lm'"),
        ("addons", [b""], "not an ELF file"),
        ("addons", [np.zeros(4)], "an addon is a path or bytes"),
        ("exports", "main", "exports are a list"),
        ("exports", 5, "exports are a list"),
        ("exports", [5], "an export is the name of a symbol"),
        ("exports", [""], "an export is the name of a symbol"),
        ("exports", ["a;b"], "an export is the name of a symbol"),
        ("exports", ["*"], "an export is the name of a symbol"),
        ("exports", ["mai"], "exports name 'mai', which no linked object defines"),
        ("fcompile", "no-such-compiler", "no such compiler or linker"),
        ("fcompile", 5, "fcompile is a command or a function"),
        ("fcompile", ["gcc"], "fcompile is a command or a function"),
        ("fcompile", "gcc 'open", "fcompile .gcc .*: No closing quotation"),
        ("fcompile", " ", "fcompile ' ' names no program"),
        ("workspace_dir", 5, "5 is int, expected a path"),
        ("weights", "besides", "did you mean 'beside'"),
        ("weights", 5, "weights=5"),
        ("weights", None, "weights=None"),
        ("file_name", 5, "5 is int, expected a path"),
        ("file_name", None, "None is NoneType, expected a path"),
        ("file_name", "", "it is empty"),
        ("file_name", "x\0.so", "it holds a zero byte"),
        ("file_name", "no/such/net.so", "no/such"),
        ("file_name", "no/such/net.tar", "no/such"),
        ("file_name", "no/such/net.a", "no/such"),
    ],
)
@pytest.mark.parametrize("suffix", ["so", "a"])
def test_other_arguments(
    option: str,
    wrong: object,
    says: str,
    suffix: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    exe = tk.compile(MODULE)
    if option == "weights" and suffix == "a":
        says = "weights"
    arguments = {"file_name": tmp_path / f"net.{suffix}", option: wrong}
    with pytest.raises(TensorkilnError, match=says) as caught:
        exe.export_library(**arguments)  # type: ignore[arg-type]
    assert isinstance(caught.value, UserError)
    assert not list(tmp_path.iterdir())


def test_addons_twice(tmp_path: Path) -> None:
    """One file given twice defines everything twice, and a symbol to export may be named twice."""
    addon = object_of("int extra(void) { return 1; }")
    exe = tk.compile(MODULE)
    with pytest.raises(UserError, match="'extra' is defined by addon 0 and by addon 1"):
        exe.export_library(tmp_path / "net.so", addons=[addon, addon])
    path = exe.export_library(tmp_path / "net.so", addons=[addon], exports=["extra", "extra"])
    tk.runtime.load_module(path).close()
