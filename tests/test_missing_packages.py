"""What needs a package that is not installed says so, with the line that installs it."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tensorkiln as tk
from tensorkiln.arith.integer_sets import Sets
from tensorkiln.artifact import Artifact
from tensorkiln.base.errors import UserError
from tensorkiln.base.packages import REQUIREMENTS, install_line
from tensorkiln.cli import main
from tensorkiln.codegen.llvm.compile import _Worker
from tensorkiln.frontend.onnx import bodies
from tensorkiln.inspectors import llvm as inspect_llvm
from tensorkiln.inspectors import objects
from tensorkiln.library.load import load_artifacts
from tensorkiln.link import toolchain
from tensorkiln.scale.storage import storage_of
from tensorkiln.schedule.tree.index_map import IndexMap, is_injective
from tensorkiln.target import cuda_tools
from tensorkiln.target.host import describe_host
from tests.frontend.onnx_models import node_model
from tests.link import sample
from tests.test_import_floors import imported, modules

ROOT = Path(__file__).resolve().parents[1]
TWICE = """
@R.function
def main(x: R.Tensor((4,), "float32")):
    return R.add(x, x)
"""


def _compiled(target: str) -> tk.Executable:
    return tk.compile(tk.script.from_source(TWICE), target)


def _kiln(*words: str) -> str:
    """Run `kiln` and return the error that it reports."""
    assert main(words) == 2
    return ""


def _disassembled() -> None:
    artifacts = _compiled("llvm").artifacts
    (kernel,) = [a for a in artifacts if a.file_name.endswith(".o")]
    assert isinstance(kernel, Artifact)
    list(objects.show_instructions(kernel))


def _onnx_hint() -> None:
    bodies._defs.cache_clear()
    x = np.ones((2, 4), np.float32)
    (found,) = tk.frontend.check_onnx(node_model("SwiGLU", [x, x], opset=28)[0])
    raise UserError(found.message, hint=found.hint)


def _ptxas() -> None:
    cuda_tools.ptxas_path.cache_clear()
    cuda_tools.assembled("", "sm_80")


def _nvdisasm() -> None:
    cuda_tools.nvdisasm_path.cache_clear()
    cuda_tools.instruction_counts(b"")


def _linked() -> None:
    toolchain.zig_path.cache_clear()
    toolchain.zig_path()


# package -> what a user calls that needs it, by what it is
CALLS: dict[str, dict[str, Callable[[], Any]]] = {
    "capstone": {"disassembly": _disassembled},
    "islpy": {
        "proofs": lambda: Sets(["n"], []),
        "transform_layout": lambda: is_injective(IndexMap((), ()), []),
    },
    "llvmlite": {
        "the processor": describe_host,
        "kernels": lambda: _Worker().compile("twice", "", {}),
        "llvmjit": lambda: load_artifacts(_JIT),
        "LLVM's text": lambda: inspect_llvm.show_ll(Artifact("llvm", "native", "a.ll", b"")),
    },
    "fsspec": {"object stores": lambda: storage_of("memory://farm")},
    "distributed": {"dask_executor": lambda: tk.scale.executor_of("dask://127.0.0.1:1")},
    "nvidia": {"ptxas": _ptxas, "nvdisasm": _nvdisasm},
    "onnx": {"functions of the standard": _onnx_hint, "kiln demo": lambda: _kiln("demo")},
    "onnxruntime": {
        "kiln demo": lambda: _kiln("demo"),
        "kiln bench": lambda: _kiln("bench", "mlp.so", "--model", "mlp.onnx"),
    },
    "shtab": {"kiln completion": lambda: _kiln("completion", "bash")},
    "pyarrow": {"map_batches": lambda: tk.scale.map_batches("mlp.so", "rows.parquet")},
    "ray": {
        "ray_executor": lambda: tk.scale.executor_of("ray"),
        "map_batches": lambda: tk.scale.map_batches("mlp.so", "rows.parquet", engine="ray"),
    },
    "sklearn": {"tune": lambda: tk.tune(tk.script.from_source(TWICE), "llvm")},
    "torch": {"from_torch": lambda: tk.frontend.from_torch(object(), ())},
    "ziglang": {"linking": _linked},
}
_JIT = _compiled("llvmjit").artifacts

# Missing packages that are no error, or whose error another test has.
ELSEWHERE = {
    "dask": "distributed requires it",
    "ml_dtypes": "tests/release/test_wheels.py::test_bfloat16_needs_ml_dtypes_and_says_so",
    "onnxscript": "tests/frontend/test_from_torch.py::test_without_the_exporter_the_extra_is_named",
    "pygments": "only colours; tests/cli/test_screen.py",
    "sympy": "torch requires it",
}


@pytest.mark.filterwarnings("ignore:x86-64 is the baseline")
@pytest.mark.parametrize(("package", "what"), [(p, what) for p in CALLS for what in CALLS[p]])
def test_the_line_that_installs_it(
    package: str,
    what: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("KILN_CACHE", "0")
    monkeypatch.setenv("PATH", str(tmp_path))
    (tmp_path / "mlp.onnx").touch()
    if what == "kiln bench":
        sample.build(tmp_path / "mlp.so")
    for name in [n for n in sys.modules if n.partition(".")[0] == package]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)
    try:
        told = CALLS[package][what]()
    except UserError as error:
        told = f"{error.message}\n{error.hint}"
        assert error.code in ("missing-package", "no-tool", "user-error")
    finally:
        for found in (cuda_tools.ptxas_path, cuda_tools.nvdisasm_path, toolchain.zig_path):
            found.cache_clear()
        bodies._defs.cache_clear()
    told = told or capsys.readouterr().err
    assert install_line(package) in told


def test_every_package_that_may_be_missing_has_a_row() -> None:
    assert set(CALLS) | {"onnxscript", "ml_dtypes"} == set(REQUIREMENTS)
    for place in ELSEWHERE.values():
        file, _, name = place.partition("::")
        if name:
            assert f"def {name}(" in (ROOT / file).read_text(encoding="utf-8")


def test_every_package_that_is_imported_is_known() -> None:
    """Inside functions and in try-statements too; what needs no row is required, or says why."""
    found = {
        name.partition(".")[0]
        for module, is_package, path in modules()
        for _, name in imported(ast.parse(path.read_text("utf-8")), module, is_package)
    }
    found -= {"tensorkiln", "numpy", *sys.stdlib_module_names}
    assert found - set(CALLS) == set(ELSEWHERE) - {"onnxscript"}


def _project() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def _needs() -> list[str]:
    """Requirements of the compiler, which setup.py lists."""
    tree = ast.parse((ROOT / "setup.py").read_text(encoding="utf-8"))
    (found,) = [
        ast.literal_eval(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "NEEDS"
    ]
    return [str(need) for need in found]


# What a distribution's name is where it is not that of the package.
DISTRIBUTIONS = {"nvidia": "nvidia-cuda-nvcc", "sklearn": "scikit-learn"}


@pytest.mark.parametrize("package", REQUIREMENTS)
def test_pip_is_asked_for_what_brings_it(package: str) -> None:
    """An extra that requires the package, or the very requirement of this one."""
    wanted = REQUIREMENTS[package]
    extra = re.fullmatch(r"tensorkiln\[(\w+)\]", wanted)
    name = DISTRIBUTIONS.get(package, package)
    if extra:
        brought = _project()["optional-dependencies"][extra[1]]
        assert name in {re.split(r"[\[<>=; ]", text)[0] for text in brought}
        return
    (need,) = [text for text in _needs() if re.split(r"[<>=; ]", text)[0] == name]
    if "==" in wanted:
        assert need.partition(";")[0].strip() == wanted
    else:
        assert "==" not in need


def test_extras_for_users_pin_nothing() -> None:
    """A pin is the business of `dev`, and has its reason beside it."""
    for extra, needs in _project()["optional-dependencies"].items():
        if extra != "dev":
            assert not [need for need in needs if "==" in need.partition(";")[0]], extra
