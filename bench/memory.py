"""`python -m bench.memory`: what each engine takes to run a model, besides its weights.

Each engine runs in a process of its own. After everything is compiled and loaded, free memory goes
back to the system, and the anonymous memory of the process is read from /proc; then its most while
inferences run. ONNX Runtime is run without its arena, which would have memory left from packing
weights. For Tensorkiln the plan's figure and the executor's own are shown as well.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from bench.contenders import OURS, Case
from bench.peers import PEERS
from bench.store import ROOT, add

MODELS = ("resnet50", "mobilenetv2", "bert")
ENGINES = ("ours", "ort", "openvino", "torch")
RUNS = 3


def anonymous_bytes() -> int:
    """Memory of this process that no file backs."""
    for line in Path("/proc/self/status").read_text(encoding="utf-8").splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    raise OSError("/proc/self/status has no RssAnon")


def growth(run: Callable[[], object]) -> int:
    """The most anonymous memory while `run` is called, above what there is now."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    before = peak = anonymous_bytes()
    ended = threading.Event()

    def watch() -> None:
        nonlocal peak
        while not ended.is_set():
            peak = max(peak, anonymous_bytes())
            time.sleep(0.0005)

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        for _ in range(RUNS):
            run()
    finally:
        ended.set()
        watcher.join()
    return max(peak, anonymous_bytes()) - before


def measure_here(engine: str, model: str) -> dict[str, Any]:
    """One engine in this process."""
    from tests.zoo.export import model_path
    from tests.zoo.registry import EXPORTS, NETWORKS, inputs

    network = NETWORKS[EXPORTS[model].network]
    contender = {OURS.name: OURS, **PEERS}[engine]
    row: dict[str, Any] = {"name": engine, "label": contender.label, "version": contender.version()}
    if contender.missing():
        return {**row, "status": contender.missing()}
    with tempfile.TemporaryDirectory(prefix="kiln-memory-") as folder:
        case = Case(network.name, model_path(model), inputs(network, seed=0), Path(folder))
        if engine == OURS.name:
            row |= _planned(case)
        options = {"arena": False} if engine == "ort" else {}
        run = partial(contender.prepare, **options)(case, 1)
        return {**row, "status": "ok", "run_bytes": growth(run)}


def _planned(case: Case) -> dict[str, int]:
    """The workspace by plan and by the executor after a run."""
    import tensorkiln as tk

    exe = tk.compile(tk.frontend.from_onnx(case.path))
    executor = tk.runtime.Executor(exe, tk.cpu())
    executor["main"](*case.inputs.values())
    (plan,) = [f.workspace_bytes for f in exe.functions if f.info.name == "main"]
    return {"planned_bytes": int(plan), "workspace_bytes": executor.workspace_bytes}


def main(arguments: list[str] | None = None) -> None:
    """Measures each engine in a fresh process, keeps and prints the figures."""
    parser = argparse.ArgumentParser(prog="python -m bench.memory", description=__doc__)
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--here", default="", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.here:
        print(json.dumps(measure_here(options.here, options.models)))
        return
    for model in options.models.split(","):
        rows = []
        for engine in ENGINES:
            command = [sys.executable, "-m", "bench.memory", "--models", model, "--here", engine]
            environment = {**os.environ, "OMP_NUM_THREADS": "1", "KILN_NUM_THREADS": "1"}
            process = subprocess.run(
                command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True, check=False
            )
            if process.returncode == 0:
                rows.append(json.loads(process.stdout.splitlines()[-1]))
            else:
                label = {OURS.name: OURS, **PEERS}[engine].label
                status = f"failed: the process ended {process.returncode}"
                rows.append({"name": engine, "label": label, "status": status})
            print("\n".join(lines(model, rows[-1:])), flush=True)
        add("memory", model, 1, {"rows": rows})


def lines(model: str, rows: list[dict[str, Any]]) -> list[str]:
    """Rows of a Markdown table: model, engine, MiB, remark."""
    table = []
    for row in rows:
        if row["status"] != "ok":
            table.append(f"| {model} | {row['label']} | {row['status']} | |")
            continue
        remark = ""
        if "planned_bytes" in row:
            planned, workspace = row["planned_bytes"], row["workspace_bytes"]
            remark = f"planned {planned:,} B, in the executor {workspace:,} B"
        table.append(f"| {model} | {row['label']} | {row['run_bytes'] / 2**20:.1f} | {remark} |")
    return table


if __name__ == "__main__":
    main()
