"""Matrix products by OpenBLAS: what it takes, what it computes, and what is said without it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tensorkiln as tk
from tensorkiln.base.errors import UserError
from tensorkiln.checks import refusals
from tensorkiln.external import Refused
from tensorkiln.external.cblas import CBLAS, cblas
from tensorkiln.external.host_library import HostLibrary, find_library
from tensorkiln.inspectors.library import inspect_library
from tensorkiln.ir.expr import Var, int_value
from tensorkiln.ir.module import IRModule
from tensorkiln.ir.relax import Call, tensor
from tensorkiln.kernels.case import rand
from tensorkiln.ops.evaluate import evaluate
from tests.external.removed import check_removed
from tests.transform.graphs import graph

try:
    LIBRARY: HostLibrary | None = find_library(CBLAS.file, CBLAS.install)
except UserError:
    LIBRARY = None
needs_blas = pytest.mark.skipif(LIBRARY is None, reason="OpenBLAS is not installed")


def product(a: Any, b: Any, dtype: str = "float32", **attrs: Any) -> IRModule:
    types = {"x": tensor(a, dtype), "y": tensor(b, dtype)}
    return graph(lambda g, x, y: g.matmul(x, y, **attrs), **types)


def linear(x: Any, bias: bool) -> IRModule:
    def build(g: Any, v: Any) -> Any:
        h = g.matmul(v, rand(5, 7, seed=1))
        return g.add(h, rand(7, seed=2)) if bias else h

    return graph(build, x=tensor(x, "float32"))


N = Var("n")
TAKEN: dict[str, IRModule] = {
    "two matrices": product((3, 5), (5, 7)),
    "double": product((3, 5), (5, 7), "float64"),
    "batch": product((2, 4, 3, 5), (2, 4, 5, 7)),
    "symbolic batch": product((N, 3, 5), (N, 5, 7)),
    "rows of many": product((2, 3, 5), (5, 7)),
    "symbolic rows": product((N, 5), (5, 7)),
    "left transposed": product((5, 3), (5, 7), transpose_a=True),
    "right transposed": product((N, 5), (7, 5), transpose_b=True),
    "both transposed": product((2, 5, 3), (2, 7, 5), transpose_a=True, transpose_b=True),
    "linear": linear((3, 5), False),
    "linear with bias": linear((N, 5), True),
    "linear of many": linear((2, N, 5), True),
    "linear of a vector": linear((5,), True),
}


def inputs(mod: IRModule, n: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(n)
    (main,) = mod.graphs
    arrays = {}
    for p in main.params:
        shape = [n if isinstance(d, Var) else int_value(d) for d in p.tensor.shape]
        arrays[p.name] = rng.standard_normal(shape).astype(p.tensor.dtype.name)
    return arrays


@needs_blas
@pytest.mark.parametrize("name", TAKEN)
def test_products_are_those_of_numpy(name: str) -> None:
    mod = TAKEN[name]
    exe = tk.compile(mod, externals=["cblas"])
    assert [f.external for f in exe.module.externals] == ["cblas"]
    run = tk.runtime.Executor(exe, tk.cpu())["main"]
    for n in (1, 6):
        arrays = inputs(mod, n)
        (exact,) = evaluate(mod, arrays, dtype="float64")
        result = run(*arrays.values()).numpy()
        assert result.shape == exact.shape
        np.testing.assert_allclose(result, exact, rtol=1e-4, atol=1e-5)


REFUSED: dict[str, tuple[IRModule, str]] = {
    "half": (
        product((3, 5), (5, 7), "float16"),
        "its operands are float16, and must be all float32 or all float64",
    ),
    "integers": (
        product((3, 5), (5, 7), "int32"),
        "its operands are int32, and must be all float32 or all float64",
    ),
    "expressions": (product((N, N * 2, 5), (5, 7)), "a size is an expression of symbols"),
    "a vector": (product((5,), (5, 7)), "an operand is a vector"),
    "symbolic columns": (
        product((3, 5), (5, N)),
        "the right operand has symbolic rows or columns",
    ),
    "symbolic rows of the right": (
        product((3, N), (N, 7)),
        "the right operand has symbolic rows or columns",
    ),
    "linear of symbolic weights": (
        graph(
            lambda g, x, w, b: g.linear(x, w, b),
            x=tensor((3, 5), "float32"),
            w=tensor((5, N), "float32"),
            b=tensor((N,), "float32"),
        ),
        "the weights have symbolic sizes",
    ),
    "symbolic, transposed": (
        product((5, N), (5, 7), transpose_a=True),
        "the left operand is transposed and has symbolic columns",
    ),
    "broadcast": (product((2, 3, 5), (1, 5, 7)), "the operands are broadcast"),
    "broadcast left": (product((3, 5), (2, 5, 7)), "the operands are broadcast"),
    "broadcast, transposed": (
        product((2, 5, 3), (5, 7), transpose_a=True),
        "the operands are broadcast",
    ),
}
HERE = HostLibrary(Path("/lib/libopenblas.so.0"), "0.3.21", tk.Target("native").arch)


def call_of(mod: IRModule) -> Call:
    (main,) = mod.graphs
    call = main.bindings[0].value
    assert isinstance(call, Call)
    return call


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused_and_why(name: str) -> None:
    mod, reason = REFUSED[name]
    assert CBLAS.supports(call_of(mod), tk.Target("native"), HERE) == Refused(reason)


@needs_blas
@pytest.mark.parametrize("name", [name for name in REFUSED if "transposed" not in name])
def test_the_reason_is_shown(name: str) -> None:
    """Where the left operand is transposed, canonical operators are a transpose and a product."""
    check_refused("cblas", *REFUSED[name])


def check_refused(external: str, mod: IRModule, reason: str) -> None:
    """The reason is among those of the executable, of its kernel, and of `kiln check`."""
    exe = tk.compile(mod, externals=[external])
    assert exe.module.externals == ()
    (refusal,) = exe.refusals()
    assert (refusal.external, refusal.reason) == (external, reason)
    assert refusals(mod, externals=[external]) == (refusal,)
    placement_lines = {
        line for k in exe.placement() if refusal.node in k.nodes for line in k.refused
    }
    assert placement_lines == {f"{external}: {reason}"}


def test_operators_that_it_has_no_code_for_are_no_refusals() -> None:
    tanh_call = call_of(graph(lambda g, x: g.tanh(x), x=(4,)))
    assert CBLAS.supports(tanh_call, tk.Target("native"), HERE) is False


def test_a_library_of_another_machine_is_no_use() -> None:
    foreign_library = HostLibrary(HERE.path, "", "s390x")
    call = call_of(TAKEN["linear"])
    support = CBLAS.supports(call, tk.Target("native"), foreign_library)
    assert support == Refused(f"{HERE.path} is for s390x") and not support
    assert CBLAS.supports(call, tk.Target("native"), HERE) is True


@needs_blas
def test_a_library_lists_what_it_needs(tmp_path: Path) -> None:
    exe = tk.compile(TAKEN["linear with bias"], externals=["cblas"])
    report = inspect_library(exe.export_library(tmp_path / "net.so"))
    assert CBLAS.file in report.needed
    (d,) = report.metadata.dependencies
    assert (d.short_name, d.license, d.libraries) == ("openblas", "BSD-3-Clause", (CBLAS.file,))
    assert LIBRARY is not None and d.version_spec == f"v{LIBRARY.version}"
    with pytest.raises(UserError, match="'openblas' has the license 'BSD-3-Clause'"):
        tk.compile(TAKEN["linear"], externals=["cblas"], deny_licenses=["BSD-3-Clause"])


@needs_blas
def test_the_library_is_gone_when_the_model_is_loaded(tmp_path: Path) -> None:
    assert LIBRARY is not None
    check_removed(cblas, LIBRARY, TAKEN["linear"], (3, 5), tmp_path)


def test_without_the_library_there_is_no_external(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="library 'libopenblas.so.0' is not installed") as caught:
        cblas([tmp_path])
    assert caught.value.code == "missing-library" and "apt-get install" in caught.value.hint
