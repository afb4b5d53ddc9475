"""`python -m bench.index_checks`: what looking at indices costs, on models that look rows up.

Each model with the check that is the default, and with `indices="clamp"`, which has none; the calls
take turns. One thread. The last column is the time of the checks' own kernels as a part of the
call's: a bound of what can be gained, where two times of a call are as far apart as its noise.
"""

from __future__ import annotations

import os
from collections.abc import Callable

import numpy as np

import tensorkiln as tk
from bench.roofline import module_of
from bench.store import add, machine
from tensorkiln.measure.kernels import time_kernels
from tensorkiln.measure.latency import measure

LOOKING_UP = ("bert", "gpt2", "llama_1", "llama_128")
CHECKED, CLAMPED = "checked", "clamped"


def _call(exe: tk.Executable, arrays: list[np.ndarray]) -> Callable[[], object]:
    main = tk.runtime.Executor(exe.jit(), tk.cpu())["main"]
    return lambda: main(*arrays)


def measured(name: str, seconds: float) -> dict[str, float]:
    """Least and median milliseconds of both, and milliseconds of the checks themselves."""
    module, inputs = module_of(name, {})
    arrays = list(inputs.values())
    executables = {
        CHECKED: tk.compile(module, "native"),
        CLAMPED: tk.compile(module, "native", indices="clamp"),
    }
    calls = {kind: _call(exe, arrays) for kind, exe in executables.items()}
    times = measure(calls, seconds=seconds)
    checks = [k.total for k in time_kernels(executables[CHECKED]) if "bounds_check" in k.name]
    row = {"check": sum(checks) / 1e3}
    for kind, time in times.items():
        row |= {f"{kind} least": time.min_ms, f"{kind} median": time.median_ms}
    return row


def main() -> None:
    """Measure, keep, print."""
    rows = {name: measured(name, 6.0) for name in LOOKING_UP}
    add("index checks", "all", 1, {"rows": rows})
    print(machine())
    print("| model | checked by clamped: least | median | the checks' part of the call |")
    print("|---|--:|--:|--:|")
    for name, row in rows.items():
        ratios = [row[f"{CHECKED} {k}"] / row[f"{CLAMPED} {k}"] for k in ("least", "median")]
        part = row["check"] / row[f"{CHECKED} least"]
        print(f"| {name} | {ratios[0]:.3f} | {ratios[1]:.3f} | {part:.5%} |")


if __name__ == "__main__":
    os.environ["KILN_NUM_THREADS"] = "1"
    main()
