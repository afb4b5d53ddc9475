"""Costs of operators on devices, and what follows from them for the division of a graph."""

from __future__ import annotations

import math
from typing import Any

import pytest

import tensorkiln as tk
from tensorkiln.ir.expr import Var
from tensorkiln.ir.module import IRModule
from tensorkiln.ir.relax import Call, tensor
from tensorkiln.kernels.case import Build, rand
from tensorkiln.target import Target, with_host
from tensorkiln.transform.relax.assign_devices import AssignDevices
from tensorkiln.transform.relax.device_costs import operations
from tests.transform.graphs import graph, main

pytestmark = pytest.mark.filterwarnings("ignore:.*is the baseline")

# 1 us a kernel, 100 us a copy; 1000 and 10 operations a nanosecond
GPU = {"kind": "opencl", "target_key": "gpu", "gflops": 1000, "launch_us": 1, "copy_us": 100}
HOST = {"kind": "llvm", "gflops": 10, "bandwidth": 10}


def _placed(mod: IRModule, *devices: Any, host: Any = HOST) -> list[tuple[str, str]]:
    target = with_host(Target({"kind": "composite", "host": host, "devices": list(devices)}))
    rows = main_of(AssignDevices(target)(mod)).attrs["placed"]
    return [(device, reason) for _, device, reason in rows]


def main_of(mod: IRModule) -> Any:
    return next(f for f in mod.functions if "placed" in f.attrs)


# the graph, the shape of x, and the operations of its operator
OPERATIONS: dict[str, tuple[Build, tuple[int, ...], float]] = {
    "relu": (lambda g, x: g.relu(x), (6, 7), 42),
    "add": (lambda g, x: g.add(x, x), (6, 7), 42),
    "transpose": (lambda g, x: g.transpose(x, axes=(1, 0)), (6, 7), 0),
    "linear": (lambda g, x: g.linear(x, rand(7, 5)), (6, 7), 2 * 6 * 7 * 5),
    "bias": (lambda g, x: g.linear(x, rand(7, 5), rand(5)), (6, 7), 2 * 6 * 7 * 5 + 30),
    "matmul": (lambda g, x: g.matmul(x, rand(3, 7, 5)), (3, 6, 7), 2 * 3 * 6 * 7 * 5),
    "sum": (lambda g, x: g.sum(x, axes=(1,)), (6, 7), 42),
    "conv": (
        lambda g, x: g.conv2d(x, rand(9, 5, 3, 3)),
        (2, 5, 8, 7),
        2 * (2 * 9 * 6 * 5) * (5 * 3 * 3),
    ),
    "softmax": (lambda g, x: g.softmax(x, axis=1), (6, 7), 420),
    "attention": (
        lambda g, x: g.attention(x, x, x, scale=0.5),
        (1, 2, 9, 16),
        2 * 2 * (2 * 9 * 9 * 16),
    ),
}


@pytest.mark.parametrize("name", OPERATIONS)
def test_operations(name: str) -> None:
    build, shape, count = OPERATIONS[name]
    (b,) = main(graph(build, x=shape)).bindings
    assert isinstance(b.value, Call) and operations(b.value, b.var.tensor) == count


def test_operations_of_unknown_sizes() -> None:
    (b,) = main(graph(lambda g, x: g.relu(x), x=tensor((Var("n"), 7), "float32"))).bindings
    assert isinstance(b.value, Call) and math.isnan(operations(b.value, b.var.tensor))


def _large(g: Any, x: Any) -> Any:
    return g.relu(g.linear(x, rand(512, 512)))


def test_work_is_worth_its_copies_or_not() -> None:
    """512 rows are 2^28 operations; the same weights of one row 2^19, and 2^20 bytes to read."""
    placed = _placed(graph(_large, x=(512, 512)), GPU)
    assert [key for key, _ in placed] == ["gpu", "gpu"]
    # 268 us of operations, 10 of bytes, two launches; 1 MiB at 10 bytes a nanosecond there and back
    words = "gpu takes 691 us, 410 of them for 2 copies, host takes 27053 us"
    assert [reason for _, reason in placed] == [words, words]
    placed = _placed(graph(_large, x=(1, 512)), GPU)
    assert [key for key, _ in placed] == ["host", "host"]
    assert placed[0][1].startswith("host takes ") and "gpu takes" in placed[0][1]


def _between(g: Any, x: Any) -> Any:
    """A cheap operator between two that a device names."""
    return g.linear(g.relu(g.linear(x, rand(64, 64))), rand(64, 64, seed=1))


def test_a_lone_cheap_operator_does_not_travel() -> None:
    """Between two on the host it stays there; between two of the device, on the device."""
    dsp = {"kind": "llvm", "target_key": "dsp", "operators": ["linear"]}
    mod = graph(_between, x=(4, 64))
    assert [key for key, _ in _placed(mod, dsp, GPU)] == ["dsp", "host", "dsp"]
    named = {**GPU, "target_key": "products", "operators": ["linear"]}
    assert [key for key, _ in _placed(mod, named, "llvm")] == ["products", "llvm", "products"]
    general = {**GPU, "target_key": "general"}
    # a second key of the same machine has memory of its own, so far as is known
    assert [key for key, _ in _placed(mod, named, general)] == ["products", "host", "products"]


@pytest.mark.parametrize(
    "change",
    [
        {"operators": ["linear", "relu"]},  # declared
        dict.fromkeys(("gflops", "launch_us", "copy_us")),  # no figures
    ],
)
def test_what_costs_do_not_change(change: dict[str, Any]) -> None:
    plain = {k: v for k, v in {**GPU, **change}.items() if v is not None}
    placed = _placed(graph(_large, x=(1, 512)), plain, host="llvm")
    assert [key for key, _ in placed] == ["gpu", "gpu"]
    assert not any("takes" in reason for _, reason in placed)


def test_symbolic_sizes_keep_the_order() -> None:
    mod = graph(_large, x=tensor((Var("n"), 512), "float32"))
    assert _placed(mod, GPU) == [("gpu", "the first device for all operators")] * 2


def test_pins_are_not_weighed() -> None:
    from tensorkiln.script import from_source

    mod = from_source("""
@R.function
def main(x: R.Tensor((4, 8), "float32")):
    R.func_attr({"target": "gpu"})
    y = R.exp(x)
    return y
""")
    assert _placed(mod, GPU) == [("gpu", "the function's target is 'gpu'")]


def test_faster_of_two_cpus() -> None:
    """They share memory, so the faster one takes all; the order decides between equals."""
    slow, fast = ({**HOST, "target_key": key, "gflops": n} for key, n in (("a", 5), ("b", 50)))
    mod = graph(_large, x=(64, 512))
    assert {key for key, _ in _placed(mod, slow, fast)} == {"b"}
    assert {key for key, _ in _placed(mod, {**fast, "target_key": "c"}, fast)} == {"c"}


def test_tensors_on_a_device_cost_no_copies() -> None:
    """A parameter and a result that are there make the device worth it."""
    from tensorkiln.script import from_source

    text = """
@R.function
def main(x: R.Tensor((512, 512), "float32"{on})) -> R.Tensor((512, 512), "float32"{on}):
    y = R.relu(x)
    return y
"""
    target = {"devices": [GPU], "host": HOST}
    for on, device in (("", "host"), (', device="gpu"', "gpu")):
        exe = tk.compile(from_source(text.format(on=on)), target)
        assert {p.device for p in exe.placement()} == {device}
        assert not exe.copies()
