"""Random device functions: the proofs of check_races agree with an evaluator that runs threads in
several orders, and insert_barriers makes all orders agree with as few barriers as that takes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tensorkiln.ir.module import IRModule
from tensorkiln.ir.stmt import PrimFunc
from tensorkiln.ir.verify import verify
from tensorkiln.transform.tir.check_races import Races, races_of
from tensorkiln.transform.tir.insert_barriers import with_barriers
from tests.ir.evaluate_device import ORDERS, Race, launch
from tests.transform.device_programs import (
    SYNC,
    arrays_of,
    barriers,
    device,
    loop,
    shared,
    threads,
    without_barrier,
)

THREADS, SIZE = 4, 8
# Indices of 8 elements, for threads 0 to 3 and rounds 0 to 3 of loops k and j.
INDICES = ("t", "3 - t", "(t + 1) % 4", "2 * t", "t + 4", "7 - t", "0", "t // 2", "(t + 2) % 8")
OF_ROUND = ("t + 4 * ({v} % 2)", "t + {v}", "{v}", "(t + {v}) % 4", "3 - t + 4 * (({v} + 1) % 2)")
CONDITIONS = ("t < 2", "t == 0", "t > 0", "t % 2 == 0")
QUICK, MANY = (
    settings(max_examples=n, derandomize=True, suppress_health_check=list(HealthCheck))
    for n in (12, 500)
)


class Draw:
    """Draws what a block runs. `loops`: names of the loops around."""

    def __init__(self, draw: Any, syncs: bool):
        self.draw, self.syncs = draw, syncs
        self.loops: list[str] = []

    def pick(self, items: Any) -> Any:
        return self.draw(st.sampled_from(items))

    def chance(self, percent: int) -> bool:
        return bool(self.draw(st.integers(0, 99)) < percent)

    def index(self) -> str:
        if self.loops and self.chance(60):
            return str(self.pick(OF_ROUND)).format(v=self.pick(self.loops))
        return str(self.pick(INDICES))

    def load(self) -> str:
        memory = self.pick(("s", "s", "r", "X", "Y"))
        return f"{memory}[{'b, ' * (memory in 'XY')}{self.index()}]"

    def store(self) -> str:
        memory = self.pick(("s", "s", "s", "r", "r", "Y"))
        row = self.pick(("b, ", "b, ", "b, ", "0, ")) if memory == "Y" else ""
        value = self.load() if self.chance(70) else f"{self.load()} + {self.load()}"
        text = f"{memory}[{row}{self.index()}] = {value}"
        if self.chance(25):
            text = f"if {self.pick(CONDITIONS)}:\n    {text}"
        return text

    def nest(self) -> str:
        lines = [self.store() for _ in range(1 + self.chance(25))]
        return threads("\n".join(lines), self.pick((THREADS, THREADS, THREADS, 2)))

    def parts(self, depth: int) -> list[str]:
        statements = []
        for _ in range(self.draw(st.integers(1, 4 - (depth < 2)))):
            if self.syncs and self.chance(45):
                statements.append(SYNC)
            if depth and self.chance(35):
                statements.append(self.around(depth - 1))
            else:
                statements.append(self.nest())
        return statements

    def around(self, depth: int) -> str:
        """A loop or a branch."""
        name = "kj"[len(self.loops)]
        if self.loops and self.chance(30):
            return loop(f"if {self.loops[0]} % 2 == 0:", *self.parts(depth))
        if self.chance(15):
            return loop("if b == 0:", *self.parts(depth))
        self.loops.append(name)
        nest_text = loop(f"for {name} in range({self.pick((1, 2, 3))}):", *self.parts(depth))
        self.loops.pop()
        return nest_text


@st.composite
def devices(draw: Any, syncs: bool = True) -> PrimFunc:
    return device(shared(), shared("r"), *Draw(draw, syncs).parts(2))


def outcomes(f: PrimFunc) -> tuple[list[np.ndarray], set[Race]]:
    """(what `f` writes in each order of threads, the races that were seen)."""
    outputs, races = [], set()
    for order in ORDERS:
        arrays = arrays_of(f)
        races |= set(launch(f, arrays, order))
        outputs.append(arrays["Y"])
    return outputs, races


def kinds(races: Races) -> set[tuple[str, str]]:
    return {(x.kind, x.buffer) for x in races.faults}


def proofs_agree_with_runs(f: PrimFunc) -> None:
    found = races_of(f)
    results, races = outcomes(f)
    observed = {(r.kind, r.buffer) for r in races}
    assert kinds(found) <= observed, f.script()
    doubted = {(d.kind, d.buffer) for d in found.doubts}
    assert observed <= kinds(found) | doubted, f.script()
    if found.proved:
        assert all(np.array_equal(results[0], outcome) for outcome in results), f.script()


def barriers_make_all_orders_agree(f: PrimFunc) -> None:
    whole = with_barriers(f)
    verify(IRModule((whole,)))
    assert with_barriers(whole) is whole
    found = races_of(whole)
    results, races = outcomes(whole)
    # what is left: threads of one nest, and blocks, which no barrier separates
    within = {x for x in found.faults if x.kind == "race"}
    assert all(x.second is not None for x in within)
    assert bool(within) == any(r.kind == "race" for r in races), whole.script()
    if not found.faults:
        assert not races and not found.doubts, whole.script()
        assert all(np.array_equal(results[0], outcome) for outcome in results), whole.script()


def each_barrier_is_needed(f: PrimFunc, barrier_index: int) -> None:
    whole = with_barriers(f)
    count = barriers(whole)
    if not count or not races_of(whole).proved:
        return
    weakened = without_barrier(whole, barrier_index % count)
    after = races_of(weakened)
    assert after.faults, weakened.script()
    _, races = outcomes(weakened)
    assert kinds(after) == {(r.kind, r.buffer) for r in races}, weakened.script()


@QUICK
@given(devices())
def test_proofs_agree_with_runs(f: PrimFunc) -> None:
    proofs_agree_with_runs(f)


@QUICK
@given(devices(syncs=False), st.integers(0, 99))
def test_barriers_are_enough_and_needed(f: PrimFunc, barrier_index: int) -> None:
    barriers_make_all_orders_agree(f)
    each_barrier_is_needed(f, barrier_index)


@pytest.mark.fuzz
@MANY
@given(devices())
def test_many_proofs_agree_with_runs(f: PrimFunc) -> None:
    proofs_agree_with_runs(f)


@pytest.mark.fuzz
@MANY
@given(devices(syncs=False), st.integers(0, 99))
def test_many_barriers_are_enough_and_needed(f: PrimFunc, barrier_index: int) -> None:
    barriers_make_all_orders_agree(f)
    each_barrier_is_needed(f, barrier_index)
