"""`python -m bench.here`: the records of this processor, within a budget of minutes.

What the processor is (features, caches), its units' peaks, the standard models in every precision
beside the engines that compile in seconds, decoding against the memory, numbers below the normal
ones, and kernels against the limits of the machine. Seconds per model follow from the budget;
torch.compile, which takes half a minute a model, takes part where there is time for it. What the
budget leaves out is said at the end. Records are kept in bench/results.jsonl, and the pages written
from it.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import tensorkiln as tk
from bench import __main__ as latency
from bench import denormals, results, roofline, units
from bench.contenders import OURS, Contender
from bench.models import MODELS, QUANTISED
from bench.peers import PEERS
from bench.store import ROOT, add
from tensorkiln.target.host import cache_bytes

THREADS = (1, 2)
PRECISIONS = ("float32", "bfloat16", "int8")
LEAST, MOST = 1.0, 5.0  # seconds of one measurement
# Seconds that were seen: to prepare a model, with torch.compile, and for each other step.
PREPARE, PREPARE_SLOW, UNITS, DECODING, DENORMALS, ROOFLINE = 4.0, 25.0, 40.0, 12.0, 90.0, 20.0
CACHE_LEVELS = (1, 2, 3)
Peers = Sequence[str]


@dataclass(frozen=True, slots=True)
class Step:
    """What is measured: `run` takes the seconds of each of `count` measurements, and the peers.
    `fixed` are the seconds that it takes besides; `slow` those that slow peers add."""

    name: str
    run: Callable[[float, Peers], object]
    fixed: float
    count: int = 1
    slow: float = 0.0


def within(
    steps: Sequence[Step],
    seconds: float,
    peers: tuple[Peers, Peers],
    clock: Callable[[], float] = time.monotonic,
) -> list[str]:
    """Run the steps that `seconds` allow, in order; `peers` are the quick ones and all. The result
    says what was left out, and what failed."""
    end, notes = clock() + seconds, []
    for i, step in enumerate(steps):
        later = steps[i:]
        remaining = end - clock()
        if remaining < step.fixed + LEAST * step.count:
            notes.append(f"{step.name}: left out, {max(0.0, remaining):.0f} s were left")
            continue
        spare = remaining - sum(s.fixed + s.count * LEAST for s in later)
        has_slow = step.slow > 0 and spare >= sum(s.slow for s in later)
        spare -= sum(s.slow for s in later) if has_slow else 0.0
        share = spare / sum(s.count for s in later)
        if step.slow and not has_slow:
            notes.append(f"{step.name}: without {', '.join(sorted({*peers[1]} - {*peers[0]}))}")
        try:
            step.run(min(MOST, max(LEAST, LEAST + share)), peers[has_slow])
        except Exception as error:
            notes.append(f"{step.name}: failed: {error}")
    return notes


def processor() -> None:
    """Keep the processor's name as LLVM has it, features and caches."""
    target = tk.Target("native")
    caches = {str(level): cache_bytes(level) for level in CACHE_LEVELS}
    data = {"cpu": target.mcpu, "features": target["mattr"], "caches": caches}
    add("processor", "", 1, data)


def steps_for(
    models: Sequence[str], precisions: Sequence[str], counts: Sequence[int]
) -> list[Step]:
    """Everything that is measured, what tells most first."""
    steps = [Step("units", lambda seconds, peers: units.main(["--record"]), UNITS)]
    for precision in precisions:
        some = [m for m in models if m in QUANTISED] if precision == "int8" else models
        steps += [_latencies(model, precision, counts) for model in some]
    steps += [_decoding(n) for n in counts]
    steps.append(Step("denormals", lambda seconds, peers: denormals.main([]), DENORMALS))
    for model in models:

        def kernels(seconds: float, peers: Peers, model: str = model) -> None:
            roofline.main([model, "--record", "--seconds", f"{seconds:.1f}", "--top", "5"])

        steps.append(Step(f"roofline of {model}", kernels, ROOFLINE))
    return steps


def _latencies(model: str, precision: str, counts: Sequence[int]) -> Step:
    def run(seconds: float, peers: Peers) -> None:
        latency.main(
            [
                *("--models", model, "--precision", precision, "--peers", ",".join(peers)),
                *("--threads", ",".join(map(str, counts)), "--seconds", f"{seconds:.1f}"),
            ]
        )

    takes_slow = any(p.slow and not p.missing(precision) for p in _peers())
    slow = PREPARE_SLOW * len(counts) if takes_slow else 0.0
    return Step(f"{precision} {model}", run, PREPARE * len(counts), len(counts), slow)


def _decoding(threads: int) -> Step:
    """In a process of its own: it pins itself to so many CPUs."""

    def run(seconds: float, peers: Peers) -> None:
        options = ["--record", "--threads", str(threads), "--seconds", f"{2 * seconds:.1f}"]
        subprocess.run([sys.executable, "-m", "bench.decoding", *options], cwd=ROOT, check=True)

    return Step(f"decoding, {threads} threads", run, DECODING, 2)


def _peers() -> list[Contender]:
    """The engines that are measured: those that are installed, but compilers of minutes."""
    return [p for p in PEERS.values() if p.name in ("ort", "openvino", "torch") and not p.missing()]


def main(arguments: list[str] | None = None) -> None:
    """Measure what the budget allows, say what it left out, write the pages."""
    parser = argparse.ArgumentParser(prog="python -m bench.here", description=__doc__)
    parser.add_argument("--minutes", type=float, default=25.0, help="the budget (25)")
    parser.add_argument("--models", default=",".join(MODELS), help="comma-separated; all measured")
    parser.add_argument("--precisions", default=",".join(PRECISIONS), help="comma-separated; all")
    parser.add_argument("--no-pages", action="store_true", help="write records only")
    options = parser.parse_args(arguments)
    chosen = {}
    for name, choices in (("models", MODELS), ("precisions", PRECISIONS)):
        chosen[name] = [word for word in getattr(options, name).split(",") if word]
        wrong = [word for word in chosen[name] if word not in choices]
        if wrong:
            parser.error(f"unknown {name[:-1]} {wrong[0]!r}; known: {', '.join(choices)}")
    quick = [p.name for p in _peers() if not p.slow]
    everyone = [p.name for p in _peers()]
    counts = [n for n in THREADS if n <= len(os.sched_getaffinity(0))]
    processor()
    notes = within(
        steps_for(chosen["models"], chosen["precisions"], counts),
        options.minutes * 60,
        (quick or ["none"], everyone or ["none"]),
    )
    if not options.no_pages:
        results.main()
    peer_labels = ", ".join(PEERS[n].label for n in everyone) or "nobody"
    print(f"\n{OURS.label} beside {peer_labels}.")
    print("\n".join(["Left out, or failed:", *notes] if notes else ["Nothing was left out."]))


if __name__ == "__main__":
    main()
