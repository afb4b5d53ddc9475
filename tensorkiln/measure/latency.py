"""Measure latencies of several callables in turns."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from tensorkiln.base.errors import UserError

# Seconds before each turn: worker threads of the candidate before may still spin. ONNX Runtime's
# keep their cores for over 5 ms, which on two cores slowed the next candidate (median 1.7x).
_PAUSE = 0.05
_TURN = 0.02  # seconds of timed calls in one turn


@dataclass(frozen=True, slots=True)
class Latency:
    """Latency of one call, in milliseconds, over `count` timed calls."""

    min_ms: float
    median_ms: float
    count: int


def measure(
    candidates: Mapping[str, Callable[[], object]],
    *,
    seconds: float = 1.0,
    reps: int = 1,
    warmup: int = 1,
    clock: Callable[[], float] = time.perf_counter,
    sleep: Callable[[float], None] = time.sleep,
) -> dict[str, Latency]:
    """Time the candidates round robin, so that a slow phase of the machine affects all of them.

    A turn is a pause, `warmup` untimed calls (they wake threads and fill caches), and timed calls
    for 20 ms. Turns repeat until `seconds` per candidate have passed and each candidate has at
    least `reps` timed calls. Exceptions of candidates propagate. Raises UserError (`bad-count`) for
    `reps` below 1 or `warmup` below 0.
    """
    if reps < 1 or warmup < 0:
        raise UserError(
            f"measure: reps={reps}, warmup={warmup}: expected at least 1 and 0", code="bad-count"
        )
    taken: dict[str, list[float]] = {name: [] for name in candidates}
    end = clock() + seconds * len(candidates)
    while candidates and (clock() < end or min(map(len, taken.values())) < reps):
        for name, call in candidates.items():
            sleep(_PAUSE)
            for _ in range(warmup):
                call()
            taken[name] += _turn(call, clock)
    return {name: Latency(min(t), statistics.median(t), len(t)) for name, t in taken.items()}


def _turn(call: Callable[[], object], clock: Callable[[], float]) -> list[float]:
    """Milliseconds of each timed call of one turn; at least one call."""
    times: list[float] = []
    turn_end = clock() + _TURN
    while True:
        start = clock()
        call()
        now = clock()
        times.append((now - start) * 1e3)
        if now >= turn_end:
            return times
