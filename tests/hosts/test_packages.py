"""What build systems find the headers by: CMake's package and pkg-config's."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

import tensorkiln as tk
from tensorkiln.base.version import VERSION
from tensorkiln.cli import main
from tensorkiln.link.headers import write_headers
from tests.hosts.build import require
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
    headers: Path, build: Path, version: str = "", header: str = ""
) -> subprocess.CompletedProcess[str]:
    text = LISTS.replace("@VERSION@", version).replace("@HEADER@", header)
    (headers.parent / "programs" / "CMakeLists.txt").write_text(text)
    command = [require("cmake"), "-S", headers.parent / "programs", "-B", build]
    command.append(f"-Dtensorkiln_DIR={headers}")
    return subprocess.run(command, capture_output=True, text=True, check=False)


def output(*command: str | Path) -> str:
    process = subprocess.run(command, capture_output=True, text=True, check=True)
    return process.stdout


@pytest.mark.parametrize("version", ["", VERSION, "0.0.1"])
def test_programs_of_cmake(headers: Path, version: str, tmp_path: Path) -> None:
    for tool in ("cmake", "make", "gcc", "g++"):
        require(tool)
    process = configured(headers, tmp_path, version)
    assert process.returncode == 0, process.stdout + process.stderr
    output("cmake", "--build", tmp_path)
    expected = " ".join(f"{v:.3f}" for v in np.exp(np.arange(3)))
    for kind in ("a", "o", "so"):
        assert output(tmp_path / f"with_{kind}") == f"0 {expected}\n", kind
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
    for name in ("tensorkiln-config.cmake", "tensorkiln-config-version.cmake", "tensorkiln.pc"):
        text = (include / name).read_text()
        assert text == (headers / name).read_text() and "@" not in text
