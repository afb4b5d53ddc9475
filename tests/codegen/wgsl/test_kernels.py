"""Every class of kernel of a device as WGSL: validated, and run against NumPy in float64."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

import pytest

from tensorkiln.base.errors import UnsupportedError
from tensorkiln.ir.module import IRModule
from tensorkiln.ir.relax import Call
from tensorkiln.kernels.folders import built_in_families
from tests.codegen.wgsl.device import device
from tests.schedule.battery import Case
from tests.schedule.gpu.runner import WEBGPU, DeviceRunner, fused, groups_for
from tests.schedule.gpu.test_batteries import BATTERIES

WHOLE = {name: battery.whole() for name, battery in BATTERIES.items()}


def types_of(case: Case) -> Iterator[str]:
    """The element types of all that the kernels of a case read, write and compute."""
    for group in groups_for(fused(IRModule((case.function,), "case"), WEBGPU), WEBGPU):
        if 0 in (group.out_type.static_shape() or ()):
            continue  # nothing is computed
        yield from (p.tensor.dtype.name for p in group.function.params)
        for b in group.function.bindings:
            yield b.var.tensor.dtype.name
            if isinstance(b.value, Call) and b.value.op == "coupled":
                yield "int64"  # it counts its rounds
            if isinstance(b.value, Call) and b.value.op == "pow":
                # A power of integers is computed in float64.
                yield "float32" if b.var.tensor.dtype.is_float else "float64"


@cache
def lacking(battery: str, name: str) -> bool:
    """Whether a case needs numbers of 64 bits."""
    return not all(map(WEBGPU.has_type, types_of(WHOLE[battery].cases[name])))


def check(battery: str, names: list[str]) -> list[str]:
    """Run those of the cases that WGSL can say; the others are refused, or right. Return the
    families of those that WGSL can say."""
    cases = WHOLE[battery]
    able = [n for n in names if not lacking(battery, n)]
    runner = DeviceRunner(cases, able, WEBGPU)
    for name in able:
        runner.check(name)
    for name in set(names) - set(able):
        try:  # right, where kernels use none of these numbers: a tree of one leaf
            DeviceRunner(cases, [name], WEBGPU).check(name)
        except UnsupportedError as error:
            assert "64 bits" in str(error) or "float64" in str(error), error
    return [f.op_class for f in runner.mod.prim_funcs]


def test_kernels_of_webgpu() -> None:
    device()
    ran = []
    for battery, step in (("loops", 42), ("contractions", 11), ("operators", 9), ("places", 9)):
        ran += check(battery, list(WHOLE[battery].cases)[::step])
    families = {f.op_class for f in built_in_families() if "webgpu" in f.devices}
    assert set(ran) >= families - {"gpu_attention", "conv2d_transposed"}
    assert len(ran) >= 60


@pytest.mark.fuzz
@pytest.mark.parametrize("battery", BATTERIES)
def test_all_kernels_of_webgpu(battery: str) -> None:
    device()
    check(battery, list(BATTERIES[battery].cases))
