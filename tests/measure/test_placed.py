"""What ran is what `placement()` said: every row of a run, and every kernel that no branch hid."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

import tensorkiln as tk
from tensorkiln.artifact import Artifact
from tensorkiln.base.errors import UnsupportedError, UserError
from tensorkiln.external import External
from tensorkiln.external.example import C_REFERENCE
from tensorkiln.kernels.case import rand
from tensorkiln.measure.calls import host_functions
from tensorkiln.measure.placed import KernelRun
from tensorkiln.runtime import register_loader, unregister_loader
from tensorkiln.script import from_source
from tests.codegen.opencl.device import device
from tests.test_composite import CPUS
from tests.transform.graphs import graph

pytestmark = pytest.mark.filterwarnings("ignore:.*is the baseline")


def data(*shape: int) -> np.ndarray:
    return np.random.default_rng(shape).normal(size=shape).astype(np.float32)


def agree(exe: tk.Executable, rows: Sequence[KernelRun]) -> None:
    """Every row is one of `placement()`, and the rows of a function are whole runs of its plan."""
    placed = {p.kernel: p for p in exe.placement()}
    for row in rows:
        where = placed[row.kernel]
        assert (row.device, row.kernel_class) == (where.device, where.kernel_class)
        assert not row.node or row.node in where.nodes
    copies = {f.name for f in exe.module.copies}
    for f in host_functions(exe):
        calls = [(c.symbol, c.span) for c in f.calls if c.symbol not in copies]
        ran = [(r.kernel, r.node) for r in rows if r.function == f.info.name]
        assert not ran or ran == calls * (len(ran) // len(calls))


def all_ran(exe: tk.Executable, rows: Sequence[KernelRun]) -> bool:
    return {p.kernel for p in exe.placement()} == {r.kernel for r in rows}


def _block(g: Any, x: Any) -> Any:
    y = g.relu(g.conv2d(x, rand(20, 3, 3, 3), rand(20), padding=(1, 1, 1, 1)))
    z = g.add(g.conv2d(y, rand(20, 20, 3, 3, seed=1), padding=(1, 1, 1, 1)), y)
    p = g.mean(g.max_pool2d(z, kernel=(2, 2), strides=(2, 2)), axes=(2, 3))
    return g.softmax(g.linear(p, rand(20, 10), rand(10)), axis=1)


def _twice(g: Any, x: Any) -> Any:
    return g.softmax(g.silu(g.softmax(x, axis=-1)), axis=-1)


TARGETS: dict[str, Any] = {
    "cpu": "native",
    "as_c": "c",
    "two_cpus": CPUS,
    "opencl": "opencl",
    "opencl_beside_a_cpu": {"devices": [{"kind": "opencl", "operators": ["linear"]}, "llvm"]},
}
GRAPHS: dict[str, tuple[Callable[[Any, Any], Any], tuple[int, ...]]] = {
    "convolutions": (_block, (2, 3, 8, 8)),
    "a kernel twice": (_twice, (8, 16)),
    "one relu": (lambda g, x: g.relu(x), (4,)),
}


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", GRAPHS)
def test_straight_lines(name: str, target: str) -> None:
    if "opencl" in target:
        device()
    build, shape = GRAPHS[name]
    exe = tk.compile(graph(build, x=shape), TARGETS[target])
    rows = tk.trace(exe, data(*shape))
    assert rows
    agree(exe, rows)
    assert all_ran(exe, rows)
    assert rows == tk.trace(exe, {"x": data(*shape)}, function="main")
    exe(data(*shape))  # its own library still runs
    if target == "opencl_beside_a_cpu" and name == "convolutions":
        assert {r.device for r in rows} == {"opencl", "host"} or len({r.device for r in rows}) == 2


@pytest.mark.parametrize("with_device", [False, True])
def test_code_of_externals(with_device: bool) -> None:
    if with_device:
        device()
    exe = tk.compile(
        graph(lambda g, x: g.softmax(g.relu(g.neg(x)), axis=1), x=(4, 8)),
        "opencl" if with_device else None,
        externals=[C_REFERENCE],
    )
    rows = tk.trace(exe, data(4, 8))
    agree(exe, rows)
    assert all_ran(exe, rows)
    assert any(r.kernel_class.startswith("external:") for r in rows)


def test_modules_of_loaders() -> None:
    class Module:
        def __getitem__(self, name: str) -> Callable[..., None]:
            def relu(x: Any, y: Any) -> None:
                y.numpy()[...] = np.maximum(x.numpy(), 0)

            return relu

    def emit(f: Any, symbol: str) -> list[Artifact]:
        return [Artifact("npu", "placednpu", f"{symbol}.bin", b"code", target_key="npu")]

    npu = External("npu", lambda call, target: call.op == "relu", emit)
    register_loader("placednpu", lambda artifacts, devices: Module())
    try:
        exe = tk.compile(
            graph(lambda g, x: g.softmax(g.relu(x), axis=1), x=(4, 8)),
            {"devices": [{"kind": "llvm", "target_key": "npu", "operators": ["relu"]}, "llvm"]},
            externals=[npu],
        )
        rows = tk.trace(exe, data(4, 8))
    finally:
        unregister_loader("placednpu")
    agree(exe, rows)
    assert all_ran(exe, rows) and {r.device for r in rows} >= {"npu"}


BRANCHES = """
@R.function
def main(c: R.Tensor((), "bool"), x: R.Tensor((4, 8), "float32")):
    z = R.softmax(x, axis=1)
    if c:
        y = R.relu(z)
    else:
        w = R.neg(z)
        y = R.softmax(R.exp(w), axis=1)
    return y
"""


def test_branches_taken_and_not() -> None:
    exe = tk.compile(from_source(BRANCHES))
    ran = {c: tk.trace(exe, np.array(c), data(4, 8)) for c in (True, False)}
    for rows in ran.values():
        agree(exe, rows)
        assert not all_ran(exe, rows)
    assert all_ran(exe, [*ran[True], *ran[False]])
    here, there = ({r.kernel for r in ran[c]} for c in (True, False))
    assert "relu" in here - there and there - here
    # What did not run is of functions that were not called at all: those of the other branch.
    called = {r.function for r in ran[True]}
    hidden = [f for f in host_functions(exe) if f.info.name not in called]
    assert {c.symbol for f in hidden for c in f.calls} >= there - here


def test_rounds_of_a_loop() -> None:
    import onnx
    from onnx import TensorProto, helper

    body = helper.make_graph(
        [
            helper.make_node("Softmax", ["v"], ["w"], name="soft"),
            helper.make_node("Identity", ["go"], ["on"]),
        ],
        "body",
        [
            helper.make_tensor_value_info("i", TensorProto.INT64, []),
            helper.make_tensor_value_info("go", TensorProto.BOOL, []),
            helper.make_tensor_value_info("v", TensorProto.FLOAT, [4, 8]),
        ],
        [
            helper.make_tensor_value_info("on", TensorProto.BOOL, []),
            helper.make_tensor_value_info("w", TensorProto.FLOAT, [4, 8]),
        ],
    )
    g = helper.make_graph(
        [helper.make_node("Loop", ["n", "", "x"], ["y"], body=body)],
        "g",
        [
            helper.make_tensor_value_info("n", TensorProto.INT64, []),
            helper.make_tensor_value_info("x", TensorProto.FLOAT, [4, 8]),
        ],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [4, 8])],
    )
    model = helper.make_model(g, opset_imports=[helper.make_opsetid("", 17)])
    onnx.checker.check_model(model)
    exe = tk.compile(model)
    for n in (0, 1, 5):
        rows = tk.trace(exe, np.array(n, np.int64), data(4, 8))
        agree(exe, rows)
        assert sum("softmax" in r.kernel for r in rows) == n


PROGRAM = """
@T.prim_func
def copied(X: T.Buffer((4,), "float32"), Y: T.Buffer((4,), "float32")):
    T.func_attr({"global_symbol": "copied"})
    for i in range(4):
        Y[i] = X[i] + X[i]
"""


def test_tensor_programs() -> None:
    exe = tk.compile(from_source(PROGRAM))
    y = np.zeros(4, np.float32)
    (row,) = tk.trace(exe, data(4), y)
    np.testing.assert_array_equal(y, data(4) * 2)
    agree(exe, [row])
    assert row.device == "cpu"


def test_what_cannot_be_traced() -> None:
    exe = tk.compile(graph(lambda g, x: g.relu(x), x=(4,)))
    with pytest.raises(UserError, match="no function is called 'mian'") as caught:
        tk.trace(exe, data(4), function="mian")
    assert caught.value.code == "unknown-function"
    with pytest.raises(UserError):
        tk.trace(exe, data(5))
    with pytest.raises(UnsupportedError, match="llvmjit"):
        tk.trace(tk.compile(graph(lambda g, x: g.relu(x), x=(4,)), "llvmjit"), data(4))
