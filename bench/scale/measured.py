"""What the simulation is fed with: times of compile jobs, rates of scoring, and a small run of
`run_jobs` to compare the simulation with. `python -m bench.scale.measured` measures again, in about
ten minutes, into measured.json beside this file.

Everything is measured on one CPU, since a slot of the simulation is one: times are processor times
of the process and its children, which neighbours disturb least; the small run alone is in seconds
of a clock.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

from tensorkiln.base.files import atomic_write
from tensorkiln.base.schema import Reader

FILE = Path(__file__).with_name("measured.json")
COMPILED = (
    "mlp",
    "resnet18",
    "resnet50",
    "mobilenetv2",
    "squeezenet",
    "efficientnet_b0",
    "densenet121",
    "convnext_t",
    "bert",
    "gpt2",
)
SCORED = {"mlp": (1, 64, 4096), "resnet18": (1, 8, 32)}
SCORE_SECONDS = 2.0
# The small runs: cached compiles in this order, on two processes.
CHECKED = ("resnet18", "mlp", "mobilenetv2", "squeezenet", "mlp", "bert") * 4
CHECK_WORKERS = 2
CHECK_TIMES = 3  # the fastest counts


@dataclass(frozen=True, slots=True)
class Compiled:
    """One model: processor seconds of the command with no kernel known, and with all; bytes of the
    model, of the library, and of what the cache keeps."""

    model: str
    cold: float
    cached: float
    model_bytes: int
    library_bytes: int
    cache_bytes: int


@dataclass(frozen=True, slots=True)
class Scored:
    """One model at a batch size: rows a second of one CPU, bytes of a row and of its result,
    seconds to load the library."""

    model: str
    batch: int
    rows: float
    row_bytes: int
    result_bytes: int
    load: float
    library_bytes: int


@dataclass(frozen=True, slots=True)
class Checked:
    """A small run: seconds of the start of a process, of each job alone in a process that has
    begun, in the order of the jobs, of each during the run, and of the run on `workers`
    processes."""

    what: str
    workers: int
    start: float
    jobs: tuple[float, ...]
    during: tuple[float, ...]
    seconds: float


@dataclass(frozen=True, slots=True)
class Measured:
    """All of it, with the day and the machine."""

    date: str
    machine: str
    compiled: tuple[Compiled, ...]
    scored: tuple[Scored, ...]
    checked: tuple[Checked, ...]


def load(path: Path = FILE) -> Measured:
    """What was measured. Raises UserError for a file that is none."""
    top = Reader(json.loads(path.read_text(encoding="utf-8")), path.name, "bad-measurements")

    def number(row: Reader, key: str) -> float:
        value = float(row.get(key, float))
        if not value > 0:
            raise row.wrong(f"expected more than 0, got {value}", key)
        return value

    def times(row: Reader, key: str) -> tuple[float, ...]:
        numbers = row.get(key, list)
        if not numbers or not all(isinstance(t, float) and t > 0 for t in numbers):
            raise row.wrong("expected seconds", key)
        return tuple(numbers)

    return Measured(
        date=top.get("date", str),
        machine=top.get("machine", str),
        compiled=tuple(
            Compiled(
                model=row.get("model", str),
                cold=number(row, "cold"),
                cached=number(row, "cached"),
                **{k: row.number(k) for k in ("model_bytes", "library_bytes", "cache_bytes")},
            )
            for row in top.rows("compiled")
        ),
        scored=tuple(
            Scored(
                model=row.get("model", str),
                batch=row.number("batch"),
                rows=number(row, "rows"),
                load=number(row, "load"),
                **{k: row.number(k) for k in ("row_bytes", "result_bytes", "library_bytes")},
            )
            for row in top.rows("scored")
        ),
        checked=tuple(
            Checked(
                what=row.get("what", str),
                workers=row.number("workers"),
                start=number(row, "start"),
                jobs=times(row, "jobs"),
                during=times(row, "during"),
                seconds=number(row, "seconds"),
            )
            for row in top.rows("checked")
        ),
    )


def _compiled(model: str) -> Compiled:
    from bench.compile_time import compile_once
    from tests.zoo.export import model_path

    path = model_path(model)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        compile_once("mlp", "first", model_path("mlp"), folder)  # writes .pyc files
        shutil.rmtree(folder / "cache", ignore_errors=True)
        cold = compile_once(model, "cold", path, folder)
        cached = [compile_once(model, "cached", path, folder) for _ in range(2)]
        cache_bytes = sum(p.stat().st_size for p in (folder / "cache").rglob("*") if p.is_file())
    for row in (cold, *cached):
        if row.status != "ok":
            sys.exit(f"{model}: {row.status}")
    return Compiled(
        model=model,
        cold=round(cold.cpu_s, 3),
        cached=round(min(row.cpu_s for row in cached), 3),
        model_bytes=path.stat().st_size,
        library_bytes=int(cold.library_mib * 2**20),
        cache_bytes=cache_bytes,
    )


def _scored(model: str, batches: tuple[int, ...]) -> list[Scored]:
    import numpy as np

    import tensorkiln as tk
    from tests.zoo.export import model_path
    from tests.zoo.registry import EXPORTS, NETWORKS, inputs

    export = f"{model}-batch"
    network = NETWORKS[EXPORTS[export].network]
    rates = []
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "model.so"
        tk.compile(tk.frontend.from_onnx(str(model_path(export)))).export_library(path)
        start = time.process_time()
        loaded = tk.load(path, num_threads=1)
        seconds = time.process_time() - start
        for batch in batches:
            arrays = list(inputs(network, 0, batch=batch).values())
            results = loaded(*arrays)
            results = results if isinstance(results, tuple | list) else [results]
            sizes = [sum(np.asarray(x).nbytes for x in xs) // batch for xs in (arrays, results)]
            rates.append(
                Scored(
                    model=model,
                    batch=batch,
                    rows=round(batch / _median(partial(loaded, *arrays)), 2),
                    row_bytes=sizes[0],
                    result_bytes=sizes[1],
                    load=round(seconds, 4),
                    library_bytes=path.stat().st_size,
                )
            )
    return rates


def _median(call: Callable[[], object]) -> float:
    """Median processor seconds of a call, over SCORE_SECONDS."""
    times: list[float] = []
    end = time.process_time() + SCORE_SECONDS
    while time.process_time() < end or len(times) < 3:
        start = time.process_time()
        call()
        times.append(time.process_time() - start)
    return statistics.median(times)


def compile_job(path: str) -> int:
    """A job of the small run: the size of the library."""
    import tensorkiln as tk

    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder) / "model.so"
        tk.compile(tk.frontend.from_onnx(path)).export_library(library)
        return library.stat().st_size


def nothing() -> None:
    """A job that only imports what jobs import."""
    import tensorkiln as tk

    tk.Target("native")


def _checked() -> list[Checked]:
    """Compiles with a warm cache, and jobs that wait as long: those need no processor, and what
    else the machine does changes nothing."""
    from tensorkiln.scale import Job, local_executor, run_jobs
    from tests.zoo.export import model_path

    def compiles(names: tuple[str, ...]) -> list[Job]:
        return [Job(f"{k}", compile_job, (str(model_path(n)),)) for k, n in enumerate(names)]

    kinds = tuple(dict.fromkeys(CHECKED))
    with local_executor(1) as executor:
        start = time.perf_counter()
        executor.submit(nothing).result()
        started = time.perf_counter() - start
        for _ in run_jobs(compiles(kinds), executor):  # fills the cache
            pass
        alone = {kinds[int(o.job.key)]: o.seconds for o in run_jobs(compiles(kinds), executor)}
    times = tuple(round(alone[name], 3) for name in CHECKED)
    waits = [Job(f"{k}", time.sleep, (t,)) for k, t in enumerate(times)]
    checks = []
    for title, jobs in (("compiles", compiles(CHECKED)), ("jobs that wait as long", waits)):
        fastest, during = float("inf"), times
        for _ in range(CHECK_TIMES):
            with local_executor(CHECK_WORKERS) as executor:
                start = time.perf_counter()
                outcomes = list(run_jobs(jobs, executor))
                seconds = time.perf_counter() - start
            for o in outcomes:
                if o.failure is not None:
                    sys.exit(f"the small run: {o.failure}")
            if seconds < fastest:
                fastest, order = seconds, sorted(outcomes, key=lambda o: int(o.job.key))
                during = tuple(round(o.seconds, 3) for o in order)
        seconds = round(fastest, 3)
        checks.append(Checked(title, CHECK_WORKERS, round(started, 3), times, during, seconds))
    return checks


def main(argv: Sequence[str] | None = None) -> None:
    """Measure, and write the file."""
    from bench.store import machine

    parser = argparse.ArgumentParser("python -m bench.scale.measured", description=__doc__)
    parts = ("checked", "compiled", "scored")
    parser.add_argument("--part", choices=parts, action="append", help="keep the others")
    chosen_parts = parser.parse_args(argv).part or parts
    measurements = {part: getattr(load(), part) for part in parts if part not in chosen_parts}
    if "checked" in chosen_parts:
        measurements["checked"] = _checked()
        print(measurements["checked"], flush=True)
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    if "compiled" in chosen_parts:
        measurements["compiled"] = []
        for model in COMPILED:
            measurements["compiled"].append(_compiled(model))
            print(measurements["compiled"][-1], flush=True)
    if "scored" in chosen_parts:
        measurements["scored"] = [s for model in SCORED for s in _scored(model, SCORED[model])]
        print(*measurements["scored"], sep="\n", flush=True)
    day = time.strftime("%Y-%m-%d", time.gmtime())
    text = asdict(Measured(date=day, machine=machine(), **measurements))
    atomic_write(FILE, (json.dumps(text, indent=1) + "\n").encode())


if __name__ == "__main__":
    main()
