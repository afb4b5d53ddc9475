"""The loop that takes latencies, on a clock that only candidates and pauses move."""

from __future__ import annotations

from collections.abc import Callable
from itertools import groupby

import pytest

from tensorkiln.base.errors import UserError
from tensorkiln.measure.latency import measure


class Clock:
    def __init__(self) -> None:
        self.now = 0.0
        self.order: list[str] = []

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def candidate(self, name: str, *costs: float) -> Callable[[], None]:
        """Takes the given times in turn."""
        state = [0]

        def call() -> None:
            self.order.append(name)
            self.now += costs[state[0] % len(costs)]
            state[0] += 1

        return call


def test_candidates_are_in_turns() -> None:
    clock = Clock()
    candidates = {"a": clock.candidate("a", 0.004), "b": clock.candidate("b", 0.008)}
    times = measure(candidates, seconds=0.2, clock=clock, sleep=clock.sleep)
    turns = [name for name, _ in groupby(clock.order)]
    assert turns == ["a", "b"] * (len(turns) // 2) and len(turns) >= 4
    assert list(times) == ["a", "b"]
    assert times["a"].min_ms == pytest.approx(4) and times["b"].median_ms == pytest.approx(8)


def test_median_minimum_and_count() -> None:
    clock = Clock()
    call = clock.candidate("a", 0.1, 0.03, 0.05, 0.2)
    timing = measure({"a": call}, seconds=0, reps=3, warmup=1, clock=clock, sleep=clock.sleep)["a"]
    # Each turn: one call untimed, one timed: 0.03, 0.2, 0.03.
    assert len(clock.order) == 6
    assert (timing.count, timing.min_ms) == (3, pytest.approx(30))
    assert timing.median_ms == pytest.approx(30)


def test_warmup_calls_are_not_counted() -> None:
    clock = Clock()
    call = clock.candidate("a", 1.0)
    timing = measure({"a": call}, seconds=0, warmup=4, clock=clock, sleep=clock.sleep)["a"]
    assert timing.count == 1 and len(clock.order) == 5


def test_a_slow_candidate_gets_its_share_of_time() -> None:
    clock = Clock()
    candidates = {"slow": clock.candidate("slow", 0.5), "fast": clock.candidate("fast", 0.001)}
    times = measure(candidates, seconds=3, clock=clock, sleep=clock.sleep)
    assert times["slow"].count >= 5
    assert times["fast"].count > 10 * times["slow"].count


def test_nothing_to_measure() -> None:
    assert measure({}) == {}


def test_what_a_candidate_raises_is_raised() -> None:
    def broken() -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        measure({"a": broken}, seconds=0)


@pytest.mark.parametrize("counts", [{"reps": 0}, {"warmup": -1}])
def test_counts_have_a_least_value(counts: dict[str, int]) -> None:
    with pytest.raises(UserError, match=next(iter(counts))):
        measure({"a": int}, **counts)  # type: ignore[arg-type]
