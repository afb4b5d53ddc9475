"""`python -m bench.kernels MODEL.onnx [DIM=N ...]`: each kernel of a model, timed alone."""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

import tensorkiln as tk
from tensorkiln.tune.kernels import KernelTime, time_kernels


def table(rows: list[KernelTime], limit: int) -> str:
    """Aligned text, one line per kernel."""
    lines = [f"{'kernel':44} {'class':18} {'calls':>5} {'min us':>9} {'total us':>9} "
             f"{'GFLOP/s':>8} {'GB/s':>7}"]  # fmt: skip
    for r in rows[:limit]:
        rates = f"{r.flops / r.micros / 1e3:8.1f} {r.moved / r.micros / 1e3:7.1f}"
        lines.append(
            f"{r.name[:44]:44} {r.op_class:18} {r.calls:5} {r.micros:9.1f} {r.total:9.1f} {rates}"
        )
    total = sum(np.nan_to_num(r.total) for r in rows)
    return "\n".join([*lines, f"{len(rows)} kernels, {total / 1e3:.2f} ms of calls"])


def main(arguments: list[str] | None = None) -> None:
    """Compile, time, print."""
    parser = argparse.ArgumentParser(prog="python -m bench.kernels", description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("dims", nargs="*", help="symbolic dimensions: NAME=N")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--top", type=int, default=30, help="rows to show")
    parser.add_argument("--seconds", type=float, default=0.05, help="time per kernel")
    options = parser.parse_args(arguments)
    freeze = {name: int(n) for name, n in (d.split("=") for d in options.dims)}
    exe = tk.compile(tk.frontend.from_onnx(options.model, freeze=freeze or None))
    rows = time_kernels(exe, options.seconds, options.threads)
    print(table(rows, options.top))


if __name__ == "__main__":
    main()
