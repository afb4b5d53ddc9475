"""Kernels whose rows are divided among threads without their number being known: sizes around the
borders of chunks against NumPy, and each row as it is alone, to the bit."""

from __future__ import annotations

import numpy as np
import pytest

from tensorkiln.ir.expr import Var
from tensorkiln.kernels.case import rand
from tensorkiln.target import Target
from tests.emulated.machine import Library, load
from tests.schedule.battery import Battery, typed

N = Var("N")
SIZES = [{"N": n} for n in (0, 1, 2, 7, 15, 16, 17, 33, 63, 64, 100, 255, 257, 1000, 4099)]


def _all_cases() -> Battery:
    b = Battery()
    for k, n in ((10, 3), (100, 1), (64, 100), (8, 33), (300, 16), (0, 3), (0, 70), (4, 0)):
        b.add(
            f"linear_{k}_{n}",
            lambda g, x, k=k, n=n: g.relu(g.linear(x, rand(k, n), rand(n))),
            (N, k),
            sizes=SIZES,
        )
    b.add("linear_of_planes", lambda g, x: g.linear(x, rand(12, 20)), (N, 5, 12), sizes=SIZES[:12])
    for name in ("sum", "max", "mean"):
        b.add(
            f"{name}_of_columns",
            lambda g, x, op=name: g.emit(op, x, axes=(1,)),
            (N, 100),
            sizes=SIZES,
        )
    for columns in (3, 40):
        b.add(
            f"argmax_of_{columns}",
            lambda g, x: g.argmax(x, axis=1),
            (N, columns),
            sizes=SIZES,
            exact=True,
        )
    b.add("rows_of_two", lambda g, x: g.sum(x, axes=(2,)), (N, 6, 50), sizes=SIZES[:12])
    b.add("scaled", lambda g, x: g.mul(g.exp(x), rand(37)), (N, 37), sizes=SIZES)
    b.add("turned", lambda g, x: g.transpose(x, axes=(0, 2, 1)), (N, 5, 9), sizes=SIZES, exact=True)
    b.add(
        "halves",
        lambda g, x: g.sum(x, axes=(1,)),
        typed("float16", N, 64),
        sizes=SIZES,
    )
    return b


BATTERY = _all_cases().in_turn()


@pytest.fixture(scope="module", params=["native", "c"])
def run(request: pytest.FixtureRequest) -> Library:
    return load(BATTERY.compile(Target(request.param)))


@pytest.mark.parametrize("name", BATTERY.cases)
def test_against_numpy(name: str, run: Library) -> None:
    BATTERY.check(name, run)


@pytest.mark.parametrize("name", BATTERY.cases)
def test_a_row_is_what_it_is_alone(name: str, run: Library) -> None:
    (x,) = BATTERY.cases[name].function.params
    shape = [4099 if k == 0 else int(d.value) for k, d in enumerate(x.tensor.shape)]
    rows = np.random.default_rng(3).standard_normal(shape).astype(x.tensor.dtype.name)
    whole = np.from_dlpack(run[name](rows))
    for n in (0, 1, 15, 63, 100, 4098):
        alone = np.from_dlpack(run[name](rows[n : n + 1]))
        assert np.array_equal(alone[0], whole[n]), n
