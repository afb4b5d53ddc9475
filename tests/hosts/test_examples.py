"""The examples run any model, and say the same in three languages."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import numpy as np
import pytest

import tensorkiln as tk
from tensorkiln.ir.module import IRModule
from tensorkiln.link.headers import CRATE, host_headers, write_headers
from tensorkiln.runtime import Executor, load_module
from tests.hosts.build import ROOT, build, require, run
from tests.hosts.conftest import EXAMPLES, program
from tests.outer.build import BOOL, SCALAR, F, GlobalRef, If, binary, number

LIST = """\
graph function main
  in x: float32 [n, 8]
  out out: float32 [n, 4]
graph function fixed
  in x: float32 [1, 8]
  out out: float32 [1, 4]
graph function split
  in x: float32 [n, 8]
  out left: float32 [n, 4]
  out right: float32 [n * 4]
graph function pair
  in a: float32 [n]
  in b: float32 [n]
  out y: float32 [n]
tensor function add_one
  in x: float32 [n]
  out y: float32 [n]
tensor function scale
  inout x: float32 [n]
  scalar factor: float32
  scalar shift: int64
"""


@pytest.mark.parametrize("language", EXAMPLES)
def test_functions_are_listed(library: Path, programs: Path, language: str) -> None:
    process = run(program(EXAMPLES, language, programs), library)
    assert (process.returncode, process.stdout, process.stderr) == (0, LIST, "")


def in_python(library: Path, name: str, shape: tuple[int, ...], count: int = 1) -> list[str]:
    """What the examples print, by another road."""
    x = (np.arange(np.prod(shape)) % 7 * 0.25).astype(np.float32).reshape(shape)
    executor = Executor(load_module(library))
    result = executor[name](*[x] * count)
    outputs = result if isinstance(result, tuple) else (result,)
    names = [p.name for p in executor.module.info(name).outputs]
    return [
        f"{output_name}: {t.dtype} {list(t.shape)} sum {t.numpy().astype(float).sum():.5f}"
        for output_name, t in zip(names, outputs, strict=True)
    ]


@pytest.mark.parametrize("language", EXAMPLES)
@pytest.mark.parametrize(
    ("name", "shape", "count"),
    [("main", (6, 8), 1), ("main", (1, 8), 1), ("split", (6, 8), 1), ("pair", (6,), 2)],
)
def test_functions_run(
    library: Path, programs: Path, language: str, name: str, shape: tuple[int, ...], count: int
) -> None:
    process = run(program(EXAMPLES, language, programs), library, name, f"n={shape[0]}")
    assert process.stdout.splitlines() == in_python(library, name, shape, count), process.stderr


@pytest.mark.slow
@pytest.mark.parametrize("language", EXAMPLES)
def test_a_compiled_model(programs: Path, language: str) -> None:
    """A model of ONNX with a symbolic size, as `kiln compile` makes it."""
    pytest.importorskip("onnx", reason="onnx is not installed: there is no model to compile")
    from examples.make_mlp import make_mlp

    library = programs / "model.so"
    if not library.exists():
        module = tk.frontend.from_onnx(make_mlp())
        tk.compile(module, tk.Target("llvm")).export_library(library)
    process = run(program(EXAMPLES, language, programs), library, "main", "batch=5")
    assert process.returncode == 0, process.stderr
    sums = [in_python(library, "main", (5, 784))[0], process.stdout.strip()]
    numbers = [float(text.split()[-1]) for text in sums]
    assert sums[1].startswith("logits: float32 [5, 10] sum ")
    np.testing.assert_allclose(numbers[1], numbers[0], rtol=1e-4, atol=1e-4)


@pytest.fixture(scope="module")
def outer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A library whose `main` counts down: values in, values out."""
    main = F("main", x=SCALAR)
    is_positive = main.call("more", BOOL, GlobalRef("gt"), main["x"], number(0))
    then_branch, end = F("then"), F("end")
    smaller = then_branch.call("smaller", SCALAR, GlobalRef("sub"), main["x"], number(1))
    deeper = then_branch.call("deeper", SCALAR, GlobalRef("main"), smaller)
    last = end.call("last", SCALAR, GlobalRef("sub"), main["x"], number(0))
    result_value = main.let(
        "both", SCALAR, If(is_positive, then_branch.body(deeper), end.body(last))
    )
    functions = (
        binary("gt", "greater", SCALAR, BOOL),
        binary("sub", "sub"),
        main.outer(result_value),
    )
    executable = tk.compile(IRModule(functions, "down"), "llvm")
    return Path(executable.export_library(tmp_path_factory.mktemp("outer") / "down.so"))


@pytest.mark.slow
@pytest.mark.parametrize("language", EXAMPLES)
def test_an_outer_function_says_what_it_is(outer: Path, programs: Path, language: str) -> None:
    host = program(EXAMPLES, language, programs)
    listed = run(host, outer)
    assert "outer function main\n  in x: float32 []\n" in listed.stdout, listed.stderr
    process = run(host, outer, "main")
    words = "main is an outer function: it takes and gives values, by kiln_executor_invoke"
    assert (process.returncode, process.stderr) == (1, f"error 10: {words}\n")


def test_cargo_builds_the_crate_and_runs_its_tests(tmp_path: Path) -> None:
    cargo = require("cargo")
    example = ROOT / "examples" / "rust_host"
    copies = {folder: tmp_path / folder.relative_to(ROOT) for folder in (CRATE, example)}
    for folder, copy in copies.items():
        shutil.copytree(folder, copy, ignore=shutil.ignore_patterns("target", "Cargo.lock"))
    common = (f"--target-dir={tmp_path / 'target'}", "--offline", "-q")
    build(cargo, "build", f"--manifest-path={copies[example] / 'Cargo.toml'}", *common)
    process = run(cargo, "test", f"--manifest-path={copies[CRATE] / 'Cargo.toml'}", *common)
    assert process.returncode == 0 and "test result: ok" in process.stdout, (
        process.stdout + process.stderr
    )


def test_the_headers_of_all_hosts_are_written(tmp_path: Path) -> None:
    include = tmp_path / "new" / "include"
    paths = write_headers(include, {"net.h": "/* net */\n"})
    names = [
        *(
            "kiln.h",
            "kiln_system.h",
            "kiln_digest.h",
            "kiln_dlopen.h",
            "kiln_host.h",
            "kiln_json.h",
            "kiln_library_file.h",
        ),
        *("kiln.hpp", "kiln_tensor.hpp", "kiln_value.hpp"),
        *("tensorkiln-config-version.cmake", "tensorkiln-config.cmake", "tensorkiln.pc", "net.h"),
    ]
    crate = ["rust/Cargo.toml", "rust/README.md"]
    crate += [f"rust/src/{path.name}" for path in sorted((CRATE / "src").glob("*.rs"))]
    assert [path.relative_to(include).as_posix() for path in paths] == [*names, *crate]
    for original in host_headers():
        assert (include / original.name).read_bytes() == original.read_bytes()
    (tmp_path / "all.c").write_text(
        "".join(f'#include "{name}"\n' for name in names if name[-1] == "h")
    )
    build(
        require("gcc"),
        "-c",
        "-I",
        tmp_path / "new/include",
        tmp_path / "all.c",
        "-o",
        tmp_path / "o",
    )


def test_a_library_called_like_a_header_is_refused(tmp_path: Path) -> None:
    with pytest.raises(tk.base.errors.UserError, match=r"would be 'kiln\.h', which is a header of"):
        write_headers(tmp_path, {"kiln.h": ""})


def test_codes_are_those_of_the_headers() -> None:
    headers = "".join(path.read_text() for path in host_headers())
    in_c = re.findall(r"^\s+KILN_(?:HOST_)?(ERROR_\w+) = (\d+)", headers, re.M)
    rust = (CRATE / "src/error.rs").read_text()
    in_rust = re.findall(r"^pub const (ERROR_\w+): i32 = (\d+);", rust, re.M)
    assert in_c == in_rust and len(in_c) > 20


def test_constants_are_those_of_the_runtime() -> None:
    """A version is raised in all hosts at once."""
    from tensorkiln.artifact.metadata import FORMAT
    from tensorkiln.runtime.native import ABI_VERSION

    texts = {path.name: path.read_text() for path in host_headers()}
    rust = {path.name: path.read_text() for path in (CRATE / "src").iterdir()}
    patterns = {
        "metadata in C": r"#define KILN_HOST_METADATA_VERSION (\d+)",
        "interface in C": r"#define KILN_ABI_VERSION (\d+)",
        "metadata in Rust": r"const METADATA_VERSION: i64 = (\d+);",
        "interface in Rust": r"const ABI_VERSION: c_int = (\d+);",
    }
    everything = "".join([*texts.values(), *rust.values()])
    numbers = {
        label: int(re.findall(pattern, everything)[0]) for label, pattern in patterns.items()
    }
    assert numbers == {
        "metadata in C": FORMAT,
        "interface in C": ABI_VERSION,
        "metadata in Rust": FORMAT,
        "interface in Rust": ABI_VERSION,
    }
