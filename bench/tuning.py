"""What tuning wins: the costliest kernels of ResNet-50 and BERT, each network in five minutes.

    python -m bench.tuning [--networks bert] [--targets x86-64-v2] [--seconds 300]

For x86 kernels are timed, and then the whole network, compiled with the records and without, in
turns on one thread; for AArch64 they are counted in qemu (`tk.tune(measure="instructions")`).
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

import tensorkiln as tk
from tensorkiln.base.progress import make_progress
from tensorkiln.measure.inputs import random_inputs
from tensorkiln.tuning import Tuned
from tests.zoo.export import model_path

# How each target is measured, by its processor.
TARGETS = {
    "x86-64-v2": ({"kind": "llvm", "mcpu": "x86-64-v2"}, "time"),
    "x86-64-v3": ({"kind": "llvm", "mcpu": "x86-64-v3"}, "time"),
    "cortex-a72": (
        {"kind": "llvm", "mtriple": "aarch64-linux-gnu", "mcpu": "cortex-a72"},
        "instructions",
    ),
}


def tuned(network: str, target: str, options: argparse.Namespace) -> Tuned:
    """Tune the costliest kernels of a network for a target, and print what was found."""
    spec, measure = TARGETS[target]
    start = time.perf_counter()
    report = tk.tune(
        model_path(network),
        spec,
        seconds=options.seconds,
        kernels=options.kernels,
        measure=measure,
        seed=options.seed,
        progress=make_progress(sys.stderr, "plain"),
    )
    duration = time.perf_counter() - start
    print(f"\n{network}, {target}, {duration:.0f} s\n{report}")
    ratios = [row.ratio for row in report.rows]
    mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
    print(f"mean ratio {mean:.3f}", flush=True)
    return report


def compared(network: str, target: str, records: object, seconds: float) -> float:
    """The processor's time of the network with records, by that without: the median of pairs."""
    spec, _ = TARGETS[target]
    plain = tk.compile(model_path(network), spec)
    better = tk.compile(model_path(network), spec, records=records)
    (info,) = (f.info for f in plain.functions if f.info.kind == "graph")
    inputs = random_inputs(info, {}, 0)
    runs: list[Callable[[], object]] = []
    for exe in (plain, better):
        run = tk.runtime.Executor(exe.jit())[info.name]
        exe.jit().set_num_threads(1)
        runs.append(lambda run=run: run(*inputs))  # type: ignore[misc]
    spans: list[list[float]] = [[], []]
    end = time.perf_counter() + seconds
    while len(spans[0]) < 5 or time.perf_counter() < end:
        for i, call in enumerate(runs):
            start = time.thread_time()
            call()
            spans[i].append(time.thread_time() - start)
    ratio = float(np.median(np.array(spans[1]) / np.array(spans[0])))
    best_ms = [1e3 * min(s) for s in spans]
    print(
        f"{network}, {target}: {best_ms[0]:.2f} ms untuned, {best_ms[1]:.2f} ms tuned, "
        f"ratio {ratio:.3f}",
        flush=True,
    )
    return ratio


def main() -> int:
    """Tune each network for each target."""
    parser = argparse.ArgumentParser(prog="python -m bench.tuning")
    parser.add_argument("--networks", nargs="+", default=["resnet50", "bert"])
    parser.add_argument(
        "--targets", nargs="+", choices=TARGETS, default=["x86-64-v2", "cortex-a72"]
    )
    parser.add_argument("--seconds", type=float, default=300)
    parser.add_argument("--kernels", type=int, default=4)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--records", type=Path, help="a folder to write the records to")
    options = parser.parse_args()
    for target in options.targets:
        for network in options.networks:
            report = tuned(network, target, options)
            if options.records:
                options.records.mkdir(parents=True, exist_ok=True)
                report.save(options.records / f"{network}-{target}.records")
            if TARGETS[target][1] == "time":
                compared(network, target, report.records, 10)
    return 0


if __name__ == "__main__":
    sys.exit(main())
