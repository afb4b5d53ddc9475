"""Composite targets: several devices in one library give the results of one target.

The first tests read like the sentences of the proposal on artifacts (composite targets, and its
future directions).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tensorkiln as tk
from tensorkiln.artifact import Artifact
from tensorkiln.base.errors import UnsupportedError, UserError
from tensorkiln.external import External
from tensorkiln.ir.module import IRModule
from tensorkiln.ir.relax import Call, Constant, Function
from tensorkiln.kernels.case import rand
from tensorkiln.runtime import register_loader, unregister_loader
from tensorkiln.script import from_source
from tensorkiln.target import Target, register_target_kind, unregister_target_kind
from tests.transform.graphs import graph

SIMPLE = {"kind": "llvm", "target_key": "simple"}
DSP = {
    "kind": "llvm",
    "mcpu": "x86-64-v2",
    "target_key": "dsp",
    "operators": ["linear", "conv2d", "matmul"],
}
CPUS = {"kind": "composite", "host": "llvm", "devices": [SIMPLE, DSP]}

pytestmark = pytest.mark.filterwarnings("ignore:.*is the baseline")


def _network() -> IRModule:
    """Convolutions, a residual, pooling, a classifier, a softmax."""

    def build(g: Any, x: Any) -> Any:
        y = g.relu(g.conv2d(x, rand(20, 3, 3, 3), rand(20), padding=(1, 1, 1, 1)))
        z = g.add(g.conv2d(y, rand(20, 20, 3, 3, seed=1), padding=(1, 1, 1, 1)), y)
        p = g.mean(g.max_pool2d(z, kernel=(2, 2), strides=(2, 2)), axes=(2, 3))
        return g.softmax(g.linear(p, rand(20, 10), rand(10)), axis=1)

    return graph(build, x=(2, 3, 8, 8))


X = np.random.default_rng(0).normal(size=(2, 3, 8, 8)).astype(np.float32)


def run(exe: tk.Executable, *inputs: np.ndarray) -> list[np.ndarray]:
    outputs = tk.runtime.Executor(exe, tk.cpu())["main"](*inputs)
    fields = outputs if isinstance(outputs, tuple | list) else (outputs,)
    return [np.asarray(x.numpy()) for x in fields]


def test_two_cpus_are_configured_twice_and_their_output_is_sorted() -> None:
    """A low-power simple CPU and a high-power DSP: the code of each is a group of its own."""
    exe = tk.compile(_network(), CPUS)
    native = [a for a in exe.artifacts if a.loader == "native" and a.codegen_id == "llvm"]
    assert {a.target_key for a in native} == {"simple", "dsp"}
    device_by_kernel = {p.kernel: p.device for p in exe.placement()}
    assert {a.file_name.removesuffix(".o"): a.target_key for a in native} == device_by_kernel
    texts = {a.target_key: a.text() for a in exe.artifacts if a.file_name.endswith(".ll")}
    assert '"target-features"' in texts["dsp"] and "+sse4.2" in texts["dsp"]
    assert "+sse4.2" not in texts["simple"]
    np.testing.assert_allclose(
        run(exe, X), run(tk.compile(_network(), "llvm"), X), rtol=2e-6, atol=1e-7
    )


def test_each_node_has_a_reason() -> None:
    placement = tk.compile(_network(), CPUS).placement()
    reasons = {p.device: set(p.reasons) for p in placement if p.reasons}
    assert reasons["dsp"] <= {"its operators name linear", "its operators name conv2d"}
    assert reasons["simple"] == {"the first device for all operators"}
    assert {p.device for p in placement} == {"dsp", "simple"}


# -- devices with code of their own ----------------------------------------------------------------


class _Fpga:
    """A loaded module of one device: functions by the content that was programmed into it."""

    def __init__(self, artifacts: tuple[Artifact, ...], log: list[str]):
        self._rows = {a.file_name.removesuffix(".bits"): json.loads(a.text()) for a in artifacts}
        self._keys, self._log = {a.target_key for a in artifacts}, log

    def __getitem__(self, name: str) -> Any:
        op, (key,) = self._rows[name], self._keys

        def call(*tensors: Any) -> None:
            *inputs, out = (np.asarray(t) for t in tensors)
            self._log.append(f"{key} {op}")
            out[...] = {"exp": np.exp, "relu": lambda x: np.maximum(x, 0)}[op](*inputs)

        return call


def _emit(f: Function, symbol: str) -> list[Artifact]:
    (op,) = (b.value.op for b in f.bindings if isinstance(b.value, Call))
    return [Artifact("fpga", "fpga", f"{symbol}.bits", json.dumps(op).encode())]


def _supports(call: Call, target: Target) -> bool:
    assert target.kind == "fpga"
    return call.op in ("exp", "relu") and not any(isinstance(a, Constant) for a in call.args)


@pytest.fixture
def fpga() -> Iterator[list[str]]:
    """The kind `fpga`; yields what its devices ran."""
    log: list[str] = []
    external = External("fpga", _supports, _emit, merge=False)
    register_target_kind("fpga", "ext_dev", relax_codegen=lambda target: [external])
    register_loader("fpga", lambda artifacts, devices: _Fpga(artifacts, log))
    try:
        yield log
    finally:
        unregister_loader("fpga")
        unregister_target_kind("fpga")


TWO = {
    "kind": "composite",
    "devices": [
        {"kind": "fpga", "target_key": "left", "operators": ["exp"]},
        {"kind": "fpga", "target_key": "right", "operators": ["relu"]},
        "llvm",
    ],
}


def _both() -> IRModule:
    return graph(lambda g, x: g.mul(g.exp(g.relu(g.add(x, 1.0))), 2.0), x=(4, 5))


def test_identical_accelerators_are_programmed_differently(fpga: list[str], tmp_path: Path) -> None:
    """Two identical FPGAs: `target_key` tells their content apart, in the set, in the library and
    when it is loaded."""
    exe = tk.compile(_both(), TWO)
    fpga_artifacts = [a for a in exe.artifacts if a.loader == "fpga"]
    assert {a.name.split("/")[1]: json.loads(a.text()) for a in fpga_artifacts} == {
        "left": "exp",
        "right": "relu",
    }
    x = np.linspace(-3, 2, 20, dtype=np.float32).reshape(4, 5)
    (have,) = run(exe, x)
    np.testing.assert_allclose(have, 2 * np.exp(np.maximum(x + 1, 0)), rtol=1e-6)
    assert fpga == ["right relu", "left exp"]
    library = tk.runtime.load_module(str(exe.export_library(tmp_path / "two.so")))
    assert [(str(m.group.loader), m.group.target_key) for m in library.imported_modules] == [
        ("fpga", "left"),
        ("fpga", "right"),
    ]


def test_a_loader_gets_the_device_of_its_key(fpga: list[str], tmp_path: Path) -> None:
    """Which of several accelerators runs which content is said when it is loaded."""
    devices_by_key: dict[str, tuple[str, ...]] = {}

    def load(artifacts: tuple[Artifact, ...], devices: tuple[Any, ...]) -> Any:
        devices_by_key[artifacts[0].target_key] = tuple(map(str, devices))
        return _Fpga(artifacts, fpga)

    register_loader("fpga", load)
    path = str(tk.compile(_both(), TWO).export_library(tmp_path / "two.so"))
    rows = {
        "nothing": (None, ("ext_dev:0", "ext_dev:0")),
        "by key": ({"right": tk.ext_dev(3)}, ("ext_dev:0", "ext_dev:3")),
        "all by key": (
            {"right": tk.ext_dev(3), "left": [tk.ext_dev(1)]},
            ("ext_dev:1", "ext_dev:3"),
        ),
        "in order": ([tk.ext_dev(5), tk.ext_dev(6), tk.cpu()], ("ext_dev:5", "ext_dev:6")),
        "the host": (tk.cpu(), ("ext_dev:0", "ext_dev:0")),
    }
    x = np.linspace(-3, 2, 20, dtype=np.float32).reshape(4, 5)
    for devices, want in rows.values():
        library = tk.runtime.load_module(path, devices)
        assert devices_by_key == {"left": want[:1], "right": want[1:]}
        executor = tk.runtime.Executor(library)
        assert [str(d) for d in executor.devices] == [*want, "cpu:0"]
        np.testing.assert_allclose(
            executor["main"](x).numpy(), 2 * np.exp(np.maximum(x + 1, 0)), rtol=1e-6
        )
    wrong: list[tuple[Any, str]] = [
        ({"middle": tk.ext_dev(0)}, "no code of target key 'middle'"),
        ({"left": tk.opencl(0)}, "which opencl:0 does not run"),
        ({"left": [tk.ext_dev(0), tk.ext_dev(1)]}, "too many devices"),
        ([tk.ext_dev(0)] * 3, "has no code for ext_dev:0"),
    ]
    for devices, says in wrong:
        with pytest.raises(UserError, match=says):
            tk.runtime.load_module(path, devices)
    with pytest.raises(
        UnsupportedError, match="'left' was called for ext_dev:0, not for ext_dev:2"
    ):
        tk.runtime.Executor(library, {"left": tk.ext_dev(2)})


def test_what_the_executor_runs_and_what_a_loader_gets(fpga: list[str]) -> None:
    """The launchers are host code of loader `native`; what a device gets is of its loader."""
    exe = tk.compile(_both(), TWO)
    loaders = {a.loader for a in exe.artifacts if a.target_key in ("left", "right")}
    assert loaders == {"fpga"}
    assert "kiln_import_kernel" in exe.artifacts["imports.c"].text()
    devices = {p.kernel_class: p.device for p in exe.placement() if "external" in p.kernel_class}
    assert devices == {"external:fpga_left": "left", "external:fpga_right": "right"}


# -- targets ---------------------------------------------------------------------------------------


def test_a_pinned_function() -> None:
    import dataclasses

    mod = _network()
    f = mod["main"]
    pinned = dataclasses.replace(f, attrs=type(f.attrs).of(**f.attrs, target="simple"))
    exe = tk.compile(mod.with_functions((pinned,)), CPUS)
    assert {p.device for p in exe.placement()} == {"simple"}
    assert {r for p in exe.placement() for r in p.reasons} == {"the function's target is 'simple'"}


@pytest.mark.parametrize("kind", ["llvmjit", "c"])
def test_other_kinds_of_cpus(kind: str) -> None:
    devices = [{**SIMPLE, "kind": kind}, {**DSP, "kind": kind}]
    exe = tk.compile(_network(), {"host": kind, "devices": devices})
    np.testing.assert_allclose(
        run(exe, X), run(tk.compile(_network(), "llvm"), X), rtol=2e-6, atol=1e-7
    )


def test_a_symbolic_size() -> None:
    def build(g: Any, x: Any) -> Any:
        return g.softmax(g.linear(g.exp(g.linear(x, rand(6, 20))), rand(20, 9)), axis=1)

    from tensorkiln.ir.expr import Var
    from tensorkiln.ir.relax import tensor

    mod = graph(build, x=tensor((Var("n"), 6), "float32"))
    exe, want = tk.compile(mod, CPUS), tk.compile(mod, "llvm")
    for n in (1, 3, 17):
        x = np.random.default_rng(n).normal(size=(n, 6)).astype(np.float32)
        np.testing.assert_allclose(run(exe, x), run(want, x), rtol=2e-6, atol=1e-7)


def test_passes_do_not_cross_a_compile_twice() -> None:
    """A composite compile is deterministic, warm or cold."""
    first, second = (tk.compile(_network(), CPUS) for _ in range(2))
    assert first.artifacts == second.artifacts


def test_the_library_says_what_it_was_compiled_for(tmp_path: Path) -> None:
    exe = tk.compile(_network(), CPUS)
    library = tk.runtime.load_module(str(exe.export_library(tmp_path / "two.so")))
    assert Target(json.dumps(library.metadata["target"])) == exe.target


# -- tensor programs and branches of the caller ----------------------------------------------------

PROGRAM = """
@tk.script.ir_module
class Module:
    @T.prim_func(private=True)
    def k(X: T.Buffer((4,), "float32"), Y: T.Buffer((4,), "float32")):
        T.func_attr({"target": TARGET})
        for i in range(4):
            Y[i] = X[i] + T.float32(1)

    @R.function
    def main(x: R.Tensor((4,), "float32")):
        y = R.call_tir(cls.k, (x,), R.Tensor((4,), "float32"))
        z = R.exp(y)
        return z
"""
BRANCHES = """
@R.function
def main(x: R.Tensor((4,), "float32"), c: R.Tensor((), "bool")):
    y = R.exp(x)
    if c:
        z = R.relu(y)
    else:
        z = R.neg(y)
    return z
"""
EXP = {"kind": "llvm", "target_key": "dsp", "mcpu": "x86-64-v2", "operators": ["exp"]}


@pytest.mark.parametrize("name", ["dsp", "host", str(Target({"kind": "llvm", "mcpu": "haswell"}))])
def test_a_tensor_program_runs_where_it_says(name: str) -> None:
    haswell = {"kind": "llvm", "mcpu": "haswell"}
    target = {"host": "llvm", "devices": [EXP, haswell]}
    exe = tk.compile(from_source(PROGRAM.replace("TARGET", repr(name))), target)
    device_by_kernel = {p.kernel: p.device for p in exe.placement()}
    assert device_by_kernel["k"] == (name if name in ("dsp", "host") else "llvm")
    (have,) = run(exe, np.zeros(4, np.float32))
    np.testing.assert_allclose(have, np.exp(np.ones(4)), rtol=1e-6)


@pytest.mark.parametrize("condition", [True, False])
def test_branches_beside_two_cpus(condition: bool) -> None:
    exe = tk.compile(from_source(BRANCHES), {"devices": [EXP, "llvm"]})
    x = np.linspace(-1, 1, 4, dtype=np.float32)
    (have,) = run(exe, x, np.array(condition))
    np.testing.assert_allclose(have, np.exp(x) * (1 if condition else -1), rtol=1e-6)


@pytest.mark.parametrize("target", ["opencl", {"devices": ["llvm", "opencl"]}])
@pytest.mark.parametrize(
    ("text", "says"),
    [
        (
            PROGRAM.replace("TARGET", "'opencl'"),
            "k: a tensor program without loops over the threads of",
        ),
        (BRANCHES, "main: branches, loops and values other than tensors beside opencl"),
    ],
)
def test_what_does_not_run_on_devices_with_memory(text: str, says: str, target: Any) -> None:
    with pytest.raises(UnsupportedError, match=says):
        tk.compile(from_source(text), target)
