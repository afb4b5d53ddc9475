"""`python -m bench.loading`: how long an exported library takes to load, and what becomes resident.

A library is compiled once; then fresh processes load it. "cold" is the first load of a process
(after importing Tensorkiln), with the file in the system's cache; "warm" the median of loads after
that, each closed again. "export" is the time of `export_library` alone, with all kernels compiled.
Resident memory is that of the process when the library is loaded, and after the first run, above
what it was before loading; "weights" are those in the file.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from bench.store import ROOT, add

MODELS = ("resnet50", "bert")
HEAD = (
    "| model | weights MiB | export s | cold ms | warm ms | loaded +MiB | after a run +MiB |",
    "|---" * 7 + "|",
)
LOAD = """
import json, statistics, sys, time
import numpy as np
import tensorkiln as tk
from pathlib import Path

def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

tk.runtime.load_module, tk.cpu()  # imports
before, start = resident(), time.perf_counter()
lib = tk.runtime.load_module(sys.argv[1])
cold, loaded = time.perf_counter() - start, resident()
inputs = dict(np.load(sys.argv[2]))
before_run = resident()
tk.runtime.Executor(lib, tk.cpu())["main"](*inputs.values())
ran = resident()
lib.close()
warm = []
for _ in range(30):
    start = time.perf_counter()
    lib = tk.runtime.load_module(sys.argv[1])
    warm.append(time.perf_counter() - start)
    lib.close()
print(json.dumps({
    "cold_s": cold, "warm_s": statistics.median(warm),
    "loaded_bytes": loaded - before, "run_bytes": loaded - before + ran - before_run,
}))
"""


def measure(model: str, folder: Path) -> dict[str, Any]:
    """Export here, load in a fresh process."""
    import numpy as np

    import tensorkiln as tk
    from tests.zoo.export import model_path
    from tests.zoo.registry import EXPORTS, NETWORKS, inputs

    exe = tk.compile(tk.frontend.from_onnx(model_path(model)))
    library = folder / f"{model}.so"
    start = time.perf_counter()
    exe.export_library(library)
    exported = time.perf_counter() - start
    np.savez(folder / "inputs.npz", **inputs(NETWORKS[EXPORTS[model].network], seed=0))
    command = [sys.executable, "-c", LOAD, str(library), str(folder / "inputs.npz")]
    environment = {**os.environ, "KILN_PROGRESS": "off"}
    process = subprocess.run(
        command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True, check=True
    )
    weights = tk.runtime.read_metadata(library)["weights_bytes"]
    figures = json.loads(process.stdout.splitlines()[-1])
    return {"model": model, "export_s": exported, "weights_bytes": weights, **figures}


def row_text(row: dict[str, Any]) -> str:
    """One line of the table."""
    return (
        f"| {row['model']} | {row['weights_bytes'] / 2**20:.0f} | {row['export_s']:.2f} | "
        f"{row['cold_s'] * 1e3:.2f} | {row['warm_s'] * 1e3:.2f} | "
        f"{row['loaded_bytes'] / 2**20:.1f} | {row['run_bytes'] / 2**20:.1f} |"
    )


def main(arguments: list[str] | None = None) -> None:
    """Measures each model; prints a Markdown table, keeps the rows."""
    parser = argparse.ArgumentParser(prog="python -m bench.loading", description=__doc__)
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--dry", action="store_true", help="do not keep the figures")
    options = parser.parse_args(arguments)
    print("\n".join(HEAD))
    for model in options.models.split(","):
        with tempfile.TemporaryDirectory(prefix="kiln-loading-") as folder:
            row = measure(model, Path(folder))
        print(row_text(row), flush=True)
        if not options.dry:
            add("loading", model, len(os.sched_getaffinity(0)), {"rows": [row]})


if __name__ == "__main__":
    main()
