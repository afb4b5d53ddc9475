"""A table of models by contenders: each checked, then all in turn on the same inputs. The first is
ours; ratios are of its time by that of the best of the others.

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
from bench.store import ROOT, Record, add

Contenders = Sequence[Contender]
BESIDE_ORT = (OURS, PEERS["ort"])
BESIDE_BOTH = (OURS, PEERS["openvino"], PEERS["ort"])
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
    contenders: Contenders = BESIDE_ORT,
) -> None:
    """The command line of `python -m MODULE`; `models` gives those whose names contain a text."""
    command(module, lambda options: _measured(models(options.only), contenders, options))


def command(module: str, measured: Callable[[Options], int]) -> None:
    """The command line of `python -m MODULE`, which runs `measured` in a process for each number of
    threads, `child` of its options; it returns what the process does, 0 if nothing failed."""
    parser = argparse.ArgumentParser(prog=f"python -m {module}")
    parser.add_argument("--threads", default="1,2", help="comma-separated thread counts (1,2)")
    parser.add_argument("--only", default="", help="part of a group's or model's name")
    parser.add_argument("--reps", type=int, default=7, help="least number of turns each")
    parser.add_argument("--seconds", type=float, default=0.4, help="least time per model")
    parser.add_argument("--lock", default="", help="file to lock while timing")
    parser.add_argument("--record", action="store_true", help="keep them for bench/RESULTS.md")
    parser.add_argument("--child", type=int, default=0, help=argparse.SUPPRESS)
    options = parser.parse_args()
    options.table = module.removeprefix("bench.")
    if options.child:
        sys.exit(measured(options))
    status, available = 0, sorted(os.sched_getaffinity(0))
    for threads in map(int, options.threads.split(",")):
        if not 1 <= threads <= len(available):
            parser.error(f"--threads {threads}: this process may use {len(available)} CPUs")
        arguments = [sys.executable, "-m", module, *sys.argv[1:], "--child", str(threads)]
        cpus = set(available[-threads:])
        process = subprocess.run(
            arguments,
            cwd=ROOT,
            env={**os.environ, **dict.fromkeys(VARIABLES, str(threads))},
            preexec_fn=lambda c=cpus: os.sched_setaffinity(0, c),
            check=False,
        )
        status = status or process.returncode
    sys.exit(status)


def _measured(models: Iterable[Model], contenders: Contenders, options: Options) -> int:
    """Print a line per model, and geometric means; return 1 if a model failed."""
    threads, ratios, failed = options.child, {}, 0
    first, *optional, last = contenders
    present = [first, *(c for c in optional if not c.missing()), last]
    labels = ", ".join(f"{c.label} {c.missing() or c.version()}" for c in contenders)
    print(f"\n{threads} thread(s), {labels}", flush=True)
    print("ms, min and median; ratio to the best of the others, of medians and of mins", flush=True)
    for model in models:
        with tempfile.TemporaryDirectory(prefix="kiln-bench-") as folder:
            path = Path(folder) / "model.onnx"
            path.write_bytes(model.data)
            case = Case(model.name, path, model.inputs, Path(folder))
            prepared = {} if model.broken else prepare(present, case, threads)
            wrong = model.broken or checked(prepared, model.differ)
            if not wrong:
                with alone(options.lock):
                    interleave(prepared, options.reps, options.seconds)
            rows = [row for row, _ in prepared.values()]
        name = f"{model.group:18} {model.name:34}"
        if wrong:
            failed += 1
            print(f"{name} {wrong}", flush=True)
            continue
        our_row, *peer_rows = rows
        ratio = (
            our_row.median_ms / min(row.median_ms for row in peer_rows),
            our_row.min_ms / min(row.min_ms for row in peer_rows),
        )
        ratios.setdefault(model.group, []).append(ratio)
        record(options, model.name, rows)
        times_text = " ".join(times(row) for row in rows)
        print(f"{name} {times_text}   {ratio[0]:5.2f} {ratio[1]:5.2f}", flush=True)
    for group, times_text in {**ratios, "all": [r for v in ratios.values() for r in v]}.items():
        if times_text:
            means = np.exp(np.log(times_text).mean(axis=0))
            worst = max(times_text)[0]
            print(f"{group:18} geometric mean {means[0]:.2f} {means[1]:.2f}, worst {worst:.2f}")
    print(json.dumps({"threads": threads, "failed": failed}), flush=True)
    return 1 if failed else 0


def record(options: Options, name: str, rows: Sequence[Row]) -> None:
    """Keep the times of one row of a table, if that was asked for."""
    if options.record:
        row_records = [
            {k: getattr(row, k) for k in ("label", "min_ms", "median_ms")} for row in rows
        ]
        title = f"{options.table}: {name}"
        add(
            "beside",
            title,
            options.child,
            {"table": options.table, "row": name, "rows": row_records},
        )


def lines(records: Sequence[Record]) -> list[str]:
    """Markdown of kept rows of one table; in brackets the first contender's time by another's."""
    labels = list(dict.fromkeys(row["label"] for r in records for row in r["rows"]))
    table = [f"| network | threads | {' | '.join(labels)} |", "|---|--:|" + "--:|" * len(labels)]
    for r in records:
        our_row, *peer_rows = r["rows"]
        cells = {row["label"]: f"{row['min_ms']:.3f}" for row in r["rows"]}
        for row in peer_rows:
            cells[row["label"]] += f" ({our_row['min_ms'] / row['min_ms']:.2f})"
        cell_text = " | ".join(cells.get(label, "-") for label in labels)
        table.append(f"| {r['row']} | {r['threads']} | {cell_text} |")
    return [*table, ""]


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
    *own_outputs, reference = outputs
    for arrays in own_outputs:
        for a, b in zip(arrays, reference, strict=True):
            if (a.shape, a.dtype) != (b.shape, b.dtype):
                return f"wrong result: {a.dtype}{list(a.shape)}, expected {b.dtype}{list(b.shape)}"
        wrong = differ(arrays, reference)
        if wrong:
            return f"wrong result: {wrong}"
    return ""
