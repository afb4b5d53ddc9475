"""`python -m bench`: ours against other engines, interleaved.

Every (model, thread count) is measured in a fresh process that is pinned to as many CPUs as it may
use threads; inside it the contenders take turns on the same inputs. Times are of one inference
from Python, NumPy in and out. A peer that is missing, fails, ends the process or takes too long is
a row that says so, and stops nobody else. Results are kept in bench/results.jsonl, from which
`python -m bench.results` writes bench/RESULTS.md.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bench.contenders import OURS
from bench.measure import CLOCKS, Row
from bench.models import MODELS, QUANTISED
from bench.peers import PEERS
from bench.report import result_lines, summary_lines
from bench.store import ROOT, add, machine

EVERYONE = {OURS.name: OURS, **PEERS}
COMMAND = (sys.executable, "-m", "bench.measure")
THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "TVM_NUM_THREADS")


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """The command line; unknown models and peers are refused with the list of known ones."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--models", default="", help="comma-separated, of the zoo; all measured")
    parser.add_argument("--threads", default="1,2", help="comma-separated thread counts")
    parser.add_argument("--peers", default=",".join(PEERS), help=f"of {', '.join(PEERS)}, or none")
    parser.add_argument("--no-ours", action="store_true", help="measure the peers only")
    parser.add_argument("--reps", type=int, default=15, help="least number of turns each")
    parser.add_argument("--seconds", type=float, default=5.0, help="least time per model")
    parser.add_argument("--clock", choices=CLOCKS, default="wall", help="cpu: of one thread only")
    parser.add_argument(
        "--limit", type=float, default=180, help="seconds to compile, and for a first call (180)"
    )
    parser.add_argument(
        "--budget",
        type=float,
        default=0,
        help="minutes after which peers that compile for long are left out; 0: no end (0)",
    )
    parser.add_argument(
        "--precision",
        choices=("float32", "bfloat16", "float16", "int8"),
        default="float32",
        help="of all contenders that have it; a lower one is compared with float64; int8: a file "
        "that ONNX Runtime's tool has quantised (float32)",
    )
    parser.add_argument("--lock", default="", help="file to lock while timing")
    options = parser.parse_args(arguments)
    from tests.zoo.registry import EXPORTS

    measured = QUANTISED if options.precision == "int8" else MODELS
    model_names = options.models or ",".join(measured)
    options.models = _names(parser, "model", model_names, list(EXPORTS))
    options.peers = [] if options.peers == "none" else _names(parser, "peer", options.peers, PEERS)
    options.threads = [int(text) for text in options.threads.split(",")]
    available = len(os.sched_getaffinity(0))
    if max(options.threads) > available or min(options.threads) < 1:
        parser.error(f"--threads {options.threads}: this process may use {available} CPUs")
    if options.clock == "cpu" and options.threads != [1]:
        parser.error("--clock cpu adds up what all threads take: it needs --threads 1")
    return options


def float64_results(name: str, path: str) -> Path:
    """A file of what a model gives for the inputs that everyone gets, in float64; kept beside the
    model."""
    import numpy as np
    import onnx

    from tests.models.float64 import run_float64
    from tests.zoo.registry import EXPORTS, NETWORKS, inputs

    archive = Path(path).with_suffix(".float64.npz")
    if not archive.exists():
        arrays = run_float64(onnx.load(path), inputs(NETWORKS[EXPORTS[name].network], seed=0))
        partial = archive.with_suffix(f".{os.getpid()}.npz")
        np.savez(partial, *arrays)
        partial.replace(archive)
    return archive


def _names(parser: argparse.ArgumentParser, kind: str, text: str, choices: Any) -> list[str]:
    names = [name for name in text.split(",") if name]
    for name in names:
        if name not in choices:
            parser.error(f"unknown {kind} {name!r}; known: {', '.join(choices)}")
    return names


def measure(spec: dict[str, Any], limit: float, left_out: Mapping[str, str] = {}) -> dict[str, Any]:
    """Runs `bench.measure` in a fresh process on `threads` CPUs and returns its result.

    Whoever takes longer than `limit` seconds to compile or for its first call, or ends the process,
    is left out of another try, and gets a row that says so; as do those of `left_out`, with the
    reason.
    """
    reasons = dict(left_out)
    while True:
        names = [name for name in spec["contenders"] if name not in reasons]
        result, culprit, reason = attempt(COMMAND, {**spec, "contenders": names}, limit)
        if result is not None:
            break
        if culprit not in names:  # nobody knows who it was
            result = {"clock": spec["clock"], "rows": []}
            reasons |= dict.fromkeys(names, reason)
            break
        reasons[culprit] = reason
    rows = {row["name"]: row for row in result["rows"]}
    for name, reason in reasons.items():
        who = EVERYONE[name]
        rows[name] = asdict(Row(name, who.label, who.version(), reason))
    return {**result, "rows": [rows[name] for name in spec["contenders"]]}


def attempt(
    command: Sequence[str], spec: dict[str, Any], limit: float
) -> tuple[dict[str, Any] | None, str, str]:
    """The result of one process, or None, who is to blame, and the reason for its row."""
    threads = spec["threads"]
    cpus = sorted(os.sched_getaffinity(0))[-threads:]
    environment = {**os.environ, **dict.fromkeys(THREAD_VARIABLES, str(threads))}
    environment["KILN_NUM_THREADS"] = str(threads)
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(folder) / f"{name}.json" for name in ("spec", "result", "progress")]
        paths[0].write_text(json.dumps(spec), encoding="utf-8")
        process = subprocess.Popen(
            [*command, *map(str, paths)],
            stdout=sys.stderr,  # peers print a lot
            cwd=ROOT,
            env=environment,
            preexec_fn=lambda: os.sched_setaffinity(0, cpus),
            start_new_session=True,  # compilers that a peer started end with it
        )
        try:
            late = _watch(process, paths[2], limit)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        name, work = _progress(paths[2])
        if late:
            return None, name, f"not measured: took longer than {limit:.0f} s to {work}"
        if process.returncode != 0:
            ended = f"ended the process ({process.returncode}) at: {work or 'start'}"
            return None, name, f"failed: {ended}"
        return json.loads(paths[1].read_text(encoding="utf-8")), "", ""


def _watch(process: subprocess.Popen[bytes], path: Path, limit: float) -> bool:
    """Waits for the end, or until one contender's work took longer than `limit`: True."""
    former, since = ("", ""), time.monotonic()
    while True:
        try:
            process.wait(timeout=min(1.0, limit / 4))
            return False
        except subprocess.TimeoutExpired:
            now = _progress(path)
            if now != former:
                former, since = now, time.monotonic()
            if former[0] and time.monotonic() - since > limit:
                return True


def _progress(path: Path) -> tuple[str, str]:
    """Whose turn it is, at what; empty before the first one's."""
    if not path.exists():
        return "", ""
    turn = json.loads(path.read_text(encoding="utf-8"))
    return turn["name"], turn["work"]


def _within(
    options: argparse.Namespace, contenders: list[str], start: float
) -> tuple[dict[str, str], float]:
    """Who is left out since the budget is used up, and the seconds that each may take."""
    if not options.budget:
        return {}, options.limit
    remaining = options.budget * 60 - (time.monotonic() - start)
    reason = f"not measured: the budget of {options.budget:g} min was used up"
    slow = [name for name in contenders if EVERYONE[name].slow] if remaining <= 0 else []
    return dict.fromkeys(slow, reason), options.limit if remaining <= 0 else min(
        options.limit, remaining
    )


def main(arguments: list[str] | None = None) -> None:
    """Measures everything asked for, keeps it, prints blocks and a summary."""
    from tests.zoo.export import model_path
    from tests.zoo.quantise import compared_path
    from tests.zoo.registry import EXPORTS

    options = parse(arguments)
    contenders = ([] if options.no_ours else [OURS.name]) + options.peers
    results, start = [], time.monotonic()
    for name in options.models:
        path = str(model_path(name))
        lower = options.precision != "float32"
        exact = str(float64_results(name, path)) if lower else ""
        model_file = str(compared_path(name)) if options.precision == "int8" else path
        for threads in options.threads:
            spec = {
                "network": EXPORTS[name].network,
                "path": model_file,
                "threads": threads,
                "contenders": contenders,
                "reps": options.reps,
                "seconds": options.seconds,
                "clock": options.clock,
                "lock": options.lock,
                "precision": options.precision,
                "exact": exact,
            }
            left_out, limit = _within(options, contenders, start)
            rows = measure(spec, limit, left_out)
            results.append(add("latency", name, threads, rows, precision=options.precision))
            print("\n".join(result_lines(results[-1])), flush=True)
    print(f"\n{machine()}\n")
    print("\n".join(summary_lines(results)))


if __name__ == "__main__":
    main()
