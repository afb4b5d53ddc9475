"""A table of models by two contenders: each checked, then both in turn on the same inputs.

Every thread count is a fresh process on as many CPUs. A case that fails, or is wrong, is a row that
says so, and makes the command fail.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bench.contenders import OURS, Array, Case, Contender
from bench.measure import Prepared, Row, alone, interleave, prepare
from bench.peers import PEERS
from bench.store import ROOT

BESIDE_ORT = (OURS, PEERS["ort"])
VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "KILN_NUM_THREADS")


@dataclass(frozen=True, slots=True)
class Model:
    """One row: its group, its name, the bytes of an ONNX file if it is one, inputs; and what says
    in a sentence how results of both differ, empty if they do not."""

    group: str
    name: str
    data: bytes
    inputs: Mapping[str, Array]
    differ: Callable[[Sequence[Array], Sequence[Array]], str]
    broken: str = ""  # why there is no such file


Options = argparse.Namespace


def main(
    module: str,
    models: Callable[[str], Iterable[Model]],
    pair: tuple[Contender, Contender] = BESIDE_ORT,
) -> None:
    """The command line of `python -m MODULE`; `models` gives those whose names contain a text."""
    command(module, lambda options: _measured(models(options.only), pair, options))


def command(module: str, measured: Callable[[Options], int]) -> None:
    """The command line of `python -m MODULE`, which runs `measured` in a process for each number of
    threads, `child` of its options; it returns what the process does, 0 if nothing failed."""
    parser = argparse.ArgumentParser(prog=f"python -m {module}")
    parser.add_argument("--threads", default="1,2", help="comma-separated thread counts (1,2)")
    parser.add_argument("--only", default="", help="part of a group's or model's name")
    parser.add_argument("--reps", type=int, default=7, help="least number of turns each")
    parser.add_argument("--seconds", type=float, default=0.4, help="least time per model")
    parser.add_argument("--lock", default="", help="file to lock while timing")
    parser.add_argument("--child", type=int, default=0, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        sys.exit(measured(options))
    status, available = 0, sorted(os.sched_getaffinity(0))
    for threads in map(int, options.threads.split(",")):
        if not 1 <= threads <= len(available):
            parser.error(f"--threads {threads}: this process may use {len(available)} CPUs")
        arguments = [sys.executable, "-m", module, *sys.argv[1:], "--child", str(threads)]
        cpus = set(available[-threads:])
        done = subprocess.run(
            arguments,
            cwd=ROOT,
            env={**os.environ, **dict.fromkeys(VARIABLES, str(threads))},
            preexec_fn=lambda c=cpus: os.sched_setaffinity(0, c),
            check=False,
        )
        status = status or done.returncode
    sys.exit(status)


def _measured(models: Iterable[Model], pair: tuple[Contender, Contender], options: Options) -> int:
    """Print a line per model, and geometric means; return 1 if a model failed."""
    threads, ratios, failed = options.child, {}, 0
    labels = " and ".join(f"{c.label} {c.version()}" for c in pair)
    print(f"\n{threads} thread(s), {labels}", flush=True)
    print("ms, min and median; ratio of medians, and of mins", flush=True)
    for model in models:
        with tempfile.TemporaryDirectory(prefix="kiln-bench-") as folder:
            path = Path(folder) / "model.onnx"
            path.write_bytes(model.data)
            case = Case(model.name, path, model.inputs, Path(folder))
            both = {} if model.broken else prepare(list(pair), case, threads)
            wrong = model.broken or checked(both, model.differ)
            if not wrong:
                with alone(options.lock):
                    interleave(both, options.reps, options.seconds)
            rows = [row for row, _ in both.values()]
        name = f"{model.group:18} {model.name:34}"
        if wrong:
            failed += 1
            print(f"{name} {wrong}", flush=True)
            continue
        ours, theirs = rows
        ratio = ours.median_ms / theirs.median_ms, ours.min_ms / theirs.min_ms
        ratios.setdefault(model.group, []).append(ratio)
        print(f"{name} {times(ours)} {times(theirs)}   {ratio[0]:5.2f} {ratio[1]:5.2f}", flush=True)
    for group, found in {**ratios, "all": [r for v in ratios.values() for r in v]}.items():
        if found:
            means = np.exp(np.log(found).mean(axis=0))
            worst = max(found)[0]
            print(f"{group:18} geometric mean {means[0]:.2f} {means[1]:.2f}, worst {worst:.2f}")
    print(json.dumps({"threads": threads, "failed": failed}), flush=True)
    return 1 if failed else 0


def times(row: Row) -> str:
    """The least and the median time."""
    return f"{row.min_ms:9.4f} {row.median_ms:9.4f}"


def checked(prepared: Prepared, differ: Callable[[Sequence[Array], Sequence[Array]], str]) -> str:
    """Empty if all run and agree with the last."""
    outputs = []
    for row, run in prepared.values():
        if row.status != "ok":
            return f"{row.label}: {row.status}"
        start = time.perf_counter()
        outputs.append([np.array(a) for a in run()])
        row.first_ms = (time.perf_counter() - start) * 1e3
    *ours, theirs = outputs
    for found in ours:
        for a, b in zip(found, theirs, strict=True):
            if (a.shape, a.dtype) != (b.shape, b.dtype):
                return f"wrong result: {a.dtype}{list(a.shape)}, expected {b.dtype}{list(b.shape)}"
        wrong = differ(found, theirs)
        if wrong:
            return f"wrong result: {wrong}"
    return ""
