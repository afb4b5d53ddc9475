"""What this machine can do at most, measured: FMA peak and read bandwidth of one core.

Both programs are compiled by Tensorkiln, so that they run wherever it does.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

import tensorkiln as tk
from tensorkiln.runtime.tensor import aligned_empty
from tensorkiln.script import T

FMA_STEPS = 1_000_000
CHAINS = 16  # of 16 vectors: more than latency times throughput of any FMA unit so far
# Bytes that are read again and again: within a core's own caches, the shared one, memory.
FOOTPRINTS = (1 << 17, 1 << 19, 1 << 21, 1 << 23, 1 << 25, 1 << 28)
READ_BYTES = 1 << 26  # of one measurement


def fma_program(lanes: int, chains: int) -> Any:
    """`chains` registers of `lanes` numbers, each multiplied and added to FMA_STEPS times."""

    @T.prim_func
    def peak(X: T.Buffer((lanes,), "float32"), Y: T.Buffer((lanes,), "float32")) -> None:
        acc = T.alloc_buffer((chains, lanes), "float32", scope="register")
        for r in T.unroll(chains):
            for v in T.vectorized(lanes):
                acc[r, v] = X[v]
        for _step in range(FMA_STEPS):
            for r in T.unroll(chains):
                for v in T.vectorized(lanes):
                    acc[r, v] = T.fma(acc[r, v], X[v], X[v])
        for r in T.unroll(chains):
            for v in T.vectorized(lanes):
                Y[v] = Y[v] + acc[r, v]

    return peak


def read_program(rounds: int, rows: int, chains: int, lanes: int) -> Any:
    """Adds up rows x chains x lanes numbers, `rounds` times."""

    @T.prim_func
    def add_rows(
        X: T.Buffer((rows, chains, lanes), "float32"), Y: T.Buffer((lanes,), "float32")
    ) -> None:
        for _round in range(rounds):
            acc = T.alloc_buffer((chains, lanes), "float32", scope="register")
            for r in T.unroll(chains):
                for v in T.vectorized(lanes):
                    acc[r, v] = 0.0
            for i in range(rows):
                for r in T.unroll(chains):
                    for v in T.vectorized(lanes):
                        acc[r, v] = acc[r, v] + X[i, r, v]
            for r in T.unroll(chains):
                for v in T.vectorized(lanes):
                    Y[v] = Y[v] + acc[r, v]

    return add_rows


def compiled(func: Any) -> Callable[..., object]:
    """The function of a library that holds only it."""
    return tk.compile(tk.IRModule((func,)), "native", relax_pipeline=None).jit()[func.name]


def least(run: Callable[[], object], times: int = 1) -> float:
    """Processor seconds of the fastest call."""
    best = float("inf")
    for _ in range(times):
        start = time.thread_time()
        run()
        best = min(best, time.thread_time() - start)
    return best


def fma_peak() -> tuple[Callable[[], object], float]:
    """A call that keeps the FMA units busy, and its floating point operations."""
    lanes = tk.Target("native").vector_lanes("float32")
    chains = CHAINS if tk.Target("native").num_vector_registers >= 32 else 12
    x, y = np.full(lanes, 0.5, np.float32), np.zeros(lanes, np.float32)
    peak = compiled(fma_program(lanes, chains))
    return lambda: peak(x, y), 2.0 * lanes * chains * FMA_STEPS


@dataclass(frozen=True, slots=True)
class Limits:
    """GFLOP/s of float32 and, by footprint in bytes, GB/s read, of one core."""

    gflops: float
    gbytes: tuple[tuple[int, float], ...]

    def bandwidth(self, footprint: float) -> float:
        """GB/s of the smallest measured footprint that holds this one."""
        return next((rate for size, rate in self.gbytes if size >= footprint), self.gbytes[-1][1])


def measure_limits(times: int = 10) -> Limits:
    """Takes a second or two; the clock's frequency changes, so the peak is taken twice."""
    run, operations = fma_peak()
    before = least(run, times)
    rates = []
    lanes, chains = tk.Target("native").vector_lanes("float32"), 8
    for size in FOOTPRINTS:
        rounds, rows = max(1, READ_BYTES // size), size // (4 * lanes * chains)
        x, y = aligned_empty((rows, chains, lanes), np.dtype(np.float32)), np.zeros(lanes, "f")
        x[...] = 0.0
        read = compiled(read_program(rounds, rows, chains, lanes))
        rates.append((size, rounds * size / least(lambda r=read, a=x, b=y: r(a, b), times) / 1e9))
    return Limits(operations / min(before, least(run, times)) / 1e9, tuple(rates))
