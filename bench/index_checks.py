"""`python -m bench.index_checks`: what looking at indices costs, on models that look rows up.

Each model with the check that is the default, and with `indices="clamp"`, which has none; the calls
take turns. One thread. `lookup` and `lookup_large` do nothing else: a million single numbers of a
table of a thousand, and of one of a million.
"""

from __future__ import annotations

import os
from collections.abc import Callable

import numpy as np

import tensorkiln as tk
from bench.roofline import module_of
from bench.store import add, machine
from tensorkiln.ir.module import IRModule
from tensorkiln.ir.relax import tensor
from tensorkiln.measure.latency import measure
from tensorkiln.ops.builder import GraphBuilder

LOOKING_UP = ("bert", "gpt2", "llama_1", "llama_128")
ROWS = {"lookup": 1000, "lookup_large": 1_000_000}  # of their tables
COUNT = 1_000_000  # of numbers that these look up
CHECKED, CLAMPED = "checked", "clamped"


def _call(exe: tk.Executable, arrays: list[np.ndarray]) -> Callable[[], object]:
    main = tk.runtime.Executor(exe.jit(), tk.cpu())["main"]
    return lambda: main(*arrays)


def _lookup(rows: int) -> tuple[IRModule, dict[str, np.ndarray]]:
    """A graph that only looks numbers up, and its inputs."""
    g = GraphBuilder()
    table = g.param("table", tensor((rows,), "float32"))
    ids = g.param("ids", tensor((COUNT,), "int64"))
    module = IRModule((g.finish(g.emit("take", table, ids, axis=0), "main"),), "lookup")
    rng = np.random.default_rng(0)
    return module, {
        "table": rng.standard_normal(rows).astype(np.float32),
        "ids": rng.integers(0, rows, COUNT),
    }


def measured(name: str, seconds: float) -> dict[str, float]:
    """Least and median milliseconds of both."""
    module, inputs = _lookup(ROWS[name]) if name in ROWS else module_of(name, {})
    arrays = list(inputs.values())
    executables = {
        CHECKED: tk.compile(module, "native"),
        CLAMPED: tk.compile(module, "native", indices="clamp"),
    }
    calls = {kind: _call(exe, arrays) for kind, exe in executables.items()}
    times = measure(calls, seconds=seconds)
    row: dict[str, float] = {}
    for kind, time in times.items():
        row |= {f"{kind} least": time.min_ms, f"{kind} median": time.median_ms}
    return row


def main() -> None:
    """Measure, keep, print."""
    rows = {name: measured(name, 6.0) for name in (*LOOKING_UP, *ROWS)}
    add("index checks", "all", 1, {"rows": rows})
    print(machine())
    print("| model | checked by clamped: least | median |")
    print("|---|--:|--:|")
    for name, row in rows.items():
        ratios = [row[f"{CHECKED} {k}"] / row[f"{CLAMPED} {k}"] for k in ("least", "median")]
        print(f"| {name} | {ratios[0]:.3f} | {ratios[1]:.3f} |")


if __name__ == "__main__":
    os.environ["KILN_NUM_THREADS"] = "1"
    main()
