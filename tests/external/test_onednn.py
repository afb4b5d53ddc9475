"""Convolutions and linear layers by oneDNN: what it takes, what it computes, whole networks partly
on it, and what is said without it."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tensorkiln as tk
from tensorkiln.base.errors import UserError
from tensorkiln.external import Refused
from tensorkiln.external.host_library import HostLibrary, find_library
from tensorkiln.external.onednn import CONSTANTS, ONEDNN, ROOM, onednn
from tensorkiln.inspectors.library import inspect_library
from tensorkiln.ir.expr import Var
from tensorkiln.ir.module import IRModule
from tensorkiln.ir.relax import tensor
from tensorkiln.kernels.case import rand
from tensorkiln.ops.evaluate import evaluate
from tests.external.removed import check_removed
from tests.external.test_cblas import call_of, check_refused, inputs
from tests.transform.graphs import graph

try:
    LIBRARY: HostLibrary | None = find_library(ONEDNN.file, ONEDNN.install)
except UserError:
    LIBRARY = None
needs_onednn = pytest.mark.skipif(LIBRARY is None, reason="oneDNN is not installed")
HEADER = Path("/usr/include/oneapi/dnnl/dnnl.h")
N = Var("n")


def conv(x: Any, w: Any, bias: bool = False, **attrs: Any) -> IRModule:
    def build(g: Any, v: Any) -> Any:
        arguments = [v, rand(*w, seed=1), *([rand(w[0], seed=2)] if bias else [])]
        return g.conv2d(*arguments, **attrs)

    return graph(build, x=tensor(x, "float32"))


def linear(x: Any, bias: bool) -> IRModule:
    def build(g: Any, v: Any) -> Any:
        h = g.matmul(v, rand(5, 7, seed=1))
        return g.add(h, rand(7, seed=2)) if bias else h

    return graph(build, x=tensor(x, "float32"))


TAKEN: dict[str, IRModule] = {
    "3x3": conv((1, 3, 9, 7), (4, 3, 3, 3), padding=(1, 1, 1, 1)),
    "with bias": conv((2, 3, 9, 7), (20, 3, 3, 3), True),
    "1x1": conv((2, 8, 5, 6), (16, 8, 1, 1), True),
    "strided": conv((1, 3, 12, 11), (4, 3, 3, 5), True, strides=(2, 3)),
    "each side padded otherwise": conv((1, 3, 6, 7), (4, 3, 3, 3), padding=(0, 1, 2, 3)),
    "dilated": conv((1, 3, 12, 11), (4, 3, 3, 3), dilation=(2, 3), padding=(1, 0, 1, 2)),
    "grouped": conv((2, 6, 7, 7), (9, 2, 3, 3), True, groups=3),
    "depthwise": conv((1, 8, 7, 7), (8, 1, 3, 3), groups=8, padding=(1, 1, 1, 1)),
    "symbolic batch": conv((N, 3, 7, 7), (4, 3, 3, 3), True),
    "linear": linear((3, 5), False),
    "linear with bias": linear((N, 5), True),
    "linear of many": linear((2, N, 5), True),
    "linear of a vector": linear((5,), True),
}


@needs_onednn
@pytest.mark.parametrize("name", TAKEN)
def test_layers_are_those_of_numpy(name: str) -> None:
    mod = TAKEN[name]
    exe = tk.compile(mod, externals=["onednn"])
    assert [f.external for f in exe.module.externals] == ["onednn"]
    run = tk.runtime.Executor(exe, tk.cpu())["main"]
    for n in (1, 3):
        arrays = inputs(mod, n)
        (exact,) = evaluate(mod, arrays, dtype="float64")
        result = run(*arrays.values()).numpy()
        assert result.shape == exact.shape
        np.testing.assert_allclose(result, exact, rtol=1e-4, atol=1e-4)


REFUSED: dict[str, tuple[IRModule, str]] = {
    "half": (
        graph(
            lambda g, x, w: g.conv2d(x, w),
            x=tensor((1, 2, 4, 4), "float16"),
            w=tensor((2, 2, 1, 1), "float16"),
        ),
        "its operands are float16, and must be all float32",
    ),
    "double": (
        graph(
            lambda g, x, w: g.linear(x, w),
            x=tensor((3, 5), "float64"),
            w=tensor((5, 7), "float64"),
        ),
        "its operands are float64, and must be all float32",
    ),
    "expressions": (conv((N, 3, N * 2, 7), (4, 3, 3, 3)), "a size is an expression of symbols"),
    "symbolic height": (
        conv((1, 3, N, 7), (4, 3, 3, 3)),
        "only the batch of a convolution may be symbolic",
    ),
    "symbolic outputs": (
        graph(
            lambda g, x, w: g.conv2d(x, w),
            x=tensor((1, 2, 4, 4), "float32"),
            w=tensor((N, 2, 1, 1), "float32"),
        ),
        "the weights have symbolic sizes",
    ),
}
HERE = HostLibrary(Path("/lib/libdnnl.so.2"), "2.6", tk.Target("native").arch)


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused_and_why(name: str) -> None:
    mod, reason = REFUSED[name]
    assert ONEDNN.supports(call_of(mod), tk.Target("native"), HERE) == Refused(reason)


@needs_onednn
@pytest.mark.parametrize("name", REFUSED)
def test_the_reason_is_shown(name: str) -> None:
    check_refused("onednn", *REFUSED[name])


def test_operators_that_it_has_no_code_for_are_no_refusals() -> None:
    matmul_call = call_of(graph(lambda g, x, y: g.matmul(x, y), x=(3, 4), y=(4, 2)))
    assert ONEDNN.supports(matmul_call, tk.Target("native"), HERE) is False


def test_a_library_of_another_machine_is_no_use() -> None:
    foreign_library = HostLibrary(HERE.path, "", "s390x")
    call = call_of(TAKEN["3x3"])
    support = ONEDNN.supports(call, tk.Target("native"), foreign_library)
    assert support == Refused(f"{HERE.path} is for s390x") and not support
    assert ONEDNN.supports(call, tk.Target("native"), HERE) is True


def test_without_the_library_there_is_no_external(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="library 'libdnnl.so.2' is not installed") as caught:
        onednn([tmp_path])
    assert caught.value.code == "missing-library" and "apt-get install" in caught.value.hint


@needs_onednn
def test_what_is_declared_is_what_the_header_says(tmp_path: Path) -> None:
    """The C code declares oneDNN's interface itself: a compiler compares it with the header."""
    if shutil.which("gcc") is None:
        pytest.skip("gcc is not installed")
    if not HEADER.exists():
        pytest.skip("oneDNN is not installed with its headers")
    exe = tk.compile(TAKEN["grouped"], externals=["onednn"])
    (kernel,) = [a for a in exe.artifacts.plain if a.codegen_id == "onednn"]
    names = re.findall(r"^int (dnnl_\w+)\(", kernel.text(), re.M)
    assert len(names) == 15 and set(CONSTANTS) <= set(re.findall(r"\w+", kernel.text()))
    checks = [f'_Static_assert({name} == {value}, "");' for name, value in CONSTANTS.items()]
    for descriptor in ("memory", "convolution", "inner_product"):
        checks.append(f'_Static_assert(sizeof(dnnl_{descriptor}_desc_t) <= {ROOM}, "");')
    checks += ['_Static_assert(sizeof(dnnl_exec_arg_t) == 16, "");']
    checks += [f"void *of_{name} = (void *){name};" for name in names]
    source = tmp_path / "check.c"
    source.write_text(f"#include <{HEADER.relative_to('/usr/include')}>\n" + "\n".join(checks))
    subprocess.run(["gcc", "-fsyntax-only", str(source)], check=True)


@needs_onednn
def test_a_failure_ends_the_run_with_a_reason() -> None:
    """oneDNN refuses a type that it does not know, which the kernel is made to ask for."""
    exe = tk.compile(TAKEN["linear"], externals=["onednn"])
    (kernel,) = [a for a in exe.artifacts.plain if a.codegen_id == "onednn"]
    assert kernel.text().count("dnnl_f32,") == 1
    broken = kernel.text().replace("dnnl_f32,", "99,").encode()
    library = tk.load_artifacts(exe.artifacts.replace(kernel.name, broken))
    run = tk.runtime.Executor(library, tk.cpu())["main"]
    with pytest.raises(AssertionError, match="onednn_linear: oneDNN cannot compute it"):
        run(np.ones((3, 5), np.float32))


# -- whole networks ------------------------------------------------------------------------------


def check_network(name: str, convolutions: int, tmp_path: Path) -> None:
    """Partly on oneDNN it gives what our own kernels give, and says what it needs."""
    for package in ("torch", "onnxscript"):
        pytest.importorskip(package, reason=f"{package} is not installed: no model can be checked")
    from tensorkiln.frontend import from_onnx
    from tests.zoo.export import model_path

    mod = from_onnx(model_path(name))
    exe = tk.compile(mod, externals=["onednn"])
    classes = [p.kernel_class for p in exe.placement()]
    onednn_functions = [f for f in exe.module.externals if "conv2d" in f.name]
    calls = sum(len(p.nodes) for p in exe.placement() if p.kernel_class == "external:onednn")
    assert calls == convolutions + 1 and onednn_functions and set(classes) != {"external:onednn"}
    assert [d.short_name for d in exe.external_dependencies] == ["onednn"]
    report = inspect_library(exe.export_library(tmp_path / "net.so"))
    assert [d.short_name for d in report.metadata.dependencies] == ["onednn"]
    assert ONEDNN.file in report.needed
    (x,) = inputs(mod, 1).values()
    own_result = tk.runtime.Executor(tk.compile(mod), tk.cpu())["main"](x).numpy()
    result = tk.runtime.Executor(exe, tk.cpu())["main"](x).numpy()
    np.testing.assert_allclose(result, own_result, rtol=1e-3, atol=1e-3 * np.abs(own_result).max())


@needs_onednn
def test_resnet18_is_partly_on_it(tmp_path: Path) -> None:
    check_network("resnet18", 20, tmp_path)


@needs_onednn
@pytest.mark.conformance
def test_resnet50_is_partly_on_it(tmp_path: Path) -> None:
    check_network("resnet50", 53, tmp_path)


@needs_onednn
def test_the_library_is_gone_when_the_model_is_loaded(tmp_path: Path) -> None:
    assert LIBRARY is not None
    check_removed(onednn, LIBRARY, TAKEN["3x3"], (1, 3, 9, 7), tmp_path)
