"""A process that works through cases, `python -m bench.gpu.worker OUT NAMES dry|gpu SECONDS`.

It appends a line of JSON to OUT when a case begins and one when it has ended, and ends early with
LOST when the driver has given the device up: then nothing works in this process any more. The
parent (`bench.gpu.supervise`) gives what is left to another one.
"""

from __future__ import annotations

import json
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from bench.gpu.cases import CASES, Work
from bench.gpu.conformance import checks
from bench.gpu.device import Array, Contender, Gpu, failure
from bench.gpu.peers import Absent
from tensorkiln.measure.latency import measure

LOST = 3
_TURN_S = 0.02  # queued runs of one turn should take that long
_MOST = 2000  # runs in a turn
_REPS = 5
_FIRST = 0.3  # of the seconds, before there is a peer
Result = dict[str, Any]
Tell = Callable[[Result], None]
Run = Callable[[Gpu, Tell], Result]


@dataclass
class Row:
    """What became of one contender. `status` is "ok" or the reason why there are no times."""

    label: str
    status: str = "ok"
    min_ms: float = 0.0
    median_ms: float = 0.0
    count: int = 0


def run_once(c: Contender) -> float:
    """Seconds of a run that is waited for."""
    start = time.perf_counter()
    c.queue()
    c.wait()
    return time.perf_counter() - start


class Race:
    """Contenders that take turns of as many runs as take 20 ms, queued at once; `seconds` 0: a run
    each."""

    def __init__(self, check: Callable[[list[Array]], str], seconds: float):
        self._check, self._seconds = check, seconds
        self._turns: dict[str, Callable[[], object]] = {}
        self._runs: dict[str, int] = {}
        self.rows: dict[str, Row] = {}

    def add(self, c: Contender) -> None:
        """Let somebody take part whose result is right."""
        row = self.rows[c.label] = Row(c.label, c.status)
        if c.status != "ok":
            return
        try:
            c.clear()
            run_once(c)
            outputs = c.outputs()
            wrong = self._check(outputs) if outputs else ""
            row.status = f"wrong result: {wrong}" if wrong else "ok"
            runs = max(1, min(_MOST, int(_TURN_S / run_once(c)))) if self._seconds else 1
        except Exception as error:  # the table reports it, whatever it is
            row.status = failure(error)
        if row.status == "ok":
            self._turns[c.label], self._runs[c.label] = _turn(c, runs), runs

    def run(self, share: float = 1.0) -> list[dict[str, Any]]:
        """The rows, with times of turns in a share of the seconds."""
        reps, warmup = (_REPS, 1) if self._seconds else (1, 0)
        times = measure(self._turns, seconds=share * self._seconds, reps=reps, warmup=warmup)
        for label, t in times.items():
            row, n = self.rows[label], self._runs[label]
            row.min_ms, row.median_ms, row.count = t.min_ms / n, t.median_ms / n, t.count
        return [asdict(row) for row in self.rows.values()]


def _turn(c: Contender, count: int) -> Callable[[], None]:
    def turn() -> None:
        for _ in range(count):
            c.queue()
        c.wait()

    return turn


def timed_case(make: Callable[[Gpu], Work], seconds: float, gpu: Gpu, tell: Tell) -> Result:
    """The result of a case: its rows, and what a run does. What there is of it is told before the
    peer is made, which may take longer than a case is given."""
    try:
        work = make(gpu)
    except Absent as reason:
        return {"rows": [asdict(Row("Tensorkiln", f"absent: {reason}"))]}
    race = Race(work.check, seconds)
    for c in work.contenders:
        race.add(c)
    facts = {"amount": work.amount, "unit": work.unit, "rival": work.rival}
    if seconds:
        tell({"rows": race.run(_FIRST), **facts})
    race.add(work.peer())
    return {"rows": race.run(), **facts}


def checked_case(check: Callable[[Gpu], str], gpu: Gpu, _: Tell) -> Result:
    """The result of a case of conformance."""
    return {"rows": [asdict(Row("Tensorkiln", check(gpu) or "ok"))]}


def everything(seconds: float, dry: bool) -> dict[str, Run]:
    """All cases in their order."""
    runs: dict[str, Run] = {name: partial(checked_case, check) for name, check in checks(dry)}
    return {**runs, **{c.name: partial(timed_case, c.make, seconds) for c in CASES}}


def main(out: str, names: str, mode: str, seconds: str) -> int:
    """Work through the named cases."""
    warnings.filterwarnings("ignore", message=".*is the baseline")
    cases = everything(float(seconds), mode == "dry")
    with Path(out).open("a", encoding="utf-8") as file:

        def tell(**fields: object) -> None:
            file.write(json.dumps(fields) + "\n")
            file.flush()

        def tell_part(name: str, result: Result) -> None:
            tell(part=name, **result)

        todo = json.loads(names)
        tell(begin=todo[0])
        gpu = Gpu(mode == "dry")
        tell(gpu=gpu.name)
        for name in todo:
            tell(begin=name)
            try:
                result = cases[name](gpu, partial(tell_part, name))
            except Exception as error:  # the table reports it, whatever it is
                result = {"rows": [asdict(Row("Tensorkiln", failure(error)))]}
            tell(end=name, **result)
            if gpu.is_lost():
                return LOST
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:5]))
