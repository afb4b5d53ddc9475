"""`python -m bench.decoding`: how fast decoders read their weights, one token at a time.

A decoder that takes one token multiplies one row by every weight, so its time is that of reading
the weights from memory. Beside it, in turn, the same threads add up numbers that no cache holds,
which is what the memory gives them (`bench.units` measures that of one core, by footprint). Weights
are what kernels read of them: one row of a table of embeddings.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

import tensorkiln as tk
from bench.roofline import module_of, weight_bytes
from bench.store import Record, add
from bench.work import Groups, work_of
from tensorkiln.measure.calls import graph_function
from tensorkiln.runtime.tensor import aligned_empty
from tensorkiln.script import T

MODELS = ("llama_1",)  # 99.6 million parameters, of which a token reads 75 million
PRECISIONS = ("float32", "bfloat16")
READ_BYTES, PARTS, CHAINS = 1 << 28, 64, 8
HEAD = (
    "One token at a time: the weights' bytes a second, and what the same threads read of 256 MiB "
    "in order, in turn (bench/decoding.py); least times, in brackets medians.\n",
    "| model | precision | threads | MB of weights | ms | GB/s | of memory's |",
    "|---|---|--:|--:|--:|--:|--:|",
)


@dataclass(frozen=True, slots=True)
class Reading:
    """What reads `size` bytes of memory."""

    run: Callable[[], object]
    size: float


def memory_program(rows: int, lanes: int) -> Any:
    """Adds up PARTS x rows x CHAINS x lanes numbers, each part by one thread."""

    @T.prim_func
    def add_parts(
        X: T.Buffer((PARTS, rows, CHAINS, lanes), "float32"),
        Y: T.Buffer((PARTS, CHAINS, lanes), "float32"),
    ) -> None:
        for p in T.parallel(PARTS):
            acc = T.alloc_buffer((CHAINS, lanes), "float32", scope="register")
            for r in T.unroll(CHAINS):
                for v in T.vectorized(lanes):
                    acc[r, v] = 0.0
            for i in range(rows):
                for r in T.unroll(CHAINS):
                    for v in T.vectorized(lanes):
                        acc[r, v] = acc[r, v] + X[p, i, r, v]
            for r in T.unroll(CHAINS):
                for v in T.vectorized(lanes):
                    Y[p, r, v] = acc[r, v]

    return add_parts


def memory() -> Reading:
    """A walk over memory that no cache holds, by as many threads as this process has CPUs."""
    target = tk.Target("native")
    lanes = target.vector_lanes("float32")
    rows = READ_BYTES // (4 * PARTS * CHAINS * lanes)
    x = aligned_empty((PARTS, rows, CHAINS, lanes), np.dtype(np.float32))
    x[...] = 0.0
    y = np.zeros((PARTS, CHAINS, lanes), np.float32)
    mod = tk.IRModule((memory_program(rows, lanes),))
    read = tk.compile(mod, target, relax_pipeline=None).jit()["add_parts"]
    return Reading(lambda: read(x, y), x.nbytes)


def decoder(model: str, precision: str, threads: int) -> Reading:
    """An inference of one token."""
    mod, inputs = module_of(model, {})
    groups = Groups()
    exe = tk.compile(mod, precision=precision, instruments=[groups])
    work = {name: work_of(f) for name, f in groups.functions.items()}
    size = weight_bytes(graph_function(exe, "main").calls, work)
    f = exe.with_threads(threads)
    return Reading(lambda: f(**inputs), size)


def times_of(readings: Sequence[Reading], seconds: float) -> list[list[float]]:
    """Seconds of every run of each, in turn."""
    times: list[list[float]] = [[] for _ in readings]
    for reading in readings:
        reading.run()
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(times[0]) < 10:
        for reading, row in zip(readings, times, strict=True):
            start = time.perf_counter()
            reading.run()
            row.append(time.perf_counter() - start)
    return times


def measured(model: str, threads: int, seconds: float) -> Iterator[tuple[str, Record]]:
    """By precision, what is kept of one model: its weights' bytes, milliseconds, GB/s of memory."""
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[-threads:])
    readings = [memory(), *(decoder(model, p, threads) for p in PRECISIONS)]
    walk, *decoders = times_of(readings, seconds)
    rates = [READ_BYTES / t / 1e9 for t in (min(walk), float(np.median(walk)))]
    for precision, reading, times in zip(PRECISIONS, readings[1:], decoders, strict=True):
        data = {"weights": reading.size, "memory_gbytes": rates}
        ms = {"min_ms": min(times) * 1e3, "median_ms": float(np.median(times)) * 1e3}
        yield precision, {**data, **ms}


def line(r: Record) -> str:
    """A row of the table."""
    rates = [r["weights"] / r[ms] / 1e6 for ms in ("min_ms", "median_ms")]
    parts = [rate / read for rate, read in zip(rates, r["memory_gbytes"], strict=True)]
    return (
        f"| {r['model']} | {r.get('precision', 'float32')} | {r['threads']} | "
        f"{r['weights'] / 1e6:.0f} | {r['min_ms']:.2f} ({r['median_ms']:.2f}) | "
        f"{rates[0]:.1f} ({rates[1]:.1f}) | {parts[0]:.0%} ({parts[1]:.0%}) |"
    )


def main(arguments: list[str] | None = None) -> None:
    """Compile, measure, print."""
    parser = argparse.ArgumentParser(prog="python -m bench.decoding", description=__doc__)
    parser.add_argument("models", nargs="*", metavar="MODEL", help=f"({', '.join(MODELS)})")
    parser.add_argument("--threads", type=int, default=1, help="of each run (1)")
    parser.add_argument("--seconds", type=float, default=5.0, help="per model (5)")
    parser.add_argument("--record", action="store_true", help="keep them for bench/RESULTS.md")
    options = parser.parse_args(arguments)
    print("\n".join(HEAD))
    for model in options.models or MODELS:
        for precision, data in measured(model, options.threads, options.seconds):
            if options.record:
                add("decoding", model, options.threads, data, precision=precision)
            row = {"model": model, "precision": precision, "threads": options.threads, **data}
            print(line(row), flush=True)


if __name__ == "__main__":
    main()
