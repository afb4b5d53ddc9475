"""Projects: the one for CMake is built and run; of the others, what can be without their tools."""

from __future__ import annotations

import configparser
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import tensorkiln as tk
from tensorkiln.artifact.mlf.load import open_model_library
from tensorkiln.base.dependency import ExternalDependency
from tensorkiln.base.errors import UnsupportedError, UserError
from tensorkiln.cli import main
from tensorkiln.external.example import C_REFERENCE
from tensorkiln.ir.expr import Var
from tensorkiln.mlf.project import TEMPLATES, new_project
from tests.link.test_isolate import generator
from tests.mlf.build import needs_gcc, needs_gxx, run, unpacked
from tests.mlf.test_programs import AVX2, CASES, linear, numbers
from tests.transform.graphs import graph

needs_cmake = pytest.mark.skipif(
    shutil.which("cmake") is None or shutil.which("make") is None, reason="cmake is not installed"
)
X, U = numbers(1, 3, 14, 14), numbers(2, 8)


@pytest.fixture(scope="module")
def models() -> dict[str, tk.Executable]:
    return {
        "cnn": tk.compile(CASES["cnn"][0], AVX2),
        "flat": tk.compile(graph(linear, x=(2, 8)), AVX2, externals=[C_REFERENCE]),
    }


@pytest.fixture(scope="module")
def archive(models: dict[str, tk.Executable], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tk.export_model_library_format(models, tmp_path_factory.mktemp("mlf") / "both.tar")


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An archive without objects."""
    exe = tk.compile(graph(lambda g, x: g.relu(x), x=(2, 8)), AVX2, externals=[C_REFERENCE])
    path = exe.export_model_library_format(tmp_path_factory.mktemp("mlf") / "relu.tar")
    assert not open_model_library(path).model().objects
    return path


def expected(models: dict[str, tk.Executable]) -> bytes:
    inputs_by_model = {"cnn": X, "flat": U}
    return b"".join(np.asarray(e(inputs_by_model[name])).tobytes() for name, e in models.items())


def built(source: Path, build: Path, *options: str) -> subprocess.CompletedProcess[str]:
    flags = "-DCMAKE_C_FLAGS=-Wall -Wextra -Werror"
    command = ["cmake", "-S", str(source), "-B", str(build), flags, *options]
    process = subprocess.run(command, capture_output=True, text=True, check=False)
    if process.returncode == 0:
        run(["cmake", "--build", build])
    return process


def answer(program: Path, *arrays: np.ndarray) -> bytes:
    data = b"".join(x.tobytes() for x in arrays)
    process = subprocess.run([program], input=data, capture_output=True, check=False)
    assert process.returncode == 0 and b"returned 0 after" in process.stderr, process.stderr
    return process.stdout


@needs_gcc
@needs_cmake
def test_cmake(models: dict[str, tk.Executable], archive: Path, tmp_path: Path) -> None:
    """Two models in one project: the program reads their inputs and writes their outputs."""
    argv = ["new-project", str(archive), "--template", "cmake", "-o", str(tmp_path / "firmware")]
    assert main(argv) == 0 and main(argv) == 0  # again: it is ours
    process = built(tmp_path / "firmware", tmp_path / "build")
    assert process.returncode == 0, process.stderr
    assert answer(tmp_path / "build/firmware", X, U) == expected(models)
    assert tk.load_model_library_format(tmp_path / "firmware/model", "cnn") == (
        models["cnn"].artifacts
    )


@needs_gcc
@needs_cmake
def test_several_pools(tmp_path: Path) -> None:
    """Each has memory of its own, and functions share those of one name."""
    memory = [{"name": "fast", "size": 9000, "align": 8}, {"name": "slow", "align": 16}]
    target = {"kind": "llvm", "mcpu": "haswell", "memory": memory}
    exe = tk.compile(graph(linear, x=(2, 8)), target)
    wide = tk.compile(CASES["cnn"][0], target)
    models = {"flat": exe, "cnn": wide}
    archive = tk.export_model_library_format(models, tmp_path / "two.tar")
    names = [p.name for p in open_model_library(archive).model("cnn").functions["main"].pools]
    assert names == ["fast", "slow"]
    project = new_project(archive, tmp_path / "two")
    assert built(project, tmp_path / "build").returncode == 0
    expected = np.asarray(exe(U)).tobytes() + np.asarray(wide(X)).tobytes()
    assert answer(tmp_path / "build/two", U, X) == expected


@needs_gcc
@needs_cmake
def test_the_archives_own_project(
    models: dict[str, tk.Executable], archive: Path, tmp_path: Path
) -> None:
    shutil.copy(archive, tmp_path / "both.tar")
    process = built(unpacked(tmp_path / "both.tar") / "templates", tmp_path / "build")
    assert process.returncode == 0, process.stderr
    assert answer(tmp_path / "build/run_models", X, U) == expected(models)


@needs_gcc
@needs_cmake
def test_a_dependency_is_asked_for(tmp_path: Path) -> None:
    """By name, version and where to fetch it; a folder, or the caller's word, takes its place."""
    dependency = ExternalDependency("cmsis-nn", 'https://x.y/"$a;b', "git", "5.8.0", "BSD-3-Clause")
    external = replace(C_REFERENCE, dependencies=(dependency,))
    exe = tk.compile(graph(linear, x=(2, 8)), AVX2, externals=[external])
    path = exe.export_model_library_format(tmp_path / "flat.tar")
    project = new_project(path, tmp_path / "project")
    process = built(project, tmp_path / "build")
    message = " ".join(process.stderr.split())
    assert process.returncode != 0 and "the model needs cmsis-nn 5.8.0" in message
    assert 'fetch git https://x.y/"$a;b' in message and "-DCMSIS_NN_DIR=" in message
    (tmp_path / "checkout").mkdir()
    (tmp_path / "checkout/LICENSE").write_text("Apache-2.0")
    for option in (f"-DCMSIS_NN_DIR={tmp_path}/checkout", "-DCMSIS_NN_SYSTEM=ON"):
        shutil.rmtree(tmp_path / "build")
        assert built(project, tmp_path / "build", option).returncode == 0
        assert answer(tmp_path / "build/project", U) == np.asarray(exe(U)).tobytes()
    whole = exe.export_model_library_format(
        tmp_path / "whole.tar", bundle={"cmsis-nn": tmp_path / "checkout"}
    )
    metadata = open_model_library(whole).metadata
    assert metadata is not None
    assert [(row.spdx, row.component) for row in metadata.licenses] == [
        ("Apache-2.0", "Tensorkiln"),
        ("BSD-3-Clause", "cmsis-nn"),
    ]
    shutil.rmtree(tmp_path / "build")
    assert built(new_project(whole, tmp_path / "whole"), tmp_path / "build").returncode == 0


HALVE = ExternalDependency("halve-it", "https://x.y/halve", "git", "1.2", "MIT")
HALVE_C = '#include "halve.h"\nfloat halve(float x) { return x / 2; }\n'
HALVE_CMAKE = "cmake_minimum_required(VERSION 3.13)\nproject(h C)\nadd_library({} halve.c)\n"


def halving(archive: Path, source: Path) -> np.ndarray:
    """Write the archive of a model that calls what `source` has, which is bundled; return what the
    model gives for numbers(2, 8)."""
    text = """#include <stdint.h>
float halve(float);
void SYMBOL(const float *x, float *y)
{
    for (int i = 0; i < 16; i++)
        y[i] = halve(x[i]);
}
"""
    halver = generator("halver", "tanh", text)
    external = tk.external.External("halver", halver.supports, halver.emit, dependencies=(HALVE,))
    exe = tk.compile(graph(lambda g, x: g.tanh(x), x=(2, 8)), AVX2, externals=[external])
    exe.export_model_library_format(archive, bundle={"halve-it": source})
    return U / 2


def sources_of_halve(folder: Path, place: str, cmake: str = "") -> Path:
    (folder / place).mkdir(parents=True)
    (folder / "include").mkdir()
    (folder / "include/halve.h").write_text("float halve(float x);\n")
    (folder / place / "halve.c").write_text(HALVE_C)
    if cmake:
        text = HALVE_CMAKE.format(cmake) + f"target_include_directories({cmake} PUBLIC include)\n"
        (folder / "CMakeLists.txt").write_text(text)
    return folder


@needs_gcc
@needs_cmake
@pytest.mark.parametrize(
    ("place", "cmake", "option"),
    [
        ("", "", ""),
        ("src/inner", "", ""),
        ("", "halve-it", ""),
        ("", "halve_it", ""),
        ("", "other", "-DHALVE_IT_LIBRARY=other"),
    ],
)
def test_bundled_sources_are_built(place: str, cmake: str, option: str, tmp_path: Path) -> None:
    source = sources_of_halve(tmp_path / "halve", place, cmake)
    expected = halving(tmp_path / "net.tar", source)
    project = new_project(tmp_path / "net.tar", tmp_path / "project")
    if option:
        process = built(project, tmp_path / "build")
        message = " ".join(process.stderr.split())
        assert (
            process.returncode != 0
            and "-DHALVE_IT_LIBRARY=" in message
            and "halve-it 1.2" in message
        )
    process = built(project, tmp_path / "build", *filter(None, [option]))
    assert process.returncode == 0, process.stderr
    assert answer(tmp_path / "build/project", U) == expected.tobytes()


@needs_gcc
def test_platformio_names_dependencies(tmp_path: Path) -> None:
    """One whose source is there is built; another is named where lib_deps would be."""
    expected = halving(tmp_path / "net.tar", sources_of_halve(tmp_path / "halve", "src"))
    project = new_project(tmp_path / "net.tar", tmp_path / "pio", "platformio")
    text = (project / "platformio.ini").read_text()
    assert (
        "; The model needs 'halve-it' 1.2 (MIT) from https://x.y/halve, which is in model/" in text
    )
    program = tmp_path / "program"
    run(["gcc", "-Werror", *gcc_arguments(project), "-lm", "-o", program])
    assert answer(program, U) == expected.tobytes()
    dependency = replace(HALVE, short_name="second", url="https://x.y/b")
    bare = replace(C_REFERENCE, dependencies=(replace(HALVE, version_spec="2"), dependency))
    exe = tk.compile(graph(lambda g, x: g.relu(x), x=(2, 8)), AVX2, externals=[bare])
    exe.export_model_library_format(tmp_path / "relu.tar")
    for template, file in (("platformio", "platformio.ini"), ("arduino", "library.properties")):
        project_folder = new_project(tmp_path / "relu.tar", tmp_path / template, template)
        text = (project_folder / file).read_text()
        assert "needs 'halve-it' 2 (MIT) from https://x.y/halve" in text and "'second' 1.2" in text


def gcc_arguments(project: Path) -> list[Path | str]:
    """The files and flags that PlatformIO would give to gcc."""
    ini = configparser.ConfigParser()
    ini.read(project / "platformio.ini")
    flags = [
        str(project / f) if f.startswith("model/") else f.replace("-I", f"-I{project}/")
        for f in ini["env"]["build_flags"].split()
    ]
    patterns = ini["env"]["build_src_filter"].split()
    assert all(row.startswith("+<") for row in patterns)
    source_files = [p for row in patterns for p in sorted((project / "src").glob(row[2:-1]))]
    return [*dict.fromkeys(p.resolve() for p in source_files), *flags]


@needs_gcc
def test_platformio(models: dict[str, tk.Executable], archive: Path, tmp_path: Path) -> None:
    """What its file names, given to gcc as PlatformIO would."""
    project = new_project(archive, tmp_path / "pio", "platformio")
    arguments = gcc_arguments(project)
    run(["gcc", "-Werror", *arguments, "-lm", "-o", tmp_path / "program"])
    assert answer(tmp_path / "program", X, U) == expected(models)


KERNEL_H = """
#include <stdint.h>
#define ARG_UNUSED(x) (void)(x)
uint32_t k_cycle_get_32(void);
"""


@needs_gcc
def test_zephyr(archive: Path, tmp_path: Path) -> None:
    """Its C against headers with what of Zephyr it uses, and its settings."""
    project = new_project(archive, tmp_path / "app", "zephyr")
    (tmp_path / "zephyr/sys").mkdir(parents=True)
    (tmp_path / "zephyr/kernel.h").write_text(KERNEL_H)
    (tmp_path / "zephyr/sys/printk.h").write_text("void printk(const char *format, ...);\n")
    include = [f"-I{tmp_path}", f"-I{project}/model/codegen/host/include"]
    flags = ["-std=c99", "-Wall", "-Wextra", "-Werror", "-fsyntax-only"]
    for file in ("main.c", "platform.c"):
        run(["gcc", *flags, *include, project / "src" / file])
    cmake, settings = (project / "CMakeLists.txt").read_text(), (project / "prj.conf").read_text()
    library = open_model_library(archive)
    for model in library.models().values():
        for path in (*model.sources, *model.objects):
            assert f'"${{MODEL_DIR}}/{path}"' in cmake and (project / "model" / path).is_file()
    assert "@" not in cmake + settings and "CONFIG_MAIN_STACK_SIZE=" in settings
    assert "HEAP" not in settings


ARDUINO_H = """
#include <stddef.h>
#include <stdint.h>
#define HEX 16
struct Port {
    void begin(long) {}
    template <class T> void print(T) {}
    template <class T> void print(T, int) {}
    template <class T> void println(T) {}
    void println() {}
};
__attribute__((unused)) static Port Serial;
inline unsigned long micros() { return 0; }
inline void delay(unsigned long) {}
"""


@needs_gcc
@needs_gxx
def test_arduino(sources: Path, archive: Path, tmp_path: Path) -> None:
    """A library of sources, which its sketch uses; objects are refused."""
    project = new_project(sources, tmp_path / "relu", "arduino")
    (tmp_path / "stub").mkdir()
    (tmp_path / "stub/Arduino.h").write_text(ARDUINO_H)
    include = [f"-I{project}/src", f"-I{tmp_path}/stub"]
    for file in sorted((project / "src").glob("*.c")):
        object_path = tmp_path / f"{file.stem}.o"
        run(
            [
                "gcc",
                "-std=gnu11",
                "-Wall",
                "-Wextra",
                "-Werror",
                *include,
                "-c",
                file,
                "-o",
                object_path,
            ]
        )
    sketch = (project / "examples/run/run.ino").read_text()
    (tmp_path / "main.cpp").write_text(
        f"#include <Arduino.h>\n{sketch}\nint main() {{ setup(); loop(); }}\n"
    )
    parts = [tmp_path / "main.cpp", project / "src/platform.cpp", *sorted(tmp_path.glob("*.o"))]
    run(["g++", "-Wall", "-Wextra", "-Werror", *include, *parts, "-lm", "-o", tmp_path / "program"])
    run([tmp_path / "program"])
    rows = dict(r.split("=", 1) for r in (project / "library.properties").read_text().splitlines())
    assert rows["name"] == "relu" and rows["includes"] == "kiln_relu.h"
    with pytest.raises(UnsupportedError, match="cnn, flat: kernels are objects"):
        new_project(archive, tmp_path / "both", "arduino")
    assert not (tmp_path / "both").exists()


def test_what_is_refused(archive: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no template 'cmkae'") as caught:
        new_project(archive, tmp_path / "p", "cmkae")
    assert caught.value.code == "unknown-template" and "'cmake'" in caught.value.hint
    exe = tk.compile(graph(linear, x=(Var("n"), 8)))
    symbolic = exe.export_model_library_format(tmp_path / "any.tar")
    for template in TEMPLATES:
        with pytest.raises(UnsupportedError) as wrong:
            new_project(symbolic, tmp_path / "p", template)
        assert "symbolic sizes, n" in wrong.value.message or "objects" in wrong.value.message
    assert not any(n.endswith("main.c") for n in open_model_library(symbolic).files)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/thesis.txt").write_text("dear")
    with pytest.raises(UserError, match="thesis.txt"):
        new_project(archive, tmp_path / "mine")
    assert not (tmp_path / "p").exists()
