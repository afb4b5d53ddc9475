"""A target kind in a user's file is enough: matrix products go to OpenBLAS."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tensorkiln as tk
from tensorkiln.artifact import Artifact
from tensorkiln.external import External, ExternalDependency, symbols
from tensorkiln.inspectors.library import inspect_library
from tensorkiln.ir.expr import Var, int_value
from tensorkiln.ir.module import IRModule
from tensorkiln.ir.relax import Call, Function, TensorType, tensor
from tensorkiln.kernels.case import rand
from tensorkiln.ops.evaluate import evaluate
from tensorkiln.target import Option, Target, register_target_kind, unregister_target_kind
from tensorkiln.target.kinds import KINDS
from tests.transform.graphs import graph

blas = pytest.importorskip("scipy_openblas32", reason="scipy-openblas32 is not installed")

# -- what a user writes ----------------------------------------------------------------------------


def supports(call: Call, target: Target) -> bool:
    """Float32 `linear` with at least as many weights as the target asks for."""
    if call.op != "linear" or any(a.type.dtype.name != "float32" for a in call.args):  # type: ignore[union-attr]
        return False
    weight = call.args[1].type
    assert isinstance(weight, TensorType)
    sizes = [int_value(d) for d in weight.shape]
    return None not in sizes and np.prod(sizes) >= target["min_weights"]  # type: ignore[arg-type]


def emit(f: Function, symbol: str) -> list[Artifact]:
    """x [..., K] @ w [K, N] + bias [N], rows of the bias first."""
    k, n = (int_value(d) for d in f.params[1].tensor.shape)
    dims = [f"int64_t s{i}" for i in range(len(symbols(f)))]
    sizes = {v: f"s{i}" for i, v in enumerate(symbols(f))}
    leading = f.params[0].tensor.shape[:-1]
    rows = " * ".join(sizes.get(d, str(int_value(d))) for d in leading) or "1"  # type: ignore[call-overload]
    bias = len(f.params) == 3
    params = ["const float *x", "const float *w", *["const float *b"] * bias, "float *y", *dims]
    fill = f"    for (int64_t i = 0; i < m; ++i) memcpy(y + i * {n}, b, sizeof(float[{n}]));\n"
    head = f"void {symbol}({', '.join(params)})"
    text = (
        "#include <stdint.h>\n#include <string.h>\n"
        "void scipy_cblas_sgemm(int, int, int, int, int, int, float, const float *, int,\n"
        "                       const float *, int, float, float *, int);\n"
        f"{head};\n{head} {{\n    const int64_t m = {rows};\n{fill if bias else ''}"
        f"    scipy_cblas_sgemm(101, 111, 111, (int)m, {n}, {k}, 1.0f, x, {k}, w, {n},\n"
        f"                      {float(bias)}f, y, {n});\n}}\n"
    )
    return [Artifact("openblas", "native", f"{symbol}.c", text.encode())]


def code_generators(target: Target) -> list[External]:
    library = Path(blas.get_lib_dir()) / f"lib{blas.get_library()}.so"
    source = ExternalDependency(
        "openblas", "https://pypi.org/project/scipy-openblas32/", version_spec=blas.__version__
    )
    libraries = (str(library), f"-Wl,-rpath,{library.parent}")
    return [External("openblas", supports, emit, (source,), libraries, merge=False)]


MIN_WEIGHTS = Option("min_weights", int, "smallest matrix worth a call", 1, 1 << 30, default=256)


@pytest.fixture(autouse=True)
def kind() -> Iterator[None]:
    before = dict(KINDS)
    register_target_kind(
        "blas", "cpu", [MIN_WEIGHTS], ["cpu", "blas"], relax_codegen=code_generators
    )
    yield
    unregister_target_kind("blas")
    assert before == KINDS


# -- what comes of it ------------------------------------------------------------------------------


def network(rows: int | Var) -> IRModule:
    """Two large products, one of them with a bias, around a small one."""

    def build(g: Any, x: Any) -> Any:
        h = g.relu(g.add(g.matmul(x, rand(32, 40, seed=1)), rand(40, seed=2)))
        h = g.tanh(g.matmul(h, rand(40, 5, seed=3)))
        return g.softmax(g.matmul(h, rand(5, 64, seed=4)), axis=-1)

    return graph(build, x=tensor((rows, 32), "float32"))


def run(exe: tk.Executable, x: np.ndarray) -> np.ndarray:
    return tk.runtime.Executor(exe, tk.cpu())["main"](x).numpy()


@pytest.mark.parametrize("rows", [7, Var("n")])
def test_a_network_partly_in_openblas(rows: int | Var, tmp_path: Path) -> None:
    mod = network(rows)
    exe = tk.compile(mod, "blas")
    x = np.random.default_rng(0).standard_normal((7, 32)).astype(np.float32)
    (exact,) = evaluate(network(7), {"x": x}, dtype="float64")
    own_result = run(tk.compile(mod), x)
    np.testing.assert_allclose(run(exe, x), exact, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(run(exe, x), own_result, rtol=1e-5, atol=1e-6)

    classes = [p.kernel_class for p in exe.placement()]
    assert classes.count("external:openblas") == 2 and len(classes) >= 4
    report = inspect_library(exe.export_library(tmp_path / "net.so"))
    assert f"lib{blas.get_library()}.so" in report.needed
    assert [d.short_name for d in report.metadata.dependencies] == ["openblas"]
    assert report.metadata.target == exe.target.to_json()
    assert exe.target.kind == "blas" and exe.target.host == Target("native")


def test_options_and_host_of_the_target_decide() -> None:
    spec = {"kind": "blas", "min_weights": 1300, "host": {"kind": "llvm", "mcpu": "x86-64-v2"}}
    exe = tk.compile(network(3), spec)
    assert [f.name for f in exe.module.externals] == []  # 1280, 200 and 320 weights
    assert exe.target == Target(spec) and Target(str(exe.target)) == exe.target
    externals = tk.compile(network(3), spec | {"min_weights": 1280}).module.externals
    assert [f.name for f in externals] == ["openblas_linear"]
