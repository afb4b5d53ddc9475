"""One model at one thread count: every contender in this process, round-robin on the same inputs.

Run by `bench.__main__` as a fresh process whose CPU affinity and thread variables are set before
anything is imported: `python -m bench.measure SPEC.json RESULT.json PROGRESS.json`. The last file
always says which contender is at work on what, for the parent to know whom to leave out when this
takes too long, or ends.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from bench.contenders import OURS, Array, Case, Contender, Runner
from bench.peers import PEERS
from tensorkiln.measure.latency import measure

RTOL, ATOL = 1e-3, 1e-4
# In a lower precision: how far from float64, as a part of the largest result.
# Quantised networks have random weights, and few samples to be calibrated by.
ROUNDED = {"bfloat16": 5e-2, "float16": 1e-2, "int8": 0.5}
# A contender whose first call takes that many times the fastest one's gets no turns among the
# others: it would take most of the time and cannot become the best. It gets a few calls afterwards.
TOO_SLOW = 10.0
FEW, FEW_S = 3, 10.0
PRIORITY = -15


@dataclass(slots=True)
class Row:
    """What became of one contender. `status` is "ok" or the reason why there are no times; those
    that were too slow for more have a `count` of 1 to 4, the first call among them. `error` is the
    largest difference from float64, as a part of the largest result, where that was asked for, and
    `mean_error` the root of the mean square of differences, as a part of that of results."""

    name: str
    label: str
    version: str
    status: str = "ok"
    prepare_s: float = 0.0
    first_ms: float = 0.0
    min_ms: float = 0.0
    median_ms: float = 0.0
    count: int = 0
    error: float = 0.0
    mean_error: float = 0.0


Clock = Callable[[], float]
Report = Callable[[str, str], None]  # whose turn it is, at what
Prepared = dict[str, tuple[Row, Runner]]
# "cpu" is processor time of all threads: for one thread on a machine that does other work as well.
CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}


def _silent(name: str, work: str) -> None:
    """Nobody wants to know."""


def prepare(
    contenders: list[Contender], case: Case, threads: int, report: Report = _silent
) -> Prepared:
    """Compiles every contender for the case; one that fails keeps a row with the reason."""
    prepared: Prepared = {}
    for contender in contenders:
        row = Row(contender.name, contender.label, contender.version())
        row.status = contender.missing(case.precision) or "ok"
        runner: Runner = tuple
        if row.status == "ok":
            report(contender.name, "compile")
            start = time.perf_counter()
            try:
                runner = contender.prepare(case, threads)
            except Exception as error:  # The table reports it, whatever it is.
                row.status = _failed(error).replace(str(case.folder), "")
            row.prepare_s = time.perf_counter() - start
        prepared[contender.name] = (row, runner)
    return prepared


def check(
    prepared: Prepared,
    clock: Clock = time.perf_counter,
    report: Report = _silent,
    exact: list[Array] | None = None,
    precision: str = "float32",
) -> None:
    """Compares every contender's outputs with float64's, `exact`, or else the first peer's; wrong
    ones are not timed."""
    outputs: dict[str, list[Array]] = {}
    for name, (row, runner) in prepared.items():
        if row.status == "ok":
            report(name, "run once")
            start = clock()
            try:
                outputs[name] = [np.array(a) for a in runner()]
            except Exception as error:
                row.status = _failed(error)
            row.first_ms = (clock() - start) * 1e3
    reference = next((outputs[n] for n in PEERS if n in outputs), None)
    for name, outputs_of_row in outputs.items():
        if exact is not None:
            row = prepared[name][0]
            row.error = max(map(relative_error, exact, outputs_of_row))
            row.mean_error = max(map(mean_error, exact, outputs_of_row))
            if row.error > ROUNDED.get(precision, RTOL):
                row.status = f"wrong result: {row.error:.2g} from float64"
            continue
        difference = mismatch(reference, outputs_of_row) if reference is not None else ""
        if difference:
            prepared[name][0].status = f"wrong result: {difference}"


def _failed(error: Exception) -> str:
    first = (str(error).splitlines() or [""])[0]
    return f"failed: {type(error).__name__}: {first[:120]}"


def relative_error(want: Array, have: Array) -> float:
    """The largest difference, as a part of the largest of `want`; infinite for other shapes."""
    if want.shape != have.shape:
        return float("inf")
    difference = float(np.abs(have.astype(np.float64) - want).max())
    return difference / max(float(np.abs(want).max()), np.finfo(np.float64).tiny)


def mean_error(want: Array, have: Array) -> float:
    """The root of the mean square of differences, as a part of that of `want`; infinite for other
    shapes."""
    if want.shape != have.shape:
        return float("inf")
    difference = float(np.square(have.astype(np.float64) - want).mean())
    return (difference / max(float(np.square(want).mean()), np.finfo(np.float64).tiny)) ** 0.5


def mismatch(expected: list[Array], received: list[Array]) -> str:
    """Empty when all outputs agree to RTOL, ATOL x scale; else a short sentence."""
    if len(expected) != len(received):
        return f"{len(received)} outputs, expected {len(expected)}"
    for index, (want, have) in enumerate(zip(expected, received, strict=True)):
        if want.shape != have.shape:
            return f"output {index} has shape {have.shape}, expected {want.shape}"
        scale = float(np.abs(want).max())
        if not np.allclose(have, want, rtol=RTOL, atol=ATOL * scale):
            worst = float(np.abs(have.astype(np.float64) - want).max())
            return f"output {index} is off by {worst:.3g} at scale {scale:.3g}"
    return ""


def interleave(
    prepared: Prepared, reps: int, seconds: float, clock: Clock = time.perf_counter
) -> None:
    """Round-robin turns until every contender has `reps` calls and `seconds` have passed."""
    rows = {name: row for name, (row, _) in prepared.items() if row.status == "ok"}
    fastest = min((row.first_ms for row in rows.values()), default=0.0)
    slow = {name for name, row in rows.items() if row.first_ms > max(1e3, TOO_SLOW * fastest)}
    active = {name: prepared[name][1] for name in rows if name not in slow}
    share = seconds / max(1, len(active))
    for name, timing in measure(active, reps=reps, seconds=share, clock=clock).items():
        row = rows[name]
        row.min_ms, row.median_ms, row.count = timing.min_ms, timing.median_ms, timing.count
    for name in slow:
        row, times = rows[name], [rows[name].first_ms]
        while len(times) <= FEW and sum(times) < FEW_S * 1e3:
            start = clock()
            prepared[name][1]()
            times.append((clock() - start) * 1e3)
        row.min_ms, row.median_ms, row.count = min(times), statistics.median(times), len(times)


@contextmanager
def alone(lock: str) -> Iterator[None]:
    """Time before everybody else where the system lets us, and hold a lock file if one is given."""
    with Path(lock).open("a") if lock else nullcontext() as file:
        if file is not None:
            import fcntl

            fcntl.flock(file, fcntl.LOCK_EX)
        before = os.getpriority(os.PRIO_PROCESS, 0)
        _set_priority(PRIORITY)
        try:
            yield
        finally:
            _set_priority(before)


def _set_priority(priority: int) -> None:
    """Of all threads of this process, where the system knows of them and lets us."""
    with suppress(OSError):
        for thread in Path("/proc/self/task").iterdir():
            with suppress(OSError):  # it ended
                os.setpriority(os.PRIO_PROCESS, int(thread.name), priority)


def main(spec_path: str, result_path: str, progress_path: str) -> None:
    """Runs one spec: network, path, threads, contenders, reps, seconds, clock, lock, precision,
    and a file of float64's results, or an empty name."""
    from tests.zoo.registry import NETWORKS, inputs

    spec = json.loads(Path(spec_path).read_text(encoding="utf-8"))
    network = NETWORKS[spec["network"]]
    everyone = {OURS.name: OURS, **PEERS}

    def report(name: str, work: str) -> None:
        partial = Path(progress_path + ".part")
        partial.write_text(json.dumps({"name": name, "work": work}), encoding="utf-8")
        partial.replace(progress_path)

    contenders = [everyone[name] for name in spec["contenders"]]
    with tempfile.TemporaryDirectory(prefix="kiln-bench-") as folder:
        precision, exact = spec.get("precision", "float32"), None
        if spec.get("exact"):
            with np.load(spec["exact"]) as archive:
                exact = [archive[name] for name in archive.files]
        arrays = inputs(network, seed=0)
        case = Case(network.name, Path(spec["path"]), arrays, Path(folder), precision)
        prepared = prepare(contenders, case, spec["threads"], report)
        clock = CLOCKS[spec["clock"]]
        check(prepared, clock, report, exact, precision)
        report("", "take turns")
        with alone(spec["lock"]):
            interleave(prepared, spec["reps"], spec["seconds"], clock)
    rows = [asdict(row) for row, _ in prepared.values()]
    Path(result_path).write_text(
        json.dumps({"clock": spec["clock"], "rows": rows}), encoding="utf-8"
    )


if __name__ == "__main__":
    main(*sys.argv[1:4])
