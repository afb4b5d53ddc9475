"""`python -m bench.units`: what a core of this processor does at most, and what it is taken to do.

The rates of float32's multiply-adds, of pairs of bfloat16, of four bytes, and of tiles where there
are any, each from registers; bytes a second that are read from each cache and from memory; and the
row of `tensorkiln/target/rates.py`, which says what kernels are chosen by. On a processor without a
row, or with one that the rates contradict, this says so: a new row is what they say.
"""

from __future__ import annotations

import argparse
from dataclasses import asdict

import tensorkiln as tk
from bench.limits import TILES, Limits, measure_limits
from bench.store import add, cpu_name
from tensorkiln.target.rates import ROWS, Rates, rates_of


def table(limits: Limits) -> list[str]:
    """Markdown: the rate of each unit, and as a multiple of float32's; bandwidths."""
    base = limits.peaks["float32"]
    lines = ["| unit | GFLOP/s | of float32 |", "|---|--:|--:|"]
    lines += [f"| {unit} | {rate:.1f} | {rate / base:.2f} |" for unit, rate in limits.peaks.items()]
    lines += ["", "| read again and again | GB/s |", "|--:|--:|"]
    lines += [f"| {size >> 10} KiB | {rate:.1f} |" for size, rate in limits.gbytes]
    return lines


def verdict(limits: Limits, row: Rates) -> str:
    """Whether the row of a processor says of pairs what was measured."""
    pairs = limits.peaks["bfloat16"] / limits.peaks["float32"]
    tiles = limits.peaks.get("bfloat16" + TILES, 0.0) / limits.peaks["float32"]
    measured = f"pairs {pairs:.2f} and tiles {tiles:.2f} times float32"
    if row not in ROWS:
        return f"no row in target/rates.py: it would say {measured}"
    agrees = (row.pairs >= 1) == (pairs >= 0.95)
    sentence = (
        f"row {row.name!r} says pairs {row.pairs:g}, tiles {row.tiles:g}; measured: {measured}"
    )
    return sentence if agrees else f"{sentence}: kernels are chosen by the wrong rate"


def main(arguments: list[str] | None = None) -> None:
    """Measure, print."""
    parser = argparse.ArgumentParser(prog="python -m bench.units", description=__doc__)
    parser.add_argument("--cpu", default="native", help="such as x86-64-v3 (native)")
    parser.add_argument("--record", action="store_true", help="keep them in bench/results.jsonl")
    options = parser.parse_args(arguments)
    target = tk.Target("native" if options.cpu == "native" else {"mcpu": options.cpu})
    limits = measure_limits(target=target)
    print(f"One core of {cpu_name()}, target {target.mcpu}\n")
    print("\n".join(table(limits)))
    print(f"\n{verdict(limits, rates_of(target))}")
    if options.record:
        name = "" if options.cpu == "native" else options.cpu
        add("units", "", 1, {"limits": asdict(limits)}, target=name)


if __name__ == "__main__":
    main()
