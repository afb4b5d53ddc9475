"""Tensor programs of a user on a device: run from graphs, and checked as they are compiled."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tensorkiln as tk
from tensorkiln.base.errors import UnsupportedError, UserError
from tensorkiln.pipeline import tir_passes
from tensorkiln.script import from_source
from tensorkiln.target import Target
from tensorkiln.transform.tir.allocate_shared import AllocateShared
from tensorkiln.transform.tir.check_races import CheckRaces, UnprovedWarning, check_races
from tests.codegen.opencl.device import device

PROGRAM = """
@ir_module
class Model:
    @T.prim_func
    def flip(A: T.Buffer(("n", 32), "float32"), C: T.Buffer(("n", 32), "float32")):
        T.func_attr({{"target": {target!r}}})
        for b in T.thread_binding(n, thread="blockIdx.x"):
            S = T.alloc_buffer(({size},), "float32", scope="shared")
            for t in T.thread_binding(32, thread="threadIdx.x"):
                {fill}
            for u in T.thread_binding(32, thread="threadIdx.x"):
                {use}

    @R.function
    def main(x: R.Tensor(("n", 32), "float32")):
        y = R.relu(x)
        z = R.call_tir(cls.flip, (y,), R.Tensor(("n", 32), "float32"))
        w = R.call_tir(cls.flip, (z,), R.Tensor(("n", 32), "float32"))
        v = R.add(z, w)
        return v
"""


def model(
    fill: str = "S[t] = A[b, t]",
    use: str = "C[b, u] = S[31 - u]",
    size: int = 32,
    target: str = "opencl",
) -> tk.IRModule:
    return from_source(PROGRAM.format(fill=fill, use=use, size=size, target=target))


TARGETS: dict[str, tuple[Any, int]] = {
    "opencl": ("opencl", 2),
    "beside a CPU": ({"devices": ["native", "opencl"]}, 3),
}


@pytest.mark.parametrize("name", TARGETS)
def test_a_program_of_a_user_runs_on_the_device_that_it_names(name: str) -> None:
    device()
    target, copies = TARGETS[name]
    exe = tk.compile(model(), target)
    assert {p.device for p in exe.placement() if p.kernel == "flip"} == {"opencl"}
    assert len(exe.copies()) == copies
    for rows in (1, 3):
        x = np.random.default_rng(0).normal(size=(rows, 32)).astype(np.float32)
        y = np.maximum(x, 0)
        np.testing.assert_array_equal(exe(x), y[:, ::-1] + y)


# ---- checked -------------------------------------------------------------------------------------

# what fills S, what uses it -> the code, and what the error says
WRONG = {
    ("S[t // 2] = A[b, t]", "C[b, u] = S[u]"): (
        "device-race",
        r"S\[0\] is written by .* in thread \(1, 0, 0\) and .* \(0, 0, 0\) of block",
    ),
    ("S[t] = A[b, t]", "C[0, u] = S[u]"): ("device-race", "of block .* and written by .* of block"),
    ("S[t] = A[b, t]", "C[b, u] = S[u + n]"): ("out-of-bounds", "outside of its buffer"),
    ("S[t] = A[b, t]", "C[b, u // 2] = S[u]"): (
        "device-race",
        r"C\[0, 0\] is written by .* in thread \(1, 0, 0\)",
    ),
}


@pytest.mark.parametrize("fill,use", WRONG)
def test_what_is_wrong_with_it_is_refused_with_the_threads(fill: str, use: str) -> None:
    code, says = WRONG[fill, use]
    with pytest.raises(UserError, match=says) as e:
        tk.compile(model(fill, use), "opencl")
    assert e.value.code == code and e.value.where == "flip_device"
    assert "thread (" in e.value.message and e.value.hint


def test_what_cannot_be_proved_is_a_warning() -> None:
    scatter = "C[b, T.Cast('int64', S[u]) % 32] = S[u]"
    with pytest.warns(UnprovedWarning, match="cannot prove") as found:
        tk.compile(model(use=scatter), "opencl")
    assert "flip_device" in str(found[0].message)


def test_kernels_of_the_compiler_are_checked_where_it_is_asked_for() -> None:
    target = Target("opencl")
    seen: list[str] = []

    def count(mod: tk.IRModule) -> tk.IRModule:
        seen.extend(f.name for f in mod.prim_funcs if f.is_device)
        return check_races(mod)

    tk.compile(model(), target, tir_pipeline=[*tir_passes(target), count])
    assert set(seen) == {"flip_device", "relu_device", "add_device"}
    assert CheckRaces() in tir_passes(target) and CheckRaces() not in tir_passes(Target("llvm"))


# ---- refused -------------------------------------------------------------------------------------


def test_shared_memory_is_that_of_the_device() -> None:
    rows = [
        {"kind": "opencl", "target_key": "small", "max_shared_memory_per_block": 256},
        {"kind": "opencl", "target_key": "large", "max_shared_memory_per_block": 512},
    ]
    target = Target({"kind": "composite", "devices": ["native", *rows]})
    limits = next(p for p in tir_passes(target) if isinstance(p, AllocateShared))
    assert limits.devices == (("small", 256), ("large", 512))
    tk.compile(model(size=128, target="large"), target)
    with pytest.raises(
        UnsupportedError, match="flip_device shares 512 bytes .* the device has 256"
    ):
        tk.compile(model(size=128, target="small"), target)


SEVERAL = """
@ir_module
class Model:
    @T.prim_func
    def both(A: T.Buffer((32,), "float32"), B: T.Buffer((32,), "float32"),
             C: T.Buffer((32,), "float32")):
        T.func_attr({"target": "opencl"})
        for b in T.thread_binding(32, thread="blockIdx.x"):
            B[b] = A[b]
            C[b] = A[b]

    @R.function
    def main(x: R.Tensor((32,), "float32")):
        z = R.call_tir(cls.both, (x,), (R.Tensor((32,), "float32"), R.Tensor((32,), "float32")))
        a = z[0]
        return a
"""


def test_several_results() -> None:
    with pytest.raises(UnsupportedError, match="both gives several results on device 'opencl'"):
        tk.compile(from_source(SEVERAL), "opencl")


SUBGROUPS = """
@ir_module
class Model:
    @T.prim_func
    def total(A: T.Buffer((4, 32), "float32"), C: T.Buffer((4, 32), "float32")):
        T.func_attr({"target": "opencl"})
        for b in T.thread_binding(4, thread="blockIdx.x"):
            for t in T.thread_binding(32, thread="threadIdx.x"):
                C[b, t] = T.subgroup_sum(A[b, t], 32)

    @R.function
    def main(x: R.Tensor((4, 32), "float32")):
        y = R.call_tir(cls.total, (x,), R.Tensor((4, 32), "float32"))
        return y
"""


def test_a_device_without_subgroups_is_named_with_what_it_lacks() -> None:
    device()
    with pytest.raises(UnsupportedError, match="subgroup_sum is an instruction .* does not have"):
        tk.compile(from_source(SUBGROUPS), "opencl")
    target = {"kind": "opencl", "supports_subgroups": True, "thread_warp_size": 32}
    exe, x = tk.compile(from_source(SUBGROUPS), target), np.ones((4, 32), np.float32)
    try:
        found = exe(x)
    except RuntimeError as error:
        assert "cannot run total_device: it lacks extension cl_" in str(error)
    else:
        np.testing.assert_array_equal(found, 32 * x)
