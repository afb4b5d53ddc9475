"""`python -m bench`: ours against other engines, interleaved.

Every (model, thread count) is measured in a fresh process that is pinned to as many CPUs as it may
use threads; inside it the contenders take turns on the same inputs. Times are of one inference
from Python, NumPy in and out. Results are kept in bench/results.jsonl, from which
`python -m bench.results` writes bench/RESULTS.md.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from bench.contenders import OURS
from bench.measure import CLOCKS
from bench.models import MODELS
from bench.peers import PEERS
from bench.report import result_lines, summary_lines
from bench.store import ROOT, add, machine

THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "TVM_NUM_THREADS")


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """The command line; unknown models and peers are refused with the list of known ones."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--models", default=",".join(MODELS), help="comma-separated, of the zoo")
    parser.add_argument("--threads", default="1,2", help="comma-separated thread counts")
    parser.add_argument("--peers", default=",".join(PEERS), help=f"of {', '.join(PEERS)}, or none")
    parser.add_argument("--no-ours", action="store_true", help="measure the peers only")
    parser.add_argument("--reps", type=int, default=15, help="least number of turns each")
    parser.add_argument("--seconds", type=float, default=5.0, help="least time per model")
    parser.add_argument("--clock", choices=CLOCKS, default="wall", help="cpu: of one thread only")
    parser.add_argument("--lock", default="", help="file to lock while timing")
    options = parser.parse_args(arguments)
    from tests.zoo.registry import EXPORTS

    options.models = _names(parser, "model", options.models, list(EXPORTS))
    options.peers = [] if options.peers == "none" else _names(parser, "peer", options.peers, PEERS)
    options.threads = [int(text) for text in options.threads.split(",")]
    available = len(os.sched_getaffinity(0))
    if max(options.threads) > available or min(options.threads) < 1:
        parser.error(f"--threads {options.threads}: this process may use {available} CPUs")
    if options.clock == "cpu" and options.threads != [1]:
        parser.error("--clock cpu adds up what all threads take: it needs --threads 1")
    return options


def _names(parser: argparse.ArgumentParser, kind: str, text: str, known: Any) -> list[str]:
    names = [name for name in text.split(",") if name]
    for name in names:
        if name not in known:
            parser.error(f"unknown {kind} {name!r}; known: {', '.join(known)}")
    return names


def measure(spec: dict[str, Any]) -> dict[str, Any]:
    """Runs `bench.measure` in a fresh process on `threads` CPUs and returns its result."""
    threads = spec["threads"]
    cpus = sorted(os.sched_getaffinity(0))[-threads:]
    environment = {**os.environ, **dict.fromkeys(THREAD_VARIABLES, str(threads))}
    environment["KILN_NUM_THREADS"] = str(threads)
    with tempfile.TemporaryDirectory() as folder:
        spec_path, result_path = Path(folder) / "spec.json", Path(folder) / "result.json"
        spec_path.write_text(json.dumps(spec), encoding="utf-8")
        command = [sys.executable, "-m", "bench.measure", str(spec_path), str(result_path)]
        done = subprocess.run(
            command,
            stdout=sys.stderr,  # peers print a lot
            cwd=ROOT,
            env=environment,
            preexec_fn=lambda: os.sched_setaffinity(0, cpus),
            check=False,
        )
        if done.returncode != 0:
            raise SystemExit(f"{spec['network']}: the measuring process ended {done.returncode}")
        return json.loads(result_path.read_text(encoding="utf-8"))


def main(arguments: list[str] | None = None) -> None:
    """Measures everything asked for, keeps it, prints blocks and a summary."""
    from tests.zoo.export import model_path
    from tests.zoo.registry import EXPORTS

    options = parse(arguments)
    contenders = ([] if options.no_ours else [OURS.name]) + options.peers
    results = []
    for name in options.models:
        path = str(model_path(name))
        for threads in options.threads:
            spec = {
                "network": EXPORTS[name].network,
                "path": path,
                "threads": threads,
                "contenders": contenders,
                "reps": options.reps,
                "seconds": options.seconds,
                "clock": options.clock,
                "lock": options.lock,
            }
            results.append(add("latency", name, threads, measure(spec)))
            print("\n".join(result_lines(results[-1])), flush=True)
    print(f"\n{machine()}\n")
    print("\n".join(summary_lines(results)))


if __name__ == "__main__":
    main()
