"""Every class of device kernels on the emulator of CUDA, with threads in several orders, against
float64; and the batteries of CPUs."""

from __future__ import annotations

import pytest

from tensorkiln.target import Target
from tests.cuda.emulator.launch import BACKWARD, FORWARD, RANDOM
from tests.schedule.battery import Battery
from tests.schedule.gpu import test_attention, test_batteries, test_windows
from tests.schedule.gpu.kernels import KERNELS
from tests.schedule.gpu.runner import DeviceRunner

CUDA = Target("cuda")
ORDERS = [(FORWARD, 0), (BACKWARD, 0), (RANDOM, 1), (RANDOM, 2)]
LARGE = {"linear_large", "linear_wide"}  # take seconds: in one order


def _classes() -> Battery:
    """The kernels whose schedules are proved, at sizes that leave some of a block over."""
    b = Battery()
    for name, case in KERNELS.items():
        symbols = sorted({str(n) for n in case.shape if not isinstance(n, int)})
        sizes = [dict.fromkeys(symbols, n) for n in (1, 7, 40)] if symbols else [{}]
        b.add(name, case.build, case.shape, sizes=sizes, tolerance=2e-5)  # type: ignore[arg-type]
    return b


CLASSES = _classes()
BATTERIES = {
    **test_batteries.BATTERIES,
    "attention": test_attention.BATTERY,
    "windows": test_windows.BATTERY,
}
SAMPLES = {name: [*b.cases][::13] for name, b in BATTERIES.items()}


@pytest.fixture(scope="module")
def classes() -> DeviceRunner:
    return DeviceRunner(CLASSES, target=CUDA)


@pytest.mark.parametrize("name", CLASSES.cases)
def test_every_class_in_every_order(name: str, classes: DeviceRunner) -> None:
    for k, order in enumerate(ORDERS[: 1 if name in LARGE else None]):
        classes.kernels.order, classes.kernels.aligned = order, k % 2 == 0
        classes.check(name)


@pytest.mark.parametrize("battery", BATTERIES)
def test_samples(battery: str) -> None:
    runner = DeviceRunner(BATTERIES[battery], SAMPLES[battery], CUDA)
    runner.kernels.order, runner.kernels.aligned = (RANDOM, 3), True
    for name in SAMPLES[battery]:
        runner.check(name)


@pytest.mark.fuzz
@pytest.mark.parametrize("battery", BATTERIES)
def test_everything(battery: str) -> None:
    runner = DeviceRunner(BATTERIES[battery], (), CUDA)
    runner.kernels.order = BACKWARD, 0
    for name in BATTERIES[battery].cases:
        runner.check(name)
