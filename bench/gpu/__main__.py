"""`python -m bench.gpu`: kernels and models on this machine's GPU of NVIDIA, checked, then timed
beside cuBLAS and torch.compile, in under ten minutes.

Records go to bench/results.jsonl one by one, so that what there is when a run ends early is kept.
`--dry` runs the same on small shapes through the tests' stand-in for the driver and keeps nothing:
its times are those of an emulator.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from bench.gpu.supervise import supervise
from bench.gpu.table import HEAD, Record, fails, lines
from bench.store import STORE, add, machine, run_id
from tensorkiln.runtime.cuda_memory import CUDA_DRIVER
from tensorkiln.runtime.failures import DeviceError

NO_GPU = 2
_DRY = "`make gpu DRY=1` runs the same on small shapes through the stand-in of the tests."


def why_no_gpu() -> str:
    """Empty where there is a GPU, else a sentence."""
    try:
        count = CUDA_DRIVER.count_devices()
    except DeviceError as error:
        return str(error)
    return "" if count else "its driver is there, and finds no device"


def cases_of(dry: bool) -> dict[str, float | None]:
    """The goals of all cases by name, in order."""
    from bench.gpu.cases import CASES
    from bench.gpu.conformance import checks

    return {**dict.fromkeys(name for name, _ in checks(dry)), **{c.name: c.goal for c in CASES}}


def chosen(pattern: str, names: Sequence[str]) -> list[str]:
    """The cases in whose name one of the comma-separated words is."""
    words = pattern.split(",")
    return [name for name in names if any(word in name for word in words)]


def measured(options: argparse.Namespace, goals: dict[str, float | None]) -> list[Record]:
    """Run the cases; print and keep each when it has ended."""
    mode, seconds = ("dry", 0.0) if options.dry else ("gpu", options.seconds)
    records, device = list[Record](), "unknown GPU"

    def command(out: Path, todo: Sequence[str]) -> list[str]:
        worker = [sys.executable, "-m", "bench.gpu.worker", str(out)]
        return [*worker, json.dumps(list(todo)), mode, str(seconds)]

    for message in supervise(command, list(goals), options.limit, 60 * options.budget):
        device = message.get("gpu", device)
        if "end" not in message:
            continue
        name = message.pop("end")
        record = {"model": name, "goal": goals[name], "run": run_id(), **message}
        if not options.dry:
            record = add("gpu", name, 1, record, options.store, f"{device}; {machine()}")
        records.append(record)
        print("\n".join(lines(record)), flush=True)
    print(f"\nOn {device}; {machine()}.")
    return records


def main(arguments: list[str] | None = None) -> int:
    """Measure, keep, print; 1 if a row of ours has no result, 2 without a GPU."""
    parser = argparse.ArgumentParser(prog="python -m bench.gpu", description=__doc__)
    parser.add_argument("--dry", action="store_true", help="small shapes, on the stand-in")
    parser.add_argument("--cases", default="", help="words; cases with one of them in their name")
    parser.add_argument("--seconds", type=float, default=1.0, help="least time per contender")
    parser.add_argument("--limit", type=float, default=120.0, help="most seconds of a case")
    parser.add_argument("--budget", type=float, default=9.5, help="most minutes of all of them")
    parser.add_argument("--store", type=Path, default=STORE, help="the file for the records")
    options = parser.parse_args(arguments)
    if not options.dry and (reason := why_no_gpu()):
        print(f"make gpu: no GPU of NVIDIA here: {reason}\n{_DRY}", file=sys.stderr)
        return NO_GPU
    goals = cases_of(options.dry)
    names = chosen(options.cases, list(goals))
    if not names:
        parser.error(f"no case has {options.cases!r} in its name; there are {', '.join(goals)}")
    if options.dry:
        print("DRY RUN: an emulator on small shapes; its times say nothing.\n")
    print("\n".join(HEAD), flush=True)
    records = measured(options, {name: goals[name] for name in names})
    failed = [r["model"] for r in records if fails(r)]
    print(f"{len(records) - len(failed)} of {len(records)} cases have a result.")
    if failed:
        print(f"Without: {', '.join(failed)}.")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
