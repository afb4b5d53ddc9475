"""`python -m bench.convolutions [MODEL]`: the 1x1 and 3x3 layers of a model beside the FMA peak.

Each layer's operations are those of the direct sums, also where Winograd's algorithm takes fewer,
so a share may exceed 100%. The times are those of whole runs on one and on two threads, and the
peak that of one core in the same run, times the threads.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any

import tensorkiln as tk
from bench.limits import measure_limits
from bench.roofline import module_of, random_inputs
from bench.store import add
from bench.work import Groups, work_of
from tensorkiln.ir.expr import int_value
from tensorkiln.ir.relax import Call, Function
from tensorkiln.measure.calls import time_calls
from tensorkiln.runtime.tensor import Array

THREADS = (1, 2)


def filter_size(group: Function) -> int:
    """Rows of the filter of a group's convolution over all channels; 0 where there is none."""
    for b in group.bindings:
        call = b.value
        if isinstance(call, Call) and call.op == "winograd_conv2d":
            return 3
        if isinstance(call, Call) and call.op == "conv2d" and call.attrs.groups == 1:
            rows, columns = (int_value(d) or 0 for d in call.args[1].type.shape[2:])
            return rows if rows == columns else 0
    return 0


def measure(
    mod: tk.IRModule, inputs: Mapping[str, Array], seconds: float
) -> tuple[float, list[dict[str, Any]]]:
    """The peak of one core in GFLOP/s, and a row for each number of threads and filter size."""
    groups = Groups()
    exe = tk.compile(mod, instruments=[groups])
    sizes = {name: filter_size(f) for name, f in groups.functions.items()}
    flops = {
        name: work_of(groups.functions[name]).flops for name, n in sizes.items() if n in (1, 3)
    }
    peak = measure_limits().peaks["float32"]
    rows = []
    for threads in THREADS:
        run_time = time_calls(exe, inputs or random_inputs(exe), seconds, threads)
        for filter_sizes in ((1,), (3,), (1, 3)):
            calls = [c for c in run_time.calls if sizes[c.symbol] in filter_sizes]
            total = {
                "flops": sum(flops[c.symbol] for c in calls),
                "micros": sum(c.micros for c in calls),
            }
            rows.append(
                {"threads": threads, "filters": list(filter_sizes), "layers": len(calls)} | total
            )
    return peak, rows


def lines(model: str, peak: float, rows: list[dict[str, Any]]) -> list[str]:
    """Rows of a Markdown table."""
    table = []
    for r in rows:
        names = " and ".join(f"{n}x{n}" for n in r["filters"])
        rate = r["flops"] / r["micros"] / 1e3 if r["layers"] else 0.0
        table.append(
            f"| {model} | {names} | {r['layers']} | {r['threads']} | {r['flops'] / 1e6:.0f} | "
            f"{r['micros'] / 1e3:.2f} | {rate:.1f} | {rate / (peak * r['threads']):.0%} |"
        )
    return table


HEAD = [
    "| model | filters | layers | threads | MFLOP | ms | GFLOP/s | of the FMA peak |",
    "|---|---|--:|--:|--:|--:|--:|--:|",
]


def main(arguments: list[str] | None = None) -> None:
    """Compile, measure, print."""
    parser = argparse.ArgumentParser(prog="python -m bench.convolutions", description=__doc__)
    parser.add_argument("model", nargs="?", default="resnet50", help="a name of the zoo, or a file")
    parser.add_argument("--seconds", type=float, default=3.0, help="of whole runs, per threads")
    parser.add_argument("--record", action="store_true", help="keep them for bench/RESULTS.md")
    options = parser.parse_args(arguments)
    mod, inputs = module_of(options.model, {})
    peak, rows = measure(mod, inputs, options.seconds)
    if options.record:
        add("convolutions", options.model, max(THREADS), {"peak": peak, "rows": rows})
    print("\n".join([*HEAD, *lines(options.model, peak, rows)]))
    print(f"\nFMA peak of one core {peak:.1f} GFLOP/s")


if __name__ == "__main__":
    main()
