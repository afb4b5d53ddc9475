"""Networks compiled partly by an external: numbers, artifacts, placement, memory, errors."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tensorkiln as tk
from tensorkiln.artifact import Artifact
from tensorkiln.base.errors import InternalError, UserError
from tensorkiln.external import External, ExternalDependency
from tensorkiln.external.example import C_REFERENCE
from tensorkiln.inspectors.library import inspect_library
from tensorkiln.ir.equal import first_difference
from tensorkiln.ir.expr import Var
from tensorkiln.ir.module import IRModule
from tensorkiln.ir.relax import Call, Function, tensor
from tensorkiln.ir.text.printer import constant_table, print_module
from tensorkiln.kernels.case import c, rand
from tensorkiln.link.artifacts import LinkPlan
from tensorkiln.ops.evaluate import evaluate
from tensorkiln.script import from_source
from tests.external.halve import emit as _calls_halve
from tests.transform.graphs import graph

Array = np.ndarray


def run(exe: tk.Executable, *inputs: Array) -> Array:
    return tk.runtime.Executor(exe, tk.cpu())["main"](*inputs).numpy()


def network(rows: int | Var) -> IRModule:
    """linear, external chain, softmax, external chain with a bias of lower rank."""

    def build(g: Any, x: Any, y: Any) -> Any:
        h = g.sub(g.relu(g.matmul(x, rand(8, 6, seed=1))), y)
        p = g.softmax(h, axis=-1)
        return g.add(g.mul(p, 0.1), rand(6, seed=2))

    types = {"x": tensor((rows, 8), "float32"), "y": tensor((rows, 6), "float32")}
    return graph(build, **types)


def expected(x: Array, y: Array) -> Array:
    h = np.maximum(x.astype(np.float64) @ rand(8, 6, seed=1).array, 0) - y
    e = np.exp(h - h.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True) * 0.1 + rand(6, seed=2).array


def arrays(rows: int) -> tuple[Array, Array]:
    rng = np.random.default_rng(rows)
    draw = rng.standard_normal
    return draw((rows, 8)).astype(np.float32), draw((rows, 6)).astype(np.float32)


def test_a_network_partly_in_c() -> None:
    exe = tk.compile(network(5), externals=[C_REFERENCE])
    x, y = arrays(5)
    np.testing.assert_allclose(run(exe, x, y), expected(x, y), rtol=1e-5, atol=1e-6)

    classes = {p.kernel: (p.device, p.kernel_class) for p in exe.placement()}
    assert classes["c_reference_relu_sub"] == ("cpu", "external:c_reference")
    assert classes["c_reference_mul_add"] == ("cpu", "external:c_reference")
    assert sum(not k.startswith("external:") for _, k in classes.values()) == 2
    nodes = {p.kernel: p.nodes for p in exe.placement()}
    assert nodes["c_reference_relu_sub"] == ("node sub",)

    source = exe.artifacts["c_reference/c_reference_mul_add.c"]
    assert source.loader == "native"
    assert "out[i] = v1;" in source.text()
    assert "const float v1 = v0 + p1[i % (6)];" in source.text()
    assert "c_reference_mul_add(" in exe.artifacts["host/entry.c"].text()


def test_the_module_says_what_an_external_computes() -> None:
    exe = tk.compile(network(5), externals=[C_REFERENCE])
    text = exe.artifacts["ir/module.py"].text()
    assert '@R.function(attrs={"external": "c_reference", "primitive": True})' in text
    assert "R.relu(" in text
    again = from_source(text, constants=constant_table(exe.module))  # type: ignore[arg-type]
    assert first_difference(again, exe.module) is None
    assert print_module(again) == text


def test_symbolic_rows() -> None:
    exe = tk.compile(network(Var("n")), externals=[C_REFERENCE])
    for rows in (1, 2, 7, 64):
        x, y = arrays(rows)
        np.testing.assert_allclose(run(exe, x, y), expected(x, y), rtol=1e-5, atol=1e-6)
    assert "const int64_t count = s_0 * 6;" in exe.artifacts["c_reference_mul_add.c"].text()


def test_the_exported_library_is_as_self_contained(tmp_path: Path) -> None:
    exe = tk.compile(network(5), externals=[C_REFERENCE])
    report = inspect_library(exe.export_library(tmp_path / "net.so"))
    plain = tk.compile(network(5)).export_library(tmp_path / "plain.so")
    assert set(report.needed) == set(inspect_library(plain).needed)
    classes = {k.symbol: k.kernel_class for k in report.metadata.kernels}
    assert classes["c_reference_relu_sub"] == "external:c_reference"
    files = {a.file_name for a in report.metadata.artifacts}
    assert "c_reference_relu_sub.c" in files
    assert report.metadata.dependencies == ()


def test_compiling_twice_gives_the_same_bytes(tmp_path: Path) -> None:
    libraries = [
        tk.compile(network(5), externals=[C_REFERENCE]).export_library(tmp_path / f"{i}.so")
        for i in range(2)
    ]
    assert libraries[0].read_bytes() == libraries[1].read_bytes()


def test_an_external_takes_part_in_memory_planning() -> None:
    """Two values are alive at once, the chain is long: memory is reused, results are right."""

    def build(g: Any, x: Any) -> Any:
        keep = g.tanh(x)
        v = g.sub(x, 1.0)
        for _ in range(4):
            v = g.tanh(g.mul(v, 0.5))
        return g.add(v, keep)

    exe = tk.compile(graph(build, x=(64, 64)), externals=[C_REFERENCE])
    x = np.random.default_rng(0).standard_normal((64, 64)).astype(np.float32)
    v = x.astype(np.float64) - 1
    for _ in range(4):
        v = np.tanh(v * 0.5)
    np.testing.assert_allclose(run(exe, x), v + np.tanh(x.astype(np.float64)), atol=1e-5)
    size = 64 * 64 * 4
    assert exe.functions[0].workspace_bytes == 2 * size  # an operand, a result; `keep` is made last


def test_blocked_values_come_row_major() -> None:
    """A convolution computes in channel blocks with a halo; the external sees neither."""

    def build(g: Any, x: Any) -> Any:
        y = g.relu(g.conv2d(x, rand(20, 3, 3, 3, seed=1), padding=(1, 1, 1, 1)))
        return g.conv2d(g.add(y, 1.0), rand(5, 20, 3, 3, seed=2), padding=(1, 1, 1, 1))

    mod = graph(build, x=(1, 3, 9, 7))
    x = np.random.default_rng(0).standard_normal((1, 3, 9, 7)).astype(np.float32)
    exe = tk.compile(mod, externals=[C_REFERENCE])
    (want,) = evaluate(mod, {"x": x}, dtype="float64")
    assert [f.name for f in exe.module.externals] == ["c_reference_relu_add"]
    np.testing.assert_allclose(run(exe, x), want, rtol=1e-4, atol=1e-4)


def test_relu_of_the_example_is_ours() -> None:
    mod = graph(lambda g, x: g.relu(x), x=(6,))
    x = np.array([-1, -0.0, 0.0, 2, np.inf, np.nan], np.float32)
    own_result = run(tk.compile(mod), x)
    np.testing.assert_array_equal(run(tk.compile(mod, externals=[C_REFERENCE]), x), own_result)


@pytest.mark.parametrize(
    ("build", "reason"),
    [
        (lambda g, x: g.sub(x, c(np.float32(0.1))), ""),
        (lambda g, x: g.sub(c([[0.1]]), x), ""),
        (lambda g, x: g.div(x, rand(3)), ""),
        (lambda g, x: g.neg(g.neg(g.sub(c(0.0), x))), ""),
        (lambda g, x: g.tanh(x), None),
        (lambda g, x: g.div(x, rand(2, 1)), "neither one shape nor shapes that end alike"),
        (lambda g, x: g.mul(x, c(np.inf)), "an operand is infinite or NaN"),
        (lambda g, x: g.mul(c([[[2.0]]]), x), "neither one shape nor shapes that end alike"),
        (
            lambda g, x: g.cast(g.neg(g.cast(x, dtype="int32")), dtype="float32"),
            "its operands are not all float32",
        ),
    ],
)
def test_what_the_example_takes(build: Any, reason: str | None) -> None:
    """None: an operator that it has no code for, which is no refusal."""
    mod = graph(build, x=(2, 3))
    exe = tk.compile(mod, externals=[C_REFERENCE])
    assert bool(exe.module.externals) is (reason == "")
    refused = [r.reason for r in exe.refusals()]
    assert len(refused) == bool(reason) and all(str(reason) in r for r in refused)
    x = np.array([[1, -2, 3], [0.5, 0, -8]], np.float32)
    np.testing.assert_allclose(run(exe, x), run(tk.compile(mod), x), rtol=1e-6)


# -- libraries and dependencies --------------------------------------------------------------------


HALVE = ExternalDependency("halve", "https://example.org/halve.tar.gz", version_spec="1.2")


def _halver(*libraries: str) -> External:
    return External(
        "halver", lambda call, target: call.op == "relu", _calls_halve, (HALVE,), libraries
    )


def test_a_library_behind_an_external(tmp_path: Path) -> None:
    pytest.importorskip("ziglang", reason="ziglang is not installed: no library to link with")
    (tmp_path / "halve.c").write_text("float halve(float x) { return x / 2; }\n")
    shared = tmp_path / "libhalve.so"
    options = ["-shared", "-fPIC", "-nostdlib", f"-Wl,-soname,{shared}", "-o", str(shared)]
    command = [sys.executable, "-m", "ziglang", "cc", *options, str(tmp_path / "halve.c")]
    subprocess.run(command, check=True, capture_output=True)

    mod = graph(lambda g, x: g.relu(x), x=(4,))
    exe = tk.compile(mod, externals=[_halver(str(shared))])
    assert run(exe, np.arange(4, dtype=np.float32)).tolist() == [0, 0.5, 1, 1.5]
    report = inspect_library(exe.export_library(tmp_path / "net.so"))
    assert report.metadata.dependencies == (HALVE,)
    assert str(shared) in report.needed


def test_a_missing_library_is_named() -> None:
    exe = tk.compile(graph(lambda g, x: g.relu(x), x=(4,)), externals=[_halver()])
    with pytest.raises((UserError, InternalError), match="halve"):
        exe.jit()


def test_dependencies_of_unused_externals_do_not_count() -> None:
    exe = tk.compile(graph(lambda g, x: g.tanh(x), x=(4,)), externals=[_halver("/no/such.so")])
    assert LinkPlan.of(exe.artifacts).libraries == ()
    exe.jit()


def test_dependencies_must_agree() -> None:
    other_dependency = ExternalDependency(
        "halve", "https://example.org/halve.tar.gz", version_spec="1.3"
    )
    second = External(
        "second", lambda call, target: call.op == "neg", _calls_halve, (other_dependency,)
    )
    mod = graph(lambda g, x: g.neg(g.tanh(g.relu(x))), x=(4,))
    with pytest.raises(UserError, match="external 'halver'.* and external 'second'") as caught:
        tk.compile(mod, externals=[_halver(), second])
    assert caught.value.code == "dependency-clash"
    assert "version_spec '1.2' against '1.3'" in str(caught.value)


# -- errors ----------------------------------------------------------------------------------------


def _emits(*artifacts: object) -> External:
    def emit(f: Function, symbol: str) -> Sequence[Any]:
        return artifacts

    def supports(call: Call, target: tk.Target) -> bool:
        return call.op == "relu"

    return External("mine", supports, emit)


@pytest.mark.parametrize(
    ("artifacts", "error", "says"),
    [
        ((), UserError, "emitted nothing"),
        (("int x;",), UserError, "emitted str, expected Artifact"),
        ((Artifact("mine", "text", "k.txt", b""),), UserError, "nothing that can run"),
        ((Artifact("mine", "native", "k.py", b""),), UserError, "neither C source nor object"),
    ],
)
def test_what_an_external_may_not_emit(artifacts: Any, error: Any, says: str) -> None:
    with pytest.raises(error, match=says) as caught:
        tk.compile(graph(lambda g, x: g.relu(x), x=(4,)), externals=[_emits(*artifacts)])
    assert "external 'mine', function 'mine_relu'" in str(caught.value)


def test_a_symbol_that_nobody_defines_is_named() -> None:
    empty = _emits(Artifact("mine", "native", "k.c", b"int not_it;\n"))
    exe = tk.compile(graph(lambda g, x: g.relu(x), x=(4,)), externals=[empty])
    with pytest.raises((UserError, InternalError), match="mine_relu"):
        exe.jit()


def test_a_lowered_module_needs_its_externals() -> None:
    exe = tk.compile(network(5), externals=[C_REFERENCE])
    with pytest.raises(UserError, match="which was not given") as caught:
        tk.compile(exe.module, relax_pipeline=None, tir_pipeline=None)
    assert caught.value.code == "unknown-external"
    again = tk.compile(exe.module, relax_pipeline=None, tir_pipeline=None, externals=[C_REFERENCE])
    assert again.artifacts == exe.artifacts


def test_what_is_no_external() -> None:
    with pytest.raises(UserError, match="expected External, received int"):
        tk.compile(graph(lambda g, x: g.relu(x), x=(4,)), externals=[5])


def test_two_externals_of_one_name() -> None:
    with pytest.raises(UserError, match="two externals are named 'mine'"):
        tk.compile(graph(lambda g, x: g.relu(x), x=(4,)), externals=[_emits(), _emits()])
