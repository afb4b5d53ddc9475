"""The wheels, installed without a network: the runtime's alone runs what the compiler exported."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

import tensorkiln as tk
from examples.make_mlp import make_mlp
from release.build import copy_repository
from release.partition import version
from tensorkiln.script import from_source
from tests.release.conftest import ROOT, Make, Release
from tests.release.environments import COMPILER, VERSIONS, Environment, interpreter

RUN = """
import sys, numpy as np, tensorkiln as tk
run = tk.runtime.Executor(tk.runtime.load_module("model.so"), tk.cpu())["main"]
given = np.load("given.npz")
np.testing.assert_array_equal(run(given["x"]).numpy(), given["y"])
assert "tensorkiln.base.cache" not in sys.modules
"""
HALF = """
import numpy as np, tensorkiln as tk
from tensorkiln.base.errors import UserError
library = tk.runtime.load_module("half.so")
try:
    run = tk.runtime.Executor(library, tk.cpu())["main"]
    print(run(np.arange(-3, 3, dtype=np.float32)).numpy().astype("float32").tolist())
except UserError as error:
    for name in ("bfloat16", "float8_e4m3fn", "int4"):
        try:
            tk.nd.empty((1,), dtype=name)
        except UserError as other:
            assert name in str(other) and other.hint == error.hint, other
        else:
            raise AssertionError(name)
    print(type(error).__name__, error.code, error)
"""
CAST = """
@R.function
def main(x: R.Tensor((6,), "float32")):
    return R.cast(x, dtype="bfloat16")
"""
NAMES = """
import json, tensorkiln as tk
from tensorkiln.base.errors import UserError
found = {}
for name in tk.__all__:
    try:
        getattr(tk, name)
    except UserError as error:
        found[name] = [error.code, str(error)]
shown = dir(tk)
print(json.dumps([found, shown]))
"""


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with what the compiler exported, and values that it computed."""
    folder = tmp_path_factory.mktemp("models")
    x = np.random.default_rng(7).standard_normal((3, 784)).astype(np.float32)
    executable = tk.compile(tk.frontend.from_onnx(make_mlp().SerializeToString()))
    library = executable.export_library(folder / "model.so")
    run = tk.runtime.Executor(tk.runtime.load_module(library), tk.cpu())["main"]
    np.savez(folder / "given.npz", x=x, y=run(x).numpy())
    tk.compile(from_source(CAST)).export_library(folder / "half.so")
    return folder


@pytest.mark.parametrize("python", VERSIONS)
def test_the_runtime_alone_runs_a_library(
    python: str, release: Release, environment: Make, models: Path
) -> None:
    alone = environment([release.runtime_wheel], python=interpreter(python))
    process = alone.run("python", "-I", "-c", RUN, cwd=models)
    assert (process.returncode, process.stdout, process.stderr) == (0, "", "")


def test_bfloat16_needs_ml_dtypes_and_says_so(
    release: Release, environment: Make, models: Path
) -> None:
    alone = environment([release.runtime_wheel])
    process = alone.run("python", "-I", "-c", HALF, cwd=models)
    assert process.stdout.startswith("ArgumentTypeError missing-package "), process.stderr
    assert "bfloat16 needs the package 'ml_dtypes'" in process.stdout
    assert "pip install ml_dtypes" in process.stdout
    (alone.site / "ml_dtypes").symlink_to(Path(ml_dtypes.__file__).parent)
    process = alone.run("python", "-I", "-c", HALF, cwd=models)
    assert process.stdout == "[-3.0, -2.0, -1.0, 0.0, 1.0, 2.0]\n", process.stderr


def _names(alone: Environment, folder: Path) -> tuple[dict[str, list[str]], list[str]]:
    process = alone.run("python", "-I", "-c", NAMES, cwd=folder)
    assert process.returncode == 0, process.stderr
    errors, public_names = json.loads(process.stdout)
    return errors, public_names


def test_names_of_the_compiler_say_how_to_get_it(
    release: Release, environment: Make, tmp_path: Path
) -> None:
    alone = environment([release.runtime_wheel], ("numpy", *COMPILER))
    errors, public_names = _names(alone, tmp_path)
    assert {"compile", "check", "Target", "frontend", "script"} <= set(errors)
    assert not {"runtime", "nd", "cpu", "cuda", "Artifact", "__version__"} & set(errors)
    for name, (code, text) in errors.items():
        assert code == "missing-package"
        assert text.startswith(f"tensorkiln.{name} needs the compiler")
        assert text.endswith("hint: pip install tensorkiln")
        assert name not in public_names
    assert not (alone.programs / "kiln").exists()
    # A compiler that lies in another folder, as where pip installed it for one user, is no help.
    alone.install([release.wheel])
    assert _names(alone, tmp_path)[0] == {}
    shutil.rmtree(alone.site / "tensorkiln" / "report")
    errors, _ = _names(alone, tmp_path)
    assert set(errors) == {"explain", "explain_dims"}
    assert "its files lie in another one" in errors["explain"][1]


def test_the_compiler_lies_on_top_of_the_runtime(
    release: Release, environment: Make, models: Path
) -> None:
    alongside = environment([release.runtime_wheel, release.wheel], ("numpy", *COMPILER))
    process = alongside.run("kiln", "--version", cwd=models)
    assert process.stdout == f"kiln {version(ROOT)}\n", process.stderr
    compiled = alongside.run(
        "python", "-I", "-c", "import tensorkiln as tk; print(tk.compile)", cwd=models
    )
    assert compiled.returncode == 0, compiled.stderr


def test_an_editable_install_is_everything(
    release: Release, environment: Make, tmp_path: Path
) -> None:
    """From a checkout, without the runtime's distribution and without an index."""
    checkout = tmp_path / "checkout"
    copy_repository(ROOT, checkout)
    editable = environment([], ("numpy", "setuptools", *COMPILER))
    editable.install([], "--no-build-isolation", "-e", str(checkout))
    (metadata,) = editable.site.glob("tensorkiln-*.dist-info/METADATA")
    assert "Requires-Dist: tensorkiln-runtime" not in metadata.read_text(encoding="utf-8")
    assert "Requires-Dist: islpy" in metadata.read_text(encoding="utf-8")
    errors, _ = _names(editable, tmp_path)
    assert errors == {}
    process = editable.run("kiln", "--version", cwd=tmp_path)
    assert process.stdout == f"kiln {version(ROOT)}\n", process.stderr
    shutil.rmtree(checkout)


HOOK = """
import sys
folder, kind, out = sys.argv[1:]
sys.path.insert(0, folder)
import backend
assert getattr(backend, f"get_requires_for_build_{kind}", list)() == []
getattr(backend, f"build_{kind}")(out)
"""


@pytest.mark.parametrize(("project", "backend"), [(".", "release"), ("release/runtime", ".")])
def test_hooks_of_the_backends(
    project: str, backend: str, environment: Make, tmp_path: Path
) -> None:
    """As pip calls them: each in a process of its own, where setuptools is and nothing else."""
    checkout, out = tmp_path / "checkout", tmp_path / "out"
    copy_repository(ROOT, checkout)
    out.mkdir()
    builder = environment([], ("setuptools",))
    for kind in ("wheel", "sdist"):
        process = builder.run("python", "-c", HOOK, backend, kind, out, cwd=checkout / project)
        assert process.returncode == 0, process.stderr
    name = "tensorkiln" if project == "." else "tensorkiln_runtime"
    forms = ("-py3-none-any.whl", ".tar.gz")
    assert {p.name for p in out.iterdir()} == {f"{name}-{version(ROOT)}{form}" for form in forms}


def test_a_missing_python_is_a_capability() -> None:
    from tests.capabilities import capability

    assert capability("python3.14 with NumPy is not installed") == "Pythons"
