"""A model that is linked into the program itself, from C, C++ and Rust."""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path

import numpy as np
import pytest

import tensorkiln as tk
from tensorkiln.link.headers import write_headers
from tests.hosts.build import COMPILER_SECONDS, ROOT, WARN, build, require, run

pytestmark = pytest.mark.slow

EXAMPLES = ROOT / "examples" / "static_host"
SOURCES = {"C": "main.c", "C++": "main.cpp", "Rust": "main.rs"}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with mlp.a, mlp.o, mlp.so and the headers."""
    pytest.importorskip("onnx", reason="onnx is not installed: there is no model to compile")
    from examples.make_mlp import make_mlp

    folder = tmp_path_factory.mktemp("static")
    executable = tk.compile(tk.frontend.from_onnx(make_mlp()), tk.Target("llvm"))
    for suffix in ("a", "o", "so"):
        executable.export_library(folder / f"mlp.{suffix}")
    write_headers(folder, {"mlp.h": executable.header()})
    return folder


def link_line(model: Path) -> list[str]:
    """What the library's own header says."""
    match = re.search(r'^#define MLP_LINK "(.*)"$', (model / "mlp.h").read_text(), re.M)
    assert match is not None
    return shlex.split(match[1])


def says_the_same(program: Path, model: Path) -> None:
    """The numbers of the shared library in Python, and the sentence for -1 rows."""
    process = run(program)
    assert process.returncode == 0, process.stderr
    numbers, error = process.stdout.splitlines()
    image = (np.arange(2 * 784) % 7 / 4).astype(np.float32).reshape(2, 784)
    logits = tk.runtime.Executor(tk.runtime.load_module(model / "mlp.so"))["main"](image)
    logits_of_program = np.array(numbers.split(), np.float64)
    np.testing.assert_allclose(logits_of_program, logits.numpy().reshape(-1), atol=1e-5)
    assert error == "error 3: main: 'batch' is -1, expected at least 0"


@pytest.mark.parametrize("language", SOURCES)
@pytest.mark.parametrize("form", ["a", "o"])
def test_linked_into_a_program(model: Path, language: str, form: str, tmp_path: Path) -> None:
    source, library = EXAMPLES / SOURCES[language], model / f"mlp.{form}"
    output, include = tmp_path / "host", ("-I", model)
    if language == "C":
        head = (require("gcc"), "-std=c99", *WARN, *include, source, library)
    elif language == "C++":
        head = (require("g++"), "-std=c++17", *WARN, *include, source, library)
    else:
        head = (
            require("rustc"),
            "--edition=2021",
            "-D",
            "warnings",
            source,
            f"-Clink-arg={library}",
        )
    build(*head, "-o", output, *link_line(model))
    says_the_same(output, model)


def test_a_program_without_any_shared_library(model: Path, tmp_path: Path) -> None:
    source, library = EXAMPLES / "main.c", model / "mlp.a"
    head = (require("gcc"), "-std=c99", "-static", "-I", model, source, library)
    build(*head, "-o", tmp_path / "host", *link_line(model))
    says_the_same(tmp_path / "host", model)


def test_cargo_links_it_by_a_build_script(model: Path, tmp_path: Path) -> None:
    cargo = require("cargo")
    (tmp_path / "src").mkdir()
    shutil.copy(EXAMPLES / "main.rs", tmp_path / "src/main.rs")
    crate = f'[build-dependencies]\ntensorkiln = {{ path = "{model / "rust"}" }}\n'
    (tmp_path / "Cargo.toml").write_text(f'[package]\nname = "host"\nedition = "2021"\n{crate}')
    (tmp_path / "build.rs").write_text('fn main() { tensorkiln::link_model("mlp").unwrap() }\n')
    line = (cargo, "build", "-q", "--offline", "--manifest-path", tmp_path / "Cargo.toml")
    process = run(*line, seconds=COMPILER_SECONDS, MLP_LIB_DIR=str(model))
    assert process.returncode == 0, process.stderr
    says_the_same(tmp_path / "target/debug/host", model)


def test_the_header_is_c_and_cpp(model: Path, tmp_path: Path) -> None:
    (tmp_path / "all.c").write_text('#include "mlp.h"\n#include "kiln_system.h"\n')
    for tool in ("gcc -std=c99", "g++ -std=c++17 -x c++"):
        name, *flags = tool.split()
        build(
            require(name),
            *flags,
            *WARN,
            "-I",
            model,
            "-c",
            tmp_path / "all.c",
            "-o",
            tmp_path / "o",
        )
