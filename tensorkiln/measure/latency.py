"""Measure latencies of several callables in turns, and the throughput of several threads."""

from __future__ import annotations

import math
import statistics
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from tensorkiln.base.errors import UserError

# Seconds before each turn: worker threads of the candidate before may still spin. ONNX Runtime's
# keep their cores for over 5 ms, which on two cores slowed the next candidate (median 1.7x).
_PAUSE = 0.05
_TURN = 0.02  # seconds of timed calls in one turn


@dataclass(frozen=True, slots=True)
class Latency:
    """Latency of one call, in milliseconds, over `count` timed calls: the least, the median, and
    what 90 and 99 of 100 calls do not exceed."""

    min_ms: float
    median_ms: float
    count: int
    p90_ms: float = 0.0
    p99_ms: float = 0.0

    @classmethod
    def of(cls, times: Sequence[float]) -> Latency:
        """That of calls of these milliseconds, at least one."""
        ordered = sorted(times)
        p90, p99 = (ordered[math.ceil(len(ordered) * part) - 1] for part in (0.9, 0.99))
        return cls(ordered[0], statistics.median(ordered), len(ordered), p90, p99)


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
    times: dict[str, list[float]] = {name: [] for name in candidates}
    end = clock() + seconds * len(candidates)
    while candidates and (clock() < end or min(map(len, times.values())) < reps):
        for name, call in candidates.items():
            sleep(_PAUSE)
            for _ in range(warmup):
                call()
            times[name] += _turn(call, clock)
    return {name: Latency.of(t) for name, t in times.items()}


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


def throughput(
    streams: Mapping[str, Sequence[Callable[[], object]]],
    *,
    seconds: float = 1.0,
    turns: int = 4,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, float]:
    """Calls per second of each candidate, whose callables are called over and over, each in a
    thread of its own: the best of `turns`, which the candidates take one after the other.

    Exceptions of callables propagate.
    """
    best = dict.fromkeys(streams, 0.0)
    for _ in range(turns):
        for name, calls in streams.items():
            time.sleep(_PAUSE)
            best[name] = max(best[name], _rate(calls, seconds / turns, clock))
    return best


def _rate(
    calls: Sequence[Callable[[], object]], seconds: float, clock: Callable[[], float]
) -> float:
    """Calls per second while each callable runs in a thread of its own for `seconds`."""
    counts, errors = [0] * len(calls), list[BaseException]()
    ready, stop = threading.Barrier(len(calls) + 1), threading.Event()

    def work(k: int) -> None:
        try:
            calls[k]()  # untimed
            ready.wait()
            while not stop.is_set():
                calls[k]()
                counts[k] += 1
        except threading.BrokenBarrierError:
            pass  # another one failed
        except BaseException as error:
            errors.append(error)
            ready.abort()

    threads = [threading.Thread(target=work, args=(k,), daemon=True) for k in range(len(calls))]
    for thread in threads:
        thread.start()
    start = end = clock()
    try:
        ready.wait()
        start = clock()
        stop.wait(seconds)
        end = clock()
        call_count = sum(counts)
    except threading.BrokenBarrierError:
        call_count = 0
    stop.set()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return call_count / (end - start)
