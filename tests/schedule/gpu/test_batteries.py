"""The graphs of CPU tests on a device of OpenCL, against float64: kernels of their own, loops, and
every operator with a tensor program. A sample of each in every run; `make fuzz` runs all."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

from tensorkiln import ops
from tensorkiln.kernels.case import Build
from tests.ops.test_programs import CASES
from tests.schedule import test_contractions, test_loops, test_places
from tests.schedule.battery import Battery, typed
from tests.schedule.gpu.runner import DeviceRunner


def _operator(op: str, attrs: dict[str, object]) -> Build:
    return lambda g, *args: g.emit(op, *args, **attrs)


# Devices have row-major tensors.
LEFT_OUT = {"relayout"}


def _operators() -> Battery:
    b = Battery()
    for k, (op, arrays, attrs) in enumerate(CASES):
        if op in LEFT_OUT:
            continue
        exact = op == "bitcast"  # of bits that may be a NaN's
        operands = [
            a.astype("float32") if a.dtype == "float64" and not exact else a for a in arrays
        ]
        types = [typed(a.dtype.name, *a.shape) for a in operands]

        def make(
            number: int,
            dtype: np.dtype,
            shape: tuple[int, ...],
            operands: list[np.ndarray] = operands,
        ) -> np.ndarray:
            return operands[number]

        b.add(f"{op}_{k}", _operator(op, attrs), *types, make=make, tolerance=2e-5, exact=exact)
    return b


BATTERIES = {
    "contractions": test_contractions.BATTERY,
    "loops": test_loops.BATTERY,
    "operators": _operators(),
    "places": test_places.BATTERY,
}
STEP = 17  # one of so many cases in every run
EVERY = [(name, case) for name, b in BATTERIES.items() for case in b.cases]
SAMPLE = [(name, case) for name, b in BATTERIES.items() for case in list(b.cases)[::STEP]]


@cache
def runner(name: str, step: int) -> DeviceRunner:
    """Kernels of a battery, a few of which are one program."""
    battery = BATTERIES[name]
    return DeviceRunner(battery, list(battery.cases)[::step])


@pytest.mark.parametrize(("name", "case"), SAMPLE)
def test_kernels_of_a_device(name: str, case: str) -> None:
    runner(name, STEP).check(case)


@pytest.mark.fuzz
@pytest.mark.parametrize(("name", "case"), EVERY)
def test_all_kernels_of_a_device(name: str, case: str) -> None:
    runner(name, 1).check(case)


def test_all_operators_are_there() -> None:
    checked = {name.rpartition("_")[0] for name in BATTERIES["operators"].cases} | LEFT_OUT
    assert checked == {op.name for op in ops.OPS.values() if op.program is not None}
