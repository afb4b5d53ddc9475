"""Random schedules for devices: proved free of races, and run on a device of OpenCL."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import count
from random import Random

import pytest

from tensorkiln.base.errors import UnsupportedError
from tensorkiln.ir.expr import int_value
from tensorkiln.ir.stmt import Alloc, PrimFunc, Sync
from tensorkiln.ir.visit import walk_stmt
from tensorkiln.transform.tir.check_races import races_of
from tests.schedule.corpus import CASES, Case
from tests.schedule.gpu.random_device_schedules import DEVICE_ONLY, device_schedule
from tests.schedule.gpu.runner import Kernels
from tests.schedule.random_schedules import Tally
from tests.schedule.test_primitives_property import outputs, same

FEW, MANY, PARTS = 16, 125, 4


def drawn(first: int, number: int, tally: Counter[str]) -> list[tuple[Case, PrimFunc, Kernels]]:
    """Programs that a device can run, each with the case that it is a schedule of."""
    found: list[tuple[Case, PrimFunc, Kernels]] = []
    steps = Tally()
    for k in count(first):
        if len(found) == number:
            tally.update({name: steps.legal.get(name, 0) for name in DEVICE_ONLY})
            return found
        case = CASES[k % len(CASES)]
        s = device_schedule(case.func, Random(f"{case.name} {k}"), steps)
        if s is None:
            tally["not in blocks"] += 1
            continue
        try:
            made = Kernels([replace(s.func, name=f"s{k}")])
        except UnsupportedError:
            tally["not launches alone"] += 1
            continue
        if any(_has_symbolic_size(made.func(s.name)) for s in made.launches(f"s{k}")):
            tally["symbolic memory"] += 1
            continue
        if not made.launches(f"s{k}"):
            tally["without loops"] += 1
            continue
        found.append((case, s.func, made))
    raise AssertionError


def _has_symbolic_size(f: PrimFunc) -> bool:
    """Whether a thread has memory whose size is not known."""
    made = [s.buffer for s in walk_stmt(f.body) if isinstance(s, Alloc)]
    return any(int_value(d) is None for b in made for d in (*b.shape, *b.strides))


def check(first: int, number: int) -> Counter[str]:
    """Draw schedules; each is proved, and gives the results of its program."""
    tally: Counter[str] = Counter()
    programs = drawn(first, number, tally)
    names = [made.names[0] for _, _, made in programs]
    together = Kernels([replace(f, name=n) for n, (_, f, _) in zip(names, programs, strict=True)])
    for name, (case, f, _) in zip(names, programs, strict=True):
        parts = [together.func(s.name) for s in together.launches(name)]
        for part in parts:
            races = races_of(part, notes=False)
            assert not races.faults, f"{case.name}\n{f.script()}\n{races.faults[0]}"
            tally["doubts"] += len(races.doubts)
            tally["barriers"] += sum(isinstance(s, Sync) for s in walk_stmt(part.body))
        arrays = list(case.arrays(1).values())
        together.run(name, case.sizes, *arrays)
        assert same(case, arrays, outputs(case, case.func, 1)), f"{case.name}\n{f.script()}"
        tally["run"] += 1
    return tally


def test_random_schedules_of_a_device() -> None:
    tally = check(0, FEW)
    assert tally["run"] == FEW and tally["barriers"] > 0
    assert sum(tally[name] for name in DEVICE_ONLY) > 2


@pytest.mark.fuzz
@pytest.mark.parametrize("part", range(PARTS))
def test_five_hundred_schedules_of_a_device(part: int) -> None:
    tally = check(10_000 * (part + 1), MANY)
    print(f"\npart {part}: {dict(tally)}")
    assert tally["run"] == MANY and tally["barriers"] > MANY // 10
    assert all(tally[name] > 0 for name in DEVICE_ONLY), tally
