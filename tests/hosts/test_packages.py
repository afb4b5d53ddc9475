"""What build systems find the headers by: CMake's package, pkg-config's, and the crate of Rust."""

from __future__ import annotations

import os
import shutil
import subprocess
import tarfile
import tomllib
from pathlib import Path

import numpy as np
import pytest

import tensorkiln as tk
from tensorkiln.base.version import VERSION
from tensorkiln.cli import main
from tensorkiln.link.headers import write_headers
from tests.hosts.build import build, require, run, rust_program
from tests.transform.graphs import graph

NETWORK = graph(lambda g, x: g.emit("exp", x), x=(3,))

PROGRAM = """
#include "double_net.h"
#include <math.h>
#include <stdio.h>
int main(void)
{
    float x[3] = {0, 1, 2}, y[3];
    int code = double_net_main(x, y);
    printf("%d %.3f %.3f %.3f\\n", code, y[0], y[1], y[2]);
    return code;
}
"""
OPENING = {
    "c": """
#include "kiln_host.h"
#include <stdio.h>
int main(int argc, char **argv)
{
    kiln_host_library *library = NULL;
    kiln_host_error error;
    int code = kiln_host_open(argv[argc - 1], &library, &error);
    printf("%d %s\\n", code, code ? error.sentence : "");
    kiln_host_close(library);
    return 0;
}
""",
    "cpp": """
#include "kiln.hpp"
#include <cstdio>
int main(int argc, char **argv)
try {
    const kiln::Library library(argv[argc - 1]);
    std::puts("0 ");
} catch (const kiln::Error &error) {
    std::printf("%d %s\\n", error.code(), error.what());
}
""",
}
LISTS = """
cmake_minimum_required(VERSION 3.12)
project(programs C CXX)
set(CMAKE_CXX_STANDARD 17)
find_package(tensorkiln @VERSION@ REQUIRED CONFIG)
foreach(kind a o so)
  tensorkiln_add_library(model_${kind} ../double_net.${kind} @HEADER@)
  add_executable(with_${kind} program.c)
  target_link_libraries(with_${kind} PRIVATE model_${kind})
endforeach()
foreach(language c cpp)
  add_executable(opens_${language} opening.${language})
  target_link_libraries(opens_${language} PRIVATE tensorkiln::host)
endforeach()
"""


@pytest.fixture(scope="module")
def headers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of headers; beside it the model in every form, and a project of programs."""
    folder = tmp_path_factory.mktemp("packages of a name with blanks")
    exe = tk.compile(NETWORK, "native", name="double_net")
    for suffix in ("a", "o", "so"):
        exe.export_library(folder / f"double_net.{suffix}")
    write_headers(folder / "include", {"double_net.h": exe.header()})
    (folder / "programs").mkdir()
    (folder / "programs" / "program.c").write_text(PROGRAM)
    for language, text in OPENING.items():
        (folder / "programs" / f"opening.{language}").write_text(text)
    return folder / "include"


def configured(
    headers: Path, build: Path, version: str = "", header: str = "", commands: str = ""
) -> subprocess.CompletedProcess[str]:
    text = LISTS.replace("@VERSION@", version).replace("@HEADER@", header) + commands
    (headers.parent / "programs" / "CMakeLists.txt").write_text(text)
    command = [require("cmake"), "-S", headers.parent / "programs", "-B", build]
    command.append(f"-Dtensorkiln_DIR={headers}")
    return subprocess.run(command, capture_output=True, text=True, check=False)


def output(*command: str | Path, **environment: str) -> str:
    process = subprocess.run(
        command, capture_output=True, text=True, check=True, env={**os.environ, **environment}
    )
    return process.stdout


EXPONENTIALS = " ".join(f"{v:.3f}" for v in np.exp(np.arange(3)))


@pytest.mark.parametrize("version", ["", VERSION, "0.0.1"])
def test_programs_of_cmake(headers: Path, version: str, tmp_path: Path) -> None:
    for tool in ("cmake", "make", "gcc", "g++"):
        require(tool)
    process = configured(headers, tmp_path, version)
    assert process.returncode == 0, process.stdout + process.stderr
    output("cmake", "--build", tmp_path)
    for kind in ("a", "o", "so"):
        assert output(tmp_path / f"with_{kind}") == f"0 {EXPONENTIALS}\n", kind
    for language in OPENING:
        program = tmp_path / f"opens_{language}"
        assert output(program, headers.parent / "double_net.so") == "0 \n"
        assert output(program, headers / "kiln.h").startswith("101 ")


@pytest.mark.parametrize(
    "version, header, sentence",
    [
        ("99.0", "", "99.0"),
        ("", "HEADER ../include/no.h", "there is no file"),
        ("", "HEADER ../include/kiln.h", "is no header of a compiled model"),
        ("", "HEADERS ../include/double_net.h", "unknown argument"),
    ],
)
def test_what_cmake_is_told(
    headers: Path, version: str, header: str, sentence: str, tmp_path: Path
) -> None:
    for tool in ("cmake", "make", "gcc", "g++"):
        require(tool)
    process = configured(headers, tmp_path, version, header)
    assert process.returncode != 0
    assert sentence in " ".join(process.stderr.split())


@pytest.mark.parametrize(
    ("file", "sentence"),
    [
        ("opening.c", "a compiled model ends with .a, .o or .so, not opening.c"),
        ("../double_net", "a compiled model ends with .a, .o or .so, not ../double_net"),
        ("../double_net.a.txt", "not ../double_net.a.txt"),
    ],
)
def test_what_cmake_takes_for_no_model(
    headers: Path, file: str, sentence: str, tmp_path: Path
) -> None:
    for tool in ("cmake", "make", "gcc", "g++"):
        require(tool)
    process = configured(headers, tmp_path, commands=f"tensorkiln_add_library(other {file})\n")
    assert process.returncode != 0
    assert sentence in " ".join(process.stderr.split())


def test_cmake_takes_a_model_for_musl(headers: Path, tmp_path: Path) -> None:
    """Whose header names no libraries: its compilers find all in one."""
    for tool in ("cmake", "make", "gcc", "g++"):
        require(tool)
    exe = tk.compile(NETWORK, {"mtriple": "x86_64-linux-musl", "mcpu": "x86-64-v2"}, name="small")
    exe.export_library(tmp_path / "small.a")
    (tmp_path / "small.h").write_text(exe.header())
    commands = f'tensorkiln_add_library(small "{tmp_path}/small.a" HEADER "{tmp_path}/small.h")\n'
    process = configured(headers, tmp_path / "build", commands=commands)
    assert process.returncode == 0, process.stdout + process.stderr


def test_pkg_config(headers: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool, gcc = require("pkg-config"), require("gcc")
    plain = tmp_path / "include"
    shutil.copytree(headers, plain)  # wherever the folder is moved to
    monkeypatch.setenv("PKG_CONFIG_PATH", str(plain))
    assert output(tool, "--modversion", "tensorkiln").strip() == VERSION
    flags = output(tool, "--cflags", "--libs", "tensorkiln").split()
    source = headers.parent / "programs" / "opening.c"
    output(gcc, "-std=c99", source, "-o", tmp_path / "program", *flags)
    assert output(tmp_path / "program", headers.parent / "double_net.so") == "0 \n"


MANIFEST = """
[package]
name = "digits"
edition = "2021"
[dependencies]
tensorkiln = { path = "../include/rust" }
[build-dependencies]
tensorkiln = { path = "../include/rust" }
"""
SCRIPT = """
fn main() -> tensorkiln::Result<()> {
    tensorkiln::link_model("double_net")
}
"""
BOTH = """
use tensorkiln::{Executor, Library, View};

extern "C" {
    fn double_net_main(x: *const f32, y: *mut f32) -> std::ffi::c_int;
}

fn opened(library: tensorkiln::Result<Library>, x: &[f32]) -> tensorkiln::Result<Vec<f32>> {
    let outputs = Executor::new(&library?)?.run("main", &[View::new(x, &[3])?])?;
    outputs[0].values::<f32>().map(<[f32]>::to_vec)
}

fn main() {
    let (x, mut y) = ([0.0_f32, 1.0, 2.0], vec![0.0_f32; 3]);
    // SAFETY: as double_net.h declares it.
    assert_eq!(unsafe { double_net_main(x.as_ptr(), y.as_mut_ptr()) }, 0);
    println!("{:.3} {:.3} {:.3}", y[0], y[1], y[2]);
    let path = std::env::args().nth(1).expect("a path");
    for library in [Library::open(path), Library::named("double_net")] {
        match opened(library, &x) {
            Ok(values) => println!("{}", values == y),
            Err(error) => println!("{} {error}", error.code()),
        }
    }
}
"""


def test_a_project_of_cargo(headers: Path, tmp_path: Path) -> None:
    """The model is linked in, found by its path, and by its name beside the program."""
    cargo = require("cargo")
    project, models = headers.parent / "digits", headers.parent
    (project / "src").mkdir(parents=True)
    for name, text in {"Cargo.toml": MANIFEST, "build.rs": SCRIPT, "src/main.rs": BOTH}.items():
        (project / name).write_text(text)
    common = (f"--manifest-path={project / 'Cargo.toml'}", f"--target-dir={tmp_path}", "--offline")
    folders = {"DOUBLE_NET_LIB_DIR": str(models), "DOUBLE_NET_INCLUDE_DIR": str(headers)}
    without = subprocess.run((cargo, "build", *common), capture_output=True, text=True, check=False)
    assert without.returncode != 0 and "DOUBLE_NET_LIB_DIR is not set" in without.stderr
    output(cargo, "build", *common, **folders)
    program, beside = tmp_path / "debug/digits", tmp_path / "debug/double_net.so"
    path = models / "double_net.so"
    missing = f"100 no such file: '{beside}'"
    assert run(program, path).stdout.splitlines() == [EXPONENTIALS, "true", missing]
    shutil.copy(path, beside)
    assert run(program, path).stdout.splitlines() == [EXPONENTIALS, "true", "true"]
    content = bytearray(beside.read_bytes())
    content[len(content) // 2] ^= 1
    beside.write_bytes(content)
    damaged = f"101 '{beside}' is damaged: its bytes are not those that were written"
    assert run(program, path).stdout.splitlines() == [EXPONENTIALS, "true", damaged]


def test_the_crate_can_be_published(headers: Path, tmp_path: Path) -> None:
    command = (require("cargo"), "package", "--no-verify", "--offline")
    manifest = headers / "rust" / "Cargo.toml"
    build(*command, f"--manifest-path={manifest}", f"--target-dir={tmp_path}")
    package = f"tensorkiln-{VERSION}"
    with tarfile.open(tmp_path / "package" / f"{package}.crate") as archive:
        names = {name.removeprefix(f"{package}/") for name in archive.getnames()}
        file = archive.extractfile(f"{package}/Cargo.toml")
        assert file is not None
        fields = tomllib.loads(file.read().decode())
    sources = {f"src/{path.name}" for path in (headers / "rust" / "src").iterdir()}
    assert names == {"Cargo.toml", "Cargo.toml.orig", "Cargo.lock", "README.md", *sources}
    about = fields["package"]
    assert (about["name"], about["version"]) == ("tensorkiln", VERSION)
    assert about["license"] and about["edition"] and about["rust-version"]
    assert not [key for key in fields if "dependencies" in key]
    texts = [path.read_text() for path in (headers / "rust").rglob("*.*")]
    assert not [text for text in texts if str(headers) in text or "0.0.0" in text]


LINKING = """
fn main() {
    let name = std::env::args().nth(1).unwrap_or_default();
    if let Err(error) = tensorkiln::link_model(&name) {
        println!("link {} {error}", error.code());
    }
    if let Err(error) = tensorkiln::Library::named(&name) {
        println!("open {} {error}", error.code());
    }
}
"""


@pytest.fixture(scope="module")
def linking(headers: Path, programs: Path) -> Path:
    source = headers.parent / "linking.rs"
    source.write_text(LINKING)
    return rust_program(source, programs / "linking")


def test_what_a_build_script_says(headers: Path, linking: Path) -> None:
    models, text = headers.parent, (headers / "double_net.h").read_text()
    place = models / "with a header"
    place.mkdir()
    shutil.copy(models / "double_net.a", place)
    longer = text.replace("-lm", "-lm -l:libx.so.1 -L/opt/x /opt/x/y.a")
    (place / "double_net.h").write_text(longer)
    expected = [
        "cargo:rerun-if-env-changed=DOUBLE_NET_LIB_DIR",
        "cargo:rerun-if-env-changed=DOUBLE_NET_INCLUDE_DIR",
        f"cargo:rerun-if-changed={place / 'double_net.h'}",
        f"cargo:rerun-if-changed={place / 'double_net.a'}",
        f"cargo:rustc-link-search=native={place}",
        "cargo:rustc-link-lib=static:+verbatim=double_net.a",
        *(f"cargo:rustc-link-lib={name}" for name in ("pthread", "dl", "m")),
        "cargo:rustc-link-lib=dylib:+verbatim=libx.so.1",
        "cargo:rustc-link-search=native=/opt/x",
        "cargo:rustc-link-arg=/opt/x/y.a",
    ]
    lines = run(linking, "double_net", DOUBLE_NET_LIB_DIR=str(place)).stdout.splitlines()
    assert lines[:-1] == expected and lines[-1].startswith("open 100 no such file: ")
    without = text.replace("#define DOUBLE_NET_LINK", "#define DOUBLE_NET_OTHER")
    (place / "double_net.h").write_text(without)  # as of a library that needs none
    lines = run(linking, "double_net", DOUBLE_NET_LIB_DIR=str(place)).stdout.splitlines()
    assert lines[:-1] == expected[:6]


@pytest.mark.parametrize(
    "name, folders, sentence",
    [
        ("net", {}, "link 20 NET_LIB_DIR is not set: it names the folder of net.a and net.h"),
        ("net", {"NET_LIB_DIR": ""}, "link 20 NET_LIB_DIR is not set"),
        ("net", {"NET_LIB_DIR": "/no"}, 'link 20 NET_LIB_DIR is "/no": No such file or directory'),
        ("net", {"NET_LIB_DIR": "."}, "link 100 no such file: "),
        ("double_net", {"DOUBLE_NET_LIB_DIR": "."}, "double_net.h'"),
        ("double_net", {"DOUBLE_NET_LIB_DIR": ".", "DOUBLE_NET_INCLUDE_DIR": "x"}, '_DIR is "x": '),
        ("2net", {}, 'link 10 a model is named as in its header, like "mlp", not "2net"'),
        ("", {}, 'link 10 a model is named as in its header, like "mlp", not ""'),
        (
            "a/net",
            {},
            'open 10 a library is named without folder and suffix, like "mlp", not "a/net"',
        ),
        ("net.so", {}, "open 10 a library is named without folder and suffix"),
    ],
)
def test_what_a_build_script_refuses(
    headers: Path,
    linking: Path,
    name: str,
    folders: dict[str, str],
    sentence: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(headers.parent)
    assert sentence in run(linking, name, **folders).stdout


def test_a_header_of_another_model(headers: Path, linking: Path, tmp_path: Path) -> None:
    shutil.copy(headers.parent / "double_net.a", tmp_path / "net.a")
    for text in ((headers / "double_net.h").read_text(), "#define NET_H\n"):
        (tmp_path / "net.h").write_text(text)
        output_text = run(linking, "net", NET_LIB_DIR=str(tmp_path)).stdout
        assert f"link 101 '{tmp_path}/net.h' is not the header of that model\n" in output_text
    (tmp_path / "net.h").write_text('#define NET_H 0x1u\n#define NET_LINK "/a\\303.a"\n')
    output_text = run(linking, "net", NET_LIB_DIR=str(tmp_path)).stdout
    assert "names libraries that cargo cannot be told: /a\\303.a" in output_text


def test_the_command_line_writes_them(headers: Path, tmp_path: Path) -> None:
    import onnx
    from onnx import TensorProto, helper

    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, [3]) for n in "xy")
    net = helper.make_graph([helper.make_node("Exp", ["x"], ["y"])], "net", [x], [y])
    opset = helper.make_opsetid("", 17)
    onnx.save(helper.make_model(net, opset_imports=[opset], ir_version=8), tmp_path / "net.onnx")
    include = tmp_path / "include"
    line = ["compile", str(tmp_path / "net.onnx"), "-q", "-o", str(tmp_path / "net.so")]
    assert main([*line, "--headers", str(include)]) == 0
    cmake = ("tensorkiln-config.cmake", "tensorkiln-config-version.cmake")
    for name in (*cmake, "tensorkiln.pc", "rust/Cargo.toml"):
        text = (include / name).read_text()
        assert text == (headers / name).read_text() and "@" not in text
